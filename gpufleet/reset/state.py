"""What a run hands to each node's reset, and what that reset knows so far. Plain data, no I/O."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field

from gpufleet.judge import Judgement
from gpufleet.model import Escalation, ProcessLine, Stopped
from gpufleet.observation import Observation, Owner
from gpufleet.observation.managed import Managed
from gpufleet.plan import Decision, Plan
from gpufleet.plan.managed import Stop
from gpufleet.policy import NodeSpec
from gpufleet.records import dataclass
from gpufleet.transport import Connect, Transport

OnEvent = Callable[[str, str], None]
"""Called with a phase (connect, look, guard, before, kill, free, settle, retry, after, turn, gpu-reset,
reboot, boot, done) and a detail, for progress on a screen; and with `memory` and a reading
(`0=150000 1=0 2=?`, MiB by GPU), which is no phase."""

Crowd = frozenset[tuple[str, str]]
"""Whose processes a person was shown on a node: user, and Slurm job or ""."""


@dataclass(frozen=True)
class Here:
    """The control machine as a node would show itself, and the run's own processes on it.

    Compared by boot id and process namespace: a node may be the very machine that gpufleet runs on.
    """

    boot_id: str
    pid_namespace: str
    pids: frozenset[int]


@dataclass(frozen=True)
class Resetting:
    """What is the same for all nodes of a run. `who` is told to others who meet the lock."""

    run_id: str = ""
    who: str = ""
    dry_run: bool = False
    interrupted: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    here: tuple[Here, ...] = ()
    """Where gpufleet runs itself, so that it spares its own processes should that be the node: the
    machine of the command, and that of the process that works on this node."""
    hurried: Callable[[], bool] = lambda: False
    """Interrupted a second time: not even an `after` is waited for."""
    shown: Mapping[str, Crowd] | None = None
    """By host: whose processes a person has seen and agreed to. None: nobody was asked."""
    repeatable: bool = False
    """Another process may do, or have done, the same: what came of it counts, and isn't repeated."""

    agreed: frozenset[str] | None = None
    """Hosts on which a person agreed to what `escalate` allows. None: nobody was asked."""
    turn: Callable[[str], str] = lambda host: ""
    """Waits until a host's turn for a rung has come, which is its own until its end: "", or why it
    doesn't come."""

    def own_pids(self, observation: Observation) -> frozenset[int]:
        node = (observation.boot_id, observation.pid_namespace)
        return frozenset().union(
            *(one.pids for one in self.here if node == (one.boot_id, one.pid_namespace))
        )


NOT_UP = "no: it was not up"

Target = tuple[str, str]


@dataclass(frozen=True)
class Taken:
    """A rung. `done`: "yes", or what came of it. `worked`: worth a patient look. `end`: what holds
    without one."""

    done: str
    worked: bool = False
    end: Judgement | None = None


@dataclass
class State:
    """What one node's reset knows so far."""

    spec: NodeSpec
    connect: Connect
    run: Resetting
    on_event: OnEvent
    started: float
    connect_anyway: Connect
    """Also when the run was interrupted: for `after`."""
    transport: Transport | None = None
    before: Observation | None = None
    after: Observation | None = None
    plan: Plan | None = None
    attempts: int = 0
    idle_rounds: int = 0
    killed: dict[tuple[int, int], ProcessLine] = field(default_factory=dict)
    decided: dict[tuple[int, int], Decision] = field(default_factory=dict)
    returned: list[Decision] = field(default_factory=list)
    comebacks: Counter[str] = field(default_factory=Counter)
    refused: bool = False
    """The last act didn't take place: the lock is held, or the node lacks something."""
    signalled: str = ""
    """TERM or KILL, as soon as the script of the act under way has said that these signals are out."""
    opened: bool = False
    """`before` may have run, or an act begins: `after` is due."""
    managed: Managed | None = None
    """What the owners of workload said of themselves, if they were asked."""
    stops: list[Stop] = field(default_factory=list)
    """Owners that this reset stopped, was to stop, or would."""
    stopped: dict[Target, str] = field(default_factory=dict)
    """By the stop's kind and target (users may have services of one name): "yes", or why not; nothing
    in a dry run."""
    restored: dict[Target, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Warnings on how this reset went."""
    repeated: bool = False
    """Another process of the run began what was to be done here, and nobody knows what came of it."""
    hooks_s: float = 0.0
    """Seconds that hooks took: theirs, not the node's budget."""
    seen_at: float = 0.0
    """When the newest observation came."""
    daemons_before: Observation | None = None
    """What daemons are compared with after a rung, which bounces them: the look that came after it."""
    rungs: list[Escalation] = field(default_factory=list)
    daemons: list[Stopped] = field(default_factory=list)
    """What GPU resets stopped and started."""
    attempts_earlier: int = 0
    """Before the last rung: what comes back after it is new."""

    @property
    def owners_hit(self) -> frozenset[Owner]:
        kinds = {"service", "user-service", "container", "pod"}
        owners = {decision.process.owner for decision in self.decided.values()}
        if self.stopped_any:
            owners |= {stop.source for stop in self.stops if not stop.why_not}
        return frozenset(owner for owner in owners if owner.kind in kinds)

    @property
    def stopped_owners(self) -> frozenset[Owner]:
        """Those whose stop succeeded."""
        return frozenset(s.source for s in self.stops if self.stopped.get(s.key) == "yes")

    @property
    def stopped_any(self) -> bool:
        """Has something been tried, so that the last look is old?"""
        return any(stop.key in self.stopped and not stop.why_not for stop in self.stops)

    @property
    def to_restore(self) -> list[Stop]:
        """Those that were up and don't run now, or may not: their stop was begun, or was to be and their
        processes were killed. The node's file names them."""
        down = (s for s in self.stops if not s.why_not and s.key in self.stopped)
        return [stop for stop in down if self.stopped[stop.key] != NOT_UP]

    @property
    def lock(self) -> str:
        return f"run {self.run.run_id} by {self.run.who}"

    @property
    def elapsed_s(self) -> float:
        return self.run.clock() - self.started

    @property
    def left_s(self) -> float:
        return self.spec.policy.timeout_s - self.elapsed_s + self.hooks_s

    @property
    def dying_left_s(self) -> float:
        policy = self.spec.policy
        return max(policy.timeout_s, policy.dying_timeout_s) - self.elapsed_s + self.hooks_s

    def allow(self, seconds: float) -> None:
        """At least so long from now: what a rung wants isn't the node's budget."""
        self.hooks_s += max(0.0, seconds - self.left_s)

    def begin_anew(self) -> None:
        """After a rung: as many attempts as before, for what comes back."""
        self.attempts_earlier = self.attempts
        self.idle_rounds = 0
        self.comebacks.clear()

    def lose_sight(self) -> None:
        """The node is going down: nothing that was seen there holds any more."""
        self.after = self.plan = None


def crowd_of(lines: tuple[ProcessLine, ...]) -> Crowd:
    """Users, and the jobs they are in: what starts again has new pids, and is the same crowd."""
    return frozenset(
        (line.user, line.owner if line.owner.startswith("slurm job ") else "") for line in lines
    )
