"""CLEAN is proven or not said; every other verdict comes with its reason and a next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.judge import Evidence, Judgement, judge_dry_run, judge_reset, judge_status
from gpufleet.model import Verdict
from gpufleet.observation import HEALTH_FIELDS, parse_observation
from gpufleet.plan import Decision, Plan, make_plan
from gpufleet.policy import Policy
from gpufleet.transport import Answer
from tests.building import (
    ALL_GPUS,
    COMPUTE,
    FABRIC_MANAGER,
    FREE,
    OWN,
    PERSISTENCED,
    Proc,
    answer,
    as_read_at_once,
    changed,
    health_rows,
    memory_rows,
    unit_blocks,
    without,
)

SSH = "ssh root@192.0.2.7"
CLEAN, DIRTY, BROKEN = Verdict.CLEAN, Verdict.DIRTY, Verdict.BROKEN
UNKNOWN, SKIPPED = Verdict.UNKNOWN, Verdict.SKIPPED
DAEMONS = (FABRIC_MANAGER, PERSISTENCED)
TRAINING = Proc(60, "python3 train.py", uid=1000, cuda=True)
BUSY = memory_rows(150000, *[0] * 7)
STUCK = "60:5000 KILL sent\ndead 23\nreading 25 0;0, 5000 MiB\nstop still\n"


def judged(
    whole: Answer,
    policy: Policy | None = None,
    *,
    before: Answer | None = None,
    killed: tuple[Proc, ...] = (),
    returned: tuple[Proc, ...] = (),
) -> Judgement:
    """What a reset would say after `whole`; `killed` and `returned` as an earlier act knew them."""
    policy = policy or Policy()
    after = parse_observation(whole)
    first = parse_observation(before) if before else after
    plan = (
        make_plan(after, policy)
        if after.samples
        else make_plan(parse_observation(answer()), policy)
    )

    def decisions(procs: tuple[Proc, ...]) -> tuple[Decision, ...]:
        seen = parse_observation(answer([*DAEMONS, *procs], samples=1))
        found = {d.process.pid: d for d in make_plan(seen, policy).kill}
        return tuple(found[proc.pid] for proc in procs)

    evidence = Evidence(first, after, plan, decisions(killed), decisions(returned))
    result = judge_reset(evidence, policy, SSH)
    if result.verdict is not CLEAN:
        assert result.reason
    return result


def verdict(whole: Answer, policy: Policy | None = None) -> Verdict:
    return judged(whole, policy).verdict


# --- CLEAN --------------------------------------------------------------------------------------


def test_a01_an_idle_healthy_node_seen_twice_is_clean() -> None:
    assert Judgement(CLEAN, "", "") == judged(answer())


def test_a01_carriage_returns_change_nothing() -> None:
    assert verdict(answer(memory=FREE.replace("\n", "\r\n"))) is CLEAN


@pytest.mark.parametrize("memory", [f"\n{FREE}\n", FREE.replace(", ", " ,   ")])
def test_a15_blank_lines_and_blanks_change_nothing(memory: str) -> None:
    assert verdict(answer(memory=memory)) is CLEAN


def test_a07_the_expected_number_of_gpus_is_the_policys() -> None:
    four = answer(memory=memory_rows(0, 0, 0, 0), health=health_rows(gpus=4))
    assert verdict(four, Policy(gpus=4)) is CLEAN
    assert verdict(four) is BROKEN


def test_a_node_without_systemd_can_be_clean() -> None:
    init = Proc(1, "/sbin/runit", ppid=0, start=1)
    assert verdict(changed(answer(own=[init, *OWN[1:]]), "units", "", "none")) is CLEAN


def test_after_an_act_that_freed_the_memory_the_node_is_clean() -> None:
    log = "60:5000 KILL sent\ndead 23\nreading 26 0;0, 0 MiB\nstop free\n"
    got = judged(
        answer(act=log), before=answer([*DAEMONS, TRAINING], samples=1), killed=(TRAINING,)
    )
    assert Judgement(CLEAN, "", "") == got


def test_b08_a_zombie_is_no_bar_to_clean() -> None:
    zombie = Proc(4701, state="Z", comm="python3", exe="")
    assert verdict(answer([*DAEMONS, zombie])) is CLEAN


def test_a_monitor_is_no_bar_to_clean() -> None:
    monitor = Proc(60, "/opt/agent", cgroup="/system.slice/agent.service", devices=ALL_GPUS)
    assert verdict(answer([*DAEMONS, monitor])) is CLEAN


@pytest.mark.parametrize(("text", "status"), [("", "255"), ("garbage\n", "0")])
def test_a_monitor_is_none_where_charged_memory_could_not_be_read(text: str, status: str) -> None:
    """A monitor isn't in compute-apps (DESIGN §3.5); unread, that is not known."""
    monitor = Proc(60, "/opt/agent", cgroup="/system.slice/agent.service", devices=ALL_GPUS)
    assert verdict(changed(answer([*DAEMONS, monitor]), "apps", text, status)) is not CLEAN


def test_clean_within_a_tolerance_says_so() -> None:
    got = judged(answer(memory=memory_rows(*[2] * 8)), Policy(tolerance_mib=2))
    assert (CLEAN, ("up to 2 MiB count as free (tolerance: 2 MiB)",)) == (got.verdict, got.warnings)


def test_a_tolerance_that_was_not_needed_is_not_mentioned() -> None:
    assert () == judged(answer(), Policy(tolerance_mib=16)).warnings


# --- not proven ---------------------------------------------------------------------------------


def test_one_sample_is_no_proof() -> None:
    assert verdict(answer(samples=1)) is UNKNOWN
    assert verdict(answer(samples=1), Policy(settle_s=0)) is UNKNOWN


@pytest.mark.parametrize(("apart", "expected"), [(47, UNKNOWN), (50, CLEAN), (0, UNKNOWN)])
def test_samples_closer_than_settle_are_no_proof(apart: int, expected: Verdict) -> None:
    assert verdict(answer(apart_cs=apart)) is expected


