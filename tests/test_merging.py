"""`gpufleet merge`: several runs as one report, and never a better one than the files prove."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import UsageError
from gpufleet.inventory.sharding import Shard, part_of
from gpufleet.merging import merge, merged_exit_code, read_parts, with_absent
from gpufleet.model import (
    Escalation,
    Gpu,
    Leftover,
    Moment,
    NodeReport,
    ProcessLine,
    RunReport,
    Stopped,
    Verdict,
)
from gpufleet.render.document import run_document
from gpufleet.render.events import Events
from gpufleet.render.heat import status_text
from gpufleet.render.text import run_text
from tests.conftest import Command, command_for
from tests.leaves import with_odd
from tests.screens.made import reset_run, status_run
from tests.simfleet import SGLANG, SimFleet
from tests.test_schema import validate

V = Verdict
CLEAN = (Gpu(0, "GPU-0", 100, 0),)


def run(
    *nodes: str | tuple[str, Verdict], run_id: str = "", shard: str = "", **more: Any
) -> RunReport:
    """A reset of these hosts, CLEAN unless said otherwise."""
    pairs = [(node, V.CLEAN) if isinstance(node, str) else node for node in nodes]
    reports = tuple(NodeReport(host, "192.0.2.1", verdict, gpus=CLEAN) for host, verdict in pairs)
    return RunReport(
        run_id or f"run-{nodes}-{shard}",
        "reset",
        more.pop("selection", "pool"),
        more.pop("started", "2026-01-31T02:00:00.000Z"),
        more.pop("finished", "2026-01-31T02:00:01.500Z"),
        reports,
        shard=shard,
        **more,
    )


def text_of(report: RunReport, code: int | None = None) -> str:
    return run_document(report, report.exit_code() if code is None else code)


def merged(*reports: RunReport) -> RunReport:
    parts = []
    for number, report in enumerate(reports, 1):
        parts += read_parts(text_of(report), f"{number}.json")
    return merge(parts)


def problems(*texts: str) -> str:
    """What is said of these files; fails where nothing is."""
    with pytest.raises(UsageError) as refused:
        merge([part for n, text in enumerate(texts, 1) for part in read_parts(text, f"{n}.json")])
    return str(refused.value)


def names(shard: Shard, count: int = 16) -> list[str]:
    return [name for i in range(1, count + 1) if shard.has(name := f"gpu{i:02}")]


def shards(of: int) -> list[RunReport]:
    return [run(*names(Shard(i, of)), shard=f"{i}/{of}") for i in range(1, of + 1)]


def test_all_shards_are_one_report_in_the_order_of_a_selection() -> None:
    report = merged(*shards(4))
    assert [node.host for node in report.nodes] == [f"gpu{i:02}" for i in range(1, 17)]
    assert (report.missing, merged_exit_code(report)) == ((), 0)
    assert "16 nodes: 16 CLEAN (1.5 s, run merged-" in run_text(report)
    assert run_text(report).endswith(" of 4 runs)\n")


def test_the_order_of_files_changes_nothing() -> None:
    parts = shards(4)
    first = merged(*parts)
    random.Random(7).shuffle(parts)
    again = merged(*parts)
    assert (again.nodes, again.run_id) == (first.nodes, first.run_id)


@pytest.mark.parametrize("kind", ["reset", "status"])
def test_one_file_is_shown_as_its_run_was(kind: str) -> None:
    """Nothing of a report is lost on the way through JSON, whatever its verdicts."""
    report = reset_run(28) if kind == "reset" else status_run(28)
    [part] = read_parts(run_document(report, report.exit_code()), "1.json")
    again = merge([part])
    shown = status_text if kind == "status" else run_text
    assert shown(again, verbose=1) == shown(report, verbose=1)
    assert again.nodes == report.nodes
    validate(json.loads(run_document(again, 3)), "run")


def test_times_go_from_the_first_start_to_the_last_end() -> None:
    report = merged(
        run("a1", started="2026-01-31T02:00:05.000Z", finished="2026-01-31T02:00:06.000Z"),
        run("a2", started="2026-01-31T02:00:00.000Z", finished="2026-01-31T02:00:01.000Z"),
    )
    assert (report.started[17:19], report.finished[17:19]) == ("00", "06")


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 0), 0), ((0, 1), 1), ((4, 0), 4), ((1, 4), 1), ((1, 3), 3), ((0, 3), 3), ((3, 130), 130)],
)
def test_the_worst_exit_status_of_all_holds(codes: tuple[int, int], expected: int) -> None:
    """A run may know more than its nodes say: it was interrupted, or its result wasn't proven."""
    parts = [
        *read_parts(text_of(run("a1"), codes[0]), "1.json"),
        *read_parts(text_of(run("a2"), codes[1]), "2.json"),
    ]
    assert merged_exit_code(merge(parts)) == expected


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(V.DIRTY, 1), (V.BROKEN, 1), (V.UNKNOWN, 3), (V.UNREACHABLE, 3), (V.SKIPPED, 4)],
)
def test_a_files_exit_status_does_not_hide_its_nodes(verdict: Verdict, code: int) -> None:
    [part] = read_parts(text_of(run("a1", ("a2", verdict)), 0), "1.json")
    assert merged_exit_code(merge([part])) == code


