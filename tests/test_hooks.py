"""Guards, `before` and `after` of fleet.yaml, on simulated nodes: what each answer leads to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Command, Ran, command_for
from tests.simfleet import IDLE, SGLANG, Proc, SimFleet, SimNode

DRAINING = Proc("slow", ("python3", "train.py"), memory={0: 1000}, lag=30)


def inventory(fleet: SimFleet, folder: Path, **hooks: str) -> Path:
    """The simulated fleet's own fleet.yaml with hooks for all nodes."""
    text = fleet.fleet_yaml.read_text()
    keys = "".join(f"\n  {key}: {json.dumps(value)}" for key, value in hooks.items())
    path = folder / "fleet.yaml"
    path.write_text(text.replace("defaults:", f"defaults:{keys}", 1))
    path.chmod(0o644)
    return path


class Hooked:
    """`gpufleet reset` of gpu01 with hooks; a hook on the node writes into /tmp/seen there."""

    def __init__(self, fleet: SimFleet, folder: Path) -> None:
        self.fleet = fleet
        self.folder = folder
        self.run: Command = command_for({})

    def reset(self, *arguments: str, **hooks: str) -> Ran:
        path = inventory(self.fleet, self.folder, **hooks)
        return self.run("reset", "--hosts", "gpu01", "--json", "-i", str(path), *arguments)

    def node(self, *arguments: str, **hooks: str) -> dict[str, Any]:
        return self.reset(*arguments, **hooks).nodes()["gpu01"]

    def seen(self) -> str:
        path = self.fleet["gpu01"].path("/tmp/seen")
        return path.read_text() if path.exists() else ""


@pytest.fixture
def hooked(fleet: SimFleet, tmp_path: Path) -> Hooked:
    fleet["gpu01"].path("/tmp/seen").unlink(missing_ok=True)
    return Hooked(fleet, tmp_path)


def alive(node: SimNode, procs: list[Any]) -> bool:
    return all(node.alive(proc) for proc in procs)


def leftovers(node: SimNode) -> list[tuple[bytes, ...]]:
    """Scripts of ours and what hooks of these tests start."""
    mine = (b"/bin/sh", b"timeout", b"sleep")
    return [tuple(p.args) for p in node.processes() if p.args and p.args[0] in mine]


def gone(node: SimNode, patience_s: float = 15) -> bool:
    deadline = time.monotonic() + patience_s
    while leftovers(node) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not leftovers(node)


# The guard


def test_a_guard_that_says_yes_lets_the_reset_go_on(hooked: Hooked, node: SimNode) -> None:
    node.start(SGLANG)

    report = hooked.node(guard="echo asked >>/tmp/seen; exit 0")

    assert report["verdict"] == "CLEAN", report
    assert len(report["killed"]) == 10
    assert hooked.seen() == "asked\n"


def test_a_guard_that_says_no_skips_the_node_with_its_words(hooked: Hooked, node: SimNode) -> None:
    procs = node.start(SGLANG)

    ran = hooked.reset(guard="echo Slurm job 4711 runs here; exit 1")

    report = ran.nodes()["gpu01"]
    assert ran.code == 4
    assert report["verdict"] == "SKIPPED"
    assert report["reason"] == "its guard said no: Slurm job 4711 runs here"
    assert report["next_step"].startswith("ssh -p ")
    assert report["killed"] == []
    assert alive(node, procs)


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ("squeue-that-is-not-there", "guard ended with status 127: "),
        ('j=$(squeue-that-is-not-there) && [ -z "$j" ]', "guard ended with status 127: "),
        ("exit 2", "guard ended with status 2: nothing was touched"),
        ("kill -9 $$", "guard was ended by signal 9: nothing was touched"),
        ("kill -TERM $$", "guard was ended by signal 15: nothing was touched"),
        ("exit 124", "guard ended with status 124: nothing was touched"),
        ("if then", "guard ended with status 2: "),
    ],
)
def test_any_other_answer_is_no_answer_and_nothing_is_touched(
    guard: str, reason: str, hooked: Hooked, node: SimNode
) -> None:
    procs = node.start(SGLANG)

    ran = hooked.reset(guard=guard)

    report = ran.nodes()["gpu01"]
    assert ran.code == 3
    assert report["verdict"] == "UNKNOWN"
    assert report["reason"].startswith(reason), report["reason"]
    assert report["reason"].endswith("nothing was touched")
    assert alive(node, procs)