def test_settle_is_the_policys() -> None:
    assert verdict(answer(apart_cs=52), Policy(settle_s=2)) is UNKNOWN
    assert verdict(answer(apart_cs=0), Policy(settle_s=0)) is CLEAN


@pytest.mark.parametrize("name", ["1/uptime", "2/uptime"])
def test_a_sample_without_its_time_is_no_proof(name: str) -> None:
    assert verdict(without(answer(), name)) is not CLEAN


@pytest.mark.parametrize(("one", "two"), [(BUSY, FREE), (FREE, BUSY)])
def test_memory_must_be_free_in_both_samples(one: str, two: str) -> None:
    assert verdict(answer(memory=one, second_memory=two)) is DIRTY


def test_no_workload_may_run_in_either_sample() -> None:
    assert verdict(answer([*DAEMONS, TRAINING], second=DAEMONS)) is DIRTY
    assert verdict(answer(second=[*DAEMONS, TRAINING])) is DIRTY


def test_b07_a_pid_that_is_new_in_the_second_sample_is_not_the_same_process() -> None:
    again = replace(TRAINING, start=9000)
    got = judged(answer([*DAEMONS, TRAINING], second=[*DAEMONS, again]))
    assert "ran in the first of two samples: pid 60 of alice" in got.reason


def test_a_holder_that_only_fuser_sees_is_never_clean() -> None:
    whole = answer([*DAEMONS, Proc(60, "/opt/engine")])
    for sample in ("1", "2"):
        whole = changed(whole, f"{sample}/fuser", "   50   51   60", "0")
    assert verdict(whole) is not CLEAN


@pytest.mark.parametrize("name", ["self", "1/memory", "2/memory", "health", "1/procs", "2/links"])
def test_a_missing_part_is_never_clean(name: str) -> None:
    assert verdict(without(answer(), name)) is not CLEAN


def test_the_second_sample_must_see_as_well_as_the_first() -> None:
    for name in ("1", "2"):
        assert verdict(changed(answer(), f"{name}/links", status="124")) is UNKNOWN


def test_an_answer_without_any_reading_is_unknown() -> None:
    assert verdict(Answer({}, started=True, finished=True)) is UNKNOWN


def test_b13_not_being_root_is_never_clean() -> None:
    got = judged(answer(uid=1000))
    assert (UNKNOWN, True) == (got.verdict, "not root" in got.reason)


def test_b13_memory_of_processes_that_cannot_be_seen_is_told_with_its_reason() -> None:
    got = judged(answer(memory=BUSY, samples=1, uid=1000))
    assert got.verdict is not CLEAN
    assert all(part in got.reason for part in ("not root", "GPU 0: 150000 MiB"))


def test_a_script_that_could_not_work_is_unknown_with_its_own_words() -> None:
    words = "cannot write in /run/gpufleet (disk full or read-only?)"
    got = judged(changed(answer(), "failed", f"{words}\n"))
    assert (UNKNOWN, words) == (got.verdict, got.reason)


@pytest.mark.parametrize("text", ["run 7f by ann@cron since 03:00\n", "\n", ""])
def test_e01_a_node_that_another_reset_holds_is_skipped(text: str) -> None:
    locked = changed(Answer({}, started=True, finished=True), "locked", text)
    got = judged(locked)
    assert SKIPPED is got.verdict
    assert text.strip() in got.reason


def test_an_owner_about_to_bring_its_workload_back_is_never_clean() -> None:
    """systemd with RestartSec=10 starts it long after both samples."""
    server = replace(TRAINING, cgroup="/system.slice/sglang.service")
    known = unit_blocks()
    mine = unit_blocks(
        {"sglang": "activating"}, names=[], SubState="auto-restart", Restart="always"
    )
    units = f"{known}\n{mine}"
    log = "60:5000 KILL sent\ndead 23\nreading 26 0;0, 0 MiB\nstop free\n"
    first = answer([*DAEMONS, server], samples=1)
    got = judged(answer(act=log, units=units), before=first, killed=(server,))
    assert (DIRTY, True) == (got.verdict, "sglang.service" in got.reason)


# --- no data is never CLEAN ---------------------------------------------------------------------

ONLY_EVIDENCE = {"missing", "devices", "apps", "1/fuser", "2/fuser"}
"""No part of the proof rests on these sections: they say notes, or what is seen otherwise."""

PROVEN = answer()


@pytest.mark.parametrize("name", sorted(set(PROVEN.sections) - ONLY_EVIDENCE))
@pytest.mark.parametrize("how", ["dropped", "blank", "timed out"])
def test_no_section_that_was_not_read_can_leave_clean(name: str, how: str) -> None:
    if how == "dropped":
        whole = without(PROVEN, name)
    elif how == "blank":
        whole = changed(PROVEN, name, "")
    elif name in {"self", "1/uptime", "2/uptime"} or name.endswith("/maps"):
        return  # not made by a tool with a limit, or carries its status in its text
    else:
        whole = changed(PROVEN, name, "", "124")
    assert verdict(whole) is not CLEAN


SHOWN_ONLY = {"uuid", "pstate", "mig.mode.current", "compute_mode", "memory.total"}
"""Health fields that decide nothing by being blank."""


@pytest.mark.parametrize("how", ["drop the line", "blank the cell", "drop the cell"])
@pytest.mark.parametrize(
    ("name", "field"),
    [("1/memory", "memory.used"), ("2/memory", "memory.used"), ("2/memory", "index")]
    + [("health", field) for field in ("index", *HEALTH_FIELDS)],
)
def test_no_line_less_and_no_cell_blanked_can_leave_clean(name: str, field: str, how: str) -> None:
    if how == "blank the cell" and field in SHOWN_ONLY:
        return
    columns = ["index", *HEALTH_FIELDS] if name == "health" else ["index", "memory.used"]
    at = columns.index(field)
    lines = PROVEN.text(name).splitlines(keepends=True)
    cells = lines[3].rstrip("\n").split(", ")
    lines[3] = {
        "drop the line": "",
        "blank the cell": ", ".join([*cells[:at], "", *cells[at + 1 :]]) + "\n",
        "drop the cell": ", ".join([*cells[:at], *cells[at + 1 :]]) + "\n",
    }[how]
    assert verdict(changed(PROVEN, name, "".join(lines))) is not CLEAN


