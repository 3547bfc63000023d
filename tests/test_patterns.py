"""Regular expressions of fleet.yaml that could hang a run: refused at load, bounded on every text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.inventory.backtracking import explodes
from gpufleet.judge import judge_status
from gpufleet.model import Verdict
from gpufleet.plan import make_plan
from gpufleet.plan import patterns as bounds
from gpufleet.plan.patterns import SlowPattern, finder
from gpufleet.policy import Policy
from tests.building import Proc, observe
from tests.conftest import command_for

EXPLODING = [
    "(a+)+$",
    "(x|(/?[a-z/ ]*)*)*Z",
    "(a|aa)*$",
    "(a|ab|b)*c",
    r"(\w+\s?)*$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    "(.*)*x",
    "(a*?)*?b",
    "((a{1,20}){1,20}){1,20}$",
    "(?:python3?|[a-z0-9]+)*Z",
    "(a?){40}a{40}",
    "sglang(.+)+end",
    "(?=(a+)+$)b",
    r"((?P<x>a+)b?)+$",
    "((ab)*|(ba)*|a|b)*c",
]
HONEST = [
    "python3|sglang",
    "ray::.*",
    ".*sglang.*",
    ".*foo.*bar.*baz",
    "(python3|sglang)+x",
    r"(?:/[\w.-]+)+/python3",
    r"([^/ ]*/)*python3",
    r"(?:--\w+(?:=\S+)?\s+)*serve",
    r"^(?!.*bench).*sglang",
    r"python3? (-[a-zA-Z]+ )*(-m )?(sglang|vllm)[.\w]*",
    r"(?i)((sglang|vllm)( |$))+",
    r"(\d+,)*\d+x",
    r"\bTP\d{1,3}\b",
    r"(?P<n>sgl)ang(?P=n)",
    "([a-m]|[m-z])*1",  # one set of letters to Python: one way
]


@pytest.mark.parametrize("pattern", EXPLODING)
def test_what_explodes_is_found_out(pattern: str) -> None:
    re.compile(pattern)
    assert explodes(pattern)


@pytest.mark.parametrize("pattern", HONEST)
def test_what_people_write_is_let_through(pattern: str) -> None:
    assert not explodes(pattern)
    assert callable(finder(pattern))


@pytest.mark.parametrize("key", ["workload", "interpreters"])
def test_an_exploding_pattern_is_one_line_with_its_place(key: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(f"defaults:\n  {key}: '(a+)+$'\nhosts:\n  gpu01: 192.0.2.1\n")
    path.chmod(0o644)
    done = command_for({})("hosts", "-i", str(path))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f'gpufleet: {path}:2: defaults.{key}: read "(a+)+$": this can take ')
    assert len(done.err.splitlines()) == 1


def test_an_exploding_pattern_of_the_command_line_is_refused_as_well(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("hosts:\n  gpu01: 192.0.2.1\n")
    path.chmod(0o644)
    done = command_for({})(
        "reset", "-i", str(path), "-H", "gpu01", "--match-workload", "(sg|s|g)*lang"
    )
    assert done.code == 2
    assert done.err.startswith('gpufleet: --match-workload: read "(sg|s|g)*lang": this can take ')


@pytest.mark.parametrize("pattern", ["(?:sglang){e<=1}x", "sglang{i}"])
def test_what_means_two_things_is_refused(pattern: str) -> None:
    """`regex` would allow for an insertion where Python's `re` sees a brace."""
    with pytest.raises(ValueError, match=r"write \\"):
        finder(pattern)
    assert finder(r"sglang\{i\}+")("sglang{i}}")


TEXTS = st.text("asg/ 3x\n:", max_size=30)
PATTERNS = st.sampled_from([*HONEST, "s?g+", "^a.*x$", "[^/]{2,3}s", r"\s+\S", "(?:a|sg)+?3"])


@settings(max_examples=300, deadline=None)
@given(PATTERNS, TEXTS)
def test_it_finds_what_pythons_own_engine_finds(pattern: str, text: str) -> None:
    assert finder(pattern)(text) is (re.search(pattern, text) is not None)


def test_the_cost_on_one_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A square of the length, which no check at load refuses, on a line as a node may have it."""
    monkeypatch.setattr(bounds, "SEARCH_S", 0.05)
    found = finder(r"[a-z/]*[0-9/]*[a-z/]*X[0-9]|X{2}")
    with pytest.raises(SlowPattern, match=r"more than 0\.05 s on 200,000 letters"):
        found("/a" * 100_000)


def test_a_node_whose_command_line_is_too_much_is_unknown_and_nothing_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "SEARCH_S", 0.05)
    policy = Policy(workload=(r"[a-z/]*[0-9/]*[a-z/]*X[0-9]|X{2}|sglang",))
    seen = observe(Proc(60, "sglang::scheduler"), Proc(61, "/a" * 100_000))
    plan = make_plan(seen, policy)
    assert (plan.kill, plan.may_act) == ((), False)
    judged = judge_status(seen, plan, policy, "ssh gpu01")
    assert judged.verdict is Verdict.UNKNOWN
    assert "letters: simplify it" in judged.reason
