"""docs/runbook.md is found by the words on screen, so these have to be gpufleet's words."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUNBOOK = (ROOT / "docs/runbook.md").read_text()
HEADINGS = [line for line in RUNBOOK.splitlines() if line.startswith("### ")]
STAGES = re.findall(r"(?m)^\| ([a-z-]+) \| (`.*?) \| ", RUNBOOK)
QUOTED = sorted(
    {q for text in [*HEADINGS, *(s for _, s in STAGES)] for q in re.findall("`([^`]+)`", text)}
)


def literals() -> str:
    """All text that the code can say: string constants, parts of f-strings included, no docstrings."""
    package = ROOT / "gpufleet"
    elsewhere = {package / "inventory", package / "render", package / "cli"}
    files = [f for f in sorted(package.rglob("*.py")) if not elsewhere & {*f.parents}]
    found = []
    for file in files:
        tree = ast.parse(file.read_text())
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        found += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docs
        ]
    return "\n".join(found)


SAID = literals()


@pytest.mark.parametrize("quoted", QUOTED)
def test_what_the_runbook_quotes_is_what_the_code_says(quoted: str) -> None:
    parts = [part.strip(" '") for part in quoted.split("…")]
    for part in filter(None, parts):
        # A value that is filled in: "reads '[N/A]'".
        for piece in re.split(r"(?<=reads) '|(?<=runs here)", part):
            assert piece.strip("[]' ") in SAID, piece


def test_every_stage_of_unreachable_has_its_line() -> None:
    source = "\n".join(f.read_text() for f in (ROOT / "gpufleet").rglob("*.py"))
    raised = set(re.findall(r"""(?:Unreachable|cls)\(\s*"([a-z-]+)",""", source))
    assert raised == {stage for stage, _ in STAGES}


@pytest.mark.parametrize(
    "verdict", ["DIRTY", "BROKEN", "UNKNOWN", "UNREACHABLE", "SKIPPED", "NOT STARTED"]
)
def test_every_verdict_has_its_part(verdict: str) -> None:
    assert f"\n## {verdict}: " in RUNBOOK