@given(name=st.sampled_from(["1/memory", "2/memory", "health"]), cut=st.integers(0))
def test_no_text_cut_off_can_leave_clean(name: str, cut: int) -> None:
    text = PROVEN.text(name)
    whole_but = (
        len(" 143771 MiB\n") if name == "health" else len("B\n")
    )  # memory.total is only shown
    assert verdict(changed(PROVEN, name, text[: cut % (len(text) - whole_but)])) is not CLEAN


NEEDED = sorted(set(PROVEN.sections) - ONLY_EVIDENCE - {"units"})


@given(names=st.sets(st.sampled_from(NEEDED), min_size=1))
def test_no_set_of_missing_sections_can_leave_clean(names: set[str]) -> None:
    assert verdict(without(PROVEN, *names)) is not CLEAN


@given(st.text())
def test_no_text_in_place_of_the_memory_is_clean_but_eight_zeros(text: str) -> None:
    assert verdict(answer(memory=text)) is not CLEAN


AT_ONCE = as_read_at_once(PROVEN)
SAID = "/run/gpufleet/smi.60.out:"


def test_a_sample_read_at_once_says_the_same() -> None:
    assert parse_observation(AT_ONCE) == parse_observation(PROVEN)
    assert verdict(AT_ONCE) is CLEAN


@pytest.mark.parametrize("name", sorted(set(AT_ONCE.sections) - ONLY_EVIDENCE))
@pytest.mark.parametrize("how", ["dropped", "blank", "timed out"])
def test_no_section_that_was_not_read_at_once_can_leave_clean(name: str, how: str) -> None:
    if how == "blank" and name.endswith(("/memory", "/gpus")):
        return  # they are blank: the words stand among the processes
    if how == "timed out" and name in {"self", "1/uptime", "2/uptime", "1/maps", "2/maps"}:
        return  # these have no status of their own
    whole = {
        "dropped": without(AT_ONCE, name),
        "blank": changed(AT_ONCE, name, ""),
        "timed out": changed(AT_ONCE, name, status="124"),
    }[how]
    assert verdict(whole) is not CLEAN


@pytest.mark.parametrize("sample", ["1", "2"])
@pytest.mark.parametrize("column", [0, 1, 2, 4, 5, 6])
@pytest.mark.parametrize("how", ["drop the line", "blank the cell", "drop the cell"])
def test_no_row_less_and_no_cell_blanked_at_once_can_leave_clean(
    sample: str, column: int, how: str
) -> None:
    """Index, memory, uuid, recovery action, fabric state and status; the first sample has two of them."""
    name = f"{sample}/procs"
    lines = AT_ONCE.text(name).splitlines(keepends=True)
    cells = lines[3].rstrip("\n").removeprefix(SAID).split(", ")
    if column >= len(cells) or (column == 2 and how == "blank the cell"):  # a uuid is only shown
        return
    lines[3] = {
        "drop the line": "",
        "blank the cell": SAID + ", ".join([*cells[:column], "", *cells[column + 1 :]]) + "\n",
        "drop the cell": SAID + ", ".join([*cells[:column], *cells[column + 1 :]]) + "\n",
    }[how]
    assert verdict(changed(AT_ONCE, name, "".join(lines))) is not CLEAN


@given(sample=st.sampled_from(["1", "2"]), cut=st.integers(0))
def test_no_words_cut_off_at_once_can_leave_clean(sample: str, cut: int) -> None:
    """nvidia-smi that is cut off in the middle; what grep reads after it is whole."""
    text = AT_ONCE.text(f"{sample}/procs")
    end = text.rindex(SAID)
    end = text.index("\n", end) + 1
    whole_but = len(", 143771 MiB\n") if sample == "2" else len("B\n")
    kept = text[: cut % (end - whole_but)] + "\n"
    assert verdict(changed(AT_ONCE, f"{sample}/procs", kept + text[end:])) is not CLEAN


def test_what_nvidia_smi_complains_of_is_told_at_once() -> None:
    said = "/run/gpufleet/smi.60.err:WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n"
    whole = changed(AT_ONCE, "2/procs", said + AT_ONCE.text("2/procs"))
    seen = parse_observation(whole)
    assert "infoROM" in seen.health.complaint
    assert "infoROM" in seen.last.memory.stderr
    assert verdict(whole) is verdict(
        changed(changed(PROVEN, "2/memory.err", said[25:]), "health.err", said[25:])
    )


def test_a_command_line_cannot_pass_for_nvidia_smi() -> None:
    forged = "x\n/run/gpufleet/smi.60.out:8, 0 MiB"
    whole = as_read_at_once(answer([FABRIC_MANAGER, PERSISTENCED, Proc(77, args=("tail", forged))]))
    assert verdict(whole) is CLEAN
    assert set(range(8)) == set(parse_observation(whole).last.memory.used_mib())


@pytest.mark.parametrize("field", ["gpu_recovery_action", "fabric.state", "fabric.status"])
def test_a_field_that_was_not_answered_for_one_gpu_is_never_clean(field: str) -> None:
    whole = by_field()
    assert verdict(whole) is CLEAN
    seven = health_rows(fields=[field], gpus=7)
    assert verdict(changed(whole, f"health.{field}", seven)) is not CLEAN
    assert verdict(without(whole, f"health.{field}")) is not CLEAN


