"""What a guard, `before` or `after` answered: status and first lines of output. Pure."""

from __future__ import annotations

from gpufleet.masking import masked_command
from gpufleet.records import dataclass
from gpufleet.transport import Answer

SHOWN = 300
"""Characters of a hook's output that a reason quotes."""


@dataclass(frozen=True)
class HookAnswer:
    """`status`: the exit status as a number, or a word: timeout, interrupted, none.

    `locked`: who holds the node, if the hook wasn't started for that. `failure`: why the node
    couldn't start it.
    """

    status: str = "none"
    output: str = ""
    locked: str | None = None
    failure: str = ""

    @property
    def well(self) -> bool:
        return self.status == "0" and not self.failure and self.locked is None

    def words(self, name: str, timeout_s: float) -> str:
        """`guard ended with status 127: squeue: not found`"""
        if self.failure:
            return f"{name} could not be started: {self.failure}"
        if self.status == "timeout":
            what = f"{name} had not ended after {timeout_s:g} s"
        elif self.status == "interrupted":
            what = f"{name} was interrupted"
        elif not self.status.isdigit():
            what = f"{name} gave no exit status"
        elif int(self.status) > 128:
            what = f"{name} was ended by signal {int(self.status) - 128}"
        else:
            what = f"{name} ended with status {self.status}"
        return f"{what}: {self.output}" if self.output else what


def parse_hook(answer: Answer) -> HookAnswer:
    """Only a complete section counts: what was cut off has no status."""
    if failed := answer.text("failed").strip():
        return HookAnswer(failure=one_line(failed))
    locked = answer.get("locked")
    if locked is not None:
        return HookAnswer(locked=one_line(locked.text))
    section = answer.get("hook")
    if section is None:
        return HookAnswer()
    return HookAnswer(section.status, one_line(section.text))


def one_line(text: str) -> str:
    """Lines joined by `; `, secrets masked, control characters escaped, at most SHOWN characters."""
    lines = (line.strip() for line in text.replace("\r", "\n").split("\n"))
    shown = masked_command(["; ".join(line for line in lines if line)])
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
