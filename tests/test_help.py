"""Help that helps: one screen, every option told, guesses at what was meant, names at a TAB."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from gpufleet.cli import make_app
from tests.conftest import command_for
from tests.manpage import PAGE, man_page

INVENTORY = """\
hosts:
  gpu[01-02]: {}
  odd: 192.0.2.7
groups:
  pool: gpu[01-02]
  training: odd
"""
COMMANDS: dict[str, Any] = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(INVENTORY)
    path.chmod(0o644)
    return path


def test_the_help_is_one_screen_and_begins_with_what_people_need() -> None:
    lines = command_for({})("--help").out.splitlines()

    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    first = [line.split()[1] for line in lines if line.startswith("    gpufleet ")]
    assert first == ["status", "reset", "reset"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_told_in_one_line_that_is_not_cut(name: str) -> None:
    shown = command_for({})("--help").out
    line = next(x for x in shown.splitlines() if x.split()[:1] == [name])
    assert not line.endswith("...")


def options() -> Iterator[tuple[str, Any]]:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            yield f"{name} {parameter.opts[0]}", parameter


@pytest.mark.parametrize("parameter", [p for _, p in options()], ids=[n for n, _ in options()])
def test_every_option_is_explained(parameter: Any) -> None:
    assert parameter.help


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resett"], "gpufleet: No such command 'resett' (did you mean reset?)"),
        (["reset", "--dryrun"], "gpufleet: No such option: --dryrun (did you mean --dry-run?)"),
        (["status", "-H", "@pol"], 'gpufleet: unknown group "pol" (did you mean pool?)'),
        (
            ["status", "-H", "pool", "--sort", "memry"],
            '"memry": not one of its words (did you mean memory?)',
        ),
        (["status", "-H", "pool", "--only", "x"], "--only"),
    ],
)
def test_it_guesses_what_was_meant(arguments: list[str], message: str, inventory: Path) -> None:
    ran = command_for({"GPUFLEET_INVENTORY": str(inventory)})(*arguments)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "--watch", "5s"], "--watch needs a terminal"),
        (["status", "--watch", "0"], "--watch 0: at least 0.2s: each look is a login on each node"),
        (["status", "--watch", "soon"], '--watch: read "soon": '),
        (["status", "--watch", "5s", "--json"], "--watch is for people: leave out --json"),
        (["reset", "--json", "--jsonl"], "--json and --jsonl say the same in two forms"),
    ],
)
def test_what_makes_no_sense_together_is_refused_before_any_node_is_asked(
    arguments: list[str], message: str, inventory: Path
) -> None:
    ran = command_for({"GPUFLEET_INVENTORY": str(inventory)})(*arguments, "-H", "odd")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"gpufleet: {message}")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("gpufleet re", ["reset", "restore", "report"]),
        ("gpufleet reset -H gpu", ["gpu01", "gpu02"]),
        ("gpufleet reset -H gpu01,tr", ["gpu01,training"]),
        ("gpufleet reset -H @", ["@pool", "@training"]),
        ("gpufleet status --hosts all -x od", ["odd"]),
        ("gpufleet reset --dry", ["--dry-run"]),
        ("gpufleet reset -H nothing", []),
    ],
)
def test_the_shell_completes_commands_options_and_names(
    typed: str, offered: list[str], inventory: Path
) -> None:
    words = typed.split(" ")
    environment = {
        "GPUFLEET_INVENTORY": str(inventory),
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
        "_GPUFLEET_COMPLETE": "complete_bash",
    }

    ran = command_for(environment)()

    assert (ran.out.split(), ran.err) == (offered, "")


def test_completion_is_silent_where_fleet_yaml_is_broken(tmp_path: Path) -> None:
    environment = {
        "GPUFLEET_INVENTORY": str(tmp_path / "none.yaml"),
        "COMP_WORDS": "gpufleet reset -H g",
        "COMP_CWORD": "3",
        "_GPUFLEET_COMPLETE": "complete_bash",
    }
    ran = command_for(environment)()
    assert (ran.out.strip(), ran.err) == ("", "")


def test_the_manual_page_is_current() -> None:
    assert man_page() == PAGE.read_text(encoding="utf-8"), "run: make man"


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff on this machine")
def test_groff_has_nothing_to_complain_about() -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", str(PAGE)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert re.search(r"--dry-run\b", re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout))