def test_units_that_systemd_did_not_tell_of_are_never_clean() -> None:
    """pid 1 is systemd: it knows whether the fabric manager should run, or nothing is proven."""
    only_two = unit_blocks({"nvidia-persistenced": "active"}, names=["nvidia-imex"])
    assert verdict(changed(PROVEN, "units", only_two)) is not CLEAN


# --- DIRTY --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ({}, "to be killed"),
        ({"killed": (TRAINING,)}, "survived KILL"),
        ({"returned": (TRAINING,)}, "came back after a kill"),
    ],
)
def test_workload_that_is_left_is_dirty_and_named(how: dict[str, tuple[Proc]], state: str) -> None:
    got = judged(answer([*DAEMONS, TRAINING], memory=BUSY, samples=1), **how)  # type: ignore[arg-type]
    assert DIRTY is got.verdict
    assert f"{state}: pid 60 of alice (python3 train.py" in got.reason
    assert "GPU 0: 150000 MiB" in got.reason
    assert got.again


def test_a_process_that_could_not_be_signalled_is_said_to_be() -> None:
    log = "60:5000 KILL refused\nstop late\n"
    got = judged(answer([*DAEMONS, TRAINING], samples=1, act=log))
    assert "could not be signalled: pid 60" in got.reason


@pytest.mark.parametrize(
    ("cgroup", "step"),
    [
        ("/system.slice/sglang.service", "systemctl stop sglang.service"),
        (f"/system.slice/docker-{'1f' * 32}.scope", "docker stop 1f1f1f1f1f1f"),
        (f"/machine.slice/libpod-{'1f' * 32}.scope", "podman stop 1f1f1f1f1f1f"),
        (f"/system.slice/cri-containerd-{'1f' * 32}.scope", "crictl stop 1f1f1f1f1f1f"),
    ],
)
def test_b07_what_comes_back_is_stopped_by_its_owner(cgroup: str, step: str) -> None:
    server = replace(TRAINING, cgroup=cgroup)
    got = judged(answer([*DAEMONS, server], memory=BUSY, samples=1), returned=(server,))
    assert (DIRTY, f"{SSH} {step}") == (got.verdict, got.next_step)


@pytest.mark.parametrize("act", [None, "stop still\n"])
@pytest.mark.parametrize("mib", [2, 64])
def test_a11_small_idle_memory_asks_for_a_tolerance(mib: int, act: str | None) -> None:
    got = judged(answer(memory=memory_rows(*[mib] * 8), samples=1, act=act))
    assert DIRTY is got.verdict
    assert f"GPU 0-7: {mib} MiB, no process holds the device" in got.reason
    assert f"tolerance: {mib}" in got.next_step


def test_memory_over_the_tolerance_is_dirty() -> None:
    policy = Policy(tolerance_mib=2)
    assert verdict(answer(memory=memory_rows(*[0] * 7, 3), samples=1), policy) is DIRTY


MONITOR = Proc(64, "/opt/agent", cgroup="/system.slice/agent.service", devices=ALL_GPUS)


@pytest.mark.parametrize("mib", [30, 4715])
@pytest.mark.parametrize(
    "monitor", [MONITOR, replace(MONITOR, args="python3 /opt/agent", exe="/usr/bin/python3.10")]
)
def test_memory_that_stays_beside_a_monitor_is_dirty_and_names_it(monitor: Proc, mib: int) -> None:
    """A child that inherited a dead parent's descriptors looks like a monitor, and keeps memory."""
    whole = answer([*DAEMONS, monitor], memory=memory_rows(mib, *[0] * 7), samples=1, act=STUCK)
    got = judged(whole, killed=(TRAINING,))
    assert DIRTY is got.verdict
    assert "64 " in got.reason
    assert "/opt/agent" in got.reason
    assert "no process holds" not in got.reason


@pytest.mark.parametrize("mib", [27, 5000])
def test_memory_of_a_protected_holder_is_dirty_and_names_it(mib: int) -> None:
    server = Proc(64, "/usr/bin/nvidia-cuda-mps-server", cuda=True)
    whole = answer([*DAEMONS, server], memory=memory_rows(mib, *[0] * 7), samples=1, act=STUCK)
    got = judged(whole)
    assert (DIRTY, True) == (got.verdict, "nvidia-cuda-mps-server" in got.reason)


def test_memory_that_is_not_free_in_time_is_dirty() -> None:
    got = judged(answer(memory=BUSY, samples=1, act="60:5000 KILL sent\ndead 9\nstop late\n"))
    assert (DIRTY, True) == (got.verdict, "GPU 0: 150000 MiB" in got.reason)


def test_processes_still_dying_at_the_deadline_are_dirty() -> None:
    got = judged(answer(memory=BUSY, samples=1, act="60:5000 KILL sent\nstop dying\n"))
    assert (DIRTY, True) == (got.verdict, "still dying" in got.reason)


def test_equal_amounts_are_told_together() -> None:
    got = judged(
        answer([*DAEMONS, TRAINING], memory=memory_rows(7, 7, 7, 0, 7, 9, 0, 0), samples=1)
    )
    assert "GPU 0-2,4: 7 MiB, GPU 5: 9 MiB" in got.reason


# --- BROKEN -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["8", "9", "10", "14", "15", "16", "18"])
def test_a09_exit_statuses_of_hardware_and_driver_faults_are_broken(status: str) -> None:
    got = judged(answer(smi=status, smi_says="its own words"))
    assert BROKEN is got.verdict
    assert f"status {status}" in got.reason
    assert "its own words" in got.reason


def test_rows_beside_a_corrupt_inforom_are_still_read_and_told() -> None:
    got = judged(
        answer(memory=f"{BUSY}WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n", smi="14")
    )
    assert BROKEN is got.verdict
    assert "GPU 0: 150000 MiB" in got.reason
    assert "infoROM is corrupted at gpu 0000:3B:00.0" in got.reason
    assert "of 8 GPUs" not in got.reason