def test_skipped_nodes_are_allowed_where_that_is_said() -> None:
    report = merged(run("a1"), run(("a2", V.SKIPPED)))
    assert merged_exit_code(report) == 4
    assert merged_exit_code(report, allow_skipped=True) == 0


def test_a_record_of_a_run_that_was_killed_is_never_well() -> None:
    document = json.loads(text_of(run("a1")))
    document |= {"exit_code": None, "finished": None}
    [part] = read_parts(json.dumps(document), "1.json")
    assert merged_exit_code(merge([part])) == 3


def test_an_interrupted_shard_carries_through() -> None:
    stopped = replace(run("gpu02", shard=f"{part_of('gpu02', 2)}/2"), interrupted_by=signal.SIGINT)
    other = run("gpu01", shard=f"{part_of('gpu01', 2)}/2")
    report = merged(other, stopped)
    assert (report.interrupted_by, merged_exit_code(report)) == (signal.SIGINT, 130)


def test_a_missing_shard_is_told_and_never_clean() -> None:
    one, _, three, _ = shards(4)
    report = merged(one, three)
    assert report.missing == ("2/4 of pool", "4/4 of pool")
    assert merged_exit_code(report) == 3
    assert "2 shards missing" in run_text(report).splitlines()[-1]
    assert json.loads(run_document(report, 3))["missing"] == ["2/4 of pool", "4/4 of pool"]


def test_shards_of_another_selection_do_not_stand_in() -> None:
    one, two = shards(2)
    report = merged(one, replace(two, selection="training"))
    assert report.missing == ("2/2 of pool", "1/2 of training")


def test_a_shard_without_a_node_is_there() -> None:
    name = "gpu01"
    mine = part_of(name, 2)
    report = merged(run(name, shard=f"{mine}/2"), run(shard=f"{3 - mine}/2", run_id="r"))
    assert (report.missing, merged_exit_code(report)) == ((), 3)  # of no node: 3 by its own account

    empty = read_parts(text_of(run(shard=f"{3 - mine}/2"), 0), "2.json")
    full = read_parts(text_of(run(name, shard=f"{mine}/2")), "1.json")
    assert merged_exit_code(merge([*full, *empty])) == 0
    assert merged_exit_code(merge(read_parts(text_of(run(shard="1/1"), 0), "2.json"))) == 0