@pytest.mark.parametrize(
    "guard",
    ["sleep 600", "trap '' TERM; while :; do sleep 0.2; done", "sleep 600 & wait; exit 0"],
)
def test_a_guard_that_hangs_is_ended_with_all_it_started(
    guard: str, hooked: Hooked, node: SimNode
) -> None:
    procs = node.start(SGLANG)

    report = hooked.node(guard=guard, guard_timeout="1s")

    assert report["verdict"] == "UNKNOWN", report
    assert report["reason"] == "guard had not ended after 1 s: nothing was touched"
    assert alive(node, procs)
    assert gone(node)


def test_a_guard_is_asked_on_a_clean_node_as_well(hooked: Hooked, node: SimNode) -> None:
    """What is told CLEAN is used next: a node that somebody has reserved isn't."""
    node.start(IDLE)

    assert hooked.node(guard="exit 1")["verdict"] == "SKIPPED"


def test_a_dry_run_asks_the_guard_and_names_the_hooks(hooked: Hooked, node: SimNode) -> None:
    procs = node.start(SGLANG)

    report = hooked.node(
        "--dry-run",
        guard='echo "guard $GPUFLEET_DRY_RUN" >>/tmp/seen',
        before="echo before >>/tmp/seen",
        after="echo after >>/tmp/seen",
    )

    assert hooked.seen() == "guard 1\n"
    assert report["warnings"] == [
        "would run before: echo before >>/tmp/seen",
        "would run after: echo after >>/tmp/seen",
    ]
    assert alive(node, procs)


def test_a_flood_of_output_is_cut_and_fills_nothing(hooked: Hooked, node: SimNode) -> None:
    flood = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exit 1"

    report = hooked.node(guard=flood)

    assert report["verdict"] == "SKIPPED"
    assert "line 0; line 1" in report["reason"]
    assert len(report["reason"]) < 400
    assert node.exec("ls -A /run/gpufleet | grep -v '^lock$\\|^acts$'").stdout == ""


def test_what_a_hook_says_cannot_move_a_cursor_or_show_a_secret(hooked: Hooked) -> None:
    report = hooked.node(guard=r"printf '\033[2Jgone\n--api-key s3cret\n'; exit 1")

    assert report["reason"] == r"its guard said no: \x1b[2Jgone; --api-key ***"


def test_no_guard_is_asked_where_a_job_spares_the_node_anyway(
    hooked: Hooked, node: SimNode
) -> None:
    job = "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0"
    node.start((Proc("step", ("python3", "t.py"), user="alice", memory={0: 9}, owner=job),))

    report = hooked.node(guard="echo asked >>/tmp/seen; exit 0")

    assert report["verdict"] == "SKIPPED"
    assert hooked.seen() == ""


# before and after


def test_before_and_after_run_around_the_kills_and_know_the_node(
    hooked: Hooked, node: SimNode
) -> None:
    [proc] = node.start((Proc("job", ("python3", "t.py"), memory={0: 900}),))

    report = hooked.node(
        before=f'kill -0 {proc.pid} && echo "$GPUFLEET_HOST $GPUFLEET_HOOK" >>/tmp/seen',
        after=f"kill -0 {proc.pid} 2>/dev/null || echo"
        ' "$GPUFLEET_HOOK $GPUFLEET_VERDICT $GPUFLEET_KILLED $GPUFLEET_REASON." >>/tmp/seen',
    )

    assert report["verdict"] == "CLEAN", report
    assert hooked.seen() == "gpu01 before\nafter CLEAN 1 .\n"
    assert report["warnings"] == []
    assert [m["phase"] for m in report["timeline"]] == [
        *("connect", "look", "before", "look", "kill", "free", "settle", "after", "done"),
    ]


def test_on_a_clean_node_neither_runs(hooked: Hooked, node: SimNode) -> None:
    node.start(IDLE)

    report = hooked.node(before="echo b >>/tmp/seen", after="echo a >>/tmp/seen")

    assert report["verdict"] == "CLEAN"
    assert hooked.seen() == ""


def test_a_before_that_frees_the_node_leaves_nothing_to_kill(hooked: Hooked, node: SimNode) -> None:
    [proc] = node.start((Proc("job", ("python3", "t.py"), memory={0: 900}),))

    report = hooked.node(before=f"kill {proc.pid}; sleep 1", after="echo a >>/tmp/seen")

    assert report["verdict"] == "CLEAN", report
    assert report["killed"] == []
    assert report["gpus"][0]["memory_before_mib"] == 900
    assert hooked.seen() == "a\n"


