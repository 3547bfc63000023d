"""One thing that stands between a node and CLEAN, and how findings make a verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpufleet.model import Verdict
from gpufleet.records import dataclass

_SEVERITY = (Verdict.SKIPPED, Verdict.BROKEN, Verdict.UNKNOWN, Verdict.DIRTY)
"""A node can be several at once; the first of these that occurs names it."""


Cure = Literal["", "kill", "gpu-reset", "reboot"]
"""The least that ends a finding: an act, a GPU reset, a reboot; "": none of these, or nobody knows."""

CURES: tuple[Cure, ...] = ("", "kill", "gpu-reset", "reboot")


@dataclass(frozen=True)
class Finding:
    """`reason` quotes what was read; `next_step` is a command; `again`: looking again may help."""

    verdict: Verdict
    reason: str
    next_step: str = ""
    again: bool = False
    cure: Cure = ""
    gpu: int | None = None
    """Whose word this is. All odd words of a GPU that wants a reset are cured by it."""


@dataclass(frozen=True)
class Judgement:
    """The verdict of a node with every finding in the reason, and what is only worth a warning."""

    verdict: Verdict
    reason: str
    next_step: str
    warnings: tuple[str, ...] = ()
    again: bool = False
    """Every finding may be gone at another look, so that one is worth its while."""
    cures: frozenset[Cure] = frozenset()
    """Those of the findings, without number: with "" among them there is one that nothing cures."""


def conclude(
    findings: Sequence[Finding], warnings: Sequence[str], *, otherwise: Verdict
) -> Judgement:
    """The worst finding's verdict; `otherwise` when there is none.

    Only `judge_reset` may hand in CLEAN for it, after it has asked for every part of the proof.
    """
    if not findings:
        return Judgement(otherwise, "", "", tuple(warnings))
    ordered = sorted(findings, key=lambda finding: _SEVERITY.index(finding.verdict))
    steps = [finding.next_step for finding in ordered if finding.next_step]
    return Judgement(
        ordered[0].verdict,
        "; ".join(dict.fromkeys(finding.reason for finding in ordered)),
        steps[0] if steps else "",
        tuple(warnings),
        all(finding.again for finding in findings),
        frozenset(_cure(finding, findings) for finding in findings),
    )


def _cure(finding: Finding, findings: Sequence[Finding]) -> Cure:
    if finding.cure or finding.gpu is None:
        return finding.cure
    return max((f.cure for f in findings if f.gpu == finding.gpu), key=CURES.index)
