"""/proc's text → processes: no name, command line or path can pose as something else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.observation import Observation, Process, ancestors, parse_observation
from tests.building import (
    OWN,
    SELF,
    Proc,
    answer,
    changed,
    links_text,
    maps_text,
    observe,
    procs_text,
    without,
)


def only(proc: Proc, **how: object) -> Process:
    return observe(proc, **how).last.processes[proc.pid]


@pytest.mark.parametrize(
    "comm",
    ["python3", "a b", "a) S 1 2 3 (b", "((sd-pam))", ") Z 0 0", "new\nline", "\n", "", "\udcff"],
)
def test_a_name_may_hold_anything(comm: str) -> None:
    found = only(Proc(4711, "x", ppid=900, comm=comm, session=4000, tty=34816, start=123))
    assert (comm, 900, 4000, 34816, "S", 123) == (
        found.comm,
        found.ppid,
        found.session,
        found.tty,
        found.state,
        found.start_ticks,
    )


@pytest.mark.parametrize(
    "args",
    [
        ["python3", "-c", "import x\nx.run()\n\nfoo\n"],
        ["python3", "-m", "sglang", "--model", "a b  c"],
        ["python3", "\udce9t\udce9"],
        ["x", "", "y"],
        ["x\n999/stat:999 (y) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 0 0 0 0 5 0"],
        ["x\n\n@@f00d end 1/procs 0\n"],
    ],
)
def test_a_command_line_comes_out_as_it_was(args: list[str]) -> None:
    sample = observe(Proc(4711, args)).last
    assert tuple(args) == tuple(a for a in sample.processes[4711].args)
    assert {1, 900, 901, SELF, 4711} == set(sample.processes)


def test_the_command_has_blanks_between_arguments_and_is_never_cut() -> None:
    long = ["/opt/" + "x" * 9000, "--module", "sglang.launch_server"]
    assert " ".join(long) == only(Proc(4711, long)).command


def test_padding_of_a_retitled_process_is_dropped() -> None:
    assert ("sglang::scheduler_TP0",) == only(Proc(60, ["sglang::scheduler_TP0\0\0\0\0"])).args


def test_a_kernel_thread_has_no_command_line_and_is_marked() -> None:
    found = only(Proc(9, kernel=True, ppid=2, comm="nvidia-modeset/"))
    assert (True, "[nvidia-modeset/]", "") == (found.kernel, found.command, found.exe)
    assert not only(Proc(9, "x")).kernel


@pytest.mark.parametrize(("state", "dead"), [("Z", True), ("X", True), ("D", False), ("R", False)])
def test_zombies_are_dead_and_sleepers_in_the_kernel_are_not(state: str, dead: bool) -> None:
    assert dead == only(Proc(4701, state=state, comm="python3", cuda=True)).dead


def test_a_zombie_holds_nothing() -> None:
    sample = observe(Proc(60, "x", state="Z", comm="x", cuda=True), Proc(61, "y", cuda=True)).last
    assert [61] == [p.pid for p in sample.holders()]


def test_the_mark_of_a_replaced_executable_is_dropped() -> None:
    assert (
        "/opt/py/bin/python3.11" == only(Proc(7, "x", exe="/opt/py/bin/python3.11 (deleted)")).exe
    )


def test_blanks_in_a_path_stay() -> None:
    assert "/opt/my tools/x y" == only(Proc(7, "x", exe="/opt/my tools/x y")).exe


def test_devices_come_from_descriptors_and_from_mappings() -> None:
    found = only(
        Proc(7, "x", devices=("/dev/nvidia0", "/dev/nvidia1 (deleted)"), maps=("/dev/nvidia-uvm",))
    )
    assert {"/dev/nvidia0", "/dev/nvidia1"} == found.devices
    assert {"/dev/nvidia-uvm"} == found.mapped


@pytest.mark.parametrize(
    "device",
    [
        *("/dev/nvidia0", "/dev/nvidia15", "/dev/nvidiactl", "/dev/nvidia-uvm"),
        *("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-nvswitchctl"),
        *("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps-imex-channels/channel0"),
        "/var/lib/docker/overlay2/1f/merged/dev/nvidia0",
        "/run/nvidia/driver/dev/nvidiactl",
    ],
)
def test_every_gpu_device_makes_a_holder(device: str) -> None:
    assert only(Proc(7, "x", devices=(device,))).holds_gpu
    assert only(Proc(7, "x", maps=(device,))).holds_gpu


@pytest.mark.parametrize(
    "path",
    [
        "/home/alice/dev/nvidia-bench/train.log",
        "/home/alice/dev/nvidia/README.md",
        "/srv/dev/nvidia_tools.py",
    ],
)
def test_a_file_in_a_folder_called_dev_nvidia_makes_no_holder(path: str) -> None:
    assert not only(Proc(7, "vim x", devices=(path,))).holds_gpu
    assert not only(Proc(7, "vim x", maps=(path,))).holds_gpu


def test_the_user_is_the_effective_one_by_name() -> None:
    found = only(Proc(7, "x", uid=1000))
    assert (1000, "alice") == (found.uid, found.user)
    assert "4321" == only(Proc(7, "x", uid=4321)).user


def test_the_user_that_runs_as_another_is_that_other() -> None:
    uids = "7/status:Uid:\t0\t1000\t0\t1000\n"
    got = parse_observation(changed(answer([Proc(7, "x")], samples=1), "1/uids", uids))
    assert 1000 == got.last.processes[7].uid


def test_ancestors_end_at_pid_1_and_in_a_loop() -> None:
    sample = observe(Proc(10, "x", ppid=11), Proc(11, "y", ppid=10)).last
    assert [901, 900, 1] == [p.pid for p in ancestors(SELF, sample.processes)]
    assert [11] == [p.pid for p in ancestors(10, sample.processes)]


def test_the_same_pid_with_another_start_is_another_process() -> None:
    was = only(Proc(60, "x", start=1))
    assert observe(Proc(60, "y", start=1)).last.has(was)
    assert not observe(Proc(60, "x", start=2)).last.has(was)
    assert not observe(Proc(60, "x", start=1, state="Z", comm="x")).last.has(was)
    assert not observe().last.has(was)


def test_what_ended_while_it_was_read_is_left_out() -> None:
    text = procs_text([*OWN]) + "77/cmdline:python3\0\n78/stat:78 (x) S 1\n79/stat:cut\n"
    got = parse_observation(changed(answer(samples=1), "1/procs", text))
    assert {1, 900, 901, SELF} == set(got.last.processes)


# --- what couldn't be read is said -------------------------------------------------------------


def blind(name: str, text: str | None = None, status: str | None = None) -> tuple[str, ...]:
    return parse_observation(changed(answer(samples=1), name, text, status)).last.blind


def test_a_node_that_shows_all_is_not_blind() -> None:
    assert () == observe().last.blind


@pytest.mark.parametrize("name", ["1/procs", "1/uids", "1/links", "1/maps"])
def test_a_missing_part_is_blindness(name: str) -> None:
    assert parse_observation(without(answer(samples=1), name)).last.blind


@pytest.mark.parametrize("name", ["1/procs", "1/links", "1/uids"])
@pytest.mark.parametrize("status", ["124", "137", "127", "126", "139"])
def test_a_tool_that_did_not_end_by_itself_is_blindness(name: str, status: str) -> None:
    assert blind(name, status=status)


@pytest.mark.parametrize("status", ["124", "137", "126", "127"])
def test_mappings_that_were_not_read_to_the_end_are_blindness(status: str) -> None:
    assert blind("1/maps", f"60/maps:/dev/nvidia0\nstatus {status}\n")


@pytest.mark.parametrize("name", ["1/procs", "1/links", "1/maps"])
def test_an_empty_part_is_blindness(name: str) -> None:
    assert blind(name, "")


def test_processes_without_any_command_line_are_blindness() -> None:
    text = "".join(f"{line}\n" for line in procs_text(OWN).split("\n") if "/stat:" in line)
    assert blind("1/procs", text)


def test_a_list_without_the_scripts_own_parents_is_blindness() -> None:
    assert blind("1/procs", procs_text([p for p in OWN if p.pid != 901]))


def test_executables_hidden_from_root_are_blindness() -> None:
    assert blind("1/links", "self/ns/pid 0 root pid:[1]\0")


def test_not_being_root_is_blindness() -> None:
    assert any("not root" in reason for reason in observe(uid=1000).last.blind)


def test_without_its_own_words_on_itself_a_look_is_blind() -> None:
    assert parse_observation(without(answer(samples=1), "self")).last.blind


def test_vanished_files_are_no_blindness() -> None:
    assert () == blind("1/procs", status="2")
    assert () == blind("1/links", status="1")


# --- fuser, namespaces, the once-asked --------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("  4242  4243", "0", {4242, 4243}),
        ("", "1", set()),
        ("Idx 0 1 -1 4242 4242m ² 12.5", "0", {4242}),
    ],
)
def test_b12_only_plain_pids_of_fuser_count(text: str, status: str, expected: set[int]) -> None:
    got = parse_observation(changed(answer(samples=1), "1/fuser", text, status))
    assert frozenset(expected) == got.last.fuser


@pytest.mark.parametrize("status", ["127", "124", "137"])
def test_b11_a_fuser_that_could_not_run_is_not_no_holder(status: str) -> None:
    got = parse_observation(changed(answer(samples=1), "1/fuser", "", status))
    assert got.last.fuser is None
    assert parse_observation(without(answer(samples=1), "1/fuser")).last.fuser is None


def test_the_namespace_is_the_one_that_find_saw() -> None:
    text = links_text(OWN, "pid:[4026532999]")
    got = parse_observation(changed(answer(samples=1), "1/links", text))
    assert "pid:[4026532999]" == got.pid_namespace


def test_device_files_that_are_missing_are_not_a_file_named_so() -> None:
    got = parse_observation(changed(answer(samples=1), "devices", "/dev/nvidia*\n"))
    assert () == got.devices


def test_the_numbers_of_protected_users_are_read() -> None:
    got = observe(more={"user.alice": ("1000\n", "0"), "user.ghost": ("\n", "0")})
    assert {"alice": 1000} == got.uids


def test_units_keep_systemds_words() -> None:
    unit = observe().units["nvidia-fabricmanager.service"]
    assert ("enabled", "active", "running") == (unit.enabled, unit.active, unit.sub)
    assert "not-found" == observe().units["nvlsm.service"].load


def test_an_act_log_tells_who_was_signalled_and_how_it_ended() -> None:
    log = (
        "60:5000 TERM sent\n60:5000 KILL sent\n61:5001 KILL gone\n62:5002 KILL reused\n"
        "63:5003 KILL refused\nreading 100 0;0, 5 MiB\ndead 230\n"
        "reading 255 0;0, 0 MiB\nstop free\n"
    )
    act = observe(act=log).act
    assert act is not None
    assert {(60, 5000): "KILL"} == act.signals
    assert {(63, 5003)} == act.refused
    assert (2.3, 2.55, "free") == (act.dead_s, act.free_s, act.stop)
    assert [(1.0, "0;0, 5 MiB"), (2.55, "0;0, 0 MiB")] == list(act.readings)


def test_an_act_that_did_not_end_free_has_no_time_of_it() -> None:
    act = observe(act="reading 100 0;0, 5 MiB\nstop unkillable 60/task/61/stat\n").act
    assert act is not None
    assert (None, None, "unkillable", "60/task/61/stat") == (
        act.dead_s,
        act.free_s,
        act.stop,
        act.stuck_thread,
    )


@given(
    name=st.sampled_from(sorted({*answer(act="stop free\n").sections, "user.x", "locked"})),
    text=st.text(max_size=200)
    | st.lists(
        st.sampled_from([*"0²:/=, \n\0", "17", "dead", "reading", "stop"])
        | st.sampled_from(["60:5", "KILL", "sent", "60/stat:", "60/status:Uid:", "60/exe", "MiB"])
    ).map("".join),
)
def test_no_text_in_any_section_ends_in_an_error(name: str, text: str) -> None:
    whole = changed(answer([Proc(60, "python3 x", cuda=True)], act="stop free\n"), name, text)
    assert isinstance(parse_observation(whole), Observation)


def test_maps_of_this_builder_look_like_those_of_the_script() -> None:
    assert "60/maps:/dev/nvidia0\nstatus 0\n" == maps_text([Proc(60, maps=("/dev/nvidia0",))])


def test_a_leader_that_ended_lives_as_long_as_one_of_its_threads() -> None:
    """Its own command line and descriptors are gone; a thread still shows the first, and holds."""

    def seen(state: str) -> Process:
        line = f"7 (python3) {state} 1 7 7 0 -1 4194560 120 0 3 0 11 7 0 0 20 0 9 0 5000 33554432"
        whole = answer([Proc(7, [], comm="python3", state="Z")], samples=1)
        text = f"7/task/7/stat:{line.replace(f') {state}', ') Z')}\n7/task/9/stat:{line}\n"
        whole = changed(whole, "1/threads", f"{text}7/task/9/cmdline:python3\0train.py\0\n")
        link = "7/task/9/fd/3 0 root /dev/nvidia0\0"
        return parse_observation(changed(whole, "1/threadlinks", link)).last.processes[7]

    living, ended = seen("S"), seen("Z")
    assert (1, False, True) == (living.living_threads, living.dead, living.holds_gpu)
    assert ("python3", "train.py") == living.args
    assert (0, True) == (ended.living_threads, ended.dead)
