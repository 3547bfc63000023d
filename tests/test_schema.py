"""What programs read is what docs/gpufleet.schema.json promises: no key less, and none untold."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpufleet.render.document import run_data, run_document
from gpufleet.render.events import Events
from tests.conftest import Command
from tests.screens.made import reset_run, status_run
from tests.simfleet import SGLANG, Proc, SimFleet

SCHEMA = json.loads(
    (Path(__file__).parent.parent / "docs/gpufleet.schema.json").read_text(encoding="utf-8")
)


def strict(part: Any) -> Any:
    """The schema without the freedom to add keys: what isn't described is told."""
    if isinstance(part, list):
        return [strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {key: strict(value) for key, value in part.items()}
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def validate(document: Any, kind: str) -> None:
    schema = strict(copy.deepcopy(SCHEMA)) | {"$ref": f"#/$defs/{kind}"}
    schema.pop("anyOf")
    jsonschema.Draft202012Validator(schema).validate(document)


def test_the_schema_itself_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("count", [0, 1, 28])
def test_a_document_written_node_by_node_is_the_same_text(count: int) -> None:
    report = reset_run(count)
    assert run_document(report, 3) == json.dumps(run_data(report, 3), indent=1)


def test_an_untold_or_missing_key_does_not_pass() -> None:
    document = run_data(reset_run(1), 0)
    validate(document, "run")
    with pytest.raises(jsonschema.ValidationError, match="mood"):
        validate(document | {"mood": 7}, "run")
    del document["nodes"][0]["next_step"]
    with pytest.raises(jsonschema.ValidationError, match="next_step"):
        validate(document, "run")


@pytest.mark.parametrize("report", [reset_run(28), status_run(28)], ids=["reset", "status"])
def test_a_run_of_every_verdict_follows_it(report: Any) -> None:
    validate(json.loads(json.dumps(run_data(report, report.exit_code()))), "run")


@pytest.mark.parametrize(
    "arguments",
    [
        ("reset", "--hosts", "inference-pool", "--dry-run"),
        ("status", "--hosts", "inference-pool"),
        ("check", "--hosts", "inference-pool"),
        ("reset", "--hosts", "inference-pool"),
    ],
)
def test_every_command_follows_it_over_real_nodes(
    arguments: tuple[str, ...], fleet: SimFleet, gpufleet: Command
) -> None:
    fleet["gpu01"].start(SGLANG)
    fleet["gpu02"].fault("gpu3", "[N/A]")
    fleet["gpu03"].stop_sshd()

    validate(gpufleet(*arguments, "--json").json, "run")


def test_hosts_follows_it(fleet: SimFleet, gpufleet: Command) -> None:
    validate(gpufleet("hosts", "--json").json, "hosts")


def test_events_come_line_by_line_and_end_with_the_result(
    fleet: SimFleet, gpufleet: Command
) -> None:
    fleet["gpu01"].start(SGLANG)
    fleet["gpu02"].stop_sshd()

    ran = gpufleet("reset", "--hosts", "gpu[01-02]", "--jsonl")

    events = [json.loads(line) for line in ran.out.splitlines()]
    for event in events:
        validate(event, "event")
    assert ran.code == 3
    assert (events[0]["event"], events[0]["nodes"]) == ("start", 2)
    assert (events[-1]["event"], events[-1]["exit_code"]) == ("end", 3)
    nodes = {e["node"]["host"]: e["node"]["verdict"] for e in events if e["event"] == "node"}
    assert nodes == {"gpu01": "CLEAN", "gpu02": "UNREACHABLE"}
    phases = [e["phase"] for e in events if e["event"] == "phase" and e["host"] == "gpu01"]
    assert phases == ["connect", "look", "kill", "free", "settle"]
    readings = [e["gpus"] for e in events if e["event"] == "memory" and e["host"] == "gpu01"]
    assert [gpu["memory_used_mib"] for gpu in readings[0]] == [150_000] * 8
    assert [gpu["memory_used_mib"] for gpu in readings[-1]] == [0] * 8
    assert [e["at_s"] for e in events] == sorted(e["at_s"] for e in events)


def test_readings_come_while_memory_is_waited_for(fleet: SimFleet, gpufleet: Command) -> None:
    fleet["gpu01"].start((Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=2.5),))

    ran = gpufleet("reset", "--hosts", "gpu01", "--jsonl")

    events = [json.loads(line) for line in ran.out.splitlines()]
    kinds = [e["phase"] if e["event"] == "phase" else e["event"] for e in events]
    waited = events[kinds.index("free") : kinds.index("settle")]
    assert 1000 in [e["gpus"][0]["memory_used_mib"] for e in waited if e["event"] == "memory"]


def test_the_timeline_has_phases_and_no_readings(fleet: SimFleet, gpufleet: Command) -> None:
    fleet["gpu01"].start(SGLANG)

    nodes = gpufleet("reset", "--hosts", "gpu[01-02]", "--json").nodes()

    phases = {host: [m["phase"] for m in node["timeline"]] for host, node in nodes.items()}
    assert phases == {
        "gpu01": ["connect", "look", "kill", "free", "settle", "done"],
        "gpu02": ["connect", "look", "settle", "done"],
    }


def test_events_come_while_it_runs(fleet: SimFleet) -> None:
    """The first line is there although a node will keep the run busy for long."""
    fleet["gpu01"].freeze_sshd()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gpufleet", "status", "--hosts", "gpu01", "--jsonl"),
            *("-i", str(fleet.fleet_yaml)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert process.poll() is None
        assert first["event"] == "start"
    finally:
        process.kill()
        process.communicate()


def test_a_reader_that_went_away_is_no_traceback(fleet: SimFleet) -> None:
    words = f"{sys.executable} -m gpufleet status --hosts gpu01 --jsonl -i {fleet.fleet_yaml}"
    done = subprocess.run(
        ["bash", "-c", f"{words} | true; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode in {0, 141}


def test_a_stuck_reader_is_told_once_and_at_the_end() -> None:
    lines: list[str] = []

    def full(line: str) -> None:
        lines.append(line)
        raise OSError(28, "No space left on device")

    events = Events(full, "reset", clock=lambda: 0.0)
    events.start("all", 1)
    events.on_event("gpu01", "look", "")

    with pytest.raises(OSError, match="No space"):
        events.finish(reset_run(1), 0)
    assert len(lines) == 1
