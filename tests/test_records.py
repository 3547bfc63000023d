"""The package's `dataclass` beside the standard one: whoever knows that one knows this."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from gpufleet.policy import Access, NodeSpec, Policy
from gpufleet.records import _made


class Plain:
    number: int
    word: str = "w"
    found: list[int] = field(default_factory=list)
    unseen: str = field(default="", compare=False, repr=False)

    def doubled(self) -> int:
        return 2 * self.number


class Empty:
    pass


class Own:
    number: int = 1

    def __repr__(self) -> str:
        return "mine"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


Make = Callable[..., Any]


def both(model: type[Any], **options: bool) -> tuple[Make, Make]:
    """The same class by the standard library and by ours."""
    twins = [
        type(model.__name__, (), {k: v for k, v in vars(model).items() if k != "__dict__"})
        for _ in range(2)
    ]
    return dataclasses.dataclass(**options)(twins[0]), _made(
        twins[1], frozen=options.get("frozen", False), eq=options.get("eq", True)
    )


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("eq", [False, True])
def test_values_texts_and_comparisons_are_the_same(frozen: bool, eq: bool) -> None:
    seen = []
    for made in both(Plain, frozen=frozen, eq=eq):
        one, other = made(1, found=[3]), made(1, "w", [3], unseen="x")
        seen.append(
            (
                repr(one).rpartition(".")[2],
                one == other,
                one == made(2),
                one == (1, "w", [3]),
                one.doubled(),
                made(1).found is made(1).found,
                dataclasses.asdict(one),
                vars(dataclasses.replace(one, number=5)),
                [each.name for each in dataclasses.fields(one)],
                made.__match_args__,  # type: ignore[attr-defined]
                vars(copy.copy(one)),
            )
        )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("eq", [False, True])
def test_what_can_be_hashed_is_the_same(frozen: bool, eq: bool) -> None:
    for made in both(Empty, frozen=frozen, eq=eq):
        if eq and not frozen:
            with pytest.raises(TypeError, match="unhashable"):
                hash(made())
        else:
            assert (hash(made()) == hash(made())) is eq or not eq
    ours = both(Plain, frozen=True)[1]
    assert len({ours(1, found=()), ours(1, found=(), unseen="x"), ours(2, found=())}) == 2


def test_a_frozen_one_changes_in_no_way() -> None:
    for made in both(Plain, frozen=True):
        one = made(1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.number = 2
        with pytest.raises(dataclasses.FrozenInstanceError):
            del one.number
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.more = 1


def test_methods_of_its_own_stay() -> None:
    for made in both(Own, frozen=True):
        assert (repr(made()), made() == 3, hash(made())) == ("mine", True, 7)


def test_wrong_arguments_are_refused() -> None:
    for made in both(Plain):
        for arguments, options in (((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"other": 1})):
            with pytest.raises(TypeError):
                made(*arguments, **options)


def test_the_package_s_own_travel_and_compare() -> None:
    spec = NodeSpec("gpu01", Access("192.0.2.7", said=frozenset({"user"})), Policy(gpus=4))

    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)
    assert spec.access == Access("192.0.2.7")
    assert spec != dataclasses.replace(spec, name="gpu02")
