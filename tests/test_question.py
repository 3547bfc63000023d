"""What a person is shown and asked on a terminal, and that only the answer to that is acted upon."""

from __future__ import annotations

import codecs
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml

from gpufleet.inventory import fold
from gpufleet.model import NodeReport, ProcessLine, RunReport, Stopped, Verdict
from gpufleet.render.question import question_text
from gpufleet.reset import Resetting, reset_node
from gpufleet.run import new_run_id
from gpufleet.ssh import connect
from tests.conftest import spec_of
from tests.simfleet import IDLE, SGLANG, Proc, SimFleet, SimNode
from tests.simfleet.scene import RunningProcess

NOW = datetime(2026, 1, 30, 15, 0, tzinfo=timezone.utc)  # a Friday
PROMPT = "Kill these processes? [y/N] "
ALICE = Proc("alice", ("python3", "a.py"), user="alice", memory={1: 900})
BOB = Proc("bob", ("python3", "b.py"), user="bob", memory={5: 30_000})


def line(user: str, owner: str = "", age: timedelta | None = None) -> ProcessLine:
    age_s = None if age is None else int(age.total_seconds())
    return ProcessLine(1, user, owner, "python3 x.py", "workload", "", age_s=age_s)


def asked(*nodes: NodeReport) -> list[str]:
    report = RunReport("r", "reset", "pool", "", "", nodes, dry_run=True)
    return question_text(report, fold, NOW).splitlines()


def busy(host: str, *lines: ProcessLine, warnings: tuple[str, ...] = ()) -> NodeReport:
    return NodeReport(host, "", Verdict.DIRTY, "x", planned=lines, warnings=warnings)


def test_processes_are_grouped_by_owner_with_their_age() -> None:
    root = line("root", "", timedelta(days=3, hours=1))
    alice = line("alice", "slurm job 4711", timedelta(minutes=58))
    nodes = [busy(f"gpu{i:02d}", *[root] * 10) for i in range(1, 17)]
    nodes[6] = busy("gpu07", *[root] * 10, *[alice] * 8)

    assert asked(*nodes) == [
        "Reset 16 nodes: gpu[01-16]",
        "  kill 160 processes of root on gpu[01-16], since Tuesday",
        "  kill 8 processes of alice in slurm job 4711 on gpu07, since 14:02",
    ]


def test_units_of_one_user_are_told_together_and_old_ones_by_date() -> None:
    nodes = [
        busy("n1", *[line("svc", "sglang.service", timedelta(days=30))] * 2, line("svc")),
        busy("n2", line("svc", "docker:0123456789ab")),
    ]

    assert asked(*nodes)[1] == (
        "  kill 4 processes of svc (2 in sglang.service, 1 in docker:0123456789ab) on n[1-2],"
        " since 2025-12-31"
    )


def test_owners_that_would_be_stopped_are_told_and_those_that_would_not_be_are_not() -> None:
    stops = (
        Stopped("sglang.service", "systemctl stop sglang.service", ""),
        Stopped("agent.service", "systemctl stop agent.service", "its main process is no workload"),
    )
    nodes = [replace(busy(f"n{i}", line("svc", "sglang.service")), stopped=stops) for i in (1, 2)]

    assert asked(*nodes)[2:] == ["  stop sglang.service on n[1-2]"]


def test_nodes_that_nothing_is_killed_on_are_told_with_their_reason() -> None:
    lines = asked(
        NodeReport("n1", "", Verdict.CLEAN),
        NodeReport("n2", "", Verdict.CLEAN),
        NodeReport("n3", "", Verdict.SKIPPED, "its guard said no", planned=(line("bob"),)),
        NodeReport("n4", "", Verdict.UNREACHABLE, "connection refused\x1b[2J"),
    )

    assert lines == [
        "Reset 4 nodes: n[1-4]",
        "  nothing to kill: n[1-2]",
        "  SKIPPED (its guard said no): n3",
        "  UNREACHABLE (connection refused\\x1b[2J): n4",
    ]


