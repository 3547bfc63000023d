"""`dataclass` for this package: the standard one, made in a quarter of the time.

Before Python 3.13 the standard decorator compiles up to six functions for each class, 0.6 ms of them,
and some seventy classes are a seventh of what a reset costs before its first packet. Here only
`__init__` is compiled; comparing, hashing and printing are the same few functions for all classes.
`dataclasses.fields`, `replace` and `asdict` work as ever. Not for `slots`, `order` or `InitVar`.
A subclass is made by this one as well: the standard one takes a frozen one's base for unfrozen.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  # handed on
else:

    def dataclass(cls: Any = None, /, *, frozen: bool = False, eq: bool = True) -> Any:  # noqa: ANN401
        """As `dataclasses.dataclass`."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, eq=eq)
        if sys.version_info >= (3, 13):
            return dataclasses.dataclass(frozen=frozen, eq=eq)(cls)
        return _made(cls, frozen=frozen, eq=eq)


def _made(cls: type[Any], *, frozen: bool, eq: bool) -> type[Any]:
    cls.__doc__ = cls.__doc__ or f"{cls.__name__}"  # else its signature is worked out for one
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    fields = dataclasses.fields(cls)
    own = {
        "__init__": _init(cls, fields, frozen),
        "__repr__": _repr,
        "_shown": tuple(field.name for field in fields if field.repr),
    }
    if eq:
        compared = [field.name for field in fields if field.compare]
        own["_compared"] = staticmethod(attrgetter(*compared) if compared else _nothing)
        own["__eq__"] = _eq
        own["__hash__"] = _hash if frozen else None
    if frozen:
        own["__setattr__"] = own["__delattr__"] = _refuse
    for name, value in own.items():
        if name not in cls.__dict__ or (name == "__hash__" and value is None):
            setattr(cls, name, value)
    return cls


def _init(
    cls: type[Any], fields: tuple[dataclasses.Field[Any], ...], frozen: bool
) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    parameters, body = ["self"], []
    for field in fields:
        name = value = field.name
        parameter = name
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_missing"
            value = f"_make_{name}() if {name} is _missing else {name}"
        parameters.append(parameter)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    text = f"def __init__({', '.join(parameters)}):\n  " + "\n  ".join(body or ["pass"])
    exec(text, known)  # noqa: S102  # names of our own fields, as the standard library does it
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _nothing(_record: object) -> tuple[()]:
    return ()


def _eq(self: Any, other: Any) -> Any:  # noqa: ANN401  # any of our classes
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:  # noqa: ANN401  # as above
    return hash(self._compared(self))


def _repr(self: Any) -> str:  # noqa: ANN401  # as above
    told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)
    return f"{self.__class__.__qualname__}({told})"


def _refuse(self: object, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change {name} of {type(self).__name__}")