def test_hosts_that_no_file_has_are_not_started() -> None:
    one, two = shards(2)
    every = {f"gpu{i:02}": f"192.0.2.{i}" for i in range(1, 17)}
    whole = with_absent(merged(one, two), every)
    assert (len(whole.nodes), merged_exit_code(whole)) == (16, 0)

    part = with_absent(merged(one), every)
    assert [node.host for node in part.nodes] == list(every)
    absent = {node.host for node in part.nodes if node.verdict is V.NOT_STARTED}
    assert absent == set(names(Shard(2, 2)))
    assert (part.missing, merged_exit_code(part)) == (("2/2 of pool",), 3)

    # Of a shard that has none of these, nobody misses a file.
    enough = with_absent(merged(one), {node.host: "" for node in one.nodes})
    assert (enough.missing, merged_exit_code(enough)) == ((), 0)


def test_merged_reports_merge_again() -> None:
    one, two, three, four = shards(4)
    first, second = merged(one, two), merged(three, four)
    assert merged_exit_code(first) == 3
    report = merge(
        [
            *read_parts(run_document(first, 3), "a.json"),
            *read_parts(run_document(second, 3), "b.json"),
        ]
    )
    assert (len(report.nodes), report.missing, merged_exit_code(report)) == (16, (), 0)
    assert report.run_id == merged(one, two, three, four).run_id


def events_of(report: RunReport, code: int, *, told: int | None = None) -> str:
    lines: list[str] = []
    events = Events(lines.append, report.command, clock=lambda: 0.0)
    events.start(report.selection, len(report.nodes), report.shard)
    for node in report.nodes[:told]:
        events.on_event(node.host, "connect", "")
        events.on_report(node)
    events.finish(report, code)
    return "".join(lines)


def test_event_streams_are_read_as_documents_are() -> None:
    one, two = shards(2)
    text = events_of(one, 0) + text_of(two) + "\n"
    report = merge(read_parts(text, "-"))
    assert report == merged(one, two)


def test_nodes_that_a_stop_left_alone_stand_in_the_stream() -> None:
    """They get no report while the run goes; the end must not be all that tells of them."""
    stopped = run("a1", ("a2", V.NOT_STARTED), ("a3", V.NOT_STARTED))
    [part] = read_parts(events_of(stopped, 3, told=1), "1.jsonl")
    assert [node.verdict for node in part.report.nodes] == [V.CLEAN, V.NOT_STARTED, V.NOT_STARTED]


# What is refused, each as one line.


def test_a_node_in_two_files_is_refused_with_both_verdicts() -> None:
    told = problems(text_of(run("a1", "a2")), text_of(run(("a2", V.DIRTY), run_id="r")))
    assert told == (
        "2.json: a2 (DIRTY) is in 1.json (CLEAN) already: leave out the file that no longer holds"
    )


def test_many_nodes_in_two_files_are_counted() -> None:
    many = [f"a{i}" for i in range(50)]
    told = problems(text_of(run(*many)), text_of(run(*many, run_id="r"))).splitlines()
    assert (len(told), told[-1]) == (6, "45 more nodes are in two files")


def test_a_shard_given_twice_is_refused() -> None:
    one, _ = shards(2)
    told = problems(text_of(one), text_of(one))
    assert told == "2.json: shard 1/2 of pool is in 1.json already: give each once"


def test_shards_of_two_sizes_are_refused() -> None:
    told = problems(text_of(shards(2)[0]), text_of(shards(4)[1]))
    assert "shard 2/4 of pool, and 1.json has one of 2 parts" in told


def test_a_node_that_its_shard_cannot_have_is_refused() -> None:
    wrong = f"{3 - part_of('gpu01', 2)}/2"
    assert "gpu01 is in shard" in problems(text_of(run("gpu01", shard=wrong)))


def test_two_commands_are_refused() -> None:
    status = RunReport(
        "s", "status", "pool", "2026-01-31T02:00:00.000Z", "2026-01-31T02:00:01.000Z", ()
    )
    assert "2.json: of status, and 1.json is of reset" in problems(
        text_of(run("a1")), text_of(status)
    )
    dry = replace(run("a2"), dry_run=True)
    assert "of reset --dry-run" in problems(text_of(run("a1")), text_of(dry))


Change = Callable[[dict[str, Any]], Any]


