"""The keys of fleet.yaml and what each takes. Shape and types only: no names are looked up here."""

from __future__ import annotations

import functools
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo

from gpufleet.inventory import values
from gpufleet.inventory.names import check_address, check_user
from gpufleet.inventory.nodes import Node, line_of, plain
from gpufleet.inventory.problems import Problems, show, suggest

Settings = dict[str, object]
"""Key of the file → typed value; only the keys that were given."""


def _path(value: object, info: ValidationInfo) -> str:
    return values.path(value, (info.context or {}).get("folder", ""))


def _config_files(value: object, info: ValidationInfo) -> Literal[False] | tuple[str, ...]:
    if isinstance(value, str) and value.lower() in values.FALSE:
        return False
    return tuple(_path(item, info) for item in values.listed(value))


def _members(value: object) -> tuple[object, ...]:
    """A group's hosts; an empty group is allowed until somebody selects it."""
    return () if value is None else values.listed(value)


def _jumps(value: object) -> tuple[object, ...]:
    """`none` as in OpenSSH's ProxyJump: no jump, whatever defaults or an ssh_config say."""
    return () if value == "none" else values.listed(value)


_Many = BeforeValidator(values.listed)
_Duration = Annotated[float | None, BeforeValidator(values.duration)]
_Limit = Annotated[float | None, BeforeValidator(values.limit)]
_Name = Annotated[str, BeforeValidator(values.text)]
_PathText = Annotated[str, BeforeValidator(_path)]
_Paths = Annotated[tuple[_PathText, ...] | None, _Many]
_Patterns = Annotated[
    tuple[Annotated[str, BeforeValidator(values.pattern)], ...] | None,
    _Many,
]
_Command = Annotated[str | None, BeforeValidator(values.command)]


def _word(words: tuple[str, ...]) -> BeforeValidator:
    return BeforeValidator(functools.partial(_one_of, words))


def _one_of(words: tuple[str, ...], value: object) -> str:
    return values.one_of(value, words)


class Schema(BaseModel):
    """Every default is None, which means "not given here": what then holds says `policy.py`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class Route(Schema):
    """How a machine is reached: what nodes and jump hosts have in common."""

    user: Annotated[str | None, BeforeValidator(check_user)] = None
    port: Annotated[int | None, BeforeValidator(values.port)] = None
    identity_file: _Paths = None
    known_hosts: _Paths = None
    host_keys: Annotated[str | None, _word(values.HOST_KEYS)] = None
    jump: Annotated[tuple[_Name, ...] | None, BeforeValidator(_jumps)] = None
    connect_timeout: _Limit = None


class NodeSchema(Route):
    """What `defaults`, groups and hosts can say."""

    ssh_config: Annotated[Any, BeforeValidator(_config_files)] = None
    sudo: Annotated[bool | None, BeforeValidator(values.yes)] = None
    timeout: _Limit = None
    gpus: Annotated[int | None, BeforeValidator(values.gpus)] = None
    workload: _Patterns = None
    interpreters: _Patterns = None
    protect: Annotated[
        tuple[Annotated[str, BeforeValidator(values.protected)], ...] | None, _Many
    ] = None
    jobs: Annotated[str | None, _word(values.JOBS)] = None
    stop: Annotated[str | None, _word(values.STOPS)] = None
    restart: Annotated[bool | None, BeforeValidator(values.yes)] = None
    kubernetes: Annotated[str | None, _word(values.KUBERNETES)] = None
    escalate: Annotated[str | None, _word(values.ESCALATE)] = None
    reboot_timeout: _Limit = None
    clean_shm: Annotated[bool | None, BeforeValidator(values.yes)] = None
    grace: _Duration = None
    settle: _Duration = None
    attempts: Annotated[int | None, BeforeValidator(values.attempts)] = None
    tolerance: Annotated[int | None, BeforeValidator(values.tolerance)] = None
    guard: Annotated[str | None, BeforeValidator(values.guard)] = None
    guard_timeout: _Limit = None
    before: _Command = None
    before_timeout: _Limit = None
    after: _Command = None
    after_timeout: _Limit = None


class HostSchema(NodeSchema):
    address: Annotated[str | None, BeforeValidator(values.text)] = None
    """May hold ranges, so what it expands to is checked later."""


class GroupSchema(NodeSchema):
    hosts: Annotated[tuple[_Name, ...] | None, BeforeValidator(_members)] = None


class JumpHostSchema(Route):
    address: Annotated[str | None, BeforeValidator(check_address)] = None


_SECRET = re.compile(r"(?i)pass(?!ive)|secret")
"""In the name of a key that other tools have for a password, a passphrase or the file with one."""

_OTHER_NAMES = {
    "ip": "address",
    "hostname": "address",
    "host": "address",
    "ansible_host": "address",
    "username": "user",
    "login": "user",
    "key": "identity_file",
    "ssh_key": "identity_file",
    "proxy": "jump",
    "proxy_jump": "jump",
    "bastion": "jump",
    "become": "sudo",
    "retries": "attempts",
    "kill": "workload",
    "exclude": "protect",
    "members": "hosts",
}
"""What other tools call our keys."""


def read_entry(
    model: type[Schema], node: Node, line: int, where: str, problems: Problems, folder: str
) -> Settings:
    """The keys given in `node`, typed; empty when there is a problem, which is then noted."""
    try:
        read = model.model_validate(plain(node), context={"folder": folder})
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            loc = problem["loc"]
            keys = ".".join([where, *(str(part) for part in loc if isinstance(part, str))])
            text = _say(problem["type"], problem["input"], loc, model)
            if "error" in (context := problem.get("ctx", {})):
                text = f"{show(problem['input'])}: {context['error']}"
            problems.add(line_of(node, line, loc), keys, f"read {text}")
        return {}
    return {key: getattr(read, key) for key in read.model_fields_set}


def _say(kind: str, value: object, loc: tuple[str | int, ...], model: type[Schema]) -> str:
    """What pydantic found itself: a key that isn't ours, or no mapping where one belongs."""
    if kind != "extra_forbidden":
        return f"{show(value)}: a mapping of keys goes here"
    key = str(loc[-1])
    if _SECRET.search(key):
        return f"{show(key)}: gpufleet logs in with keys or an agent only: remove it"
    known = list(model.model_fields)
    other = _OTHER_NAMES.get(key.lower().replace("-", "_"), "")
    hint = f" (did you mean {other}?)" if other in known else suggest(key, known)
    if not hint and key in HostSchema.model_fields:
        hint = " (hosts have it)"
    return f"the unknown key {show(key)}{hint or ': the keys are ' + ', '.join(known)}"
