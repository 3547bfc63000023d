"""One seed → one round: the scene, the settings, the troubles. The same seed draws the same round.

Pure; nothing is started here. (What then happens depends on the machine's timing as well.)
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from gpufleet.policy import Limits, Policy

from . import troubles
from .fates import Part, Row, spared_whole, tagged
from .shielded import JOBS, SHIELDED, gpu_daemons, supervised
from .troubles import Trouble
from .workloads import RESPAWNERS, WORKLOADS

LIMITS = Limits(smi_s=2, tool_s=2, still_s=2, odd_s=0.4, unkillable_s=2, frozen_s=1)
"""As QUICK of tests/conftest.py, and a little quicker: no verdict may depend on their length."""


@dataclass(frozen=True)
class Round:
    """All that is random in a round. `late`: parts that `late` troubles start, by their name."""

    seed: int
    parts: tuple[Part, ...]
    late: dict[str, Part]
    policy: Policy
    troubles: tuple[Trouble, ...]
    systemd: bool
    ghosts: int
    """Nodes without an sshd that are in the same run."""
    parallel: int

    @property
    def job_spares(self) -> bool:
        return self.policy.jobs == "spare" and any(part.job for part in self.parts)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for part in self.parts for row in part.rows)

    def has(self, kind: str) -> bool:
        return any(trouble.kind == kind for trouble in self.troubles)

    @property
    def quiet(self) -> bool:
        """Nothing stands between this node and CLEAN."""
        hindered = any(p.units or p.returns or p.keeps_memory or p.job for p in self.parts)
        hindered = hindered or any(proc.lag > LIMITS.still_s / 2 for proc, _ in self.rows)
        return not self.troubles and not hindered and self.policy.gpus == 8

    def __str__(self) -> str:
        parts = ", ".join(part.name for part in self.parts)
        policy = self.policy
        settings = f"settle {policy.settle_s} grace {policy.grace_s} attempts {policy.attempts}"
        settings += f" jobs {policy.jobs} gpus {policy.gpus} tolerance {policy.tolerance_mib}"
        faults = "; ".join(map(str, self.troubles)) or "none"
        return (
            f"seed {self.seed}: {parts} | {settings}{' systemd' if self.systemd else ''} | {faults}"
        )


def draw(seed: int) -> Round:
    rng = random.Random(seed)
    jobs = rng.choice(["spare", "spare", "kill"])
    chosen = [gpu_daemons(rng)] if rng.random() < 0.85 else []
    chosen += [make(rng) for make in rng.sample(WORKLOADS, rng.choice([0, 1, 1, 2, 2, 3]))]
    chosen += [make(rng) for make in rng.sample(SHIELDED, rng.choice([0, 1, 2, 3]))]
    if rng.random() < 0.12:
        chosen.append(rng.choice(RESPAWNERS)(rng))
    elif rng.random() < 0.03:
        chosen.append(supervised(rng))
    if rng.random() < 0.08:
        chosen.append(rng.choice(JOBS)(rng))
    parts = [tagged(part, f"p{number}") for number, part in enumerate(chosen)]
    if jobs == "spare" and any(part.job for part in parts):
        parts = [spared_whole(part) for part in parts]
    late = {
        "workload": tagged(rng.choice(WORKLOADS)(rng), "late1"),
        "shielded": tagged(rng.choice(SHIELDED)(rng), "late2"),
        "job": tagged(rng.choice(JOBS)(rng), "late3"),
    }
    faults = _troubles(rng)
    protect = {entry for part in (*parts, *late.values()) for entry in part.protect}
    return Round(
        seed,
        tuple(parts),
        late,
        _policy(rng, jobs, tuple(sorted(protect))),
        faults,
        systemd=rng.random() < 0.5,
        ghosts=rng.choice([0, 0, 0, 1, 2]),
        parallel=rng.choice([1, 4]),
    )


def _policy(rng: random.Random, jobs: str, protect: tuple[str, ...]) -> Policy:
    budget = rng.uniform(5, 8)
    return Policy(
        gpus=rng.choices([8, 7, 9], [94, 3, 3])[0],
        protect=protect,
        jobs="kill" if jobs == "kill" else "spare",
        grace_s=rng.choice([0, 0, 0, 0.3, 1]),
        settle_s=rng.choice([0.1, 0.3, 0.5, 0.5, 0.8]),
        attempts=rng.choice([1, 2, 3, 3]),
        tolerance_mib=rng.choices([0, 4, 64], [80, 10, 10])[0],
        timeout_s=budget,
        dying_timeout_s=budget + rng.uniform(0, 2),
        limits=LIMITS,
    )


def _troubles(rng: random.Random) -> tuple[Trouble, ...]:
    drawn = []
    for _ in range(rng.choices([0, 1, 2, 3], [35, 40, 18, 7])[0]):
        if rng.random() < 0.5:
            drawn.append(_flicker(rng, rng.choice(troubles.FLICKERING)(rng)))
        else:
            drawn.append(rng.choice(troubles.OTHERS)(rng))
    by_what = {(trouble.kind, trouble.name): trouble for trouble in drawn}
    return tuple(by_what.values())


def _flicker(rng: random.Random, trouble: Trouble) -> Trouble:
    """Constant, gone at some moment, there from some moment, or both."""
    start = rng.choice([0, 0, rng.uniform(0.05, 2)])
    until = start + rng.uniform(0.2, 3) if rng.random() < 0.5 else None
    return replace(trouble, from_s=start, until_s=until)