def test_hooks_that_would_run_are_named() -> None:
    hook = "would run before: drain $GPUFLEET_HOST"

    assert asked(busy("n1", line("root"), warnings=(hook,)))[-1] == (
        "  run before: drain $GPUFLEET_HOST (n1)"
    )


class Terminal:
    """The command on a pseudo terminal: stdin and stderr are one, stdout is a pipe."""

    def __init__(self, fleet: SimFleet, *arguments: str, inventory: Path | None = None) -> None:
        self.said = ""
        # A read may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._control, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gpufleet",
                *arguments,
                "-i",
                str(inventory or fleet.fleet_yaml),
            ],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            start_new_session=True,
        )
        os.close(terminal)

    def await_prompt(self) -> str:
        deadline = time.monotonic() + 40
        while PROMPT not in self.said and time.monotonic() < deadline:
            self._read(0.2)
        assert PROMPT in self.said, self.said
        return self.said

    def type(self, text: str) -> None:
        os.write(self._control, text.encode())

    def end(self) -> tuple[int, str, str]:
        """Exit status, what was said on the terminal, and standard output."""
        out, _ = self.process.communicate(timeout=60)
        while self._read(0.2):
            pass
        os.close(self._control)
        return self.process.returncode, self.said, out

    def hang_up(self) -> None:
        os.close(self._control)

    def _read(self, wait_s: float) -> bool:
        try:
            if not select.select([self._control], [], [], wait_s)[0]:
                return False
            found = os.read(self._control, 65536)
        except OSError:  # the other side was closed
            return False
        self.said = (self.said + self._decoder.decode(found)).replace("\r\n", "\n")
        return bool(found)


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x04", "yess\n"])
def test_e12_all_but_yes_leave_everything_as_it_was(
    answer: str, fleet: SimFleet, node: SimNode
) -> None:
    procs = node.start((*SGLANG, ALICE))
    terminal = Terminal(fleet, "reset", "--hosts", "gpu[01-02]")

    said = terminal.await_prompt()
    terminal.type(answer)
    code, said, out = terminal.end()

    assert code == 2
    assert f"Reset 2 nodes of {fleet.fleet_yaml}: gpu[01-02]\n" in said
    assert "  kill 10 processes of root" in said
    assert "  kill 1 process of alice on gpu01, since " in said
    assert "  nothing to kill: gpu02\n" in said
    assert said.count(PROMPT) == 1
    assert said.endswith("gpufleet: not confirmed: nothing done\n")
    assert out == ""
    assert all(node.alive(proc) for proc in procs)


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_e12_yes_acts_on_what_was_shown(answer: str, fleet: SimFleet, node: SimNode) -> None:
    node.start((*SGLANG, ALICE))
    terminal = Terminal(fleet, "reset", "--hosts", "gpu01")

    terminal.await_prompt()
    terminal.type(answer)
    code, _, out = terminal.end()

    assert code == 0
    assert "1 node: 1 CLEAN" in out


def test_what_started_again_while_one_thought_is_the_same_crowd(
    fleet: SimFleet, node: SimNode
) -> None:
    [old] = node.start((ALICE,))
    terminal = Terminal(fleet, "reset", "--hosts", "gpu01")
    terminal.await_prompt()
    node.kill(old)
    [new] = node.start((ALICE,))

    terminal.type("y\n")
    code, _, out = terminal.end()

    assert (code, "1 CLEAN" in out) == (0, True)
    assert not node.alive(new)


def test_whoever_came_while_one_thought_is_not_killed_without_a_word(
    fleet: SimFleet, node: SimNode
) -> None:
    procs = node.start((ALICE,))
    terminal = Terminal(fleet, "reset", "--hosts", "gpu01,gpu02")
    terminal.await_prompt()
    procs += node.start((BOB,))

    terminal.type("y\n")
    code, _, out = terminal.end()

    assert code == 4
    assert "gpu01  SKIPPED" in out
    assert "since you were asked, processes of bob have come: nothing was touched" in out
    assert all(node.alive(proc) for proc in procs)


