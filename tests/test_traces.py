"""Log lines and metrics of a reset, as programs read them."""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.cli.logfile import LineFile, logged, logging_to
from gpufleet.metrics import write_metrics
from gpufleet.model import Gpu, NodeReport, ProcessLine, RunReport, Verdict
from gpufleet.run import Progress
from tests.conftest import Command
from tests.simfleet import SGLANG, SimFleet, SimNode

ALL = frozenset({"gpu01", "gpu02", "gpu03", "gpu04"})


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_has_every_event_of_every_run_one_json_line_each(
    fleet: SimFleet, node: SimNode, gpufleet: Command, tmp_path: Path
) -> None:
    node.start(SGLANG)
    fleet["gpu02"].stop_sshd()
    log = tmp_path / "reset.jsonl"

    first = gpufleet("reset", "--hosts", "gpu[01-02]", "--json", "--log-file", str(log))
    second = gpufleet("status", "--hosts", "gpu01", "--json", "--log-file", str(log))

    lines = lines_of(log)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert {line["run_id"] for line in lines} == {first.json["run_id"], second.json["run_id"]}
    assert all(line["time"].endswith("Z") and line["level"] for line in lines)
    run = [line for line in lines if line["run_id"] == first.json["run_id"]]
    assert {line["host"] for line in run} == {"gpu01", "gpu02"}
    acted = [line["event"] for line in run if line["host"] == "gpu01"]
    assert acted.index("look") < acted.index("kill") < acted.index("killed")
    assert acted.count("killed") == 10
    verdicts = {line["host"]: line for line in run if line["event"] == "verdict"}
    assert verdicts["gpu01"]["verdict"] == "CLEAN"
    assert verdicts["gpu02"]["verdict"] == "UNREACHABLE"
    assert "connection refused" in verdicts["gpu02"]["message"]
    assert first.err + second.err == ""


def test_a_log_that_cannot_be_written_is_one_warning(fleet: SimFleet, gpufleet: Command) -> None:
    full = gpufleet("reset", "--hosts", "gpu01", "--quiet", "--log-file", "/dev/full")
    gone = gpufleet("check", "--hosts", "gpu01", "--quiet", "--log-file", "/nowhere/log")

    where = "gpufleet: warning: no full log of this run: "
    assert (full.code, full.out, full.err) == (
        0,
        "",
        f"{where}/dev/full: No space left on device\n",
    )
    assert gone.err == f"{where}/nowhere/log: No such file or directory\n"
    assert gone.code == 0


