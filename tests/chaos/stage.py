"""One node on which a round is played: sets it up, does the troubles at their moments, cleans up.

Keeps the books for the oracle: who was put on the node with which fate, and what chaos itself did
and when. Knows nothing of reports and verdicts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tests.simfleet import NodeProcess, RunningProcess, SimFleetError, SimNode

from . import harm as ways
from .drawing import Round
from .fates import Fate, Part
from .standins import FILES, FORKED, SYSTEMCTL, in_background, with_pid
from .troubles import Trouble
from .truth import now_s

Identity = tuple[int, int]


@dataclass(frozen=True)
class Role:
    """A process of the scene as it runs. `early`: it was there before the reset began."""

    label: str
    pid: int
    start_ticks: int
    args: tuple[bytes, ...]
    fate: Fate
    early: bool
    plain: bool = True
    """Nobody starts it again, and its death isn't drawn out."""

    @property
    def identity(self) -> Identity:
        return self.pid, self.start_ticks


@dataclass(frozen=True)
class Deed:
    """Something that chaos did, from `begun_s` to `done_s`."""

    trouble: Trouble
    verb: str
    begun_s: float
    done_s: float
    error: str = ""


@dataclass
class Stage:
    """Books of one round on one node."""

    node: SimNode
    drawn: Round
    interrupt: Callable[[], None] = lambda: None
    second_run: Callable[[], None] = lambda: None
    cast: dict[Identity, Role] = field(default_factory=dict)
    families: dict[tuple[bytes, ...], Fate] = field(default_factory=dict)
    removed: set[Identity] = field(default_factory=set)
    deeds: list[Deed] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    _undo: list[Callable[[], object]] = field(default_factory=list)

    def set_up(self) -> None:
        """The scene runs, the standing troubles are there, the record is empty."""
        ways.make_fresh(self.node)
        for name, text in FILES.items():
            self.node.path(f"/tmp/{name}").write_text(text)
        if self.drawn.systemd:
            self.node.tool("systemctl", SYSTEMCTL)
            self.node.path("/run/systemd/system").mkdir(parents=True)
            ways.install_units(self.node, self.drawn.parts)
        for part in self.drawn.parts:
            for proc, fate in part.rows:
                self._expect(tuple(ways.encoded(arg) for arg in proc.args), fate)
        self._start_parts(self.drawn.parts, early=True)
        for trouble in self.drawn.troubles:
            if trouble.from_s == 0 and trouble.kind not in {"interrupt", "second run"}:
                self._do(trouble, "on")

    def play(self, started: float) -> None:
        """Does what has its moment, until `over`. Runs in a thread of its own."""
        for moment, trouble, verb in sorted(self._moments(), key=lambda entry: entry[0]):
            if self.over.wait(max(0.0, started + moment - time.monotonic())):
                return
            self._do(trouble, verb)

    def calm_down(self) -> None:
        """Takes back what would keep a finished reset's script alive; faults stay."""
        for undo in reversed(self._undo):
            with contextlib.suppress(SimFleetError, OSError):
                undo()
        self._undo.clear()
        ways.revive_sshd(self.node)

    def active(self, trouble: Trouble) -> tuple[float, float] | None:
        """From when to when it surely was there; the end may be infinite."""
        on = [deed for deed in self.deeds if deed.trouble is trouble and deed.verb == "on"]
        off = [deed for deed in self.deeds if deed.trouble is trouble and deed.verb == "off"]
        if not on or on[0].error:
            return None
        return on[0].done_s, off[0].begun_s if off else float("inf")

    def _moments(self) -> Iterator[tuple[float, Trouble, str]]:
        for trouble in self.drawn.troubles:
            if trouble.from_s > 0 or trouble.kind in {"interrupt", "second run"}:
                yield trouble.from_s, trouble, "on"
            if trouble.until_s is not None:
                yield trouble.until_s, trouble, "off"

    def _do(self, trouble: Trouble, verb: str) -> None:
        begun, error = now_s(), ""
        try:
            (self._on if verb == "on" else self._off)(trouble)
        except (SimFleetError, OSError, AssertionError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        self.deeds.append(Deed(trouble, verb, begun, now_s(), error))

    def _on(self, trouble: Trouble) -> None:  # noqa: PLR0912  # one branch for each kind of trouble
        node = self.node
        match trouble.kind:
            case "fault" | "memory":
                node.fault(trouble.name, trouble.value, when=trouble.when)
            case "tool":
                node.tool(trouble.name, trouble.value)
            case "drop" | "silence":
                node.drop_connections(silently=trouble.kind == "silence")
            case "sshd-stop" | "sshd-restart":
                node.stop_sshd()
                if trouble.kind == "sshd-restart":
                    node.start_sshd()
            case "sshd-freeze":
                node.freeze_sshd()
            case "lock":
                self._undo.append(ways.hold_lock(node).close)
            case "spoil":
                ways.spoil(node, trouble.name)
            case "daemon":
                self._end_daemon(trouble)
            case "late":
                self._come_late(trouble.name)
            case "freeze":
                self._freeze(threads_only=trouble.name == "threads")
            case "churn" | "forker":
                self._start_script(trouble)
            case "reuse":
                self._reuse_pid()
            case "interrupt":
                self.interrupt()
            case "second run":
                self.second_run()

    def _off(self, trouble: Trouble) -> None:
        node = self.node
        match trouble.kind:
            case "fault" | "memory":
                node.clear_fault(trouble.name, when=trouble.when)
            case "tool":
                ways.give_tool_back(node, trouble.name)
            case "sshd-stop" | "sshd-freeze" | "sshd-restart":
                ways.revive_sshd(node)
            case "spoil":
                ways.unspoil(node)
            case "lock" | "freeze":
                while self._undo:
                    self._undo.pop()()

    def _expect(self, args: tuple[bytes, ...], fate: Fate) -> None:
        """Whoever has this command line later has this fate, unless two parts disagree."""
        known = self.families.setdefault(args, fate)
        if known is not fate:
            self.families[args] = Fate.EITHER

    def _start_parts(self, parts: tuple[Part, ...], *, early: bool) -> None:
        rows = {proc.label: (proc, fate) for part in parts for proc, fate in part.rows}
        for running in self.node.start(tuple(proc for proc, _ in rows.values())):
            proc, fate = rows[running.label]
            plain = proc.respawn is None and not (proc.dying or proc.zombie or proc.dead)
            self._enlist(running, fate, early=early, plain=plain)

    def _enlist(
        self,
        process: RunningProcess | NodeProcess,
        fate: Fate,
        *,
        early: bool,
        plain: bool = True,
    ) -> None:
        label = process.label if isinstance(process, RunningProcess) else "chaos"
        identity = process.pid, process.start_ticks
        self.cast[identity] = Role(label, *identity, process.args, fate, early, plain)

    def _end(self, role: Role) -> None:
        """Ends a process as chaos' own doing, and waits until it is gone."""
        self.removed.add(role.identity)
        running = RunningProcess(role.label, role.pid, role.start_ticks, role.args)
        self.node.kill(running)
        ways.wait_until(lambda: self.node.process(running) is None)

    def _end_daemon(self, trouble: Trouble) -> None:
        found = [role for role in self.cast.values() if role.label.endswith(f".{trouble.name}")]
        assert found, "no such daemon in this scene"
        self._end(found[0])
        if trouble.value == "restarts":
            rows = [row for row in self.drawn.rows if row[0].label == found[0].label]
            # A fork that isn't a daemon yet may still be taken for what its parent is.
            again = replace(rows[0][0], label=f"again.{trouble.name}"), Fate.EITHER
            self._start_parts((Part("again", (again,)),), early=False)

    def _come_late(self, name: str) -> None:
        if name == "shielded":
            self._script("/bin/sh /tmp/chaos-bystander.sh", Fate.LIVE)
            return
        part = self.drawn.late[name]
        if part.job or self.drawn.job_spares:
            part = replace(part, rows=tuple((proc, Fate.EITHER) for proc, _ in part.rows))
        for proc, fate in part.rows:
            self._expect(tuple(ways.encoded(arg) for arg in proc.args), fate)
        self._start_parts((part,), early=False)

    def _start_script(self, trouble: Trouble) -> None:
        early = trouble.from_s == 0
        if trouble.kind == "forker":
            self._expect(FORKED, Fate.EITHER if self.drawn.job_spares else Fate.DIE)
            fate = Fate.LIVE if self.drawn.job_spares else Fate.DIE
            command = f"bash /tmp/sglang-forker.sh {trouble.value}"
            self._expect(tuple(command.encode().split()), fate)  # its forks, for a moment
            self._script(command, fate, early=early)
        else:
            name = "chaos-churn-workload" if trouble.name == "workload" else "chaos-churn"
            self._script(f"/bin/sh /tmp/{name}.sh", Fate.LIVE, early=early)

    def _script(self, command: str, fate: Fate, *, early: bool = False) -> None:
        self._enlist_pid(int(self.node.exec(in_background(command)).stdout), fate, early=early)

    def _enlist_pid(self, pid: int, fate: Fate, *, early: bool) -> None:
        found = next((p for p in self.node.processes() if p.pid == pid), None)
        if found is not None:
            self._enlist(found, fate, early=early)

    def _freeze(self, *, threads_only: bool) -> None:
        able = [r for r in self.cast.values() if r.fate is Fate.DIE and r.plain and r.early]
        alive = [role for role in able if self._running(role)]
        assert alive, "nobody to freeze"
        process = self.node.process(RunningProcess("", *alive[0].identity, ()))
        assert process is not None
        self.node.freeze(process, threads_only=threads_only)
        self._undo.append(lambda: self.node.thaw(process))

    def _reuse_pid(self) -> None:
        """The pid of a workload process goes to a bystander, between a look and an act if it fits."""
        # One without family: a launcher is workload only while what it launched holds a GPU.
        parents = {proc.parent for proc, _ in self.drawn.rows}
        kin = parents | {proc.label for proc, _ in self.drawn.rows if proc.parent is not None}
        able = [r for r in self.cast.values() if r.fate is Fate.DIE and r.plain and r.early]
        shared = {proc.owner for proc, fate in self.drawn.rows if fate is Fate.DIE and proc.owner}
        kin |= {proc.label for proc, _ in self.drawn.rows if proc.owner in shared}
        alive = [role for role in able if role.label not in kin and self._running(role)]
        assert alive, "nobody whose pid could be had"
        self._end(alive[-1])
        wanted = alive[-1].pid
        done = self.node.exec(with_pid(wanted, "/bin/sh /tmp/chaos-bystander.sh"))
        self._enlist_pid(int(done.stdout), Fate.LIVE, early=False)

    def _running(self, role: Role) -> bool:
        return self.node.alive(RunningProcess(role.label, *role.identity, role.args))
