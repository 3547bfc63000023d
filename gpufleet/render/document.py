"""A run as JSON: one document with stable keys, for programs. No decision, no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gpufleet.model import (
    CHECK_VERDICTS,
    RESET_VERDICTS,
    RESTORE_VERDICTS,
    STATUS_VERDICTS,
    Gpu,
    NodeReport,
    ProcessLine,
    RunReport,
)
from gpufleet.policy import NodeSpec

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys don't raise it."""

VERDICTS = {"reset": RESET_VERDICTS, "status": STATUS_VERDICTS, "check": CHECK_VERDICTS}
VERDICTS["restore"] = RESTORE_VERDICTS


def run_document(report: RunReport, exit_code: int) -> str:
    """The whole run. ASCII only, so that what a node said can't disturb a terminal or a mail."""
    return "".join(run_pieces(report, exit_code))


def run_pieces(report: RunReport, exit_code: int) -> Iterator[str]:
    """The same, node by node: of 20,000 nodes it is 90 MB, and as plain data ten times that."""
    head = json.dumps({**_head(report, exit_code), "nodes": []}, indent=1)
    if not report.nodes:
        yield head
        return
    before = head.removesuffix("]\n}")
    for node in report.nodes:
        document = node_document(node, report.command, dry_run=report.dry_run)
        text = json.dumps(document, indent=1)  # no text has a line break of its own
        yield f"{before}\n  {text.replace(chr(10), chr(10) + '  ')}"
        before = ","
    yield "\n ]\n}"


def run_data(report: RunReport, exit_code: int | None) -> dict[str, Any]:
    """The same as plain data, as records keep it and `gpufleet report` reads it."""
    nodes = [node_document(node, report.command, dry_run=report.dry_run) for node in report.nodes]
    return {**_head(report, exit_code), "nodes": nodes}


def _head(report: RunReport, exit_code: int | None) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    if report.merged:
        merged["merged"] = [vars(one) for one in report.merged]
        merged["missing"] = list(report.missing)
    return {**run_header(report, exit_code), **merged}


def run_header(report: RunReport, exit_code: int | None) -> dict[str, Any]:
    """The run without its nodes. Before its end `finished` and `exit_code` are null."""
    return {
        "schema": SCHEMA,
        "run_id": report.run_id,
        "command": report.command,
        "dry_run": report.dry_run,
        "selection": report.selection,
        **({"shard": report.shard} if report.shard else {}),
        "started": report.started,
        "finished": report.finished or None,
        "summary": {v.value: report.count(v) for v in VERDICTS[report.command]},
        "exit_code": exit_code,
    }


def hosts_document(specs: Sequence[NodeSpec], selection: str, groups: dict[str, list[str]]) -> str:
    """What a selection means: the nodes and how each is reached. `groups` by host."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "command": "hosts",
            "selection": selection,
            "hosts": [
                {
                    "host": spec.name,
                    "address": spec.access.address,
                    "port": spec.access.port,
                    "user": spec.access.user,
                    "gpus": spec.policy.gpus,
                    "groups": groups.get(spec.name, []),
                }
                for spec in specs
            ],
        },
        indent=1,
    )


def node_document(
    node: NodeReport, command: str = "reset", *, dry_run: bool = False
) -> dict[str, Any]:
    """In a dry run `killed` is what would be killed, without a signal."""
    killed = node.planned if dry_run else node.killed
    document: dict[str, Any] = {
        "host": node.host,
        "address": node.address,
        "verdict": node.verdict.value,
        "reason": node.reason,
        "next_step": node.next_step,
        "stage": node.stage,
        "attempts": node.attempts,
        "elapsed_s": node.elapsed_s,
        "gpus": [_gpu(gpu) for gpu in node.gpus],
        "warnings": list(node.warnings),
        "killed": [_process(line) for line in killed],
        "spared": [_process(line) for line in node.spared],
        "survivors": [_process(line) for line in node.survivors],
        "stopped": [vars(line) for line in node.stopped],
        "leftovers": [vars(one) for one in node.leftovers],
        "escalations": [vars(one) | {"steps": list(one.steps)} for one in node.escalations],
        "timeline": [vars(moment) for moment in node.timeline],
    }
    if command == "status":
        document["would_kill"] = [_process(line) for line in node.planned]
    return document


def _gpu(gpu: Gpu) -> dict[str, Any]:
    document: dict[str, Any] = {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "memory_before_mib": gpu.memory_before_mib,
        "memory_used_mib": gpu.memory_used_mib,
        "memory_total_mib": gpu.memory_total_mib,
    }
    if gpu.memory_used_mib is None:
        document["raw"] = gpu.raw
    return document


def _process(line: ProcessLine) -> dict[str, Any]:
    return {
        "pid": line.pid,
        "user": line.user,
        "owner": line.owner,
        "command": line.command,
        "rule": line.rule,
        "why": line.why,
        "signal": line.signal,
        "age_s": line.age_s,
        "memory_mib": line.memory_mib,
        "managed": line.managed,
        "restart": line.restart,
    }
