"""nvidia-smi's text → rows of GPUs. Pure: text in, data out; what a row means is judge.py's.

The output "is not guaranteed to be backwards compatible" (nvidia-smi manual), so whatever isn't of
the known form stays as it was read and never becomes a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from gpufleet.records import dataclass
from gpufleet.transport import Answer, Section

HEALTH_FIELDS = (
    "uuid",
    "pstate",
    "gpu_recovery_action",
    "fabric.state",
    "fabric.status",
    "mig.mode.current",
    "compute_mode",
    "memory.total",
)
"""Asked beside the memory. pstate, because drivers that don't know gpu_recovery_action show
`[GPU requires reset]` there while memory.used reads `0 MiB`."""

HUNG = frozenset({"124", "137", "stuck"})
"""Exit statuses of a query that ran out of time (timeout's), and our word for one not started."""

OPTIONAL_FIELDS = frozenset(HEALTH_FIELDS) - {"uuid", "memory.total"}
"""Those that older drivers don't know; the others every driver answers."""

_ROW = re.compile(r"\s*([0-9]{1,4})\s*,\s*([0-9]{1,9}) +MiB\s*\Z")
_INDEXED = re.compile(r"\s*([0-9]{1,4})\s*,\s*(.*?)\s*\Z", re.DOTALL)
_APP = re.compile(r"\s*([0-9]{1,10})\s*,\s*(?:([0-9]{1,9}) MiB|([^,]*))\s*,\s*(\S*)\s*\Z")


@dataclass(frozen=True)
class GpuRow:
    """One row of the memory query. `used_mib` is None where `raw` isn't a number of MiB."""

    index: int
    used_mib: int | None
    raw: str


@dataclass(frozen=True)
class MemoryReading:
    """One answer to the memory query: rows in the order printed, and lines that are no rows.

    `status` is nvidia-smi's exit status as text, or `stuck` when it wasn't started because an
    earlier one hangs.
    """

    status: str
    rows: tuple[GpuRow, ...]
    other_lines: tuple[str, ...]
    stderr: str

    @property
    def hung(self) -> bool:
        """It ran out of time (124 and 137 are timeout's) or wasn't started for that reason."""
        return self.status in HUNG

    def used_mib(self) -> dict[int, int | None]:
        return {row.index: row.used_mib for row in self.rows}

    def quote(self) -> str:
        """What it said besides rows, on one line, at most 300 characters."""
        lines = [*self.other_lines, *filter(None, map(str.strip, self.stderr.splitlines()))]
        return "; ".join(lines)[:300]


@dataclass(frozen=True)
class App:
    """A line of compute-apps: memory charged to a pid, which may be dead. Evidence, no more."""

    pid: int
    used_mib: int | None
    gpu_uuid: str


@dataclass(frozen=True)
class Health:
    """Values by GPU index and field; fields that the driver refused; any other failure, quoted."""

    values: Mapping[int, Mapping[str, str]]
    refused: tuple[str, ...]
    failure: str
    hung: bool = False
    complaint: str = ""
    """What a query that ended well wrote to standard error."""


def parse_memory_csv(text: str) -> tuple[tuple[GpuRow, ...], tuple[str, ...]]:
    """Rows and other lines of the memory query.

        nvidia-smi --query-gpu=index,memory.used --format=csv,noheader   ->   "0, 0 MiB"

    Blank lines and carriage returns are dropped. A row cut off in the middle ("7, 0 M") or with a
    word for a number ("3, [N/A]") has no number. A line without an index is no row. Empty text: none.
    """
    rows: list[GpuRow] = []
    others: list[str] = []
    for raw_line in text.split("\n"):
        line = raw_line.strip()
        if not line:
            continue
        if match := _ROW.match(line):
            rows.append(GpuRow(int(match[1]), int(match[2]), f"{match[2]} MiB"))
        elif match := _INDEXED.match(line):
            rows.append(GpuRow(int(match[1]), None, match[2]))
        else:
            others.append(line)
    return tuple(rows), tuple(others)


def reading_words(rows: Iterable[GpuRow]) -> str:
    """`0=150000 1=0 2=?`: MiB by GPU, for screens that show a reading while it changes."""
    return " ".join(f"{r.index}={'?' if r.used_mib is None else r.used_mib}" for r in rows)


def read_memory(answer: Answer, sample: str) -> MemoryReading:
    """The memory of a sample; a missing section reads as status "missing" without rows.

    `N/memory` is the memory query's own answer, `N/gpus` has health beside it. Their text stands in
    the section, or among the processes, where one `grep` read both.
    """
    whole = answer.get(f"{sample}/gpus")
    section = whole or answer.get(f"{sample}/memory")
    if section is None:
        return MemoryReading("missing", (), (), "")
    text = section.text or _said(answer, sample, "out")
    rows, others = parse_memory_csv(_halves(text)[0] if whole else text)
    stderr = answer.text(f"{section.name}.err") or _said(answer, sample, "err")
    return MemoryReading(section.status, rows, others, stderr)


def _said(answer: Answer, sample: str, stream: Literal["out", "err"]) -> str:
    """nvidia-smi's words as `grep -H` read them from its file: `/run/gpufleet/smi.60.out:0, 0 MiB`."""
    found = re.findall(
        rf"^/[^:\n]*/smi\.[0-9]+\.{stream}:(.*)$", answer.text(f"{sample}/procs"), re.MULTILINE
    )
    return "".join(f"{line}\n" for line in found)


def _halves(text: str) -> tuple[str, str]:
    """Rows of memory and health together → the same rows as two queries print them. What isn't such
    a row, as one that was cut off, stands in both as it was read."""
    memory, health = [], []
    for line in text.split("\n"):
        cells = line.split(",")
        whole = len(cells) == 2 + len(HEALTH_FIELDS)
        memory.append(",".join(cells[:2]) if whole else line)
        health.append(",".join([cells[0], *cells[2:]]) if whole else line)
    return "\n".join(memory), "\n".join(health)


def _health_of_sample(answer: Answer) -> tuple[Section | None, str]:
    """Health out of the newest sample's reading, and what nvidia-smi complained of."""
    for sample in ("2", "1"):
        if section := answer.get(f"{sample}/gpus"):
            text = _halves(section.text or _said(answer, sample, "out"))[1]
            complaint = answer.text(f"{section.name}.err") or _said(answer, sample, "err")
            return Section("health", text, section.status), complaint
    return None, ""


def read_health(answer: Answer) -> Health:
    """The health fields that this driver knows: from one query, or field by field after a refusal.

    nvidia-smi --query-gpu=index,uuid,pstate --format=csv,noheader   ->   "0, GPU-1f…, P0"
    """
    whole, said = answer.get("health"), answer.text("health.err")
    if whole is None:
        whole, said = _health_of_sample(answer)
    if whole is None:
        return Health({}, (), "health was not asked")
    if whole.status == "0":
        values, failure = _table(whole, HEALTH_FIELDS)
        complaint = " ".join(said.split())[:300]
        return Health(values, (), failure, complaint=complaint)
    if whole.status != "2":
        values, _ = _table(whole, HEALTH_FIELDS)  # rows may stand beside a complaint
        return Health(values, (), _failure(answer, whole), hung=whole.status in HUNG)
    return _field_by_field(answer)


def _field_by_field(answer: Answer) -> Health:
    merged: dict[int, dict[str, str]] = {}
    refused: list[str] = []
    failures: list[str] = []
    hung = False
    for field in HEALTH_FIELDS:
        section = answer.get(f"health.{field}")
        if section is None:
            failures.append(f"{field} was not asked")
        elif section.status == "2" and field in OPTIONAL_FIELDS:
            refused.append(field)
        elif section.status != "0":
            hung = hung or section.status in HUNG
            failures.append(f"{field}: {_failure(answer, section)}")
        else:
            column, failure = _table(section, (field,))
            failures.extend(filter(None, [failure]))
            for index, row in column.items():
                merged.setdefault(index, {}).update(row)
    return Health(merged, tuple(refused), "; ".join(failures), hung=hung)


def read_apps(answer: Answer) -> tuple[App, ...] | None:
    """Memory by process as the driver charges it; None where it couldn't be asked or read.

    nvidia-smi --query-compute-apps=pid,used_memory,gpu_uuid …   ->   "601, 103010 MiB, GPU-1f…"
    """
    section = answer.get("apps")
    if section is None or section.status != "0":
        return None
    apps = []
    for line in filter(str.strip, section.text.split("\n")):
        match = _APP.match(line)
        if match is None:
            return None
        apps.append(App(int(match[1]), int(match[2]) if match[2] else None, match[4]))
    return tuple(apps)


def _table(section: Section, fields: tuple[str, ...]) -> tuple[dict[int, dict[str, str]], str]:
    """Rows of `index, field…`; a line of another shape is a failure, quoted."""
    table: dict[int, dict[str, str]] = {}
    for line in section.text.split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(fields) + 1 and cells[0].isascii() and cells[0].isdigit():
            if int(cells[0]) in table:
                return table, f"GPU {cells[0]} stands twice in the health query"
            table[int(cells[0])] = dict(zip(fields, cells[1:], strict=True))
        elif line.strip():
            return table, f"unreadable line in the health query: {line.strip()[:200]!r}"
    return table, ""


def _failure(answer: Answer, section: Section) -> str:
    said = " ".join(f"{section.text} {answer.text(section.name + '.err')}".split())
    return f"the health query ended with status {section.status}" + (
        f": {said[:200]}" if said else ""
    )