def test_a_before_that_fails_kills_nothing_and_after_runs(hooked: Hooked, node: SimNode) -> None:
    procs = node.start(SGLANG)

    ran = hooked.reset(
        before="echo no such node; exit 3",
        after='echo "$GPUFLEET_VERDICT $GPUFLEET_REASON" >>/tmp/seen',
    )

    report = ran.nodes()["gpu01"]
    reason = "before ended with status 3: no such node: nothing was killed"
    assert ran.code == 3
    assert (report["verdict"], report["reason"]) == ("UNKNOWN", reason)
    assert hooked.seen() == f"UNKNOWN {reason}\n"
    assert alive(node, procs)


def test_an_after_that_fails_is_a_warning_that_quiet_shows(hooked: Hooked, node: SimNode) -> None:
    node.start(SGLANG)
    path = inventory(hooked.fleet, hooked.folder, after="echo still drained; exit 5")

    ran = hooked.run("reset", "--hosts", "gpu01", "--quiet", "-i", str(path))

    assert ran.code == 0
    assert "gpu01  CLEAN" in ran.out
    assert "warning: after ended with status 5: still drained; by hand: ssh -p " in ran.out


def test_what_after_is_told_may_quote_any_bytes(hooked: Hooked, node: SimNode) -> None:
    node.start(SGLANG)
    node.fault("gpu3", b"\xff\x1b[2J")

    report = hooked.node(after='echo "$GPUFLEET_REASON" >>/tmp/seen')

    assert report["verdict"] == "UNKNOWN", report
    assert report["warnings"] == []
    assert "GPU 3 reads" in hooked.seen()
    assert hooked.seen().isascii()


def test_after_runs_when_the_node_stays_dirty(hooked: Hooked, node: SimNode) -> None:
    node.start((Proc("server", ("python3", "serve.py"), memory={0: 600}, respawn=0.2),))

    report = hooked.node(after="echo $GPUFLEET_VERDICT >>/tmp/seen")

    assert report["verdict"] == "DIRTY", report
    assert hooked.seen() == "DIRTY\n"


def test_local_hooks_run_on_this_machine(hooked: Hooked, node: SimNode, tmp_path: Path) -> None:
    node.start(SGLANG)
    seen = tmp_path / "seen"

    report = hooked.node(
        before=f'local: echo "$GPUFLEET_HOOK $GPUFLEET_HOST $GPUFLEET_ADDRESS" >>{seen}',
        after=f'local:echo "$GPUFLEET_HOOK $GPUFLEET_VERDICT" >>{seen}',
    )

    assert report["verdict"] == "CLEAN", report
    assert seen.read_text() == f"before gpu01 {node.address}\nafter CLEAN\n"


def test_a_local_before_that_hangs_is_ended_with_its_group(
    hooked: Hooked, node: SimNode, tmp_path: Path
) -> None:
    procs = node.start(SGLANG)
    pid = tmp_path / "pid"

    report = hooked.node(
        before=f"local: sleep 600 & echo $! >{pid}; trap '' TERM; wait; sleep 600",
        before_timeout="1s",
    )

    assert report["reason"] == "before had not ended after 1 s: nothing was killed"
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    assert alive(node, procs)


def test_what_a_hook_starts_holds_neither_the_lock_nor_the_run(
    hooked: Hooked, node: SimNode
) -> None:
    node.start(SGLANG)

    report = hooked.node(
        before="sleep 45 & echo started", after="setsid sleep 45 & echo started", after_timeout="5s"
    )

    assert report["verdict"] == "CLEAN", report
    assert report["warnings"] == []
    assert report["elapsed_s"] < 30  # a hang, not slowness
    assert node.exec("flock -n /run/gpufleet/lock true").returncode == 0


def test_while_before_runs_the_node_is_locked(hooked: Hooked, node: SimNode) -> None:
    """Else two runs would drain and undrain across each other."""
    node.start(SGLANG)
    free = "flock -n /run/gpufleet/lock true && echo free >>/tmp/seen; true"

    report = hooked.node(guard=free, before=free, after=free)

    assert report["verdict"] == "CLEAN", report
    assert hooked.seen() == "free\nfree\n"  # for the guard and for after


