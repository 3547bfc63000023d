"""What a simulated node promises: each test is named by the promise it checks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from . import IDLE, SGLANG, NodeSettings, Proc, SimFleet, SimFleetError, SimNode, scenes
from .fleet import fold
from .scene import RunningProcess

MEMORY = "nvidia-smi --query-gpu=index,memory.used --format=csv,noheader"
ROOT = Path(__file__).parents[2]
FREEZER = "\nfreezer\t" in Path("/proc/cgroups").read_text()
"""Whether this kernel can mount the version 1 freezer, which only a few scenes need."""


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def used(node: SimNode) -> list[int]:
    """MiB of each GPU, by its row in the answer."""
    rows = node.exec(MEMORY).stdout.splitlines()
    return [int(row.partition(", ")[2].removesuffix(" MiB")) for row in rows]


def ssh(fleet: SimFleet, node: SimNode, command: str, *, user: str = "root") -> str:
    options = [f"UserKnownHostsFile={fleet.known_hosts}", "IdentitiesOnly=yes", "BatchMode=yes"]
    done = subprocess.run(
        [
            *("ssh", "-F", "none", "-p", str(node.port), "-i", str(fleet.identity_file)),
            *(word for option in options for word in ("-o", option)),
            *(f"{user}@{node.address}", command),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.stdout + done.stderr


def fuser(node: SimNode, path: str) -> set[int]:
    return {int(pid) for pid in node.exec(f"fuser {path}").stdout.split()}


def by_label(processes: list[RunningProcess]) -> dict[str, RunningProcess]:
    return {process.label: process for process in processes}


# Nodes


def test_login_over_ssh_lands_in_the_node(fleet: SimFleet, node: SimNode) -> None:
    answer = ssh(fleet, node, "hostname; id -u; command -v nvidia-smi; pwd")
    assert answer.split() == [
        "gpu01",
        "0",
        "/run/simnode/state/bin/nvidia-smi",
        "/run/home/root",
    ]


def test_users_without_privileges_can_log_in(fleet: SimFleet, node: SimNode) -> None:
    node.start(SGLANG)
    answer = ssh(fleet, node, f"id -un; {MEMORY} -i 3; kill 1; sudo -n true", user="ops")
    assert answer.startswith("ops\n3, 150000 MiB\n")
    assert "Operation not permitted" in answer


def test_no_process_of_the_host_is_seen(node: SimNode) -> None:
    assert [process.comm for process in node.processes()] == [b"init", b"sshd"]


def test_no_stand_in_matches_a_workload_pattern(node: SimNode) -> None:
    shown = [(b" ".join(p.args).decode(), p.exe) for p in node.processes()]
    assert not [text for texts in shown for text in texts if "python3" in text or "sglang" in text]


def test_the_host_file_system_is_read_only(node: SimNode) -> None:
    assert "Read-only" in node.exec("touch /etc/simfleet-was-here").stderr


def test_systemd_is_not_there(node: SimNode) -> None:
    assert not node.path("/run/systemd").exists()


def test_settings_choose_shell_gpus_and_sshd_lines() -> None:
    other = NodeSettings(gpus=4, shell="/bin/dash", sshd_lines=("ForceCommand echo forced",))
    with SimFleet(names=["a1", "b7"], overrides={"b7": other}) as fleet:
        assert used(fleet["b7"]) == [0] * 4
        assert ssh(fleet, fleet["b7"], "anything") == "forced\n"
        assert "/bin/dash" in fleet["b7"].path("/etc/passwd").read_text().splitlines()[0]
        assert used(fleet["a1"]) == [0] * 8


def test_wrong_and_unknown_host_keys_can_be_had(fleet: SimFleet, node: SimNode) -> None:
    fleet.forge_host_key("gpu01")
    assert "IDENTIFICATION HAS CHANGED" in ssh(fleet, node, "true")
    fleet.forget_host_key("gpu01")
    assert "Host key verification failed" in ssh(fleet, node, "true")


def test_sshd_refuses_when_stopped_and_is_silent_when_frozen(
    fleet: SimFleet, node: SimNode
) -> None:
    node.stop_sshd()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((node.address, node.port), 1)
    node.start_sshd()
    node.freeze_sshd()
    with socket.create_connection((node.address, node.port), 1) as connection:
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    node.thaw_sshd()
    assert ssh(fleet, node, "echo back") == "back\n"


def test_a_connection_can_be_lost_in_the_middle(fleet: SimFleet, node: SimNode) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ssh, fleet, node, "touch /run/begun; sleep 9")
        assert until(node.path("/run/begun").exists)
        node.drop_connections()
        assert "closed" in answer.result(5)
    assert [p.args[0] for p in node.processes() if p.comm == b"sleep"] == [b"sleep"]


def test_fleet_yaml_names_every_node(fleet: SimFleet) -> None:
    text = fleet.fleet_yaml.read_text()
    assert f"gpu02: {fleet['gpu02'].address}" in text
    assert 'inference-pool: "gpu[01-02]"' in text


def test_names_are_folded_only_when_they_are_a_row() -> None:
    assert fold(["gpu08", "gpu09", "gpu10"]) == "gpu[08-10]"
    assert fold(["gpu01", "gpu03"]) == "gpu01,gpu03"
    assert fold(["odd"]) == "odd"


# Scenes


def test_the_acceptance_scene_looks_like_the_real_one(node: SimNode) -> None:
    running = by_label(node.start(SGLANG))
    seen = {label: node.process(process) for label, process in running.items()}
    assert len(seen) == 15
    launcher, worker, manager = seen["launcher"], seen["scheduler3"], seen["fabricmanager"]
    assert launcher
    assert worker
    assert manager
    assert launcher.args[:3] == (b"python3", b"-m", b"sglang.launch_server")
    assert (worker.args, worker.ppid) == ((b"sglang::scheduler_TP3",), launcher.pid)
    assert Path(worker.exe).name.startswith("python3.")
    assert (worker.comm, worker.owner) == (b"sglang::schedul", "/")
    assert Path(manager.exe).name == "nv-fabricmanager"
    assert manager.comm == b"nv-fabricmanage"
    assert manager.owner == "/system.slice/nvidia-fabricmanager.service"
    assert manager.args[1:] == (b"-c", b"/usr/share/nvidia/nvswitch/fabricmanager.cfg")
    assert used(node) == [150_000] * 8


def test_a_process_has_exactly_the_command_line_asked_for(node: SimNode) -> None:
    python, program, retitled = node.start(
        (
            Proc("python", ("python3", "-c", "", "a b\n", b"\xff\x1b[0m")),
            Proc("program", ("/usr/bin/tail", "-f", "x"), exe="tail"),
            Proc("retitled", ("ray::IDLE",), retitled=True),
        )
    )
    lines = [
        node.path(f"/proc/{process.pid}/cmdline").read_bytes()
        for process in (python, program, retitled)
    ]
    assert lines[0] == b"python3\0-c\0\0a b\n\0\xff\x1b[0m\0"
    assert lines[1] == b"/usr/bin/tail\0-f\0x\0"
    assert lines[2].startswith(b"ray::IDLE\0\0\0")


def test_holders_have_several_descriptors_and_mappings(node: SimNode) -> None:
    for exe in ("python3", "ollama"):
        (process,) = node.start((Proc("job", (exe,), exe=exe, memory={2: 1}),))
        descriptors = node.descriptors(process)
        assert descriptors.count("/dev/nvidia2") > 1
        assert descriptors.count("/dev/nvidia-uvm") > 1
        maps = node.path(f"/proc/{process.pid}/maps").read_text()
        mapped = {line.split()[-1] for line in maps.splitlines() if "/dev/nvidia" in line}
        assert mapped == {"/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"}


def test_a_mapping_can_be_all_that_is_left(node: SimNode) -> None:
    (process,) = node.start((Proc("job", ("python3",), memory={2: 1}, descriptors=False),))
    assert not [path for path in node.descriptors(process) if path.startswith("/dev/nvidia")]
    assert fuser(node, "/dev/nvidia2") == {process.pid}


def test_fuser_finds_the_holders(node: SimNode) -> None:
    running = by_label(node.start(SGLANG))
    names = ("scheduler5", "persistenced", "hostengine")
    assert fuser(node, "/dev/nvidia5") == {running[name].pid for name in names}


def test_fuser_does_not_find_a_container_but_the_link_text_does(node: SimNode) -> None:
    running = by_label(node.start(scenes.CONTAINER))
    assert fuser(node, "/dev/nvidia5") == set()
    assert "/dev/nvidia5" in node.descriptors(running["contained"])
    assert used(node)[5] == 30_000


def test_an_orphan_keeps_its_dead_parents_memory(node: SimNode) -> None:
    (child,) = node.start(scenes.ORPHAN)
    apps = node.exec("nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader")
    pid, size = apps.stdout.strip().split(", ")
    assert size == "4706 MiB"
    assert int(pid) not in [process.pid for process in node.processes()]
    assert fuser(node, "/dev/nvidia4") == {child.pid}
    node.kill(child)
    assert until(lambda: used(node)[4] == 0)


def test_a_parent_brings_its_worker_back(node: SimNode) -> None:
    _, worker = node.start(scenes.RESPAWNING_PARENT)
    node.kill(worker)
    assert until(lambda: used(node)[0] == 0)
    assert until(lambda: used(node)[0] == 60_000)
    (pid,) = fuser(node, "/dev/nvidia0")
    assert pid != worker.pid


def test_init_brings_a_unit_back_with_its_owner(node: SimNode) -> None:
    (service,) = node.start(scenes.RESPAWNING_UNIT)
    node.kill(service)
    assert until(lambda: used(node)[1] == 0)
    assert until(lambda: used(node)[1] == 60_000)
    (again,) = [process for process in node.processes() if process.uid == 990]
    assert again.pid != service.pid
    assert again.owner == "/system.slice/sglang.service"


def test_term_is_seen_and_ignored_by_the_deaf_one(node: SimNode) -> None:
    deaf, slow = node.start(scenes.STUBBORN)
    for process in (deaf, slow):
        node.kill(process, "TERM")
    assert until(lambda: node.signals_seen(deaf) == ["TERM"])
    assert node.alive(slow)
    assert until(lambda: not node.alive(slow), 3)
    assert node.alive(deaf)


def test_term_and_kill_end_the_others(node: SimNode) -> None:
    first, second, program = node.start(
        (
            Proc("first", ("python3",)),
            Proc("second", ("python3",), term="ignore"),
            Proc("program", ("tail",), exe="tail"),
        )
    )
    node.kill(first, "TERM")
    node.kill(second)
    node.kill(program, "TERM")
    assert until(lambda: not any(map(node.alive, (first, second, program))))


def test_a_terminal_leads_its_session(node: SimNode) -> None:
    shell = node.process(by_label(node.start(scenes.BYSTANDERS))["shell"])
    assert shell
    assert shell.tty != 0
    assert shell.session == shell.pid


def test_a_zombie_stays_one(node: SimNode) -> None:
    _, zombie = node.start(scenes.ZOMBIE)
    found = node.process(zombie)
    assert found
    assert found.state == "Z"
    assert not node.alive(zombie)


def test_an_upgraded_executable_is_shown_as_deleted(node: SimNode) -> None:
    (process,) = node.start(scenes.UPGRADED)
    found = node.process(process)
    assert found
    assert found.exe.endswith(" (deleted)")


def test_users_own_their_processes_descriptors(node: SimNode) -> None:
    for exe in ("python3", "serve"):
        (process,) = node.start((Proc("job", (exe,), exe=exe, user="alice"),))
        assert node.path(f"/proc/{process.pid}/fd").stat().st_uid == 1002


@pytest.mark.parametrize("name", sorted(scenes.SCENES))
def test_every_scene_starts_and_is_cleared(node: SimNode, name: str) -> None:
    if name == "slow-death" and not FREEZER:
        pytest.skip("this kernel has no version 1 freezer")
    assert node.start(scenes.SCENES[name])
    node.clear()
    assert [process.comm for process in node.processes()] == [b"init", b"sshd"]
    assert used(node) == [0] * 8


def test_an_impossible_scene_is_refused_in_one_line(node: SimNode) -> None:
    with pytest.raises(ValueError, match="no process is labelled x"):
        node.start((Proc("a", ("python3",), parent="x"),))
    with pytest.raises(SimFleetError, match="/dev/nvidia9"):
        node.start((Proc("a", ("python3",), devices=("nvidia9",)),))


# Memory and faults


def test_memory_falls_when_its_process_is_killed(node: SimNode) -> None:
    running = by_label(node.start(SGLANG))
    node.kill(running["scheduler2"])
    assert until(lambda: used(node)[2] == 0)
    assert used(node).count(150_000) == 7


def test_memory_lags_behind_from_the_death_on(node: SimNode) -> None:
    (process,) = node.start((Proc("job", ("python3",), memory={0: 100}),))
    node.fault("lag", 0.5)
    killed = time.monotonic()
    node.kill(process)
    assert until(lambda: not node.alive(process))
    assert used(node)[0] == 100
    time.sleep(max(0.0, killed + 0.7 - time.monotonic()))
    assert used(node)[0] == 0


def test_a_frozen_process_is_in_d_and_deaf_to_kill(node: SimNode) -> None:
    (process,) = node.start((Proc("job", ("python3",), memory={0: 100}),))
    freeze(node, process)
    node.kill(process)
    assert not until(lambda: not node.alive(process), 0.3)
    found = node.process(process)
    assert found
    assert found.state == "D"
    node.thaw(process)
    assert until(lambda: not node.alive(process))


def freeze(node: SimNode, process: RunningProcess) -> None:
    try:
        node.freeze(process)
    except SimFleetError as error:
        pytest.skip(str(error))


def test_a_slow_death_leaves_a_zombie_that_holds_its_memory(node: SimNode) -> None:
    try:
        (process,) = node.start(scenes.SLOW_DEATH)
    except SimFleetError as error:
        pytest.skip(str(error))
    node.kill(process)
    assert until(lambda: not node.alive(process))
    assert used(node)[3] == 62_056
    assert until(lambda: used(node)[3] == 0, 5)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gpu1", "[N/A]", "0, 0 MiB\n1, [N/A]\n"),
        ("missing0", "", "1, 0 MiB\n"),
        ("repeat1", "0", "0, 0 MiB\n0, 0 MiB\n1, 0 MiB\n"),
        ("idle1", "4", "0, 0 MiB\n1, 4 MiB\n"),
        ("stuck0", "812", "0, 812 MiB\n1, 0 MiB\n"),
        ("output", "No devices were found\n", "No devices were found\n"),
        ("message", "WARNING: infoROM\n", "0, 0 MiB\n1, 0 MiB\nWARNING: infoROM\n"),
        ("crlf", "", "0, 0 MiB\r\n1, 0 MiB\r\n"),
        ("cut", "", "0, 0 MiB\n1, 0 M"),
        ("garbled", "", "0, 0 MiB\\xff\\xfe\\x9b\n1, 0 MiB\\xff\\xfe\\x9b\n"),
    ],
)
def test_a_fault_changes_the_answer(small: SimNode, name: str, value: str, expected: str) -> None:
    small.fault(name, value)
    assert raw(small) == expected
    small.clear_fault(name)
    assert raw(small) == "0, 0 MiB\n1, 0 MiB\n"


@pytest.fixture(scope="module")
def small_fleet() -> Iterator[SimFleet]:
    with SimFleet(1, settings=NodeSettings(gpus=2)) as fleet:
        yield fleet


@pytest.fixture
def small(small_fleet: SimFleet) -> Iterator[SimNode]:
    yield small_fleet["gpu01"]
    small_fleet.clear()


def raw(node: SimNode) -> str:
    """The answer with its line ends as they are: `exec` translates them."""
    dump = node.exec(f"{MEMORY} | od -An -v -tx1").stdout
    return bytes.fromhex("".join(dump.split())).decode(errors="backslashreplace")


def test_status_and_stderr_are_as_set(node: SimNode) -> None:
    node.fault("status", 15)
    node.fault("stderr", "lost\n")
    done = node.exec(MEMORY)
    assert (done.returncode, done.stderr) == (15, "lost\n")


def test_an_unknown_field_is_refused_as_the_driver_does(node: SimNode) -> None:
    node.fault("refuse", "fabric.state")
    for field in ("nosuch", "fabric.state"):
        done = node.exec(f"nvidia-smi --query-gpu=index,{field},nosuch2 --format=csv,noheader")
        assert done.returncode == 2
        assert done.stdout == f'Field "{field}" is not a valid field to query.\n\n'


def test_health_fields_are_well_until_set(node: SimNode) -> None:
    fields = "gpu_recovery_action,fabric.state,fabric.status,mig.mode.current"
    query = f"nvidia-smi -i 3 --query-gpu={fields} --format=csv,noheader"
    assert node.exec(query).stdout == "None, Completed, Success, Disabled\n"
    node.fault("gpu_recovery_action@3", "Reset")
    assert node.exec(query).stdout == "Reset, Completed, Success, Disabled\n"


def test_a_fault_can_be_for_some_calls_only(node: SimNode) -> None:
    node.fault("status", 255, when="gpu_recovery_action")
    assert node.exec(MEMORY).returncode == 0
    assert node.exec("nvidia-smi --query-gpu=gpu_recovery_action --format=csv").returncode == 255


def test_hanging_ends_by_term_unless_deaf(node: SimNode) -> None:
    node.fault("hang")
    assert node.exec(f"timeout 0.2 {MEMORY}").returncode == 124
    node.fault("hang", "deaf")
    assert node.exec(f"timeout -k 0.2 0.2 {MEMORY}").returncode == 137


def test_tools_and_devices_can_be_absent(node: SimNode) -> None:
    for tool in ("nvidia-smi", "fuser", "find"):
        node.fault(f"no-{tool}")
    for tool in ("nvidia-smi", "fuser", "find"):
        assert node.exec(tool).returncode == 127
        assert node.exec(f"timeout 1 {tool}").returncode == 127
    node.clear_fault("no-fuser")
    assert node.exec("fuser /dev/null").returncode != 127
    assert node.exec("find").returncode == 127
    node.fault("no-devices")
    assert node.exec("ls -d /dev/nvidia*").stdout == ""
    node.clear_fault()
    assert node.exec("find /dev/nvidia7").stdout == "/dev/nvidia7\n"
    assert used(node) == [0] * 8


def test_a_fault_that_does_not_exist_is_refused(node: SimNode) -> None:
    with pytest.raises(ValueError, match="no fault is called 'gpux'"):
        node.fault("gpux")


def test_many_queries_at_once_agree(node: SimNode) -> None:
    node.start(SGLANG)
    lines = node.exec(f"for i in 1 2 3 4 5 6 7 8; do {MEMORY} & done; wait").stdout.splitlines()
    assert sorted(set(lines)) == [f"{gpu}, 150000 MiB" for gpu in range(8)]
    assert len(lines) == 64


def test_a_stand_in_can_replace_a_tool(fleet: SimFleet, node: SimNode) -> None:
    node.tool("fuser", "echo stand-in; exit 7")
    assert ssh(fleet, node, "fuser /dev/nvidia0; echo $?") == "stand-in\n7\n"
    node.clear_fault()
    assert fuser(node, "/dev/nvidia0") == set()


def test_a_hanging_query_can_be_put_in_state_d(node: SimNode) -> None:
    node.fault("hang")
    node.exec(f"{MEMORY} >/dev/null 2>&1 &")
    title = b"nvidia-smi --query-gpu"
    assert until(lambda: any(p.args[0].startswith(title) for p in node.processes()))
    (query,) = [p for p in node.processes() if p.args[0].startswith(title)]
    assert query.comm == b"nvidia-smi"
    try:
        node.freeze(query)
    except SimFleetError as error:
        pytest.skip(str(error))
    node.kill(query)
    assert until(lambda: (frozen := node.process(query)) is not None and frozen.state == "D")


# Fleets


def test_fleets_run_side_by_side(fleet: SimFleet, node: SimNode) -> None:
    with SimFleet(1, scene=IDLE) as other:
        node.start(SGLANG)
        assert used(other["gpu01"]) == [0] * 8
        assert other["gpu01"].address.split(".")[:2] != node.address.split(".")[:2]
        assert other.folder != fleet.folder


def left_of(folder: Path) -> list[str]:
    """What is left of a fleet on the host: processes that name its folder, mounts, the folder."""
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(folder) in line and path.parent.name != str(os.getpid()):
            left.append(line.decode(errors="replace"))
    left += [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    left += list(map(str, Path("/sys/fs/cgroup/freezer").glob("simnode-*")))
    return left + ([str(folder)] if folder.exists() else [])


def test_nothing_is_left_after_the_end() -> None:
    with SimFleet(2, scene=SGLANG) as fleet:
        assert left_of(fleet.folder)
        inits = [node.host_pid for node in fleet]
    assert left_of(fleet.folder) == []
    assert not [pid for pid in inits if Path(f"/proc/{pid}").exists()]


def test_nothing_is_left_after_a_failed_start(tmp_path: Path) -> None:
    broken = NodeSettings(shell="/bin/sh", sshd_lines=("NoSuchOption yes",))
    with pytest.raises(SimFleetError, match="don't listen"):
        SimFleet(1, settings=broken, folder=tmp_path / "fleet", patience_s=0.3).start()
    assert left_of(tmp_path / "fleet") == []


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT", "end of input"])
def test_nothing_is_left_when_the_owner_ends(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "fleet"
    scene = "slow-death" if FREEZER else "sglang"
    command = [sys.executable, "-m", "tests.simfleet", "--nodes", "2", "--scene", scene]
    owner = subprocess.Popen(
        [*command, "--folder", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert owner.stdout.readline() == f"{folder}/fleet.yaml\n"
        if how == "end of input":
            owner.stdin.close()
        else:
            owner.send_signal(getattr(signal, how))
        status = owner.wait(10)
    assert status == (-signal.SIGKILL if how == "SIGKILL" else 0)
    assert until(lambda: left_of(folder) == []), left_of(folder)