def with_guard(fleet: SimFleet, folder: Path, guard: str) -> Path:
    document = yaml.safe_load(fleet.fleet_yaml.read_text())
    document["defaults"]["guard"] = guard
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("answer", [1, 2])
def test_what_a_guard_kept_out_of_the_question_is_not_killed_when_it_changes_its_mind(
    answer: int, fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    kept = node.start((ALICE,))
    shown = fleet["gpu02"].start((ALICE,))
    keep = node.path("/run/keep")
    keep.touch()
    inventory = with_guard(
        fleet, tmp_path, f"test ! -e /run/keep || {{ echo kept; exit {answer}; }}"
    )
    terminal = Terminal(fleet, "reset", "--hosts", "gpu01,gpu02", inventory=inventory)
    said = terminal.await_prompt()
    keep.unlink()

    terminal.type("y\n")
    terminal.end()

    assert "  kill 1 process of alice on gpu02, since " in said
    assert "kept" in said
    assert node.alive(kept[0])
    assert not fleet["gpu02"].alive(shown[0])


def test_whoever_comes_after_the_first_kill_is_not_killed_without_a_word(
    fleet: SimFleet, node: SimNode
) -> None:
    [alice] = node.start((ALICE,))
    came: list[RunningProcess] = []

    def on_event(phase: str, _detail: str) -> None:
        if phase == "kill" and not came:
            came.extend(node.start((BOB,)))

    spec = spec_of(fleet, node)
    agreed = {"gpu01": frozenset({("alice", "")})}
    run = Resetting(new_run_id(), "tests", shown=agreed)
    report = reset_node(spec, lambda: connect(spec), run, on_event)

    assert not node.alive(alice)
    assert node.alive(came[0])
    assert report.verdict is Verdict.DIRTY
    assert (
        "since you were asked, processes of bob have come, which were left alone" in report.reason
    )


def test_what_was_typed_before_the_question_is_no_answer(fleet: SimFleet, node: SimNode) -> None:
    procs = node.start(SGLANG)
    terminal = Terminal(fleet, "reset", "--hosts", "gpu01")
    terminal.type("y\n")

    terminal.await_prompt()
    terminal.type("\n")
    code, _, _ = terminal.end()

    assert code == 2
    assert all(node.alive(proc) for proc in procs)


def test_where_nothing_would_be_killed_nothing_is_asked(fleet: SimFleet, node: SimNode) -> None:
    node.start(IDLE)

    code, said, out = Terminal(fleet, "reset", "--hosts", "gpu01").end()

    assert code == 0
    assert PROMPT not in said
    assert "Nothing to kill: going on to prove it." in said
    assert "1 CLEAN" in out


@pytest.mark.parametrize("extra", ["--yes", "--dry-run"])
def test_yes_and_dry_run_ask_nothing(extra: str, fleet: SimFleet, node: SimNode) -> None:
    node.start(SGLANG)

    code, said, _ = Terminal(fleet, "reset", "--hosts", "gpu01", extra).end()

    assert code == 0
    assert PROMPT not in said


def test_an_interrupt_at_the_question_does_nothing(fleet: SimFleet, node: SimNode) -> None:
    procs = node.start(SGLANG)
    terminal = Terminal(fleet, "reset", "--hosts", "gpu01")
    terminal.await_prompt()

    terminal.process.send_signal(signal.SIGINT)
    code, said, out = terminal.end()

    assert (code, out) == (130, "")
    assert said.endswith("gpufleet: interrupted: nothing done\n")
    assert all(node.alive(proc) for proc in procs)


def test_a_terminal_that_goes_away_is_no_yes(fleet: SimFleet, node: SimNode) -> None:
    procs = node.start(SGLANG)
    terminal = Terminal(fleet, "reset", "--hosts", "gpu01")
    terminal.await_prompt()

    terminal.hang_up()

    terminal.process.communicate(timeout=60)
    assert terminal.process.returncode == 2
    assert all(node.alive(proc) for proc in procs)


def test_json_is_asked_about_as_well(fleet: SimFleet, node: SimNode) -> None:
    node.start(SGLANG)
    terminal = Terminal(fleet, "reset", "--hosts", "gpu01", "--json")
    terminal.await_prompt()

    terminal.type("y\n")
    code, _, out = terminal.end()

    assert code == 0
    assert out.startswith("{")
