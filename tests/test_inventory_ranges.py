"""Ranges and set algebra hold against ClusterShell's NodeSet, which they are modelled on."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.inventory import fold
from gpufleet.inventory.ranges import expand, natural
from gpufleet.inventory.selection import Vocabulary, evaluate, words

NUMBERS = st.integers(0, 120)
NAMES = st.from_regex(r"[a-z_]([a-z0-9._-]{0,6}[a-z0-9])?", fullmatch=True)


@st.composite
def range_items(draw: st.DrawFn) -> str:
    first, length = draw(NUMBERS), draw(st.integers(0, 12))
    width = len(str(first + length))
    pad = draw(st.sampled_from([1, width, width + 1]))
    last = f"{first + length:0{pad}}"
    text = f"{first:0{pad}}" + (f"-{last}" if length else "")
    return text + (f"/{draw(st.integers(1, 4))}" if length and draw(st.booleans()) else "")


RANGES = st.lists(range_items(), min_size=1, max_size=3).map(",".join)


# Not after a digit: there ClusterShell joins gpu0[1-9] to gpu[01-09] and refuses gpu0[1-10].
@given(NAMES.filter(lambda name: not name[-1].isdigit()), RANGES, st.sampled_from(["", "-x", ".a"]))
def test_a_range_names_what_clustershell_reads_in_it(name: str, body: str, end: str) -> None:
    text = f"{name}[{body}]{end}"
    assert set(expand(text)) == set(NodeSet(text, resolver=RESOLVER_NOGROUP))


@given(st.lists(st.one_of(NAMES, RANGES.map("gpu[{}]".format)), min_size=1))
def test_folded_names_unfold_to_the_same_names(texts: list[str]) -> None:
    names = {name for text in texts for name in expand(text)}
    folded = fold(names)
    assert {name for _, word in words(folded) for name in expand(word)} == names
    assert set(NodeSet(folded, resolver=RESOLVER_NOGROUP)) == names


@given(st.lists(NAMES))
def test_natural_order_is_an_order_of_all_names(names: list[str]) -> None:
    assert sorted(set(names), key=natural) == sorted(sorted(set(names), reverse=True), key=natural)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["odd"], "odd"),
        (["gpu02", "gpu01", "gpu02"], "gpu[01-02]"),
        (["gpu1", "gpu01", "gpu2", "gpu10"], "gpu[1-2,01,10]"),
        (["r1-n1", "r1-n2", "r2-n1"], "r1-n[1-2],r2-n1"),
        (["gpu02x", "gpu01x", "a"], "a,gpu[01-02]x"),
        ([f"gpu{i}" for i in range(15)] + ["gpu17"], "gpu[0-14,17]"),
    ],
)
def test_names_fold_for_display(names: list[str], folded: str) -> None:
    assert fold(names) == folded


WORDS = st.one_of(
    st.integers(1, 12).map("n{}".format),
    st.tuples(st.integers(1, 6), st.integers(0, 6)).map(lambda t: f"n[{t[0]}-{t[0] + t[1]}]"),
)


@given(WORDS, st.lists(st.tuples(st.sampled_from(",!&^"), WORDS), max_size=6))
def test_operators_mean_what_they_mean_to_clustershell(
    first: str, rest: list[tuple[str, str]]
) -> None:
    text = first + "".join(operator + word for operator, word in rest)
    hosts = [f"n{i}" for i in range(1, 13)]
    vocabulary = Vocabulary(hosts, lambda _: None, [])
    assert evaluate(text, vocabulary) == set(NodeSet(text, resolver=RESOLVER_NOGROUP))
