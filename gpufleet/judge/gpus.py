"""What nvidia-smi's words and exit statuses mean for a node. Pure.

Texts and statuses are from the nvidia-smi manual ("RETURN VALUE"), from nvmlReturn_t where the
manual is silent (16, 18), and from reports of the field. What isn't known here is UNKNOWN.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from gpufleet.judge.finding import Cure, Finding
from gpufleet.model import Verdict
from gpufleet.observation import HEALTH_FIELDS, GpuRow, Health, MemoryReading
from gpufleet.policy import Policy

_BROKEN_WORDS = ("GPU requires reset", "GPU is lost", "ERR!")
_TRANSIENT_WORDS = ("Unknown Error",)
_RESET_WORDS = "GPU requires reset"
_RECOVERY: Mapping[str, Cure] = {
    "Reset": "gpu-reset",
    "Drain and Reset": "gpu-reset",
    "Reboot": "reboot",
}
"""What `gpu_recovery_action` asks for. Not `Drain P2P`: that ends with the workload, and another word
takes its place."""
_BROKEN_STATUS = {
    "8": "external power cables not attached",
    "9": "the NVIDIA driver is not loaded",
    "10": "the kernel reports an interrupt problem with a GPU",
    "14": "infoROM is corrupted",
    "15": "a GPU has fallen off the bus",
    "16": "a GPU requires a reset",
    "18": "driver and library versions differ",
}
_BROKEN_TEXTS = (
    "No devices were found",
    "No supported GPUs were found",
    "Unable to determine the device handle",
    "Driver/library version mismatch",
    "couldn't communicate with the NVIDIA driver",
    "infoROM is corrupted",
    *_BROKEN_WORDS,
)
_ABSENT = ("N/A", "[N/A]", "[Not Supported]", "Not Supported")


def memory_findings(memory: MemoryReading, policy: Policy, ssh: str) -> Iterator[Finding]:
    """Everything about a memory reading but the amounts: was it read, whole, for the right GPUs?"""
    look = f"{ssh} nvidia-smi"
    said = f": {memory.quote()}" if memory.quote() else ""
    if memory.hung:
        yield Finding(
            Verdict.BROKEN,
            f"nvidia-smi hangs{said or ' (no answer within its limit)'}",
            f"{ssh} 'ps -eo pid,stat,wchan:20,comm | grep nvidia-smi; dmesg | grep -i xid | tail'",
            cure=_hung_cure(memory.status),
        )
        return
    if memory.status in {"126", "127", "missing"}:
        yield Finding(
            Verdict.UNKNOWN, f"nvidia-smi could not be run (status {memory.status}){said}", look
        )
        return
    grave = any(text in memory.quote() for text in _BROKEN_TEXTS)
    if memory.status != "0":
        meaning = _BROKEN_STATUS.get(memory.status)
        verdict = Verdict.BROKEN if meaning or grave else Verdict.UNKNOWN
        known = f" ({meaning})" if meaning else ""
        wants_reset = memory.status == "16" or _RESET_WORDS in memory.quote()
        yield Finding(
            verdict,
            f"nvidia-smi ended with status {memory.status}{known}{said}",
            look,
            cure="gpu-reset" if wants_reset else "",
        )
    elif memory.quote():
        verdict = Verdict.BROKEN if grave else Verdict.UNKNOWN
        cure: Cure = "gpu-reset" if _RESET_WORDS in memory.quote() else ""
        yield Finding(verdict, f"nvidia-smi said{said}", look, cure=cure)
    yield from _count_findings(memory, policy, grave, look)
    for row in memory.rows:
        if row.used_mib is None:
            yield _word_finding(row, ssh)


def _count_findings(
    memory: MemoryReading, policy: Policy, grave: bool, look: str
) -> Iterator[Finding]:
    counts = Counter(row.index for row in memory.rows)
    readable = (memory.status in {"0", "6", "14", "15"} and not _may_hide_rows(memory)) or grave
    missing = sorted(set(range(policy.gpus)) - set(counts))
    if len(counts) != policy.gpus or missing:
        which = f", missing {', '.join(map(str, missing))}" if counts and missing else ""
        yield Finding(
            Verdict.BROKEN if readable else Verdict.UNKNOWN,
            f"{len(counts)} of {policy.gpus} GPUs reported{which}",
            f"{look} -L",
        )
    for index, count in sorted(counts.items()):
        if count > 1:
            yield Finding(Verdict.BROKEN, f"GPU {index} is reported {count} times", f"{look} -L")


def _may_hide_rows(memory: MemoryReading) -> bool:
    """A GPU is missing only where all was read: a line that wasn't understood may be its row, as after
    a byte order mark, and text without any row may be anything."""
    lines = memory.other_lines
    return any("MiB" in line or "\ufffd" in line for line in lines) or bool(
        lines and not memory.rows
    )


def _word_finding(row: GpuRow, ssh: str) -> Finding:
    broken = any(word in row.raw for word in _BROKEN_WORDS)
    return Finding(
        Verdict.BROKEN if broken else Verdict.UNKNOWN,
        f"GPU {row.index} reads {row.raw!r}",
        f"{ssh} nvidia-smi -q -i {row.index}",
        again=any(word in row.raw for word in _TRANSIENT_WORDS),
        cure="gpu-reset" if _RESET_WORDS in row.raw else "",
        gpu=row.index,
    )


def _hung_cure(status: str) -> Cure:
    """One that is in D for over a minute is an unkillable holder; a slow one is none."""
    return "reboot" if status == "stuck" else ""


def is_free(memory: MemoryReading, policy: Policy) -> bool:
    """Read whole, for exactly the expected GPUs, each within the tolerance."""
    return not any(memory_findings(memory, policy, "")) and not over(memory, policy)


def over(memory: MemoryReading, policy: Policy) -> list[GpuRow]:
    """GPUs that hold more than the tolerance."""
    return [r for r in memory.rows if r.used_mib is not None and r.used_mib > policy.tolerance_mib]


def apps_findings(hung: bool, ssh: str, memory: MemoryReading) -> Iterator[Finding]:
    """Which processes memory is charged to is only evidence; that the driver hangs over it is a fault."""
    if hung:
        step = f"{ssh} 'dmesg | grep -i xid | tail'"
        reason = "nvidia-smi hangs when asked for its processes"
        yield Finding(Verdict.BROKEN, reason, step, cure=_hung_cure(memory.status))


def health_findings(health: Health, memory: MemoryReading, ssh: str) -> Iterator[Finding]:
    """Faults that a reading of 0 MiB hides: recovery action, fabric, words in any field.

    Health must be known for every GPU whose memory is, each field that the driver knows.
    """
    look = f"{ssh} nvidia-smi -q"
    if health.hung:
        # Why it hung stands in the memory query's finding; this one alone is no proof.
        cure = _hung_cure(memory.status)
        yield Finding(Verdict.BROKEN, f"nvidia-smi hangs: {health.failure}", look, cure=cure)
    elif health.failure:
        yield Finding(Verdict.UNKNOWN, health.failure, look)
    unknown = sorted(set(memory.used_mib()) - set(health.values))
    if unknown and not health.failure:
        which = ", ".join(map(str, unknown))
        yield Finding(Verdict.UNKNOWN, f"health is not known: GPU {which}", look)
    more = sorted(set(health.values) - set(memory.used_mib()))
    if more:
        which = ", ".join(map(str, more))
        yield Finding(Verdict.UNKNOWN, f"only the health query lists GPU {which}", look, again=True)
    if health.complaint:
        grave = any(text in health.complaint for text in _BROKEN_TEXTS)
        verdict = Verdict.BROKEN if grave else Verdict.UNKNOWN
        yield Finding(verdict, f"the health query said: {health.complaint}", look)
    uuids = Counter(fields["uuid"] for fields in health.values.values() if fields.get("uuid"))
    for uuid in (uuid for uuid, count in uuids.items() if count > 1):
        yield Finding(Verdict.BROKEN, f"{uuid} is the uuid of {uuids[uuid]} GPUs", look)
    for index, fields in sorted(health.values.items()):
        step = f"{look} -i {index}"
        for field in HEALTH_FIELDS:
            if field not in health.refused and (field in fields or not health.failure):
                yield from _field_findings(index, field, fields.get(field, ""), step)
        yield from _fabric_findings(index, fields, ssh)


def _field_findings(index: int, field: str, value: str, step: str) -> Iterator[Finding]:
    if any(word in value for word in _BROKEN_WORDS):
        cure: Cure = "gpu-reset" if _RESET_WORDS in value else ""
        reason = f"GPU {index} {field} reads {value!r}"
        yield Finding(Verdict.BROKEN, reason, step, cure=cure, gpu=index)
    elif not value or (value.startswith("[") and value not in _ABSENT) or _odd(field, value):
        again = any(word in value for word in _TRANSIENT_WORDS)
        reason = f"GPU {index} {field} reads {value!r}"
        yield Finding(Verdict.UNKNOWN, reason, step, again=again, gpu=index)
    elif field == "gpu_recovery_action" and value not in (*_ABSENT, "None"):
        reason = f"GPU {index} wants recovery action {value!r}"
        yield Finding(Verdict.BROKEN, reason, step, cure=_RECOVERY.get(value, ""), gpu=index)


def _odd(field: str, value: str) -> bool:
    """Of another form than this field's: a row that was cut off or garbled behind its memory."""
    if field == "uuid":
        return not value.startswith(("GPU-", "MIG-"))
    if field == "memory.total":
        return value not in _ABSENT and not re.fullmatch(r"[0-9]+ MiB", value)
    return not value.isprintable() or "\ufffd" in value


def _fabric_findings(index: int, fields: Mapping[str, str], ssh: str) -> Iterator[Finding]:
    """Completed and Success, or a GPU without fabric (N/A): everything between isn't ready."""
    state = fields.get("fabric.state", "N/A")
    status = fields.get("fabric.status", "N/A")
    if any(not value or (value[0] == "[" and value not in _ABSENT) for value in (state, status)):
        return  # told by the field
    ready = state == "Completed" and status in {"Success", *_ABSENT}
    absent = state in _ABSENT and status in {"Success", "", *_ABSENT}
    if not ready and not absent:
        yield Finding(
            Verdict.BROKEN,
            f"GPU {index} fabric is {state!r}, status {status!r}",
            f"{ssh} 'systemctl status nvidia-fabricmanager; nvidia-smi -q -i {index}'",
            gpu=index,
        )


def health_warnings(health: Health) -> Iterator[str]:
    if health.refused:
        yield f"this driver does not know: {', '.join(health.refused)}"
    on = [
        i
        for i, fields in sorted(health.values.items())
        if fields.get("mig.mode.current") == "Enabled"
    ]
    if on:
        yield f"MIG is on: GPU {', '.join(map(str, on))}"