def test_where_another_reset_is_at_work_neither_before_nor_after_runs(
    hooked: Hooked, node: SimNode
) -> None:
    """An undrain in the midst of somebody else's reset would harm."""
    procs = node.start(SGLANG)
    node.exec("mkdir -m 700 -p /run/gpufleet && echo 'run 42 by alice@ops1' > /run/gpufleet/lock")
    holder = "exec 9<>/run/gpufleet/lock; flock -n 9; sleep 60 & echo $! > /run/holder"
    node.exec(f"setsid sh -c '{holder}' >/dev/null 2>&1")

    for before in ("echo b >>/tmp/seen", "local: true"):
        report = hooked.node(before=before, after="echo a >>/tmp/seen")

        assert report["verdict"] == "SKIPPED", report
        assert "run 42 by alice@ops1" in report["reason"]
    assert hooked.seen() == ""
    assert alive(node, procs)


def test_a_hooks_text_stands_in_no_argument_list(hooked: Hooked, node: SimNode) -> None:
    """Else another run's look, or pkill -f in the hook itself, would take it for the workload."""
    node.start(SGLANG)

    report = hooked.node(before="cat /proc/[0-9]*/cmdline | tr '\\0' ' ' >/tmp/seen; : marker-4711")

    assert report["verdict"] == "CLEAN", report
    assert "nv-fabricmanager" in hooked.seen()
    assert "marker-4711" not in hooked.seen()


def test_after_runs_although_the_connection_was_lost(hooked: Hooked, node: SimNode) -> None:
    """The sshd of the session is killed while the reset waits: `after` gets a connection anew."""
    node.start((Proc("slow", ("python3", "t.py"), memory={0: 1000}, lag=4),))
    path = inventory(hooked.fleet, hooked.folder, after="echo $GPUFLEET_VERDICT >>/tmp/seen")
    process = start(path)
    await_lock(node)
    node.drop_connections()

    out, err = process.communicate(timeout=60)

    assert "Traceback" not in err
    assert hooked.seen().strip() in {"CLEAN", "UNKNOWN"}
    assert f'"verdict": "{hooked.seen().strip()}"' in out


# Interrupts


def start(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "gpufleet", "reset", "--hosts", "gpu01", "--json"),
            *("-i", str(path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def await_lock(node: SimNode) -> None:
    """Until an act is under way: the lock names its run."""
    lock = node.path("/run/gpufleet/lock")
    deadline = time.monotonic() + 30
    while not (lock.exists() and lock.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)


def await_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while not (path.exists() and text in path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert text in path.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_runs_when_the_run_is_interrupted(
    number: signal.Signals, hooked: Hooked, node: SimNode
) -> None:
    node.path("/run/gpufleet/lock").unlink(missing_ok=True)
    node.start((DRAINING,))
    path = inventory(
        hooked.fleet, hooked.folder, after='sleep 1; echo "$GPUFLEET_VERDICT" >>/tmp/seen'
    )
    process = start(path)
    await_lock(node)

    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 128 + number
    assert err == ""
    assert "interrupted: state not verified" in out
    assert hooked.seen() == "UNKNOWN\n"
    assert gone(node)


def test_an_interrupted_before_is_ended_and_after_runs(hooked: Hooked, node: SimNode) -> None:
    procs = node.start(SGLANG)
    path = inventory(
        hooked.fleet,
        hooked.folder,
        before="echo before >>/tmp/seen; sleep 600",
        after='echo "after $GPUFLEET_VERDICT" >>/tmp/seen',
    )
    process = start(path)
    await_text(node.path("/tmp/seen"), "before")

    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "nothing was killed" in out
    assert hooked.seen() == "before\nafter UNKNOWN\n"
    assert alive(node, procs)
    assert gone(node)


def test_a_second_interrupt_waits_for_no_after_and_still_reports(
    hooked: Hooked, node: SimNode, tmp_path: Path
) -> None:
    node.start(SGLANG)
    seen = tmp_path / "seen"
    path = inventory(hooked.fleet, hooked.folder, after=f"local: echo $$ >{seen}; exec sleep 600")
    process = start(path)
    await_text(seen, "\n")
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None  # it waits for after

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert "Traceback" not in err
    assert '"host": "gpu01"' in out
    deadline = time.monotonic() + 10
    while _runs(int(seen.read_text())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(int(seen.read_text()))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# The file


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"guard": "local: true"}, "a guard runs on the node"),
        ({"before": "systemctl\u00a0stop x"}, "a command can't hold the character U+00A0"),
        ({"before": "local:"}, "write a command after local:"),
        ({"guard": "true", "guard_timeout": "0"}, "a limit of 0 leaves no time at all"),
    ],
)
def test_a_hook_that_makes_no_sense_is_refused_by_line(
    hooks: dict[str, str], words: str, hooked: Hooked
) -> None:
    ran = hooked.reset(**hooks)

    assert ran.code == 2
    assert words in ran.err
    assert "fleet.yaml:" in ran.err


