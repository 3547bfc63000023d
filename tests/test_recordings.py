"""What one real NVIDIA H200 (driver 580.159.04) answered, read and judged anew on any machine.

Recorded by tests/gpu: `watched` beside a running `nvidia-smi -l 1` and a daemon that holds nvidiactl,
`orphan` with a child that inherited its dead parent's devices, `pinned` with 40 GB of pinned memory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.judge import Evidence, judge_reset
from gpufleet.model import Verdict
from gpufleet.observation import Observation, parse_observation
from gpufleet.plan import make_plan
from gpufleet.policy import Policy
from gpufleet.transport import Answer, Section

FOLDER = Path(__file__).parent / "gpu" / "recordings"
ONE = Policy(gpus=1)


def recorded(name: str) -> tuple[Observation, Observation]:
    """The look before and the act's observation after."""
    answers = json.loads((FOLDER / f"{name}.json").read_text())["answers"]
    looks = []
    for sections in answers:
        read = {key: Section(key, text, status) for key, (text, status) in sections.items()}
        looks.append(parse_observation(Answer(read, started=True, finished=True)))
    before, after = looks
    return before, after


@pytest.mark.parametrize("name", ["watched", "orphan", "pinned"])
def test_a_recorded_reset_is_judged_clean_again(name: str) -> None:
    before, after = recorded(name)
    killed = make_plan(before, ONE).kill

    got = judge_reset(Evidence(before, after, make_plan(after, ONE), killed=killed), ONE, "ssh n")

    assert got.verdict is Verdict.CLEAN, got
    assert len(killed) == 1


@pytest.mark.parametrize("name", ["watched", "orphan", "pinned"])
def test_what_a_cuda_process_holds_is_seen(name: str) -> None:
    before, _ = recorded(name)
    [decision] = make_plan(before, ONE).kill

    assert {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= decision.process.devices
    assert before.last.fuser is not None
    assert decision.process.pid in before.last.fuser
    assert decision.process.computes
    # A fork inherits all but the mapping of unified memory, which the driver keeps out of it.
    uvm = "/dev/nvidia-uvm" in decision.process.mapped
    assert uvm is (name != "orphan")


def test_a_watching_nvidia_smi_and_a_daemon_are_spared_though_they_hold_the_gpu() -> None:
    before, _ = recorded("watched")
    spared = {d.process.exe.rsplit("/", 1)[-1]: d.rule for d in make_plan(before, ONE).spare}

    assert spared == {"nvidia-smi": "gpu-daemon", "nv-hostengine": "gpu-daemon"}
    smi = next(p for p in before.last.processes.values() if p.exe.endswith("nvidia-smi"))
    assert "/dev/nvidia0" in smi.devices
    assert "/dev/nvidia-caps/nvidia-cap1" in smi.devices
    assert not smi.computes


def test_memory_charged_to_a_dead_parent_is_not_its_childs_pid() -> None:
    before, _ = recorded("orphan")

    assert before.apps is not None
    assert {app.pid for app in before.apps}.isdisjoint(before.last.processes)
    assert (before.last.memory.used_mib()[0] or 0) > 4096


def test_pinned_memory_keeps_its_processes_dying_for_seconds() -> None:
    _, after = recorded("pinned")

    assert after.act is not None
    assert after.act.stop == "free"
    assert (after.act.dead_s or 0) > 4
    assert after.act.readings[-1][1] == "0;0, 0 MiB"


def test_health_fields_of_a_gpu_without_fabric_are_well() -> None:
    before, _ = recorded("watched")

    assert before.health.values[0]["gpu_recovery_action"] == "None"
    assert before.health.values[0]["fabric.state"] == "N/A"
    assert before.health.refused == ()