def changed(**keys: Any) -> Change:
    return lambda document: document.update(keys)


def node_changed(**keys: Any) -> Change:
    return lambda document: document["nodes"][0].update(keys)


def without(*keys: str) -> Change:
    return lambda document: [document.pop(key) for key in keys]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(schema=2), "schema 2, and this version reads 1"),
        (changed(schema=True), "schema"),
        (changed(schema="1"), "schema"),
        (changed(command="hosts"), "of gpufleet hosts"),
        (changed(command="frob"), '"frob"'),
        (changed(command=["reset"]), "command"),
        (changed(dry_run="no"), "dry_run"),
        (changed(nodes={}), "nodes"),
        (changed(nodes=[7]), "a node that is no mapping"),
        (changed(nodes=[]), "its summary says"),
        (changed(summary={"CLEAN": 2}), "its summary says"),
        (changed(summary=None), "no summary"),
        (changed(exit_code=7), "exit code"),
        (changed(exit_code=False), "exit code"),
        (changed(exit_code=2), "exit code"),
        (changed(exit_code="0"), "exit code"),
        (changed(shard="3/2"), "its shard"),
        (changed(shard=3), "its shard"),
        (changed(started="yesterday"), "started"),
        (changed(started=None), "started"),
        (changed(finished="2026-01-31T02:00:00.000+01:00"), "finished"),
        (changed(run_id=7), "run_id"),
        (changed(merged=[]), "merged of no run"),
        (changed(merged=[{"run_id": "r"}]), "merged"),
        (without("nodes"), "not what --json or --jsonl of a run wrote"),
        (without("schema"), "not what --json or --jsonl of a run wrote"),
        (without("selection"), "selection"),
        (node_changed(verdict="FINE"), "verdict"),
        (node_changed(verdict="IDLE"), "IDLE"),
        (node_changed(verdict=None), "verdict"),
        (node_changed(host="a 1"), "a node called"),
        (node_changed(host="\x1b[31m"), "a node called"),
        (node_changed(host="all"), "a node called"),
        (node_changed(host=None), "host"),
        (node_changed(stage="\x1b[2J"), "stage"),
        (node_changed(reason=7), "reason"),
        (node_changed(elapsed_s="fast"), "elapsed_s"),
        (node_changed(attempts=10**30), "number"),
        (node_changed(gpus=[{"index": "first"}]), "gpus"),
        (node_changed(gpus=[{"index": 0, "memory_used_mib": 10**400}]), "number"),
        (node_changed(killed=[{"pid": 1}]), "killed"),
        (node_changed(timeline=[1]), "timeline"),
        (lambda document: document["nodes"].append(document["nodes"][0]), "a1 is in it twice"),
    ],
)
def test_what_gpufleet_did_not_write_is_one_line(change: Change, said: str) -> None:
    document = json.loads(text_of(run("a1")))
    change(document)
    told = problems(json.dumps(document))
    assert told.startswith("1.json: ")
    assert said in told
    assert told.isprintable()  # one line, and nothing that moves a cursor
    assert len(told) <= 400


FULL = NodeReport(
    "a1",
    "192.0.2.1",
    V.DIRTY,
    "reason",
    "step",
    "stage",
    2,
    1.5,
    (Gpu(0, "GPU-1", 5, 6, "?", 7),),
    ("warning",),
    (LINE := ProcessLine(7, "root", "login", "python3", "name", "why", "KILL", 3, 4, "pod", "no"),),
    (LINE,),
    (LINE,),
    (Stopped("a", "stop a", "no", "yes"),),
    (Leftover("/dev/shm/x", 5, "yes"),),  # a text
    (),
    (Moment(0.1, "look", "x"),),
    (Escalation("reboot", "why", "yes", ("systemctl reboot",)),),
)