def test_traces_that_fail_in_unforeseen_ways_cost_no_verdict(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    fleet["gpu01"].stop_sshd()

    ran = gpufleet("reset", "--hosts", "gpu01", "--json", "--metrics-file", str(loop))

    assert (ran.code, ran.nodes()["gpu01"]["verdict"]) == (3, "UNREACHABLE")
    assert ran.err.startswith(f"gpufleet: warning: no metrics of this run: {loop}: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("days", ["1000000d", "99999999999999999999d", "9" * 400])
def test_keeping_the_history_for_longer_than_a_calendar_has_days_keeps_all(
    days: str, fleet: SimFleet, gpufleet: Command
) -> None:
    fleet["gpu01"].stop_sshd()
    first = gpufleet("reset", "--hosts", "gpu01", "--json")

    ran = gpufleet("reset", "--hosts", "gpu01", "--json", "--keep-history", days)

    assert (ran.code, ran.err) == (3, "")
    listed = [run["run_id"] for run in gpufleet("history", "--json").json["runs"]]
    assert listed == [ran.json["run_id"], first.json["run_id"]]


def test_vv_shows_events_on_stderr_and_what_ssh_says(fleet: SimFleet, gpufleet: Command) -> None:
    quiet = gpufleet("reset", "--hosts", "gpu01")
    ran = gpufleet("reset", "--hosts", "gpu01", "-vv")

    assert quiet.err == ""
    assert "gpu01 look:" in ran.err
    assert "gpu01 verdict: CLEAN" in ran.err
    assert "paramiko" in ran.err
    assert "\x1b" not in ran.err


@pytest.fixture
def attached(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_what_a_node_said_cannot_forge_a_line_or_show_a_secret(attached: Path) -> None:
    with logging_to(attached, "r1", 0):
        logging.getLogger("paramiko.transport").warning('x\n{"host": "gpu02"} --api-key geheim')
        logging.getLogger("paramiko.transport").info("not without -vv")

    [line] = lines_of(attached)
    assert (line["run_id"], line["logger"]) == ("r1", "paramiko.transport")
    assert line["message"] == 'x\\n{"host": "gpu02"} --api-key ***'


def test_a_log_is_appended_to_and_its_handlers_are_taken_off_again(attached: Path) -> None:
    loggers = [logging.getLogger(name) for name in ("gpufleet", "paramiko")]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    for run_id in ("r1", "r2"):
        with logging_to(attached, run_id, 0):
            logging.getLogger("gpufleet").error("seen")
    logging.getLogger("gpufleet").error("unseen")

    assert [line["run_id"] for line in lines_of(attached)] == ["r1", "r2"]
    assert [(list(logger.handlers), logger.level) for logger in loggers] == before


def test_the_log_hears_notes_and_keeps_all_else_that_a_run_needs(attached: Path) -> None:
    notes: list[str] = []
    screen = Progress(on_note=notes.append, ask_secret=lambda prompt: "x")

    with logging_to(attached, "r1", 0):
        listening = logged(screen)
        listening.on_note("host keys are not checked")

    assert notes == ["host keys are not checked"]
    assert [(line["event"], line["level"]) for line in lines_of(attached)] == [("note", "WARNING")]
    assert listening.ask_secret is screen.ask_secret


def test_a_pipe_that_nobody_reads_does_not_hold_up_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")

    handler = LineFile(tmp_path / "pipe", "r1")
    handler.close()

    assert capsys.readouterr().err.startswith("gpufleet: warning: no full log of this run: ")


def report(*nodes: NodeReport, finished: str = "2026-01-31T02:00:10.000Z") -> RunReport:
    return RunReport("r", "reset", "pool", "2026-01-31T02:00:00.000Z", finished, nodes)


def metrics(path: Path) -> dict[tuple[str, ...], float]:
    """(name without gpufleet_, label values in order of label names) → value."""
    found = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            labels = (value for _, value in sorted(sample.labels.items()))
            found[(sample.name.removeprefix("gpufleet_"), *labels)] = sample.value
    return found


SECRET = ProcessLine(7, "ml", "", "python3 x.py", "workload", "why", "KILL")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_metrics_say_how_each_node_ended(tmp_path: Path) -> None:
    path = tmp_path / "gpufleet.prom"
    gpus = (Gpu(0, "GPU-a", 500, 0), Gpu(1, "GPU-b", 500, None, "[N/A]"), Gpu(2, "", 1, 3))
    nodes = (
        NodeReport("gpu01", "a", Verdict.CLEAN, attempts=1, elapsed_s=1.5, killed=(SECRET,)),
        NodeReport("gpu02", "b", Verdict.UNKNOWN, "odd", gpus=gpus),
        NodeReport("gpu03", "c", Verdict.NOT_STARTED),
    )

    write_metrics(path, report(*nodes), 3, known_hosts=ALL)

    read = metrics(path)
    finished = 1769824810.0
    assert read["run_exit_code",] == 3
    assert read["run_duration_seconds",] == 10
    assert read["run_finished_timestamp_seconds",] == finished
    assert read["run_nodes", "CLEAN"] == 1
    assert read["run_nodes", "DIRTY"] == 0
    assert read["node_verdict", "gpu01", "CLEAN"] == 1
    assert read["node_verdict", "gpu01", "UNKNOWN"] == 0
    assert read["node_verdict", "gpu03", "NOT STARTED"] == 1
    assert read["node_last_success_timestamp_seconds", "gpu01"] == finished
    assert ("node_last_success_timestamp_seconds", "gpu02") not in read
    assert read["node_last_run_timestamp_seconds", "gpu02"] == finished
    assert ("node_last_run_timestamp_seconds", "gpu03") not in read
    assert read["node_duration_seconds", "gpu01"] == 1.5
    assert read["node_killed_processes", "gpu01"] == 1
    assert read["node_gpu_memory_used_bytes", "2", "gpu02"] == 3 << 20
    assert ("node_gpu_memory_used_bytes", "1", "gpu02") not in read  # unreadable is not 0
    assert "python3" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["gpufleet.prom"]


def test_a_node_that_was_not_in_this_run_keeps_its_metrics_while_the_inventory_has_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gpufleet.prom"
    old = [NodeReport(name, "", Verdict.CLEAN) for name in ("gpu01", "gpu02", "gone")]
    write_metrics(path, report(*old), 0, known_hosts=ALL | {"gone"})
    later = report(NodeReport("gpu01", "", Verdict.DIRTY), finished="2026-02-01T02:00:10.000Z")

    write_metrics(path, later, 1, known_hosts=ALL)

    read = metrics(path)
    assert read["node_verdict", "gpu01", "DIRTY"] == 1
    assert read["node_verdict", "gpu01", "CLEAN"] == 0
    assert read["node_last_success_timestamp_seconds", "gpu01"] == 1769824810.0
    assert read["node_last_run_timestamp_seconds", "gpu01"] == 1769824810.0 + 86400
    assert read["node_verdict", "gpu02", "CLEAN"] == 1
    assert read["run_nodes", "CLEAN"] == 0
    assert "gone" not in path.read_text()


def test_a_file_that_is_not_ours_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "gpufleet.prom"
    path.write_text("gpufleet_node_verdict{host= broken\n")

    write_metrics(path, report(NodeReport("gpu01", "", Verdict.CLEAN)), 0, known_hosts=ALL)

    assert metrics(path)["node_verdict", "gpu01", "CLEAN"] == 1


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_never_replaced_by_one(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "odd"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/null")
    else:
        path.mkdir()

    with pytest.raises(OSError, match="not a regular file"):
        write_metrics(path, report(NodeReport("gpu01", "", Verdict.CLEAN)), 0, known_hosts=ALL)

    assert not path.is_file()
    assert Path("/dev/null").is_char_device()


@settings(deadline=None)
@given(st.text())
def test_whatever_stood_in_the_file_before_costs_nothing(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpufleet.prom"
        for before in (text, f'gpufleet_node_verdict{{host="gpu01",{text}"}} 1\n'):
            path.write_bytes(before.encode("utf-8", "surrogateescape"))

            write_metrics(path, report(NodeReport("gpu02", "", Verdict.CLEAN)), 0, known_hosts=ALL)

            assert 'host="gpu02",verdict="CLEAN"} 1.0' in path.read_text()


def test_a_failed_write_leaves_the_old_metrics_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpufleet.prom"
    write_metrics(path, report(NodeReport("gpu01", "", Verdict.CLEAN)), 0, known_hosts=ALL)
    before = path.read_text()

    def full(self: Path, mode: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "chmod", full)
    with pytest.raises(OSError, match="No space"):
        write_metrics(path, report(NodeReport("gpu01", "", Verdict.DIRTY)), 1, known_hosts=ALL)

    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["gpufleet.prom"]


def test_the_command_writes_metrics_of_a_reset_and_none_of_a_dry_run(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    path = tmp_path / "gpufleet.prom"
    fleet["gpu02"].fault("missing7", "")

    gpufleet("reset", "--hosts", "gpu01", "--dry-run", "--metrics-file", str(path))
    assert not path.exists()
    ran = gpufleet("reset", "--hosts", "gpu[01-02]", "--metrics-file", str(path))

    read = metrics(path)
    assert (ran.code, read["run_exit_code",]) == (1, 1)
    assert read["node_verdict", "gpu02", "BROKEN"] == 1
    assert read["node_gpu_memory_used_bytes", "7", "gpu01"] == 0
    assert ("node_gpu_memory_used_bytes", "7", "gpu02") not in read