# What docs/hooks.md offers


def recipes() -> list[dict[str, str]]:
    """The settings of each example, in the order of the page."""
    page = Path(__file__).parent.parent.joinpath("docs/hooks.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"(?s)```yaml\n(.*?)```", page)]
    return [block["defaults"] for block in blocks if "defaults" in block]


def recipe(word: str) -> dict[str, str]:
    [found] = [r for r in recipes() if word in "".join(r.values())]
    return found


@pytest.mark.parametrize(
    ("squeue", "verdict", "words"),
    [
        ("exit 0", "CLEAN", ""),
        ("echo 4711 of alice", "SKIPPED", "its guard said no: Slurm jobs run here: 4711 of alice"),
        ("echo 'Invalid node name' >&2; exit 1", "UNKNOWN", "squeue: Invalid node name"),
        ("sleep 600", "UNKNOWN", "guard had not ended after 2 s"),
        (None, "UNKNOWN", "not found"),
    ],
)
def test_the_guard_for_slurm_jobs(
    squeue: str | None, verdict: str, words: str, hooked: Hooked, node: SimNode
) -> None:
    procs = node.start(SGLANG)
    if squeue is not None:
        node.tool("squeue", squeue)

    report = hooked.node(guard=recipe("squeue")["guard"], guard_timeout="2s")

    assert report["verdict"] == verdict, report
    assert words in report["reason"]
    assert alive(node, procs) is (verdict != "CLEAN")


@pytest.mark.parametrize(
    ("scene", "fault", "verdict", "words"),
    [
        (IDLE, "", "CLEAN", ""),
        (SGLANG, "", "SKIPPED", "its guard said no: GPU 0 is 97% busy"),
        (IDLE, "status 9", "UNKNOWN", "guard ended with status 2: nvidia-smi:"),
        (IDLE, "utilization.gpu@3 [N/A]", "UNKNOWN", "status 2: GPU 3 reads '[N/A]'"),
        (IDLE, "output ", "UNKNOWN", "guard ended with status 2: GPU  reads ''"),
    ],
)
def test_the_guard_for_busy_gpus(
    scene: Any, fault: str, verdict: str, words: str, hooked: Hooked, node: SimNode
) -> None:
    node.start(scene)
    if fault:
        name, value = fault.split(" ")
        node.fault(name, value, when="utilization.gpu")

    report = hooked.node(guard=recipe("utilization")["guard"])

    assert report["verdict"] == verdict, report
    assert words in report["reason"]


@pytest.mark.parametrize(
    ("state", "verdict", "said"),
    [
        ("idle", "CLEAN", ["drain", "resume"]),
        ("drained", "UNKNOWN", []),
    ],
)
def test_the_hooks_for_slurm(
    state: str, verdict: str, said: list[str], hooked: Hooked, node: SimNode, tmp_path: Path
) -> None:
    node.start(SGLANG)
    tools, log = tmp_path / "bin", tmp_path / "log"
    tools.mkdir()
    log.touch()
    for name, text in (("sinfo", f"echo {state}"), ("scontrol", f'echo "$@" >>{log}')):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    hooked.run = command_for({"PATH": f"{tools}:{os.environ['PATH']}"})

    report = hooked.node(**recipe("scontrol"))

    assert report["verdict"] == verdict, report
    assert report["warnings"] == []
    lines = log.read_text().splitlines()
    assert [line.split("state=")[1].split()[0] for line in lines] == said
    assert all("nodename=gpu01" in line for line in lines)


@pytest.mark.parametrize("settings", recipes(), ids="-".join)
def test_every_recipe_is_a_valid_inventory_and_valid_shell(
    settings: dict[str, str], hooked: Hooked
) -> None:
    path = inventory(hooked.fleet, hooked.folder, **settings)

    assert hooked.run("hosts", "-i", str(path)).code == 0
    for command in settings.values():
        text = command.removeprefix("local:")
        checked = subprocess.run(["sh", "-nc", text], capture_output=True, check=False)
        assert checked.returncode == 0, checked
