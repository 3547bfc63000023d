"""The writing of one run's record, without nodes: what is in the file, and when."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import HistoryError
from gpufleet.history import Recorder, Start, failed, find_run, load_run, runs, writing_folder
from gpufleet.history import places as where
from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import Access, NodeSpec

SPECS = [NodeSpec(f"n{i}", Access(f"192.0.2.{i}")) for i in range(1, 4)]
HEADER = {"schema": 1, "run_id": "r1", "started": "2999-01-01T00:00:00.000Z", "summary": {}}


def start(run_id: str = "r1", **changes: Any) -> Start:
    facts: dict[str, Any] = {
        "run_id": run_id,
        "started": HEADER["started"],
        "person": "alice",
        "control_host": "ops1",
        "inventory": "/etc/gpufleet/fleet.yaml",
        "selection": "all",
        "settings": {},
        "header": {**HEADER, "run_id": run_id, "finished": None, "exit_code": None},
    }
    return Start(**{**facts, **changes})


def document(report: NodeReport) -> dict[str, Any]:
    return {"host": report.host, "verdict": report.verdict.value}


def recorder(folder: Path, warnings: list[str], run_id: str = "r1", **changes: Any) -> Recorder:
    return Recorder(folder, start(run_id, **changes), document, warnings.append)


def end(record: Recorder, run_id: str, *reports: NodeReport) -> None:
    header = {**HEADER, "run_id": run_id, "finished": HEADER["started"], "exit_code": 1}
    record.finish(reports, header, 1)
    record.close()


def in_file(folder: Path) -> dict[str, tuple[str, bool, bool]]:
    """Host → verdict, whether it began to act, whether it ended."""
    database = sqlite3.connect(folder / "history.db")
    rows = database.execute("SELECT host, verdict, acted, finished FROM nodes").fetchall()
    database.close()
    return {host: (verdict, bool(acted), bool(end)) for host, verdict, acted, end in rows}


def test_the_row_says_started_before_the_first_kill_and_what_holds_at_any_time(
    tmp_path: Path,
) -> None:
    record = recorder(tmp_path, [])
    untouched = ("NOT STARTED", False, False)

    record.begin(SPECS)
    assert in_file(tmp_path) == dict.fromkeys(("n1", "n2", "n3"), untouched)

    record.on_event("n1", "look", "")
    record.on_event("n1", "kill", "attempt 1")  # returns when the row says so
    assert in_file(tmp_path)["n1"] == ("UNKNOWN", True, False)
    assert in_file(tmp_path)["n2"] == untouched

    record.on_report(NodeReport("n1", "192.0.2.1", Verdict.DIRTY))
    record.on_event("n2", "before", "drain")
    assert in_file(tmp_path)["n1"] == ("DIRTY", True, True)
    assert in_file(tmp_path)["n2"] == ("UNKNOWN", True, False)
    record.close()


def test_nodes_that_never_began_have_their_report_in_the_end(tmp_path: Path) -> None:
    record = recorder(tmp_path, [])
    record.begin(SPECS)
    record.on_report(NodeReport("n1", "192.0.2.1", Verdict.CLEAN))

    reports = [
        NodeReport("n1", "192.0.2.1", Verdict.CLEAN),
        NodeReport("n2", "192.0.2.2", Verdict.NOT_STARTED, "stopped"),
        NodeReport("n3", "192.0.2.3", Verdict.SKIPPED),
    ]
    end(record, "r1", *reports)

    files = [tmp_path / "history.db"]
    assert load_run("r1", files=files)["nodes"] == [document(report) for report in reports]
    assert failed(files=files).hosts == ("n2", "n3")


def test_a_broken_disk_is_told_once_and_nothing_raises(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    warnings: list[str] = []
    record = recorder(tmp_path / "state", warnings)

    record.begin(SPECS)
    record.on_event("n1", "kill", "")
    record.on_report(NodeReport("n1", "", Verdict.CLEAN))
    end(record, "r1")

    where = f"{tmp_path}/state/history.db"
    assert warnings == [f"no full record of this run: {where}: File exists"]


def test_a_disk_that_fills_up_under_way_is_told_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    record = recorder(tmp_path, warnings)
    record.begin(SPECS)
    database = record._database
    assert database is not None
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")

    for _ in range(3):
        record.on_report(NodeReport("n1", "", Verdict.DIRTY, "x" * 100_000))
    end(record, "r1")

    [warning] = warnings
    assert warning.endswith("history.db: database or disk is full")
    assert in_file(tmp_path)["n1"][0] == "NOT STARTED"


def test_a_lock_that_passes_only_delays_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(recorder(tmp_path, []), "r0")  # not begun: closed all the same
    first = recorder(tmp_path, [], "r1")
    first.begin(SPECS)
    end(first, "r1")
    monkeypatch.setattr("gpufleet.history.recorder.WAIT_S", 0.2)
    monkeypatch.setattr("gpufleet.history.database.BUSY_S", 0.05)
    holder = sqlite3.connect(tmp_path / "history.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    warnings: list[str] = []
    record = recorder(tmp_path, warnings, "r2")

    record.begin(SPECS)
    record.on_event("n1", "kill", "")
    [warning] = warnings
    assert "slow or locked by another run" in warning
    holder.close()
    monkeypatch.setattr("gpufleet.history.recorder.WAIT_S", 30.0)
    end(record, "r2", *(NodeReport(spec.name, "", Verdict.CLEAN) for spec in SPECS))

    assert len(warnings) == 1
    entry = find_run("r2", files=[tmp_path / "history.db"])
    assert (entry.state, entry.counts["CLEAN"]) == ("finished", 3)


def test_many_runs_at_once_each_have_all_their_rows(tmp_path: Path) -> None:
    warnings: list[str] = []

    def one(run_id: str) -> None:
        record = recorder(tmp_path, warnings, run_id)
        record.begin(SPECS)
        for spec in SPECS:
            record.on_event(spec.name, "kill", "")
            record.on_report(NodeReport(spec.name, "", Verdict.CLEAN, run_id))
        end(record, run_id)

    threads = [threading.Thread(target=one, args=(f"r{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert warnings == []
    database = sqlite3.connect(tmp_path / "history.db")
    found = database.execute(
        "SELECT run_id, count(*) FROM nodes WHERE reason = run_id AND finished NOT NULL GROUP BY 1"
    ).fetchall()
    database.close()
    assert dict(found) == {f"r{i}": 3 for i in range(8)}


def test_a_run_is_found_by_a_beginning_that_only_it_has(tmp_path: Path) -> None:
    for run_id in ("20260101-a", "20260101-b"):
        record = recorder(tmp_path, [], run_id)
        record.begin(SPECS)
        end(record, run_id)
    files = [tmp_path / "history.db"]

    assert find_run("20260101-a", files=files).run_id == "20260101-a"
    assert find_run("last", files=files).run_id == "20260101-b"
    assert [entry.run_id for entry in runs(1, files=files)] == ["20260101-b"]
    with pytest.raises(HistoryError, match=r"^run 2026: 2 begin so: 20260101-b, 20260101-a$"):
        find_run("2026", files=files)
    with pytest.raises(HistoryError, match=r"^no run x\\x1b is recorded in .*: gpufleet history"):
        find_run("x\x1b", files=files)


def test_secrets_in_settings_and_control_characters_are_not_recorded(tmp_path: Path) -> None:
    settings = {"workload": ["serve --token geheim"], "grace": None, "jobs": "\x1b[2J"}
    record = recorder(tmp_path, [], settings=settings, person="al\x1bice")
    record.begin(SPECS)
    end(record, "r1")

    entry = find_run("r1", files=[tmp_path / "history.db"])
    assert entry.settings == {"workload": ["serve --token ***"], "jobs": "\\x1b[2J"}
    assert entry.person == "al\\x1bice"


def test_a_record_of_a_newer_form_is_left_alone(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "history.db")
    database.execute("PRAGMA user_version = 7")
    database.close()
    warnings: list[str] = []

    record = recorder(tmp_path, warnings)
    record.begin(SPECS)
    record.close()

    assert warnings[0].endswith("written by a newer gpufleet (form 7): use that one")


def test_json_in_the_record_is_ascii(tmp_path: Path) -> None:
    record = recorder(tmp_path, [])
    record.begin(SPECS)
    end(record, "r1", NodeReport("n1", "192.0.2.1", Verdict.DIRTY, "\x1b[31m ü"))

    database = sqlite3.connect(tmp_path / "history.db")
    [(reason, text)] = database.execute(
        "SELECT reason, document FROM nodes WHERE host = 'n1'"
    ).fetchall()
    database.close()
    assert reason == "\\x1b[31m ü"
    assert text.isascii()
    assert json.loads(text)["host"] == "n1"


def test_the_folder_is_the_one_named_or_the_shared_one_or_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, "SHARED", tmp_path / "lib")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))

    assert writing_folder({"GPUFLEET_STATE": "/x"}) == Path("/x")
    assert writing_folder({}) == tmp_path / "lib"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert writing_folder({}) == tmp_path / "xdg/gpufleet"
