"""What stands on a real terminal, against screens kept as text in screens/.

After a change that is meant: `SCREENS=write python -m pytest tests/screens`, and read the diff.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.screens.terminal import MISSING, Terminal
from tests.simfleet import SGLANG, Proc, SimFleet

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

KEPT = Path(__file__).parent / "kept"
ROOT = Path(__file__).parent.parent.parent
ASCII = {"TERM": "linux"}
COLOURLESS = {"NO_COLOR": "1"}


def captured(
    view: str,
    columns: int,
    nodes: int,
    tmp_path: Path,
    environment: dict[str, str] | None = None,
    *,
    colours: bool = False,
) -> str:
    ready = tmp_path / "ready"
    ready.unlink(missing_ok=True)
    command = f"cd {ROOT} && {sys.executable} -m tests.screens.play {view} {nodes} {ready}"
    rows = 24 if columns == 80 else 50
    with Terminal(command, columns, rows, environment) as terminal:
        terminal.wait(ready.exists)
        before = ""
        while (screen := terminal.screen(history=view != "live", colours=colours)) != before:
            before = screen
        return screen


def compare(screen: str, name: str) -> None:
    path = KEPT / f"{name}.txt"
    if os.environ.get("SCREENS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(screen, encoding="utf-8")
    assert screen == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("nodes", [1, 16, 200])
@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("view", ["live", "result", "status"])
def test_a_screen_is_as_it_was(view: str, columns: int, nodes: int, tmp_path: Path) -> None:
    compare(captured(view, columns, nodes, tmp_path), f"{view}-{nodes}-nodes-{columns}-columns")


@pytest.mark.parametrize("view", ["live", "result", "status"])
def test_without_block_signs_it_says_the_same_in_letters(view: str, tmp_path: Path) -> None:
    screen = captured(view, 80, 16, tmp_path, ASCII)

    compare(screen, f"{view}-16-nodes-80-columns-ascii")
    assert screen.isascii()


@pytest.mark.parametrize("view", ["live", "status"])
def test_colours_are_as_they_were(view: str, tmp_path: Path) -> None:
    compare(captured(view, 80, 16, tmp_path, colours=True), f"{view}-16-nodes-80-columns-colours")


@pytest.mark.parametrize("view", ["live", "result", "status"])
def test_no_color_means_none(view: str, tmp_path: Path) -> None:
    screen = captured(view, 80, 16, tmp_path, COLOURLESS, colours=True)
    assert "\x1b" not in screen


def test_the_result_takes_the_place_of_the_live_view(tmp_path: Path) -> None:
    assert captured("after", 80, 16, tmp_path) == captured("result", 80, 16, tmp_path)


def test_no_line_of_a_live_view_is_wider_than_the_terminal(tmp_path: Path) -> None:
    """A wrapped line would break the frame; at 30 columns nearly all are cut."""
    screen = captured("live", 30, 16, tmp_path)
    assert sum(line.startswith("gpu") for line in screen.splitlines()) == 16


@pytest.mark.parametrize("columns", [12, 22, 30])
def test_on_a_narrow_terminal_the_counts_win_over_the_bar(columns: int, tmp_path: Path) -> None:
    """The bar pushed them off the screen."""
    first, _ = captured("live", columns, 16, tmp_path).splitlines()[:2]
    assert re.search(r"[0-9]+/16", first)


def gpufleet(fleet: SimFleet, arguments: str) -> str:
    return f"{sys.executable} -m gpufleet {arguments} -i {fleet.fleet_yaml}"


def test_a_real_reset_leaves_its_result_on_the_screen_once(fleet: SimFleet) -> None:
    for node in fleet:
        node.start(SGLANG)

    with Terminal(gpufleet(fleet, "reset -H inference-pool --yes"), 80, 24) as terminal:
        terminal.wait(lambda: "gpu04" in terminal.screen())
        terminal.wait(lambda: "ENDED 0" in terminal.screen())
        screen = terminal.screen(history=True)
        shown = terminal.cursor_shown()

    lines = screen.splitlines()
    assert lines[0].split() == ["NODE", "VERDICT", "GPUS", "KILLED", "SPARED", "SECONDS"]
    assert lines[1].split()[:2] == ["gpu[01-04]", "CLEAN"]
    assert lines[2].startswith("4 nodes: 4 CLEAN (")
    assert lines[3:] == ["", "ENDED 0"]
    assert shown


def test_an_interrupt_leaves_a_report_and_a_working_terminal(fleet: SimFleet) -> None:
    fleet["gpu01"].start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=60),))

    with Terminal(gpufleet(fleet, "reset -H gpu01 --yes"), 80, 24) as terminal:
        terminal.wait(lambda: "memory" in terminal.screen() or "free " in terminal.screen())
        terminal.keys("C-c")
        terminal.wait(lambda: "ENDED 130" in terminal.screen())
        screen = terminal.screen(history=True)
        shown = terminal.cursor_shown()

    assert "why: interrupted: state not verified" in screen
    assert "Traceback" not in screen
    assert shown


def test_watching_shows_changes_until_q_and_then_the_last_look(fleet: SimFleet) -> None:
    fleet["gpu01"].start(SGLANG)

    command = gpufleet(fleet, "status -H inference-pool --watch 300ms") + "; stty -a"
    with Terminal(command, 80, 40) as terminal:
        terminal.wait(lambda: "gpu01       BUSY" in terminal.screen())
        assert "q ends" in terminal.screen()
        fleet["gpu01"].clear()
        terminal.wait(lambda: "gpu[01-04]  IDLE" in terminal.screen())
        terminal.keys("q")
        terminal.wait(lambda: "ENDED 0" in terminal.screen())
        screen = terminal.screen()
        shown = terminal.cursor_shown()

    assert screen.splitlines()[1].startswith("gpu[01-04]  IDLE")
    assert "q ends" not in screen
    assert " icanon" in screen
    assert " echo " in screen
    assert shown


@pytest.mark.parametrize("signal_name", ["TERM", "HUP"])
def test_a_watch_that_is_ended_leaves_the_terminal_as_it_was(
    fleet: SimFleet, signal_name: str, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    watch = gpufleet(fleet, "status -H inference-pool --watch 300ms")
    with Terminal(f"sh -c 'echo $$ >{pid}; exec {watch}'; stty -a", 80, 40) as terminal:
        terminal.wait(lambda: "q ends" in terminal.screen())
        os.kill(int(pid.read_text()), getattr(signal, f"SIG{signal_name}"))
        terminal.wait(lambda: "ENDED" in terminal.screen())
        screen, shown = terminal.screen(), terminal.cursor_shown()

    assert "q ends" not in screen
    assert " icanon" in screen
    assert shown


def test_a_reset_can_be_stopped_and_its_view_goes_on(fleet: SimFleet) -> None:
    """The cursor is the shell's meanwhile."""
    fleet["gpu01"].start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=8),))
    reset = gpufleet(fleet, "reset -H gpu01 --yes")
    command = f"set -m; {reset}; echo STOPPED; read answer; fg >/dev/null"
    with Terminal(f"bash -c '{command}'", 80, 40) as terminal:
        terminal.wait(lambda: "gpu01  free" in terminal.screen())
        assert not terminal.cursor_shown()
        terminal.keys("C-z")
        terminal.wait(lambda: "STOPPED" in terminal.screen())
        assert terminal.cursor_shown()
        terminal.keys("Enter")
        terminal.wait(lambda: not terminal.cursor_shown())
        terminal.wait(lambda: "ENDED 0" in terminal.screen())
        screen, shown = terminal.screen(), terminal.cursor_shown()

    assert "1 node: 1 CLEAN (" in screen
    assert shown


def test_a_watch_can_be_stopped_and_goes_on(fleet: SimFleet) -> None:
    watch = gpufleet(fleet, "status -H inference-pool --watch 300ms")
    command = f"set -m; {watch}; stty -a; echo STOPPED; read answer; fg >/dev/null; stty -a"
    with Terminal(f"bash -c '{command}'", 80, 40) as terminal:
        terminal.wait(lambda: "q ends" in terminal.screen())
        terminal.keys("C-z")
        terminal.wait(lambda: "STOPPED" in terminal.screen())
        stopped, shown = terminal.screen(), terminal.cursor_shown()
        terminal.keys("Enter")
        terminal.wait(lambda: "q ends" in terminal.screen())
        terminal.keys("q")
        terminal.wait(lambda: "ENDED 0" in terminal.screen())

    assert "q ends" not in stopped
    assert " icanon" in stopped
    assert shown