def shown(document: dict[str, Any]) -> str | UsageError:
    """All that `merge` prints of it, or why it doesn't."""
    try:
        report = merge(read_parts(json.dumps(document), "x.json"))
    except UsageError as error:
        return error
    merged_exit_code(report)
    text = run_text(report, verbose=1) + text_of(report, 0)
    return text + (status_text(report, verbose=1) if report.command == "status" else "")


@pytest.mark.parametrize("verdict", [V.DIRTY, V.BUSY])
def test_whatever_stands_in_whatever_place_is_refused_or_shown_as_text(verdict: Verdict) -> None:
    """Each key of a node and of a run, nested ones too, that this version writes."""
    of = "status" if verdict is V.BUSY else "reset"
    node = replace(FULL, verdict=verdict, planned=(LINE,) if of == "status" else ())
    report = replace(run("b1"), command=of, nodes=(node,))
    document = json.loads(text_of(report)) | {"shard": "1/1"}
    merged_once = json.loads(text_of(merged(report))) if of == "reset" else document
    read = 0
    for whole in (document, merged_once):
        for at, odd, changed_document in with_odd(whole):
            told = shown(changed_document)
            if isinstance(told, UsageError):
                assert str(told).isprintable(), (at, odd)
                assert len(str(told)) < 500, (at, odd)
            else:
                read += 1
                assert told.replace("\n", "").isprintable(), (at, odd)
    assert read > 100


@pytest.mark.parametrize("depth", [100, 5000, 50_000])
def test_what_is_nested_deeply_is_refused_or_passed_over(depth: int) -> None:
    """How deep is too deep for JSON is the interpreter's to say; it differs between versions."""
    text = text_of(run("a1")).rstrip().removesuffix("}") + f', "x": {"[" * depth}{"]" * depth}}}'
    try:
        assert read_parts(text, "1.json")
    except UsageError as error:
        assert "nested too deeply" in str(error)  # noqa: PT017  # either will do
        assert depth > 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty: its run wrote no result"),
        (" \n", "empty: its run wrote no result"),
        ("[]", "not what --json"),
        ("7", "not what --json"),
        ("null", "not what --json"),
        ("hosts:\n  gpu01: {}\n", "line 1: not JSON"),
        ("gpufleet: unknown host", "line 1: not JSON"),
        ('{"schema": 1} trailing }', "not what --json"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"event": "node", "node": {}}', 'its first event is "node"'),
        ('{"event": "end"}', 'its first event is "end"'),
        ('{"event": "start", "schema": 9}', "schema 9"),
    ],
)
def test_a_foreign_file_is_one_line(text: str, said: str) -> None:
    assert said in problems(text)


def test_wherever_a_file_was_cut_it_is_refused() -> None:
    """But for what only the last line's end is missing of."""
    for whole in (text_of(run("a1", ("a2", V.DIRTY))), events_of(run("a1", "a2"), 0)):
        whole = whole.rstrip("\n")  # noqa: PLW2901  # as editors do
        assert read_parts(whole, "1.json")
        for end in range(len(whole)):
            told = problems(whole[:end])
            assert told.startswith("1.json: "), end
            assert "\n" not in told


def test_a_cut_file_says_so_and_what_to_do() -> None:
    told = problems(text_of(run("a1"))[:-40])
    assert "1.json: cut off in line " in told
    assert "leave it out, and its shard counts as missing" in told
    lines = events_of(run("a1", "a2"), 0).splitlines(keepends=True)
    assert "cut off after 1 of 2 nodes" in problems("".join(lines[:3]))


# The command.


def files(folder: Path, *reports: RunReport) -> list[str]:
    paths = [folder / f"{number}.json" for number in range(1, len(reports) + 1)]
    for path, report in zip(paths, reports, strict=True):
        path.write_text(text_of(report) + "\n")
    return [path.name for path in paths]


def test_every_unfit_file_is_told_at_once(tmp_path: Path) -> None:
    good = files(tmp_path, run("a1"))
    (tmp_path / "empty.json").touch()
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    done = command_for({})(
        "merge", *good, "empty.json", "latin.json", "none.json", ".", cwd=tmp_path
    )
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["empty.json", "latin.json", "none.json", "."]