@pytest.mark.parametrize("word", ["[GPU requires reset]", "[GPU is lost]", "ERR!"])
def test_a02_words_of_a_lost_gpu_are_broken_and_quoted(word: str) -> None:
    got = judged(answer(memory=memory_rows(0, 0, 0, word, 0, 0, 0, 0)))
    assert (BROKEN, True) == (got.verdict, f"GPU 3 reads {word!r}" in got.reason)
    assert not got.again


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error\n", "255"),
        ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.\n", "15"),
        ("Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error\n", "0"),
        ("No devices were found\n", "0"),
        ("No devices were found\n", "6"),
        ("No devices were found\n", "255"),
        ("Failed to initialize NVML: No supported GPUs were found\n", "255"),
        ("", "0"),
    ],
)
def test_a05_a08_no_gpu_at_all_is_broken_and_quoted(text: str, status: str) -> None:
    got = judged(answer(memory=text, smi=status))
    assert BROKEN is got.verdict
    assert "0 of 8 GPUs reported" in got.reason
    assert text.strip() in got.reason


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + FREE,  # a byte order mark before the first row
        FREE.replace("3, ", "\ufffd, "),
        "\ufffd\ufffd0\0,\0 \0",
        "Connection to the display server lost\n",
    ],
)
def test_text_that_may_hide_a_gpu_proves_none_missing(text: str) -> None:
    assert verdict(answer(memory=text)) is UNKNOWN


def test_a_gpu_is_missing_beside_a_line_that_is_no_row() -> None:
    assert verdict(answer(memory="WARNING: odd\n" + memory_rows(*[0] * 7))) is BROKEN


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory.total", "183359 M"),
        ("memory.total", "183359 MiB\ufffd"),
        ("pstate", "P0\x1b[2J"),
        ("mig.mode.current", "Dis\ufffdbled"),
        ("fabric.state", "Comp\0leted"),
    ],
)
def test_a_row_that_is_garbled_behind_its_memory_is_not_believed(field: str, value: str) -> None:
    got = judged(answer(health=health_rows({7: {field: value}})))
    assert got.verdict is not CLEAN
    assert f"GPU 7 {field} reads" in got.reason


def test_a06_a_missing_gpu_is_broken_though_the_others_are_free() -> None:
    got = judged(answer(memory=memory_rows(*[0] * 7)))
    assert (BROKEN, True) == (got.verdict, "7 of 8 GPUs reported, missing 7" in got.reason)


@pytest.mark.parametrize("memory", [FREE + "7, 0 MiB\n", FREE + "8, 0 MiB\n"])
def test_a_repeated_or_a_ninth_gpu_is_broken(memory: str) -> None:
    assert verdict(answer(memory=memory)) is BROKEN


def test_a_repeated_index_in_place_of_a_missing_one_is_broken() -> None:
    got = judged(answer(memory=FREE.replace("7, ", "6, ")))
    assert BROKEN is got.verdict
    assert "GPU 6 is reported 2 times" in got.reason


def test_eight_gpus_that_are_not_the_expected_ones_are_never_clean() -> None:
    assert verdict(answer(memory=FREE.replace("7, ", "9, "))) is not CLEAN


@pytest.mark.parametrize("status", ["124", "137", "stuck"])
def test_an_nvidia_smi_that_hangs_is_broken(status: str) -> None:
    got = judged(answer(memory="", smi=status, samples=1))
    assert (BROKEN, True) == (got.verdict, "nvidia-smi hangs" in got.reason)


@pytest.mark.parametrize("status", ["124", "137", "stuck"])
def test_an_nvidia_smi_that_hangs_at_the_health_query_is_broken(status: str) -> None:
    assert verdict(changed(answer(), "health", "", status)) is BROKEN


def by_field() -> Answer:
    """A proven answer whose health was asked field by field, all answered."""
    whole = changed(PROVEN, "health", 'Field "x" is not a valid field to query.\n', "2")
    for name in HEALTH_FIELDS:
        whole = changed(whole, f"health.{name}", health_rows(fields=[name]), "0")
    return whole


@pytest.mark.parametrize("status", ["124", "137", "stuck"])
def test_an_nvidia_smi_that_hangs_at_one_health_field_is_broken(status: str) -> None:
    assert verdict(changed(by_field(), "health.pstate", "", status)) is BROKEN


def test_a_refusal_of_what_every_driver_knows_is_unknown() -> None:
    assert verdict(changed(by_field(), "health.uuid", "", "2")) is UNKNOWN


@pytest.mark.parametrize("action", ["Reset", "Reboot", "Drain P2P", "Drain and Reset"])
def test_a_wanted_recovery_action_is_broken(action: str) -> None:
    got = judged(answer(health=health_rows({3: {"gpu_recovery_action": action}})))
    assert (BROKEN, True) == (got.verdict, f"GPU 3 wants recovery action {action!r}" in got.reason)


@pytest.mark.parametrize(
    ("state", "status", "expected"),
    [
        ("Completed", "Success", CLEAN),
        ("[N/A]", "[N/A]", CLEAN),
        ("N/A", "N/A", CLEAN),
        ("In Progress", "[N/A]", BROKEN),
        ("Not Started", "Success", BROKEN),
        ("Completed", "Failure", BROKEN),
        ("[N/A]", "Failure", BROKEN),
    ],
)
def test_a_fabric_that_is_not_ready_is_broken(state: str, status: str, expected: Verdict) -> None:
    health = health_rows({5: {"fabric.state": state, "fabric.status": status}})
    assert verdict(answer(health=health)) is expected


@pytest.mark.parametrize("field", ["pstate", "memory.total", "uuid", "mig.mode.current"])
@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("[GPU requires reset]", BROKEN),
        ("[GPU is lost]", BROKEN),
        ("ERR!", BROKEN),
        ("[Unknown Error]", UNKNOWN),
    ],
)
def test_a_faults_words_count_in_every_health_field(
    field: str, word: str, expected: Verdict
) -> None:
    got = judged(answer(health=health_rows({2: {field: word}})))
    assert (expected, True) == (got.verdict, word in got.reason)


