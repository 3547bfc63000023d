"""Worker processes: the same run, and what happens when one of them doesn't live to its end."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from gpufleet.errors import NodeError, UsageError
from gpufleet.model import (
    Escalation,
    Gpu,
    Leftover,
    Merged,
    Moment,
    NodeReport,
    ProcessLine,
    RunReport,
    Stopped,
    Verdict,
)
from gpufleet.policy import Access, Hooks, Limits, NodeSpec, Policy
from gpufleet.reset import Here
from gpufleet.run import Engine, Progress, reset, status
from gpufleet.run.engine import MAX_PROCESSES, WORTHWHILE
from gpufleet.run.task import Task
from gpufleet.run.worker import Setup
from gpufleet.run.workers import Workers
from gpufleet.ssh import Network
from gpufleet.ssh.gates import AT_ONE
from gpufleet.ssh.keys import forget
from gpufleet.ssh.network import HANDSHAKES
from tests.conftest import Command, spec_of
from tests.simfleet import SGLANG, Proc, SimFleet, SimNode

TWO = Engine(processes=2)
DRAINING = Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=60)

# --- plain data ----------------------------------------------------------------------------------

SPEC = NodeSpec(
    "gpu01",
    Access(
        "192.0.2.1",
        user="ops",
        port=2222,
        identity_file=("/k",),
        known_hosts=("/h",),
        host_keys="accept-new",
        ssh_config=("/c",),
        jump=("bastion",),
        sudo=True,
        connect_timeout_s=3,
        said=frozenset({"user"}),
    ),
    Policy(
        gpus=4,
        workload=("vllm",),
        interpreters=("python",),
        protect=("unit:x",),
        jobs="kill",
        stop="owner",
        restart=True,
        kubernetes="drain",
        escalate="reboot",
        reboot_timeout_s=8,
        clean_shm=True,
        grace_s=1,
        settle_s=2,
        attempts=4,
        tolerance_mib=5,
        timeout_s=6,
        dying_timeout_s=7,
        limits=Limits(smi_s=1),
    ),
    (("bastion", Access("192.0.2.9")),),
    Hooks("guard", 1, "before", 2, "after", 3),
)
LINE = ProcessLine(7, "root", "login", "python3", "name", "why", "KILL", 3, 4, "pod", "always")
REPORT = NodeReport(
    "gpu01",
    "192.0.2.1",
    Verdict.DIRTY,
    "reason",
    "step",
    "stage",
    2,
    1.5,
    (Gpu(0, "GPU-1", 5, 6, "?", 7),),
    ("warning",),
    (LINE,),
    (LINE,),
    (LINE,),
    (Stopped("a", "stop a", "no", "yes"),),
    (Leftover("/dev/shm/x", 5, "yes"),),
    (LINE,),
    (Moment(0.1, "look", "x"),),
    (Escalation("reboot", "why", "yes", ("systemctl reboot",)),),
)
RUN = RunReport(
    "r",
    "reset",
    "all",
    "2026",
    "2027",
    (REPORT,),
    True,
    2,
    ("note",),
    shard="1/2",
    merged=(Merged("q", "all", "1/2", 4, 0),),
    missing=("2/2 of all",),
)
TASK = Task(
    "reset",
    "r",
    "alice",
    True,
    Here("b", "pid:[1]", frozenset({3})),
    {"gpu01": frozenset({("bob", "")})},
    2,
    True,
    frozenset({"gpu01"}),
)


@pytest.mark.parametrize(
    "data", [SPEC, SPEC.access, SPEC.policy, SPEC.hooks, REPORT, LINE, RUN, TASK], ids=str
)
def test_what_travels_comes_back_as_it_was(data: object) -> None:
    for one in dataclasses.fields(data):  # type: ignore[arg-type]  # all of them are
        if one.default is not dataclasses.MISSING:  # else this says nothing of that field
            assert getattr(data, one.name) != one.default, one.name

    again = pickle.loads(pickle.dumps(data))

    assert again == data
    assert type(again) is type(data)


def test_each_node_gets_its_own_part_of_what_was_shown() -> None:
    assert TASK.of("gpu01").shown == {"gpu01": frozenset({("bob", "")})}
    assert TASK.of("gpu02").shown == {"gpu02": frozenset()}  # nobody was shown there


# --- how many, and limits in total ---------------------------------------------------------------


def test_more_processes_only_where_they_are_worth_their_start() -> None:
    auto = Engine(processes=None)

    assert auto.count(WORTHWHILE - 1) == 1
    assert auto.count(WORTHWHILE) == min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
    assert Engine().count(10_000) == 1
    assert Engine(processes=4).count(3) == 3


@pytest.mark.parametrize("number", [0, -1, MAX_PROCESSES + 1])
def test_a_number_of_processes_that_cannot_be(number: int, gpufleet: Command) -> None:
    with pytest.raises(UsageError, match=f"--processes {number}: from 1 to {MAX_PROCESSES}"):
        Engine(processes=number).count(5)
    for command in ("reset", "status", "check", "restore"):
        ran = gpufleet(command, "-H", "all", "--processes", str(number))
        assert (ran.code, ran.out) == (2, ""), command
        assert f"--processes {number}: from 1 to" in ran.err


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_processes_together_keep_to_the_limits_of_one(count: int) -> None:
    network = Network(count)

    assert 1 <= network._gates.at("192.0.2.1", 22).places * count <= AT_ONE
    assert 1 <= network._commands._value * count <= AT_ONE
    assert 1 <= network._handshakes._value * count <= HANDSHAKES


# --- the pool by itself --------------------------------------------------------------------------


def nothing(host: str, phase: str, detail: str) -> None: ...


def begun(workers: Workers) -> Workers:
    workers.begin(Setup("r", 2, 8, {}, {}))
    return workers


def test_calls_go_to_several_processes_and_errors_come_back() -> None:
    workers = begun(Workers(2, nothing))
    try:
        futures = [workers.submit(time.sleep, 0.3) for _ in range(2)]
        pids = {workers.submit(os.getpid).result(60) for _ in range(20)}
        failed = workers.submit(int, "x").exception(60)  # type: ignore[arg-type]
        [future.result(60) for future in futures]
    finally:
        workers.shutdown()

    assert pids <= workers.pids
    assert isinstance(failed, NodeError)
    assert failed.reason.startswith("internal error: ValueError: invalid literal")
    assert not [pid for pid in workers.pids if Path(f"/proc/{pid}").exists()]


def test_a_dead_process_costs_its_own_calls_and_those_that_may_are_taken_over() -> None:
    notes: list[str] = []
    workers = begun(Workers(2, nothing, notes.append, lambda seconds: seconds < 2))
    try:
        calls = {s: workers.submit(time.sleep, s) for s in (2.25, 1.5, 1.25, 2.5)}
        pid = workers.submit(os.getpid).result(60)
        [dead] = [worker for worker in workers._workers if worker.process.pid == pid]
        doomed = [call.arguments[0] for call in dead.calls.values()]
        os.kill(pid, signal.SIGKILL)
        outcomes = {seconds: future.exception(60) for seconds, future in calls.items()}
    finally:
        workers.shutdown()

    assert len(doomed) == 2
    for seconds, outcome in outcomes.items():
        if seconds in doomed and seconds > 2:
            assert str(outcome) == "its worker process died (SIGKILL): state not verified"
        else:
            assert outcome is None
    assert notes == [f"worker process {pid} died (SIGKILL) while it worked on 2 nodes"]


def test_without_a_process_nothing_is_done_and_that_is_said() -> None:
    workers = begun(Workers(1, nothing))
    try:
        died = workers.submit(os._exit, 3).exception(60)
        late = workers.submit(os.getpid).exception(60)
    finally:
        workers.shutdown()

    assert str(died) == "its worker process died (exit status 3): state not verified"
    assert str(late) == "no worker process is left: nothing was done"


def test_workers_end_with_the_process_that_started_them() -> None:
    program = (
        "import os, time\n"
        "from gpufleet.run.workers import Workers\n"
        "from gpufleet.run.worker import Setup\n"
        "workers = Workers(2, print)\n"
        "workers.begin(Setup('r', 2, 8, {}, {}))\n"
        "workers.submit(time.sleep, 100)\n"
        "print(*{workers.submit(os.getpid).result() for _ in range(9)}, flush=True)\n"
        "time.sleep(100)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()

    deadline = time.monotonic() + 20
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pids
    assert not any(map(running, pids))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_current_folder_is_no_place_for_modules(tmp_path: Path, fleet: SimFleet) -> None:
    """gpufleet runs as root in folders that others may write to."""
    for name in ("socket.py", "pickle.py", "multiprocessing.py", "gpufleet.py"):
        (tmp_path / name).write_text("open('/proc/self/cwd/loaded', 'w')\n")
    command = [str(Path(sys.executable).with_name("gpufleet")), "status", "-H", "all"]

    done = subprocess.run(
        [*command, "-i", str(fleet.fleet_yaml), "--processes", "2"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done
    assert not (tmp_path / "loaded").exists()


# --- over the simulated fleet --------------------------------------------------------------------


def pool(fleet: SimFleet, **more: object) -> list[NodeSpec]:
    policy = Policy(timeout_s=60, dying_timeout_s=60)
    return [dataclasses.replace(spec_of(fleet, node, policy), **more) for node in fleet]  # type: ignore[arg-type]


def children() -> set[int]:
    mine = str(os.getpid())
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        command = entry.with_name("cmdline").read_bytes() if fields[1] == mine else b""
        if b"gpufleet.run.worker" in command:
            found.add(int(entry.parent.name))
    return found


@pytest.mark.parametrize("phase", ["look", "kill"])
def test_a_killed_worker_leaves_every_node_with_a_verdict(fleet: SimFleet, phase: str) -> None:
    """Before anything was done on a node another process takes it; after that it is UNKNOWN."""
    for node in fleet:
        node.start(SGLANG)
    told: list[str] = []
    killed = threading.Event()

    def on_event(host: str, what: str, detail: str) -> None:
        if what == phase and not killed.is_set():
            killed.set()
            os.kill(min(children()), signal.SIGKILL)

    report = reset(
        pool(fleet),
        engine=TWO,
        progress=Progress(on_event, on_note=told.append),
    )

    verdicts = {node.host: node.verdict for node in report.nodes}
    assert list(verdicts) == ["gpu01", "gpu02", "gpu03", "gpu04"]
    assert set(verdicts.values()) <= {Verdict.CLEAN, Verdict.UNKNOWN}
    assert Verdict.CLEAN in verdicts.values()
    for node in report.nodes:
        if node.verdict is Verdict.UNKNOWN:
            assert node.reason == "its worker process died (SIGKILL): state not verified"
    assert report.exit_code() == (3 if Verdict.UNKNOWN in verdicts.values() else 0)
    assert len(told) == 1
    assert "died (SIGKILL)" in told[0]
    assert not children()


def test_an_interrupt_reaches_the_workers_and_after_still_runs(
    fleet: SimFleet, node: SimNode
) -> None:
    hooks = Hooks(after="echo $GPUFLEET_HOST >/run/after")
    node.start((DRAINING,))
    seen = threading.Event()

    def on_event(host: str, phase: str, detail: str) -> None:
        if host == "gpu01" and phase == "free" and not seen.is_set():
            seen.set()
            os.kill(os.getpid(), signal.SIGTERM)

    report = reset(pool(fleet, hooks=hooks), engine=TWO, parallel=1, progress=Progress(on_event))

    verdicts = [node.verdict for node in report.nodes]
    assert verdicts == [Verdict.UNKNOWN, *[Verdict.NOT_STARTED] * 3]
    assert report.nodes[0].reason == "interrupted: state not verified"
    assert report.exit_code() == 128 + signal.SIGTERM
    assert node.path("/run/after").read_text() == "gpu01\n"
    node.path("/run/after").unlink()


def test_a_second_interrupt_waits_for_nobody(fleet: SimFleet, node: SimNode) -> None:
    hooks = Hooks(after="local: exec sleep 50.25")
    node.start((DRAINING,))
    phases: list[str] = []

    def on_event(host: str, phase: str, detail: str) -> None:
        if host == "gpu01" and phase not in phases and phase in {"free", "after"}:
            phases.append(phase)
            os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    report = reset(pool(fleet, hooks=hooks), engine=TWO, parallel=1, progress=Progress(on_event))

    assert phases == ["free", "after"]
    assert report.nodes[0].verdict is Verdict.UNKNOWN
    assert "after was interrupted" in str(report.nodes[0].warnings)
    assert report.exit_code() == 128 + signal.SIGINT
    assert time.monotonic() - began < 40  # not the 50 s of `after`
    assert not children()
    sleeping = ["pgrep", "-fx", "sleep 50.25"]
    assert subprocess.run(sleeping, check=False, stdout=subprocess.DEVNULL).returncode == 1


def test_a_passphrase_is_asked_for_once_for_all_processes(
    fleet: SimFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    forget()
    locked = tmp_path / "locked"
    locked.write_bytes(fleet.identity_file.read_bytes())
    locked.chmod(0o600)
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(locked)]
    subprocess.run(change, check=True)
    specs = [spec_of(fleet, node, identity_file=(str(locked),)) for node in fleet]
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return "open sesame"

    report = status(specs, engine=TWO, progress=Progress(ask_secret=ask))
    forget()

    assert [node.verdict for node in report.nodes] == [Verdict.IDLE] * 4, report
    assert asked == [f"Passphrase for {locked}: "]


def test_any_other_executor_is_handed_a_plain_function(fleet: SimFleet) -> None:
    """`concurrent.futures`'s own, whose processes know of the run only what they are handed."""
    procs = {node.name: node.start(SGLANG) for node in fleet}

    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        report = reset(pool(fleet), executor=executor)

    assert [node.verdict for node in report.nodes] == [Verdict.CLEAN] * 4, report
    for node in fleet:
        assert not any(node.alive(p) for p in procs[node.name] if "sglang" in p.label)


def test_a_silent_node_of_a_worker_holds_nobody_up(fleet: SimFleet) -> None:
    """A stalled process is noticed by the node's own limit, not waited for; here: it gets no word."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        dead = NodeSpec(
            "dead", Access("127.0.0.1", port=silent.getsockname()[1], connect_timeout_s=1)
        )
        report = status([*pool(fleet), dead], engine=TWO)

    assert [node.verdict for node in report.nodes] == [*[Verdict.IDLE] * 4, Verdict.UNREACHABLE]


def test_without_any_standard_stream_the_processes_work_all_the_same(fleet: SimFleet) -> None:
    shell = '"$@" <&- >&- 2>&-'
    command = [sys.executable, "-m", "gpufleet", "status", "-H", "all", "--processes", "2"]
    command += ["-i", str(fleet.fleet_yaml)]

    done = subprocess.run(["bash", "-c", shell, "bash", *command], check=False, timeout=60)

    assert done.returncode == 0