def test_no_file_is_a_usage_error() -> None:
    done = command_for({})("merge")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1


def test_standard_input_is_a_file_once(tmp_path: Path) -> None:
    one, two = shards(2)
    first = files(tmp_path, one)
    gpufleet = command_for({})
    with (tmp_path / "two").open("w+") as stream:
        stream.write("\ufeff" + text_of(two))
        stream.seek(0)
        done = gpufleet("merge", *first, "-", cwd=tmp_path, stdin=stream)
    assert (done.code, done.err) == (0, "")
    assert "16 nodes: 16 CLEAN" in done.out
    assert gpufleet("merge", "-", "-").err == "gpufleet: -: standard input can be read once only\n"


def test_a_missing_shard_is_a_warning_and_exit_3_even_when_quiet(tmp_path: Path) -> None:
    one, _ = shards(2)
    done = command_for({})("merge", "-q", *files(tmp_path, one), cwd=tmp_path)
    assert (done.code, done.out) == (3, "")
    assert done.err == "gpufleet: warning: shard 2/2 of pool is in no file\n"


def test_what_files_say_cannot_move_the_cursor(tmp_path: Path) -> None:
    odd = run("a1", selection="\x1b[31mpool", shard="1/1", run_id="\x1b[2J")
    node = NodeReport("a2", "\x1b", V.DIRTY, "\x1b[2J", "\x1b[2J\nrm", warnings=("\x1b",))
    odd = replace(odd, nodes=(*odd.nodes, node), shard="")
    for options in ([], ["-v"], ["--json"]):
        done = command_for({})("merge", *options, *files(tmp_path, odd), cwd=tmp_path)
        assert done.code == 1
        assert "\x1b" not in done.out + done.err


def test_real_shards_merge_into_what_one_run_says(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    fleet["gpu02"].fault("gpu3", "[N/A]")
    fleet["gpu03"].stop_sshd()
    codes = []
    for number in (1, 2):
        done = gpufleet("reset", "-H", "inference-pool", "--shard", f"{number}/2", "--json")
        (tmp_path / f"{number}.json").write_text(done.out)
        codes.append(done.code)
    done = gpufleet("merge", "1.json", "2.json", "--json", cwd=tmp_path)
    assert done.code == max(codes) == 3
    assert {host: node["verdict"] for host, node in done.nodes().items()} == {
        "gpu01": "CLEAN",
        "gpu02": "UNKNOWN",
        "gpu03": "UNREACHABLE",
        "gpu04": "CLEAN",
    }
    validate(done.json, "run")
    (tmp_path / "all.json").write_text(done.out)
    page = gpufleet("report", "all.json", "-o", "-", cwd=tmp_path)
    assert page.code == 0
    assert "gpu03" in page.out


def test_a_shard_that_was_interrupted_for_real(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    """Its own nodes and its own exit status stand in the one report."""
    for node in fleet:
        node.start(SGLANG)
    stopped = f"{part_of('gpu01', 2)}/2"
    other = f"{3 - part_of('gpu01', 2)}/2"
    done = gpufleet("reset", "-H", "inference-pool", "--shard", other, "--json")
    (tmp_path / "a.json").write_text(done.out)
    fleet["gpu01"].tool("nvidia-smi", "sleep 60")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gpufleet", "reset", "-i", str(fleet.fleet_yaml)),
            *("-H", "inference-pool", "--shard", stopped, "--jsonl"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    head = ""
    while '"look"' not in head:
        line = process.stdout.readline()
        assert line
        head += line
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    (tmp_path / "b.jsonl").write_text(head + rest)
    merged_run = gpufleet("merge", "a.json", "b.jsonl", "--json", cwd=tmp_path)
    assert merged_run.code == 130
    verdicts = {host: node["verdict"] for host, node in merged_run.nodes().items()}
    assert len(verdicts) == 4
    assert verdicts["gpu01"] != "CLEAN"
