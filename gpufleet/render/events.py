"""`--jsonl`: one event per line while a run goes, for programs that don't want to wait. No I/O but
the given function."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from gpufleet.model import NodeReport, RunReport
from gpufleet.render.board import reading
from gpufleet.render.document import SCHEMA, node_document, run_header


class Events:
    """Lines in the order of what happened; `at_s` counts from the run's beginning. From any thread.

    A reader that goes away is told once, by `finish`: a worker thread can do nothing about it.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        command: str,
        *,
        dry_run: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._command = command
        self._dry_run = dry_run
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._phases: dict[str, tuple[str, str]] = {}
        self._told: set[str] = set()
        self._failure: OSError | None = None

    def start(self, selection: str, nodes: int, shard: str = "") -> None:
        self._say(
            "start",
            schema=SCHEMA,
            command=self._command,
            dry_run=self._dry_run,
            selection=selection,
            nodes=nodes,
            **({"shard": shard} if shard else {}),
        )

    def on_event(self, host: str, phase: str, detail: str) -> None:
        """A phase that goes on (a heartbeat each second) is one line, of a GPU reset each step; `done`
        comes as `node`."""
        step = detail if phase == "gpu-reset" else ""
        if phase == "memory":
            gpus = [{"index": i, "memory_used_mib": mib} for i, mib in reading(detail).items()]
            self._say("memory", host=host, gpus=gpus)
        elif phase != "done" and (phase == "retry" or self._phases.get(host) != (phase, step)):
            self._phases[host] = phase, step
            self._say("phase", host=host, phase=phase, detail=detail)

    def on_report(self, node: NodeReport) -> None:
        self._told.add(node.host)
        self._say("node", node=node_document(node, self._command, dry_run=self._dry_run))

    def finish(self, report: RunReport, exit_code: int) -> None:
        """Nodes that never got a report (a stop came first), then the last line. Raises the OSError
        that the first line which couldn't be written met."""
        for node in report.nodes:
            if node.host not in self._told:
                self.on_report(node)
        self._say("end", **run_header(report, exit_code))
        if self._failure is not None:
            raise self._failure

    def _say(self, event: str, **rest: object) -> None:
        with self._lock:
            if self._failure is None:
                at_s = round(self._clock() - self._began, 3)
                try:
                    self._write(json.dumps({"event": event, "at_s": at_s, **rest}) + "\n")
                except OSError as error:
                    self._failure = error
