"""Views as pure functions: what folds, what is shown first, what a stream can carry."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.cli.streams import ink_for
from gpufleet.model import NodeReport, RunReport, Verdict
from gpufleet.render.board import Board, reading
from gpufleet.render.folding import folded, names
from gpufleet.render.heat import status_text, top_holder
from gpufleet.render.ink import Ink, age, amount
from gpufleet.render.text import run_text
from tests.screens.made import clean, gpus, hosts, process, reset_run, status_run


def run_of(*nodes: NodeReport, command: str = "reset", **more: Any) -> RunReport:
    times = ("2026-01-31T02:00:00.000Z", "2026-01-31T02:00:01.000Z")
    return RunReport("run", command, "pool", *times, nodes, **more)


def unreachable(number: int, reason: str = "connection refused by {}") -> NodeReport:
    address = f"10.0.0.{number}"
    return NodeReport(
        f"gpu{number:02}",
        address,
        Verdict.UNREACHABLE,
        reason.format(address),
        f"ssh root@{address} true",
        "connect",
    )


def entries(*nodes: NodeReport) -> list[str]:
    return [names(entry) for entry in folded(nodes, lambda node: ())]


# --- folding ---------------------------------------------------------------------------------


def test_equal_nodes_are_one_line_and_others_keep_their_place() -> None:
    text = run_text(run_of(*[clean(h, n) for n, h in enumerate(hosts(15))], unreachable(16)))

    lines = text.splitlines()
    assert lines[1].split() == ["gpu[01-15]", "CLEAN", "8", "×", "0", "MiB", "8", "2", "1.4"]
    assert lines[2].startswith("gpu16       UNREACHABLE")
    assert lines[4] == "    next: ssh root@10.0.0.16 true"


def test_many_that_failed_alike_fold_although_their_addresses_differ() -> None:
    assert entries(*[unreachable(n) for n in range(1, 5)]) == ["gpu[01-04]"]


def test_few_that_failed_alike_stay_apart_each_with_a_command_to_paste() -> None:
    assert entries(*[unreachable(n) for n in range(1, 4)]) == ["gpu01", "gpu02", "gpu03"]


def test_an_address_inside_another_is_no_reason_to_fold() -> None:
    """10.0.0.1 stands in 10.0.0.17 and in 110.0.0.1."""
    for reason in ("refused by {}7", "refused by 1{}", "refused by {}.7", "refused by x-{}"):
        assert len(entries(*[unreachable(n, reason) for n in range(1, 5)])) == 4
    assert len(entries(*[unreachable(n, "refused by {}.") for n in range(1, 5)])) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "another"},
        {"next_step": "another"},
        {"warnings": ("GPU 2: MIG is on",)},
        {"verdict": Verdict.IDLE},
        {"survivors": (process(1, "x"),)},
        {"stage": "dns"},
    ],
)
def test_what_differs_does_not_fold(change: dict[str, Any]) -> None:
    first, second = clean("gpu01", 1), clean("gpu02", 1)
    assert entries(first, second) == ["gpu[01-02]"]
    assert entries(first, replace(second, **change)) == ["gpu01", "gpu02"]


def test_other_memory_does_not_fold() -> None:
    second = replace(clean("gpu02", 1), gpus=gpus(0, 4, 0))
    text = run_text(run_of(clean("gpu01", 1), second))
    assert "7 × 0 MiB, 1 × 4 MiB" in text
    assert "gpu[" not in text


def test_a_group_tells_the_span_of_its_counts_and_its_slowest() -> None:
    second = replace(clean("gpu02", 1), killed=(), elapsed_s=9.5)
    row = run_text(run_of(clean("gpu01", 1), second)).splitlines()[1]
    assert row.split()[-3:] == ["0-8", "2", "9.5"]


def test_verbose_and_dry_runs_list_every_node() -> None:
    nodes = [clean("gpu01", 1), clean("gpu02", 1)]
    assert "gpu[" not in run_text(run_of(*nodes), verbose=1)
    assert "gpu[" not in run_text(run_of(*nodes, dry_run=True))


def test_verbose_prints_memory_as_the_one_liner_did() -> None:
    lines = run_text(run_of(clean("gpu01", 1)), verbose=1).splitlines()
    assert [f"    {index}, 0 MiB" for index in range(8)] == lines[-9:-1]
    assert (
        "    killed KILL: 4001 root 3 h sglang::scheduler_TP0  (workload: matches sglang)" in lines
    )
    assert any(
        line.startswith("    spared: 50 root nvidia-fabricmanager.service 10 d") for line in lines
    )


# --- what a node said ------------------------------------------------------------------------


@pytest.mark.parametrize("view", [run_text, status_text])
def test_nothing_from_a_node_reaches_the_terminal_raw(view: Any) -> None:
    evil = "\x1b[2J\x9b0m\u202e\nevil"
    node = NodeReport(
        "gpu01",
        "10.0.0.1",
        Verdict.DIRTY if view is run_text else Verdict.BUSY,
        evil,
        evil,
        gpus=(replace(gpus(0)[0], memory_used_mib=None, raw=evil),),
        warnings=(evil,),
        survivors=(process(1, evil, user=evil, owner=evil, why=evil),),
        planned=(process(1, evil, user=evil, owner=evil, why=evil),),
    )
    command = "reset" if view is run_text else "status"
    text = view(run_of(node, command=command), ink=Ink(width=80))
    assert not [char for char in text if not char.isprintable() and char != "\n"]


def test_the_board_escapes_what_a_node_said() -> None:
    board = Board({"gpu01": 8}, lambda: 0.0)
    board.on_event("gpu01", "retry", "\x1b[2J\nevil")
    assert not [c for line in board.frame(Ink(width=80), 24) for c in line if not c.isprintable()]


# --- the map ---------------------------------------------------------------------------------


def shown(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:-2] if line.startswith("gpu")]


def test_only_shows_the_asked_verdicts_and_the_summary_still_counts_all() -> None:
    text = status_text(status_run(16), only=["idle"])
    assert shown(text) == ["gpu[03,06,09,12,15]"]
    assert text.splitlines()[-1].startswith("16 nodes: 5 IDLE, 10 BUSY, 1 BROKEN")


def test_sorting_by_memory_puts_the_fullest_first_and_by_verdict_the_worst() -> None:
    assert shown(status_text(status_run(16), sort="memory"))[0].startswith("gpu[01-02")
    assert shown(status_text(status_run(16), sort="memory"))[-1] == "gpu14"
    assert shown(status_text(status_run(16), sort="verdict"))[0] == "gpu14"


def test_a_map_too_tall_for_the_screen_says_how_many_are_missing() -> None:
    lines = status_text(status_run(16), height=6).splitlines()
    assert len(lines) == 6
    assert [line.split()[0] for line in lines[1:3]] == [
        "gpu[01-02,04,08,11,13,16]",
        "gpu[03,06,09,12,15]",
    ]
    assert lines[3] == "… 4 more (--only, --sort, or a larger terminal)"


def test_the_top_holder_has_most_memory_then_most_years() -> None:
    small = process(1, "small", memory_mib=5, age_s=99)
    large = process(2, "large", memory_mib=50, age_s=1)
    node = NodeReport("gpu01", "a", Verdict.BUSY, planned=(small, large))
    assert top_holder(node) == large
    young, old = process(3, "young", age_s=1), process(4, "old", age_s=2)
    assert top_holder(replace(node, planned=(young, old))) == old


def test_a_spared_process_is_a_holder_only_if_it_holds_memory() -> None:
    idle = process(1, "idle", age_s=99)
    node = NodeReport("gpu01", "a", Verdict.IDLE, spared=(idle,))
    assert top_holder(node) is None
    assert top_holder(replace(node, spared=(replace(idle, memory_mib=3),))) is not None


@pytest.mark.parametrize(
    ("used", "sign"),
    [(0, "·"), (1, "▁"), (50_000, "▃"), (183_359, "█"), (999_999, "█"), (None, "?")],
)
def test_a_cell_is_its_share_of_the_memory(used: int | None, sign: str) -> None:
    assert Ink().cells([(used, 183_359)]) == sign


def test_one_mib_is_never_shown_as_none_not_even_in_letters() -> None:
    assert Ink(unicode=False).cells([(1, 183_359)]) == "1"
    assert Ink(unicode=False).cells([(0, 183_359)]) == "."
    assert Ink().cells([(5, 0)]) == "█"  # the total isn't known


# --- the live view ---------------------------------------------------------------------------


def test_a_fleet_taller_than_the_screen_shows_failed_and_running_nodes_first() -> None:
    nodes = reset_run(200).nodes
    board = Board({node.host: 8 for node in nodes}, lambda: 0.0)
    for node in nodes[:100]:
        board.on_report(node)
    board.on_event("gpu150", "look", "")

    lines = board.frame(Ink(width=80), 24)

    failed = {node.host for node in nodes[:100] if node.verdict is not Verdict.CLEAN}
    assert len(lines) <= 24
    assert {line.split()[0] for line in lines[2:-1]} == {*failed, "gpu150"}
    assert lines[-1] == "… 99 waiting, 86 CLEAN"


def test_running_nodes_keep_half_of_the_screen_however_many_failed() -> None:
    names_ = hosts(100)
    board = Board(dict.fromkeys(names_, 8), lambda: 0.0)
    for number, host in enumerate(names_[:50]):
        board.on_report(replace(unreachable(number), host=host))
    for host in names_[50:]:
        board.on_event(host, "look", "")

    lines = board.frame(Ink(width=80), 23)

    assert sum("look" in line for line in lines) == 10
    assert sum("UNREACHABLE" in line for line in lines[2:-1]) == 10


def test_the_bar_counts_and_foretells() -> None:
    now = [0.0]
    board = Board(dict.fromkeys(hosts(10), 8), lambda: now[0])
    for node in reset_run(10).nodes[:5]:
        board.on_report(node)
    now[0] = 20.0
    assert board.frame(Ink(width=80), 24)[0].endswith(" 5/10  20 s, about 20 s left")


def test_nothing_is_foretold_once_only_slow_nodes_are_left() -> None:
    board = Board(dict.fromkeys(hosts(10), 8), lambda: 0.0)
    for node in reset_run(10).nodes[:9]:
        board.on_report(node)
    board.on_event(hosts(10)[9], "look", "")
    assert "left" not in board.frame(Ink(width=80), 24)[0]


def test_holders_about_as_old_fold() -> None:
    def busy(host: str, seconds: int) -> NodeReport:
        held = (process(7, "sglang::scheduler", age_s=seconds),)
        return NodeReport(host, "a", Verdict.BUSY, gpus=gpus(5), planned=held)

    def rows(*ages: int) -> list[str]:
        nodes = [busy(host, seconds) for host, seconds in zip(hosts(2), ages, strict=True)]
        return shown(status_text(run_of(*nodes, command="status")))

    assert rows(7200, 9000) == ["gpu[01-02]"]
    assert rows(9, 9000) == ["gpu01", "gpu02"]


def test_cells_move_with_each_reading() -> None:
    board = Board({"gpu01": 2}, lambda: 0.0)
    board.on_event("gpu01", "memory", "0=100 1=?")
    assert "█?" in board.frame(Ink(), 24)[2]
    board.on_event("gpu01", "memory", "0=0")
    assert "·?" in board.frame(Ink(), 24)[2]


@pytest.mark.parametrize(
    "detail", ["", "x", "0=", "0=-1", "0=1;rm", "a=1", "0=99999999999", "0=1=2"]
)
def test_a_reading_of_another_form_is_left_out(detail: str) -> None:
    assert reading(detail) == {}


# --- streams ---------------------------------------------------------------------------------


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_redirected_output_has_neither_colours_nor_a_width() -> None:
    assert ink_for(io.StringIO()) == Ink(colour=False, unicode=False, width=0)
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert ink_for(file) == Ink(colour=False, unicode=True, width=0)


@pytest.mark.parametrize(
    ("environment", "no_color", "colour", "unicode"),
    [
        ({"TERM": "xterm"}, False, True, True),
        ({"TERM": "xterm"}, True, False, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, False, True),
        ({"TERM": "dumb"}, False, False, False),
        ({"TERM": "linux"}, False, True, False),
        ({"TERM": ""}, False, False, False),
        ({"TERM": "xterm", "LC_ALL": "C"}, False, True, False),
        ({"TERM": "xterm", "LC_ALL": "C.UTF-8"}, False, True, True),
    ],
)
def test_a_terminal_gets_what_it_can_show(
    environment: dict[str, str],
    no_color: bool,
    colour: bool,
    unicode: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("LC_ALL", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ink = ink_for(Terminal(), no_color=no_color)
    assert (ink.colour, ink.unicode, ink.width) == (colour, unicode, 80)


def test_rich_is_left_alone_without_a_terminal() -> None:
    code = (
        "import sys; import gpufleet.cli; from tests.screens.made import *;"
        "from gpufleet.render.text import run_text; from gpufleet.render.heat import status_text;"
        "run_text(reset_run(16)); status_text(status_run(16));"
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_letters_do_where_signs_cannot() -> None:
    assert run_text(reset_run(16), ink=Ink(unicode=False)).isascii()
    assert status_text(status_run(16), ink=Ink(unicode=False)).isascii()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_ages_are_told_in_one_unit(seconds: int | None, words: str) -> None:
    assert age(seconds) == words


def test_amounts_are_told_at_a_glance() -> None:
    assert [amount(n) for n in (0, 10_239, 62_056, 1_200_000)] == [
        "0 MiB",
        "10239 MiB",
        "61 GiB",
        "1.1 TiB",
    ]


def test_what_one_gpu_says_does_not_widen_every_row() -> None:
    odd = replace(clean("gpu01", 1), gpus=tuple(replace(g, raw="x" * 10_000) for g in gpus(None)))
    text = run_text(run_of(odd, clean("gpu02", 2)))
    assert max(len(line) for line in text.splitlines()) < 400


def test_busy_nodes_with_other_people_behind_the_same_holder_stay_apart() -> None:
    top = process(1, "sglang", memory_mib=9)
    nodes = [
        NodeReport(f"gpu0{n}", "", Verdict.BUSY, gpus=gpus(9), planned=(top, process(2, "x", who)))
        for n, who in enumerate(("alice", "alice", "bob"), 1)
    ]
    text = status_text(run_of(*nodes, command="status"))
    assert "gpu[01-02]" in text
    assert "\ngpu03" in text
