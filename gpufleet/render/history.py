"""Recorded runs as tables and JSON. No I/O; what is shown comes as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpufleet.masking import printable
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
from gpufleet.render.document import SCHEMA
from gpufleet.render.text import run_text

Facts = Mapping[str, Any]
"""What the record knows of a run beside its document: see `history.Entry.facts`."""


def history_document(runs: Sequence[Facts]) -> str:
    document = {"schema": SCHEMA, "command": "history", "runs": list(runs)}
    return json.dumps(document, indent=1) + "\n"


def history_text(runs: Sequence[Facts]) -> str:
    """Newest first: `20260131-020000-9f3a1c  2026-01-31 02:00:00  alice (as root)@ops1  …`."""
    rows = [("RUN", "STARTED (UTC)", "PERSON", "SELECTION", "EXIT", "RESULT")]
    for run in runs:
        exit_code = run["exit_code"]
        rows.append(
            (
                run["run_id"],
                _when(run["started"]),
                printable(f"{run['person']}@{run['control_host']}"),
                printable(run["selection"]),
                "-" if exit_code is None else str(exit_code),
                _result(run),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in rows
    )


def run_record_document(document: Mapping[str, Any], run: Facts) -> str:
    """The run's own document, and under `record` what only the record knows."""
    known = {key: run[key] for key in ("state", "person", "control_host", "inventory", "settings")}
    return json.dumps({**document, "record": known}, indent=1) + "\n"


def run_record_text(document: Mapping[str, Any], run: Facts) -> str:
    """Who and when, then the table as the run printed it, with every killed process."""
    lines = [
        f"run        {run['run_id']}, exit {_exit(run)}",
        f"by         {run['person']}@{run['control_host']}",
        f"time       {_when(run['started'])} to {_when(run['finished'] or '')} UTC",
        f"selection  {run['selection']} of {run['inventory']}",
    ]
    if run["settings"]:
        told = ", ".join(f"{key}: {_plain(value)}" for key, value in run["settings"].items())
        lines.append(f"settings   {told}")
    if run["state"] == "running":
        lines.append("still going on: nodes without a result stand as if it ended now")
    head = "".join(printable(line) + "\n" for line in lines)
    return f"{head}\n{run_text(_report(document), verbose=1)}"


def _exit(run: Facts) -> str:
    return str(run["exit_code"]) if run["exit_code"] is not None else f"- ({run['state']})"


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _when(text: str) -> str:
    return text[:19].replace("T", " ") or "?"


def _result(run: Facts) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in run["summary"].items() if count)
    return counts if run["state"] == "finished" else f"{run['state']}: {counts}"


def _report(document: Mapping[str, Any]) -> RunReport:
    return RunReport(
        document["run_id"],
        document["command"],
        document["selection"],
        document["started"],
        document["finished"] or document["started"],
        tuple(_node(node) for node in document["nodes"]),
    )


def _node(node: Mapping[str, Any]) -> NodeReport:
    plain = ("host", "address", "reason", "next_step", "stage", "attempts", "elapsed_s")
    return NodeReport(
        verdict=Verdict(node["verdict"]),
        gpus=tuple(Gpu(**gpu) for gpu in node["gpus"]),
        warnings=tuple(node["warnings"]),
        killed=tuple(ProcessLine(**line) for line in node["killed"]),
        spared=tuple(ProcessLine(**line) for line in node["spared"]),
        survivors=tuple(ProcessLine(**line) for line in node["survivors"]),
        stopped=tuple(Stopped(**line) for line in node.get("stopped", ())),
        escalations=tuple(
            Escalation(**{**one, "steps": tuple(one["steps"])})
            for one in node.get("escalations", ())
        ),
        leftovers=tuple(Leftover(**one) for one in node.get("leftovers", ())),
        timeline=tuple(Moment(**moment) for moment in node["timeline"]),
        **{key: node[key] for key in plain},
    )