def test_fields_that_a_gpu_does_not_have_are_no_fault() -> None:
    absent = dict.fromkeys(["mig.mode.current", "gpu_recovery_action", "pstate"], "[N/A]")
    assert verdict(answer(health=health_rows({2: absent}))) is CLEAN


VITAL = [
    ("nvidia-fabricmanager", "nv-fabricmanager"),
    ("nvlsm", "nvlsm"),
    ("nvidia-imex", "nvidia-imex"),
    ("nvidia-persistenced", "nvidia-persistenced"),
]


@pytest.mark.parametrize(("unit", "program"), VITAL)
@pytest.mark.parametrize("after", ["gone", "restarted", "zombie"])
def test_a_vital_daemon_that_changed_during_the_run_is_broken(
    unit: str, program: str, after: str
) -> None:
    daemon = Proc(70, f"/usr/bin/{program}", cgroup=f"/system.slice/{unit}.service")
    late = {
        "gone": [],
        "restarted": [replace(daemon, pid=71)],
        "zombie": [replace(daemon, state="Z", exe="", comm=program[:15])],
    }[after]
    got = judged(answer(late), before=answer([daemon], samples=1))
    assert (BROKEN, True) == (got.verdict, f"{program} (pid 70)" in got.reason)


def test_a_fabric_manager_that_restarts_between_two_samples_of_one_look_is_broken() -> None:
    restarted = replace(FABRIC_MANAGER, pid=55, start=9000)
    assert verdict(answer(DAEMONS, second=[PERSISTENCED, restarted])) is BROKEN


def test_a_vital_daemon_that_came_and_went_within_the_last_act_is_broken() -> None:
    short = Proc(70, "/usr/bin/nvlsm", start=9000)
    assert verdict(answer([*DAEMONS, short], second=DAEMONS)) is BROKEN
    late = judged(answer([*DAEMONS, short], second=DAEMONS), before=answer(samples=1))
    assert late.verdict is BROKEN


@pytest.mark.parametrize(("unit", "program"), VITAL)
@pytest.mark.parametrize("state", ["inactive", "failed", "activating"])
def test_a_vital_unit_that_is_enabled_and_not_active_is_broken(
    unit: str, program: str, state: str
) -> None:
    got = judged(answer(units=unit_blocks({unit: state})))
    assert (BROKEN, True) == (got.verdict, f"{unit}.service is enabled and {state}" in got.reason)


def test_a_vital_unit_that_is_installed_and_not_enabled_is_fine() -> None:
    assert (
        verdict(answer(units=unit_blocks({"nvlsm": "inactive"}, UnitFileState="disabled"))) is CLEAN
    )


def test_b08_an_unkillable_holder_is_broken_and_named() -> None:
    stuck = replace(TRAINING, pid=4700, state="D")
    log = "4700:5000 KILL sent\nstop unkillable 4700/task/4700/stat\n"
    got = judged(answer([*DAEMONS, stuck], memory=BUSY, samples=1, act=log), killed=(stuck,))
    assert BROKEN is got.verdict
    assert all(part in got.reason for part in ("4700", "state D", "150000 MiB"))
    assert "reboot" in got.next_step


@pytest.mark.parametrize("mib", [65, 5000])
def test_memory_held_by_nobody_is_broken(mib: int) -> None:
    got = judged(answer(memory=memory_rows(mib, *[0] * 7), samples=1, act=STUCK))
    assert (BROKEN, True) == (got.verdict, f"GPU 0: {mib} MiB, held by nobody" in got.reason)
    assert "gpu-reset" in got.next_step


def test_memory_charged_to_a_dead_pid_says_so() -> None:
    whole = answer(memory=BUSY, samples=1, act=STUCK, apps="601, 4706 MiB, GPU-0\n")
    assert "charged to pid 601, which no longer exists" in judged(whole).reason


def test_gpu_daemons_without_a_gpu_mapped_do_not_hold_memory() -> None:
    switches = replace(FABRIC_MANAGER, maps=("/dev/nvidia-nvswitchctl", "/dev/nvidiactl"))
    for manager in (FABRIC_MANAGER, switches):
        whole = answer([manager, PERSISTENCED], memory=BUSY, samples=1, act=STUCK)
        assert verdict(whole) is BROKEN


# --- UNKNOWN ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    ["[N/A]", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "N/A", "", "0 M"],
)
def test_a02_a04_words_in_place_of_memory_are_unknown_and_quoted(word: str) -> None:
    got = judged(answer(memory=memory_rows(0, 0, 0, word, 0, 0, 0, 0)))
    assert (UNKNOWN, True) == (got.verdict, f"GPU 3 reads {word!r}" in got.reason)
    assert (word == "[Unknown Error]") == got.again


def test_a15_a_row_that_was_cut_off_is_unknown() -> None:
    assert verdict(answer(memory=FREE[:-3])) is UNKNOWN


@pytest.mark.parametrize("status", ["126", "127"])
def test_a09_an_nvidia_smi_that_is_not_there_is_unknown(status: str) -> None:
    got = judged(answer(memory="", smi=status, smi_says="nvidia-smi: command not found"))
    assert (UNKNOWN, True) == (got.verdict, "command not found" in got.reason)
    assert "of 8 GPUs" not in got.reason


def test_a15_an_option_that_is_refused_is_unknown() -> None:
    text = "ERROR: Option noheader is not recognized. Please run 'nvidia-smi -h' for help.\n\n"
    got = judged(answer(memory=text, smi="2"))
    assert (UNKNOWN, True) == (got.verdict, "Option noheader" in got.reason)


@pytest.mark.parametrize("status", ["1", "3", "4", "12", "13", "17", "255"])
def test_an_exit_status_that_is_not_understood_is_unknown(status: str) -> None:
    assert verdict(answer(smi=status)) is UNKNOWN


