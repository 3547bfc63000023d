"""A reset's lasting traces: its record, its log lines, its metrics. None can cost a verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufleet.cli.logfile import logged, logging_to
from gpufleet.cli.streams import warn
from gpufleet.errors import GpufleetError, UsageError
from gpufleet.masking import printable
from gpufleet.records import dataclass

if TYPE_CHECKING:
    from gpufleet.history import Recorder
    from gpufleet.inventory import Fleet
    from gpufleet.model import NodeReport, RunReport
    from gpufleet.policy import NodeSpec
    from gpufleet.run import Progress

DAYS = 90
"""Long enough for "since when does this node fail", some MB for a hundred nodes every night."""


_FOR_EVER_DAYS = 36_500
"""A century: a calendar doesn't go back much further than what people ask for."""


@dataclass(frozen=True)
class Traces:
    """Where a run leaves what, as the command line said it."""

    log_file: Path | None = None
    metrics_file: Path | None = None
    keep_history: str = f"{DAYS}d"
    verbose: int = 0

    @property
    def keep_days(self) -> float:
        """Raises UsageError for what is no number of days."""
        text = self.keep_history.strip().removesuffix("d").strip()
        if not (text.isascii() and text.isdigit()):
            read = printable(self.keep_history)
            raise UsageError(f'--keep-history: read "{read}": a number of days, like 90d')
        many = len(text) > len(str(_FOR_EVER_DAYS)) or int(text) > _FOR_EVER_DAYS
        return float(_FOR_EVER_DAYS if many else text) or _FOR_EVER_DAYS


@dataclass
class Recording:
    """One run while it goes on: its id, what listens to it, and its end."""

    run_id: str
    progress: Progress
    _recorder: Recorder | None
    _on_end: Callable[[RunReport, int], None]

    def finish(self, report: RunReport, exit_code: int) -> None:
        if self._recorder is not None:
            from gpufleet.render.document import run_header  # noqa: PLC0415  # as below

            header = run_header(report, exit_code)
            self._recorder.finish(report.nodes, header, exit_code)
        self._on_end(report, exit_code)


@contextlib.contextmanager
def recording(
    traces: Traces,
    fleet: Fleet,
    specs: Sequence[NodeSpec],
    progress: Progress,
    *,
    selection: str,
    settings: Mapping[str, Any],
    dry_run: bool,
) -> Iterator[Recording]:
    """All traces of one reset. A dry run leaves lines in the log and nothing else."""
    from gpufleet.run import new_run_id  # noqa: PLC0415  # only real work pays for it

    run_id = new_run_id()
    recorder = None
    if not dry_run:
        recorder = _recorder(run_id, traces.keep_days, fleet, selection, settings)
    with logging_to(traces.log_file, run_id, traces.verbose):
        inner = logged(progress)

        def on_event(host: str, phase: str, detail: str) -> None:
            if recorder is not None:
                recorder.on_event(host, phase, detail)
            inner.on_event(host, phase, detail)

        def on_report(report: NodeReport) -> None:
            if recorder is not None:
                recorder.on_report(report)
            inner.on_report(report)

        def on_end(report: RunReport, exit_code: int) -> None:
            if traces.metrics_file is not None and not dry_run:
                _write_metrics(traces.metrics_file, report, exit_code, fleet)

        if recorder is not None:
            recorder.begin(specs)
        try:
            listening = replace(inner, on_event=on_event, on_report=on_report)
            yield Recording(run_id, listening, recorder, on_end)
        except GpufleetError:  # refused before anything was done
            if recorder is not None:
                recorder.discard()
            raise
        finally:
            if recorder is not None:
                recorder.close()


def _recorder(
    run_id: str, keep_days: float, fleet: Fleet, selection: str, settings: Mapping[str, Any]
) -> Recorder | None:
    from gpufleet.history import Recorder, Start, writing_folder  # noqa: PLC0415  # as above
    from gpufleet.history.recorder import utc_now  # noqa: PLC0415
    from gpufleet.model import RunReport  # noqa: PLC0415
    from gpufleet.render.document import node_document, run_header  # noqa: PLC0415
    from gpufleet.run.origin import control_host, login  # noqa: PLC0415

    started = utc_now()
    shard = settings.get("shard") or ""
    run = RunReport(run_id, "reset", selection, started, "", (), shard=shard)
    header = run_header(run, None)
    start = Start(
        run_id,
        started,
        login(),
        control_host(),
        str(Path(fleet.path).absolute()),
        selection,
        settings,
        header,
        keep_days,
    )
    try:
        folder = writing_folder()
    except GpufleetError as error:
        warn(f"no record of this run: {error}")
        return None
    return Recorder(folder, start, node_document, warn)


def _write_metrics(path: Path, report: RunReport, exit_code: int, fleet: Fleet) -> None:
    from gpufleet.metrics import write_metrics  # noqa: PLC0415  # only who asks for them pays

    try:
        write_metrics(path, report, exit_code, known_hosts=frozenset(fleet.names()))
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a circle of links
        said = getattr(error, "strerror", None) or error
        warn(f"no metrics of this run: {path}: {said}")
