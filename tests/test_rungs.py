"""When a GPU reset or a reboot can help, and when it is none of our business."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gpufleet.judge import Evidence, judge_reset
from gpufleet.judge.rungs import NextRung, next_rung, units_to_stop, vital_daemons
from gpufleet.model import NodeReport, Verdict
from gpufleet.observation import parse_observation
from gpufleet.plan import make_plan
from gpufleet.policy import Policy
from gpufleet.run.rolling import parse_rolling
from gpufleet.run.turns import Turns
from tests.building import (
    ALL_GPUS,
    FABRIC_MANAGER,
    FREE,
    PERSISTENCED,
    Proc,
    answer,
    changed,
    health_rows,
    memory_rows,
    unit_blocks,
)

DAEMONS = (FABRIC_MANAGER, PERSISTENCED)
JOB = Proc(60, "python3 train.py", cuda=True)
UNKILLABLE = "60:5000 KILL sent\nstop unkillable 60/task/61/stat\n"
NOBODYS = "dead 1\nreading 2 0;0, 61000 MiB\nstop still\n"


def due(
    *procs: Proc,
    escalate: str = "reboot",
    done: set[str] | None = None,
    planned: bool = False,
    **how: Any,
) -> NextRung:
    """What is due on a node that shows this, after a reset that has killed what could be killed."""
    policy = Policy(escalate=escalate, **how.pop("policy", {}))  # type: ignore[arg-type]
    health, extra = how.pop("health", {}), how.pop("changed", {})
    whole = answer((*DAEMONS, *procs), health=health_rows(health), **how)
    for name, text in extra.items():
        whole = changed(whole, name, text)
    observation = parse_observation(whole)
    plan = make_plan(observation, policy)
    killed = () if planned else tuple(plan.kill)
    evidence = Evidence(observation, observation, plan, killed)
    judgement = judge_reset(evidence, policy, "ssh x")
    return next_rung(
        observation, plan, judgement, policy, done=frozenset(done or ()), planned=planned
    )


def wants(action: str, index: int = 3) -> dict[int, dict[str, str]]:
    return {index: {"gpu_recovery_action": action}}


@pytest.mark.parametrize(
    ("action", "rung"),
    [
        ("Reset", "gpu-reset"),
        ("Drain and Reset", "gpu-reset"),
        ("Reboot", "reboot"),
        ("Drain P2P", ""),
        ("Something new", ""),
        ("None", ""),
    ],
)
def test_the_drivers_own_word_says_which(action: str, rung: str) -> None:
    assert due(health=wants(action)) == NextRung(rung)  # type: ignore[arg-type]


def test_a_gpu_that_reads_requires_reset_gets_one() -> None:
    words = memory_rows(*[0] * 3, "[GPU requires reset]", *[0] * 4)
    health = {3: {"pstate": "[GPU requires reset]", "fabric.state": "[Unknown Error]"}}

    assert due(memory=words, health=health).rung == "gpu-reset"


def test_what_another_gpu_reads_is_another_matter() -> None:
    health = {**wants("Reset"), 4: {"pstate": "[Unknown Error]"}}

    assert due(health=health) == NextRung()


def test_memory_held_by_nobody_wants_a_reset() -> None:
    assert due(memory=memory_rows(61_000, *[0] * 7), act=NOBODYS, samples=1).rung == "gpu-reset"


def test_memory_that_is_only_late_wants_none() -> None:
    late = NOBODYS.replace("still", "late")

    assert due(memory=memory_rows(61_000, *[0] * 7), act=late, samples=1) == NextRung()


def test_an_idle_reading_wants_none() -> None:
    assert due(memory=memory_rows(4, *[0] * 7), act=NOBODYS, samples=1) == NextRung()


@pytest.mark.parametrize("stop", ["unkillable 60/task/61/stat", "dying"])
def test_an_unkillable_holder_wants_a_reboot(stop: str) -> None:
    act = f"60:5000 KILL sent\nstop {stop}\n"

    assert due(JOB, memory=memory_rows(900, *[0] * 7), act=act, samples=1).rung == "reboot"


def test_a_survivor_that_may_be_killed_yet_wants_none() -> None:
    act = "60:5000 KILL sent\nstop late\n"

    assert due(JOB, memory=memory_rows(900, *[0] * 7), act=act, samples=1) == NextRung()


def test_a_stuck_nvidia_smi_wants_a_reboot_and_a_slow_one_does_not() -> None:
    says = "nvidia-smi (pid 7) has been in state D for over 60 s\n"

    def hung(status: str) -> NextRung:
        return due(smi=status, memory="", samples=1, smi_says=says if status == "stuck" else "")

    # health and processes weren't asked either
    whole = answer(DAEMONS, smi="stuck", memory="", samples=1, smi_says=says)
    for name in ("health", "apps"):
        whole = changed(whole, name, "", "stuck")
    observation = parse_observation(whole)
    policy = Policy(escalate="reboot")
    plan = make_plan(observation, policy)
    judgement = judge_reset(Evidence(observation, observation, plan), policy, "ssh x")

    assert next_rung(observation, plan, judgement, policy).rung == "reboot"
    assert hung("124") == NextRung()


def test_before_the_kill_only_a_plan_looks_beyond_it() -> None:
    how: dict[str, Any] = {"memory": memory_rows(900, *[0] * 7), "health": wants("Reset")}

    assert due(JOB, planned=True, **how).rung == "gpu-reset"
    assert due(JOB, **how) == NextRung()


@pytest.mark.parametrize(
    "more",
    [
        {"memory": memory_rows(*[0] * 7)},
        {"units": unit_blocks({"nvidia-fabricmanager": "failed", "nvidia-persistenced": "active"})},
        {"smi": "15"},
        {"changed": {"devices": ""}},
        {"samples": 1, "memory": FREE + "what is this\n"},
    ],
    ids=["a GPU is missing", "fabric manager is down", "off the bus", "no devices", "odd line"],
)
def test_where_it_could_not_cure_all_it_is_not_done(more: dict[str, Any]) -> None:
    assert due(health=wants("Reset"), **more) == NextRung()


def test_allowed_is_what_the_setting_says() -> None:
    assert due(health=wants("Reset"), escalate="none") == NextRung()
    assert due(health=wants("Reset"), escalate="gpu-reset") == NextRung("gpu-reset")
    assert due(health=wants("Reboot"), escalate="gpu-reset") == NextRung(
        "reboot", "escalate: gpu-reset doesn't allow it"
    )


def test_each_is_done_once_and_a_reset_in_vain_leads_to_the_reboot() -> None:
    reset = wants("Reset")

    assert due(health=reset, done={"gpu-reset"}) == NextRung("reboot")
    assert due(health=reset, done={"gpu-reset"}, escalate="gpu-reset") == NextRung()
    assert due(health=reset, done={"gpu-reset", "reboot"}) == NextRung()
    assert due(health=wants("Reboot"), done={"reboot"}) == NextRung()


@pytest.mark.parametrize("action", ["Reset", "Reboot"])
@pytest.mark.parametrize(
    ("proc", "policy"),
    [
        (Proc(70, "/opt/bench", devices=ALL_GPUS), {"protect": ("bench",)}),
        (Proc(70, "python3 a.py", uid=1000, cuda=True), {"protect": ("unit:a",)}),
        (
            Proc(70, "/opt/telegraf", devices=ALL_GPUS, cgroup="/system.slice/telegraf.service"),
            {},
        ),
    ],
    ids=["protected", "protected unit", "monitor"],
)
def test_not_past_a_spared_holder(action: str, proc: Proc, policy: dict[str, Any]) -> None:
    if policy.get("protect") == ("unit:a",):
        proc = Proc(70, proc.args, uid=1000, cuda=True, cgroup="/system.slice/a.service")

    found = due(proc, health=wants(action), policy=policy)

    assert found.rung
    assert found.why_not.startswith("pid 70 holds a GPU and is spared (")


def test_no_reboot_past_a_protected_process_without_a_gpu() -> None:
    proc = Proc(70, "python3 long.py", uid=1000)
    policy = {"protect": ("long.py",)}

    assert due(proc, health=wants("Reset"), policy=policy).why_not == ""
    assert due(proc, health=wants("Reboot"), policy=policy) == NextRung(
        "reboot", "pid 70 is spared (protect: long.py)"
    )


@pytest.mark.parametrize(
    ("proc", "why"),
    [
        (
            Proc(70, "/usr/lib/xorg/Xorg :0", devices=ALL_GPUS),
            "pid 70 (Xorg) holds a GPU and is none",
        ),
        (Proc(70, "/usr/bin/nvidia-imex"), "nvidia-imex (pid 70) shares this node's fabric"),
        (
            Proc(70, "/usr/bin/nv-hostengine -n", devices=ALL_GPUS, cgroup="/user.slice"),
            "pid 70 (nv-hostengine) holds a GPU and is none",
        ),
    ],
)
def test_where_a_daemon_forbids_the_reset_only_the_reboot_is_left(proc: Proc, why: str) -> None:
    allowed = due(proc, health=wants("Reset"), escalate="gpu-reset")

    assert allowed.rung == "gpu-reset"
    assert allowed.why_not.startswith(why)
    assert due(proc, health=wants("Reset")) == NextRung("reboot")


@pytest.mark.parametrize(
    ("cgroup", "why"),
    [
        ("/system.slice/slurmstepd.scope/job_7/step_0", "slurm job 7 of bob runs here"),
        (
            "/kubepods.slice/kubepods-pod0f9c1d52_77aa_4c1e_9a37_5d1f0e6b2c11.slice/cri-containerd-"
            + "ab" * 32
            + ".scope",
            "pod 0f9c1d52-77aa-4c1e-9a37-5d1f0e6b2c11 runs here",
        ),
    ],
)
def test_no_reboot_under_a_job_that_no_pattern_finds(cgroup: str, why: str) -> None:
    proc = Proc(70, "/opt/solver", uid=1001, cgroup=cgroup)

    assert due(proc, health=wants("Reset")).why_not == ""
    assert due(proc, health=wants("Reboot")).why_not == why
    assert due(proc, health=wants("Reboot"), policy={"jobs": "kill"}).why_not == ""


def test_who_would_be_stopped_is_told_in_the_order_of_stopping() -> None:
    dcgm = Proc(70, "/usr/bin/nv-hostengine -n", cgroup="/system.slice/nvidia-dcgm.service")
    observation = parse_observation(answer((*DAEMONS, dcgm)))

    assert units_to_stop(observation) == (
        "nvidia-dcgm.service",
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
    )
    assert vital_daemons(observation) == {"nv-fabricmanager", "nvidia-persistenced"}


# Whose turn


def report(host: str, verdict: Verdict) -> NodeReport:
    return NodeReport(host, "", verdict)


def test_a_turn_lasts_until_the_nodes_end() -> None:
    turns = Turns(parse_rolling(), 3, lambda: False)
    got: list[str] = []

    assert turns.take("n1") == ""
    assert turns.take("n1") == ""  # its own already
    waiting = threading.Thread(target=lambda: got.append(turns.take("n2")))
    waiting.start()
    waiting.join(0.5)
    assert got == []
    assert turns.waited_s("n2") > 0
    turns.end("n1", report("n1", Verdict.CLEAN))
    waiting.join(30)
    assert got == [""]


def test_a_batch_has_as_many_turns() -> None:
    turns = Turns(parse_rolling(batch="50%"), 4, lambda: False)

    assert [turns.take("n1"), turns.take("n2")] == ["", ""]


def test_failures_end_the_turns() -> None:
    turns = Turns(parse_rolling(max_failures=1), 4, lambda: False)
    turns.end("n1", report("n1", Verdict.BROKEN))
    assert turns.take("n2") == ""
    turns.end("n2", report("n2", Verdict.DIRTY))

    assert turns.take("n3") == "2 failures (n1, n2) are more than --max-failures 1"


def test_an_interrupt_ends_the_wait() -> None:
    began = time.monotonic()
    turns = Turns(parse_rolling(), 2, lambda: time.monotonic() - began > 0.5)
    assert turns.take("n1") == ""

    assert turns.take("n2") == "interrupted"