def test_a_line_that_is_not_understood_is_unknown_and_quoted() -> None:
    got = judged(answer(memory=f"{FREE}quota exceeded\n"))
    assert (UNKNOWN, True) == (got.verdict, "quota exceeded" in got.reason)


@pytest.mark.parametrize("status", ["1", "4", "12", "255"])
def test_a_health_query_that_fails_is_unknown(status: str) -> None:
    assert verdict(changed(answer(), "health", "boom\n", status)) is UNKNOWN


def test_health_of_too_few_gpus_is_unknown() -> None:
    assert verdict(answer(health=health_rows(gpus=7))) is UNKNOWN


# --- warnings -----------------------------------------------------------------------------------


def test_a_refused_field_is_only_a_warning() -> None:
    whole = by_field()
    got = judged(changed(whole, "health.gpu_recovery_action", "", "2"))
    assert CLEAN is got.verdict
    assert ("this driver does not know: gpu_recovery_action",) == got.warnings


def test_mig_is_only_a_warning() -> None:
    on = {"mig.mode.current": "Enabled"}
    got = judged(answer(health=health_rows({1: on, 4: on})))
    assert (CLEAN, ("MIG is on: GPU 1, 4",)) == (got.verdict, got.warnings)


@pytest.mark.parametrize("program", ["dcgm-exporter", "nv-hostengine", "nvidia-device-plugin"])
def test_a_measuring_daemon_that_restarted_is_only_a_warning(program: str) -> None:
    daemon = Proc(70, f"/usr/bin/{program}", cgroup="/system.slice/x.service")
    got = judged(answer(), before=answer([*DAEMONS, daemon], samples=1))
    assert CLEAN is got.verdict
    assert (f"{program} (pid 70) ended or restarted during the run",) == got.warnings


def test_an_nvidia_smi_that_ended_is_no_warning() -> None:
    smi = Proc(70, "/usr/bin/nvidia-smi", devices=COMPUTE)
    assert () == judged(answer(), before=answer([*DAEMONS, smi], samples=1)).warnings


# --- several at once ----------------------------------------------------------------------------


def test_broken_comes_before_unknown_before_dirty_and_all_stand_in_the_reason() -> None:
    memory = memory_rows(7, 0, 0, "[N/A]", 0, "ERR!", 0, 0)
    health = health_rows({1: {"gpu_recovery_action": "Reset"}})
    got = judged(answer([*DAEMONS, TRAINING], memory=memory, health=health, samples=1))
    parts = ["'ERR!'", "wants recovery action 'Reset'", "'[N/A]'", "pid 60", "GPU 0: 7 MiB"]
    assert BROKEN is got.verdict
    assert [True] * 5 == [part in got.reason for part in parts]
    assert max(got.reason.index(p) for p in parts[:2]) < got.reason.index("'[N/A]'")
    assert got.reason.index("'[N/A]'") < min(got.reason.index(p) for p in parts[3:])
    assert not got.again


def test_a_fault_that_was_read_stands_beside_a_health_query_that_failed() -> None:
    whole = by_field()
    reset = health_rows({1: {"gpu_recovery_action": "Reset"}}, fields=["gpu_recovery_action"])
    whole = changed(
        changed(whole, "health.gpu_recovery_action", reset), "health.pstate", "boom", "255"
    )
    got = judged(whole)
    assert BROKEN is got.verdict
    assert [True, True] == [part in got.reason for part in ("'Reset'", "boom")]


def test_unknown_comes_before_dirty() -> None:
    assert verdict(answer([*DAEMONS, TRAINING], memory=memory_rows(*[0] * 7, "[N/A]"))) is UNKNOWN


JOB = "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0"


def test_a_schedulers_job_is_skipped_with_its_user_and_the_command_that_ends_it() -> None:
    got = judged(answer([*DAEMONS, replace(TRAINING, cgroup=JOB)], memory=BUSY, samples=1))
    assert (SKIPPED, "job 123 of alice runs here") == (got.verdict, got.reason)
    assert "scancel 123" in got.next_step


def test_a_job_that_is_to_be_killed_as_well_is_no_reason_to_skip() -> None:
    whole = answer([*DAEMONS, replace(TRAINING, cgroup=JOB)], memory=BUSY, samples=1)
    assert verdict(whole, Policy(jobs="kill")) is DIRTY


NOT_CLEAN = {
    "one sample": answer(samples=1),
    "too close": answer(apart_cs=0),
    "workload": answer([*DAEMONS, TRAINING], memory=BUSY, samples=1),
    "ran in the first": answer([*DAEMONS, TRAINING], second=DAEMONS),
    "not free in the first": answer(memory=BUSY, second_memory=FREE),
    "dying": answer(memory=BUSY, samples=1, act="60:5000 KILL sent\nstop dying\n"),
    "no reading": Answer({}, started=True, finished=True),
    "locked": changed(Answer({}, started=True, finished=True), "locked", "run 7 by ann"),
    "failed": changed(Answer({}, started=True, finished=True), "failed", "no /proc"),
    "blind": changed(answer(), "1/links", status="124"),
    "hung": answer(memory="", smi="124", samples=1),
    "late": answer(memory=BUSY, samples=1, act="stop late\n"),
}


@pytest.mark.parametrize("whole", NOT_CLEAN.values(), ids=NOT_CLEAN)
def test_everything_but_clean_has_a_reason_and_a_next_step(whole: Answer) -> None:
    got = judged(whole)
    assert got.verdict is not CLEAN
    assert [True, True] == [bool(got.reason), bool(got.next_step)]


# --- dry run and status -------------------------------------------------------------------------


def dry(whole: Answer) -> Judgement:
    observation = parse_observation(whole)
    return judge_dry_run(observation, make_plan(observation, Policy()), Policy(), SSH)


def test_a_dry_run_never_says_clean_where_it_would_kill() -> None:
    assert dry(answer([*DAEMONS, Proc(60, "python3 idle.py")])).verdict is DIRTY
    assert dry(answer()).verdict is CLEAN


