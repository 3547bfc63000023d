"""The errors that gpufleet raises on purpose.

One base and few children, raised at the edges with their cause chained. A command line turns each
into one line; a run turns `NodeError` into the verdict of its node. Bugs aren't in here and aren't
caught: they stay tracebacks, except that one node's bug never ends another node's work (`run.py`).
"""

from __future__ import annotations

from collections.abc import Sequence


class GpufleetError(Exception):
    """Anything that gpufleet itself has to tell its user."""


class InventoryError(GpufleetError):
    """fleet.yaml can't be used; carries every problem found, not only the first.

    Each problem is one line, `file:line: path: what was read: cure`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class SelectionError(GpufleetError):
    """A selection names something unknown, is empty or can't be parsed. One line."""


class EmptySelection(SelectionError):
    """All names are known, and nothing is left of them."""


class HistoryError(GpufleetError):
    """The record of runs can't be read, or doesn't have what was asked for. One line."""


class UsageError(GpufleetError):
    """The options given can't be carried out together or as they stand. One line."""


class NodeError(GpufleetError):
    """Something went wrong between here and one node. `reason` says what, `next_step` what to do."""

    def __init__(self, reason: str, *, next_step: str = "") -> None:
        self.reason = reason
        self.next_step = next_step
        super().__init__(reason)


class Unreachable(NodeError):
    """No working root shell on the node was had; nothing was changed there.

    `stage` is one of: dns, connect, handshake, host-key, authentication, channel, privilege.
    `transient` says whether a further try could end otherwise (never for keys and logins: a retry
    could lock the account or get this address banned).
    """

    def __init__(
        self, stage: str, reason: str, *, next_step: str = "", transient: bool = False
    ) -> None:
        super().__init__(reason, next_step=next_step)
        self.stage = stage
        self.transient = transient

    @classmethod
    def not_root(cls, uid: int) -> Unreachable:
        return cls(
            "privilege",
            f"logged in with uid {uid}; a reset needs root",
            next_step="set user: root in fleet.yaml, or sudo: yes with a NOPASSWD rule on the node",
        )


class ConnectionLost(NodeError):
    """The connection ended before the script's end marker came: what the script did is not known."""


class ScriptTimeout(NodeError):
    """The script gave no end marker within its deadline: what it did is not known."""
