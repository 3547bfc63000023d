"""What a run says about its nodes: plain data that the command line, the API and records share.

No behaviour but derived values, and no I/O. Everything pickles and turns into JSON by `render/`.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from gpufleet.records import dataclass


class Verdict(str, Enum):
    """The one word for a node. The order of `SEVERITY` decides when several apply."""

    CLEAN = "CLEAN"
    DIRTY = "DIRTY"
    BROKEN = "BROKEN"
    UNKNOWN = "UNKNOWN"
    UNREACHABLE = "UNREACHABLE"
    SKIPPED = "SKIPPED"
    NOT_STARTED = "NOT STARTED"
    # status and check:
    IDLE = "IDLE"
    BUSY = "BUSY"
    READY = "READY"

    def __str__(self) -> str:
        return self.value


RESET_VERDICTS = (
    Verdict.CLEAN,
    Verdict.DIRTY,
    Verdict.BROKEN,
    Verdict.UNKNOWN,
    Verdict.UNREACHABLE,
    Verdict.SKIPPED,
    Verdict.NOT_STARTED,
)
STATUS_VERDICTS = (
    Verdict.IDLE,
    Verdict.BUSY,
    Verdict.BROKEN,
    Verdict.UNKNOWN,
    Verdict.UNREACHABLE,
    Verdict.NOT_STARTED,
)
CHECK_VERDICTS = (
    Verdict.READY,
    Verdict.BROKEN,
    Verdict.UNKNOWN,
    Verdict.UNREACHABLE,
    Verdict.NOT_STARTED,
)
RESTORE_VERDICTS = (
    Verdict.READY,
    Verdict.BROKEN,
    Verdict.UNKNOWN,
    Verdict.UNREACHABLE,
    Verdict.SKIPPED,
    Verdict.NOT_STARTED,
)


@dataclass(frozen=True)
class Gpu:
    """One GPU row. Memory in MiB, `None` where it couldn't be read; `raw` then says what was."""

    index: int
    uuid: str = ""
    memory_before_mib: int | None = None
    memory_used_mib: int | None = None
    raw: str = ""
    memory_total_mib: int | None = None


@dataclass(frozen=True)
class ProcessLine:
    """One process as people see it: killed, spared or surviving.

    `command` has its secrets masked and its control characters escaped. `rule` is the stable name
    of the rule that decided, `why` the same in words. `signal` is the last one sent ("" for none).
    """

    pid: int
    user: str
    owner: str
    command: str
    rule: str
    why: str
    signal: str = ""
    age_s: int | None = None
    """Seconds since its start, when it was seen."""
    memory_mib: int | None = None
    """GPU memory charged to its pid by the driver, over all GPUs; None where the driver didn't say."""
    managed: str = ""
    """What its owner is to people: a container's name and image, a pod, a supervisor's program."""
    restart: str = ""
    """Its owner's restart policy in the owner's own word (always, on-failure, no); "" if unknown."""


@dataclass(frozen=True)
class Stopped:
    """An owner that was to be stopped. `action`: the command that stopped it. `stopped`: "yes", or why
    not. `restored`: "yes", "" (not yet, or not to be), or how its start went otherwise."""

    owner: str
    action: str
    stopped: str = "yes"
    restored: str = ""


@dataclass(frozen=True)
class Escalation:
    """A step beyond killing. `rung`: gpu-reset or reboot. `why`: what it is to cure. `done`: "yes", or
    what came of it otherwise; "" in a dry run. `steps`: its commands, in order."""

    rung: str
    why: str
    done: str = ""
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leftover:
    """A file in /dev/shm that nobody uses. `removed`: "yes", or why not; "" in a dry run."""

    path: str
    size_bytes: int
    removed: str = ""


@dataclass(frozen=True)
class Moment:
    """The beginning of a phase of a node (connect, look, kill, free, settle, retry, done): seconds
    since the node's own start."""

    at_s: float
    phase: str
    detail: str = ""


@dataclass(frozen=True)
class NodeReport:
    """Exactly one per selected node and run.

    `stage` is set for UNREACHABLE: where on the way to a root shell it ended.
    `attempts` counts acts with something to kill. `elapsed_s` is the node's own time in seconds.
    """

    host: str
    address: str
    verdict: Verdict
    reason: str = ""
    next_step: str = ""
    stage: str = ""
    attempts: int = 0
    elapsed_s: float = 0.0
    gpus: tuple[Gpu, ...] = ()
    warnings: tuple[str, ...] = ()
    killed: tuple[ProcessLine, ...] = ()
    spared: tuple[ProcessLine, ...] = ()
    survivors: tuple[ProcessLine, ...] = ()
    stopped: tuple[Stopped, ...] = ()
    """In a dry run what would be stopped, with an empty `stopped`."""
    leftovers: tuple[Leftover, ...] = ()
    planned: tuple[ProcessLine, ...] = ()
    """What a dry run or a status would kill."""
    timeline: tuple[Moment, ...] = ()
    escalations: tuple[Escalation, ...] = ()
    """In a dry run those that would be taken, as far as a look can tell."""


@dataclass(frozen=True)
class Merged:
    """A run that a merged report is made of. `shard`: `2/8`, or "" for all of its selection;
    `exit_code`: as that run ended, None where it was killed."""

    run_id: str
    selection: str
    shard: str
    nodes: int
    exit_code: int | None


@dataclass(frozen=True)
class RunReport:
    """All nodes of one run, in the order of the selection. Times in UTC, ISO 8601 with `Z`."""

    run_id: str
    command: str
    selection: str
    started: str
    finished: str
    nodes: tuple[NodeReport, ...]
    dry_run: bool = False
    interrupted_by: int | None = None
    """The number of the signal that ended the run early."""
    notes: tuple[str, ...] = field(default=())
    shard: str = ""
    """`2/8`: these nodes are that part of the selection; "" for all of it."""
    merged: tuple[Merged, ...] = ()
    """The runs that this report was merged from; none for a run of its own."""
    missing: tuple[str, ...] = ()
    """`2/8 of inference-pool`: shards that no merged run is. Of their nodes nothing is known."""

    def count(self, verdict: Verdict) -> int:
        return sum(1 for node in self.nodes if node.verdict is verdict)

    def exit_code(self, *, allow_skipped: bool = False) -> int:
        """The exit status of the command: what an unattended caller learns of this run.

        0 all well · 1 some DIRTY or BROKEN · 3 some UNKNOWN, UNREACHABLE or NOT STARTED, or no
        node at all (wins over 1) · 4 otherwise fine but some SKIPPED · 128 + signal when
        interrupted. BUSY is no failure. A dry run says whether every plan is known: 0 or 3.
        """
        if self.interrupted_by is not None:
            return 128 + self.interrupted_by
        found = {node.verdict for node in self.nodes}
        if not found or found & {Verdict.UNKNOWN, Verdict.UNREACHABLE, Verdict.NOT_STARTED}:
            return 3
        if self.dry_run:
            return 0
        if found & {Verdict.DIRTY, Verdict.BROKEN}:
            return 1
        if Verdict.SKIPPED in found and not allow_skipped:
            return 4
        return 0