def status(whole: Answer) -> Judgement:
    observation = parse_observation(whole)
    plan = make_plan(observation, Policy()) if observation.samples else Plan((), (), (), ())
    return judge_status(observation, plan, Policy(), SSH)


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        (answer(samples=1), Verdict.IDLE),
        (answer(samples=1, uid=1000), Verdict.IDLE),
        (answer([TRAINING], samples=1), Verdict.BUSY),
        (answer(memory=BUSY, samples=1), Verdict.BUSY),
        (answer(memory=BUSY, samples=1, health=health_rows({0: {"pstate": "ERR!"}})), BROKEN),
        (answer(memory="", smi="124", samples=1), BROKEN),
        (answer(samples=1, units=unit_blocks({"nvidia-fabricmanager": "failed"})), BROKEN),
        (answer(memory=memory_rows(*[0] * 7, "[N/A]"), samples=1), UNKNOWN),
        (without(answer(samples=1), "health"), UNKNOWN),
        (without(answer(samples=1), "1/procs"), UNKNOWN),
        (Answer({}, started=True, finished=True), UNKNOWN),
    ],
)
def test_a_status_is_idle_busy_broken_or_unknown(whole: Answer, expected: Verdict) -> None:
    assert expected is status(whole).verdict


def test_a_status_without_root_says_what_it_cannot_see() -> None:
    assert any("not root" in warning for warning in status(answer(samples=1, uid=1000)).warnings)


def test_a_busy_status_says_how_much() -> None:
    assert "GPU 0: 150000 MiB" == status(answer(memory=BUSY, samples=1)).reason


def test_a_login_that_lands_in_a_container_is_said_where_memory_has_no_owner() -> None:
    """The host's process namespace is pid:[4026531836] on every Linux (PROC_PID_INIT_INO)."""
    whole = answer(memory=BUSY, samples=1, act=STUCK)
    text = whole.text("1/links").replace("4026531836", "4026532999")
    inner = changed(whole, "1/links", text)
    assert "process namespace pid:[4026532999]: a container?" in judged(inner).reason
    assert "namespace" not in judged(whole).reason


# --- found by those who tried to break it -------------------------------------------------------


def test_indices_other_than_the_expected_are_never_clean() -> None:
    rows = "".join(f"{i}, 0 MiB\n" for i in (0, 1, 2, 3, 4, 5, 6, 9))
    got = judged(answer(memory=rows))
    assert (BROKEN, True) == (got.verdict, "missing 7" in got.reason)


def test_a_gpu_that_stands_twice_in_the_health_query_is_never_clean() -> None:
    text = PROVEN.text("health")
    assert verdict(changed(PROVEN, "health", text + text.split("\n")[3] + "\n")) is not CLEAN


def test_one_uuid_for_two_gpus_is_broken() -> None:
    lines = PROVEN.text("health").split("\n")
    uuids = [line.split(", ")[1] for line in lines if line]
    text = PROVEN.text("health").replace(uuids[4], uuids[3])
    got = judged(changed(PROVEN, "health", text))
    assert (BROKEN, True) == (got.verdict, f"{uuids[3]} is the uuid of 2 GPUs" in got.reason)


@pytest.mark.parametrize("field", ["pstate", "gpu_recovery_action", "fabric.state"])
def test_insufficient_permissions_in_a_health_field_is_unknown(field: str) -> None:
    lines = PROVEN.text("health").split("\n")
    cells = lines[3].split(", ")
    cells[1 + HEALTH_FIELDS.index(field)] = "[Insufficient Permissions]"
    lines[3] = ", ".join(cells)
    assert verdict(changed(PROVEN, "health", "\n".join(lines))) is UNKNOWN


def test_a_holder_that_came_between_the_readings_is_never_clean() -> None:
    late = "77/exe 0 root /opt/trainer\0" + "77/fd/3 0 root /dev/nvidia0\0"
    got = judged(changed(PROVEN, "2/links", PROVEN.text("2/links") + late))
    assert (UNKNOWN, True) == (got.verdict, got.again)
    assert "pid 77 (/opt/trainer) came to hold a GPU during the look" in got.reason


def test_a_monitors_query_that_came_between_the_readings_is_no_holder() -> None:
    late = "77/exe 0 root /usr/bin/nvidia-smi\0" + "77/fd/3 0 root /dev/nvidia0\0"
    assert verdict(changed(PROVEN, "2/links", PROVEN.text("2/links") + late)) is CLEAN


@pytest.mark.parametrize("status_", ["124", "137", "stuck"])
def test_a_driver_that_hangs_over_its_processes_is_broken(status_: str) -> None:
    assert verdict(changed(PROVEN, "apps", "", status_)) is BROKEN


def test_the_health_query_must_list_the_same_gpus() -> None:
    text = PROVEN.text("health")
    ninth = text.split("\n")[7].replace("7, GPU-", "8, GPU-9", 1)
    assert verdict(changed(PROVEN, "health", f"{text}{ninth}\n")) is UNKNOWN


@pytest.mark.parametrize(("said", "word"), [("GPU is lost", BROKEN), ("odd", UNKNOWN)])
def test_what_the_health_query_complains_of_counts(said: str, word: Verdict) -> None:
    got = judged(changed(PROVEN, "health.err", said))
    assert (word, True) == (got.verdict, f"the health query said: {said}" in got.reason)


def test_without_device_files_nobody_can_be_seen_holding_one() -> None:
    got = judged(changed(PROVEN, "devices", "/dev/nvidia*\n/run/nvidia/driver/dev/nvidia*\n"))
    assert (UNKNOWN, True) == (got.verdict, "there is no /dev/nvidia*" in got.reason)


def test_a_protected_user_that_the_node_does_not_know_is_told() -> None:
    policy = Policy(protect=("user:alice",))
    assert ("protect: the node knows no user alice",) == judged(PROVEN, policy).warnings
    known = changed(PROVEN, "user.alice", "1000\n")
    assert () == judged(known, policy).warnings
