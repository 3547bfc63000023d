"""Owners other than systemd (tests/systemd has that one), by stand-ins that record their calls."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.model import NodeReport, Verdict
from gpufleet.observation.managed import Managed, parse_managed, parse_started
from gpufleet.plan.managed import make_stops
from gpufleet.policy import Limits, Policy
from gpufleet.reset import restore_node
from gpufleet.ssh import connect
from gpufleet.transport import Answer, Section
from tests.building import Proc as Line
from tests.building import observe, plan_of
from tests.conftest import QUICK, Command, Reset, spec_of
from tests.simfleet import Proc, Scene, SimFleet, SimNode, scenes
from tests.simfleet.scenes import CONTAINER, CONTAINER_ID

FILE = "/var/lib/gpufleet-node/stopped"
JOB = ("python3", "-m", "sglang.launch_server")
POD_UID = "0f9c1d52-77aa-4c1e-9a37-5d1f0e6b2c11"
POD: Scene = (Proc("job", JOB, owner=scenes.POD_SCOPE, memory={0: 900}),)

RUNTIME = """
echo "$0 $*" | sed 's,.*/,,' >>/run/calls
case "$*" in
  *'status='*) echo "status=$(cat /run/state)=" ;;
  inspect*) echo "$(cat /run/state) $(cat /run/pid) always /sglang lmsysorg/sglang:v0.5" ;;
  stop*) kill -KILL "$(cat /run/pid)"; echo exited >/run/state ;;
  start*) echo running >/run/state ;;
esac
"""
SUPERVISORCTL = """
echo "supervisorctl $*" >>/run/calls
case "$*" in
  status*) [ "$(cat /run/state)" = up ] && echo "sglang   RUNNING   pid $(cat /run/pid), uptime 0:10:00" ||
    echo "sglang   STOPPED   Dec 02 08:00 PM" ;;
  stop*) kill -KILL "$(cat /run/pid)"; echo down >/run/state ;;
  start*) echo up >/run/state ;;
esac
"""
KUBECTL = """
echo "kubectl $*" >>/run/calls
case "$*" in
  get*) echo "cordoned=$(cat /run/state)=" ;;
  drain*) kill -KILL "$(cat /run/pid)"; echo true >/run/state ;;
  uncordon*) echo >/run/state ;;
esac
"""


@pytest.fixture(autouse=True)
def _bare(request: pytest.FixtureRequest) -> None:
    if "node" in request.fixturenames:
        node: SimNode = request.getfixturevalue("node")
        node.exec("rm -rf /run/calls /run/state /run/pid /var/lib/gpufleet-node /var/log/pods")


def container(node: SimNode, tool: str, script: str = RUNTIME) -> None:
    """A container of docker or podman with a stand-in that knows it."""
    owner = (
        scenes.DOCKER_SCOPE.replace("docker", "libpod") if tool == "podman" else scenes.DOCKER_SCOPE
    )
    scene = tuple(replace(p, owner=owner) if p.label == "contained" else p for p in CONTAINER)
    node.tool(tool, script)
    managed(node, scene, "contained", "running")


def managed(node: SimNode, scene: Scene, label: str, state: str) -> None:
    pid = next(proc.pid for proc in node.start(scene) if proc.label == label)
    node.path("/run/pid").write_text(f"{pid}\n")
    node.path("/run/state").write_text(f"{state}\n")


def calls(node: SimNode, *verbs: str) -> list[str]:
    """What the stand-ins were called for, but for questions."""
    path = node.path("/run/calls")
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.split()[1] in verbs]


def restore(fleet: SimFleet, node: SimNode) -> NodeReport:
    spec = spec_of(fleet, node)
    return restore_node(spec, lambda: connect(spec), "run r by tests")


def told(report: NodeReport) -> list[tuple[str, str, str]]:
    return [(stop.owner, stop.stopped, stop.restored) for stop in report.stopped]


# Containers


@pytest.mark.parametrize("tool", ["docker", "podman"])
def test_a_container_is_stopped_and_started_again(
    tool: str, node: SimNode, reset_sim: Reset
) -> None:
    """podman says `exited` of one that it is about to start again, and of one that was stopped."""
    container(node, tool)
    node.tool("logger", 'printf "%s\\n" "$*" >/run/logged')

    report = reset_sim(stop="owner", restart=True)

    assert report.verdict is Verdict.CLEAN, report
    assert told(report) == [(f"{tool}:sglang", "yes", "yes")]
    assert calls(node, "stop", "start") == [
        f"{tool} stop {CONTAINER_ID}",
        f"{tool} start {CONTAINER_ID}",
    ]
    assert not node.path(FILE).exists()
    assert f"CLEAN, killed 0, stopped {tool}:sglang" in node.path("/run/logged").read_text()


def test_grace_is_handed_to_docker(node: SimNode, reset_sim: Reset) -> None:
    container(node, "docker")

    reset_sim(stop="owner", grace_s=6.2)

    assert calls(node, "stop") == [f"docker stop -t 7 {CONTAINER_ID}"]


def test_without_restart_it_stays_stopped_until_restore(
    fleet: SimFleet, node: SimNode, reset_sim: Reset
) -> None:
    container(node, "docker")

    report = reset_sim(stop="owner")

    assert report.verdict is Verdict.CLEAN, report
    assert told(report) == [("docker:sglang", "yes", "")]
    assert calls(node, "start") == []
    again = restore(fleet, node)
    assert (again.verdict, told(again)) == (Verdict.READY, [(CONTAINER_ID, "yes", "yes")])
    assert restore(fleet, node).stopped == ()


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("stop*) sleep 60 ;;", "not confirmed: no answer in 1 s"),
        ("stop*) echo no such thing >&2; exit 1 ;;", "not confirmed: status 1: no such thing"),
    ],
)
def test_what_its_owner_does_not_stop_is_killed(
    stop: str, said: str, node: SimNode, reset_sim: Reset
) -> None:
    script = RUNTIME.replace("  stop*)", f"  {stop}\n  never*)")
    container(node, "docker", script)

    report = reset_sim(stop="owner", limits=replace(QUICK, owner_s=1))

    assert told(report) == [("docker:sglang", said, "")]
    assert [line.signal for line in report.killed] == ["KILL"]


def test_what_was_stopped_too_slowly_and_killed_is_started_again(
    node: SimNode, reset_sim: Reset
) -> None:
    """Nobody heard that it stopped, and it doesn't run: a start is owed all the same."""
    late = "stop*) sleep 60 ;;\n  inspect*) echo exited 0 always /sglang image ;;"
    container(node, "docker", RUNTIME.replace("  stop*)", f"  {late}\n  never*)"))

    report = reset_sim(stop="owner", restart=True, limits=replace(QUICK, owner_s=1))

    assert report.verdict is Verdict.CLEAN, report
    assert told(report) == [("docker:sglang", "not confirmed: no answer in 1 s", "yes")]
    assert calls(node, "start") == [f"docker start {CONTAINER_ID}"]
    assert not node.path(FILE).exists()


def test_a_container_that_does_not_come_up_is_broken_and_not_forgotten(
    node: SimNode, reset_sim: Reset
) -> None:
    container(node, "docker", RUNTIME.replace("start*) echo running", "start*) echo restarting"))

    report = reset_sim(stop="owner", restart=True)

    assert report.verdict is Verdict.BROKEN, report
    assert report.reason.startswith("clean, but not up again: ")
    assert node.path(FILE).read_text().startswith(f"docker {CONTAINER_ID} ")


def test_a_container_whose_first_process_is_no_workload_is_not_stopped(
    node: SimNode, reset_sim: Reset
) -> None:
    container(node, "docker")
    node.path("/run/pid").write_text("1\n")

    report = reset_sim(stop="owner")

    assert told(report) == [("docker:sglang", "its main process (pid 1) is no workload", "")]
    assert calls(node, "stop") == []


def test_a_docker_that_does_not_answer_stops_nothing(node: SimNode, reset_sim: Reset) -> None:
    container(node, "docker", "exit 1")

    report = reset_sim(stop="owner")

    assert [stop.stopped for stop in report.stopped] == ["docker did not answer"]
    assert report.killed


# Supervisor, Slurm, Kubernetes


def test_a_supervisors_program_is_stopped_and_started_again(
    node: SimNode, reset_sim: Reset
) -> None:
    node.tool("supervisorctl", SUPERVISORCTL)
    scene = (
        Proc(
            "keeper",
            ("/usr/bin/python3", "/usr/bin/supervisord", "-n"),
            owner=scenes.unit("supervisor"),
        ),
        Proc("job", JOB, parent="keeper", memory={0: 900}),
    )
    managed(node, scene, "job", "up")
    planned = reset_sim(stop="owner", dry_run=True)

    report = reset_sim(stop="owner", restart=True)

    assert [line.managed for line in planned.planned] == ["supervisor program sglang"]
    assert report.verdict is Verdict.CLEAN, report
    assert told(report) == [("sglang", "yes", "yes")]
    assert calls(node, "stop", "start") == [
        "supervisorctl stop sglang",
        "supervisorctl start sglang",
    ]


def test_a_job_is_cancelled_where_that_is_allowed(node: SimNode, reset_sim: Reset) -> None:
    node.tool("scancel", 'echo "scancel $*" >>/run/calls; kill -KILL "$(cat /run/pid)"')
    job = "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"
    managed(node, (Proc("job", JOB, owner=job, memory={0: 900}),), "job", "")

    skipped = reset_sim(stop="owner")
    assert (skipped.verdict, calls(node, "4711")) == (Verdict.SKIPPED, [])

    report = reset_sim(stop="owner", jobs="kill", restart=True)

    assert report.verdict is Verdict.CLEAN, report
    assert told(report) == [("slurm job 4711", "yes", "")]
    assert calls(node, "4711") == ["scancel 4711"]


def pod(node: SimNode, cordoned: str = "") -> None:
    node.tool("kubectl", KUBECTL)
    node.path(f"/var/log/pods/infer_sglang-0_{POD_UID}").mkdir(parents=True)
    managed(node, POD, "job", cordoned)


def test_for_a_pod_the_kubectl_command_is_told_and_not_run(node: SimNode, reset_sim: Reset) -> None:
    pod(node)

    report = reset_sim(stop="owner", jobs="kill")

    [stop] = report.stopped
    assert stop.owner == "pod infer/sglang-0"
    assert stop.action == "kubectl -n infer delete pod sglang-0"
    assert stop.stopped == f"by hand: {stop.action}"
    assert calls(node, "drain", "delete", "uncordon") == []
    assert [line.managed for line in report.killed] == ["pod infer/sglang-0"]


@pytest.mark.parametrize("cordoned", ["", "true"])
def test_a_node_is_drained_where_that_is_allowed(
    cordoned: str, node: SimNode, reset_sim: Reset
) -> None:
    """One that was cordoned before stays so."""
    pod(node, cordoned)

    report = reset_sim(stop="owner", jobs="kill", kubernetes="drain", restart=True)

    assert report.verdict is Verdict.CLEAN, report
    [drain] = calls(node, "drain")
    assert drain.startswith("kubectl drain gpu01 --ignore-daemonsets --delete-emptydir-data")
    assert calls(node, "uncordon") == ([] if cordoned else ["kubectl uncordon gpu01"])


def test_without_a_kubectl_that_works_nothing_is_drained(node: SimNode, reset_sim: Reset) -> None:
    pod(node)
    node.tool("kubectl", 'echo "kubectl $*" >>/run/calls; echo "no configuration" >&2; exit 1')

    report = reset_sim(stop="owner", jobs="kill", kubernetes="drain")

    assert [stop.stopped for stop in report.stopped] == ["no: it was not up"]
    assert calls(node, "drain") == []


# What must hold whatever happens


def test_status_and_dry_run_tell_name_image_and_policy(
    node: SimNode, reset_sim: Reset, gpufleet: Command
) -> None:
    container(node, "docker")

    ran = gpufleet("status", "-H", "gpu01", "--json")
    shown = gpufleet("reset", "-H", "gpu01", "--dry-run", "--stop-owners")

    [line] = ran.nodes()["gpu01"]["would_kill"]
    assert line["managed"] == "sglang, image lmsysorg/sglang:v0.5"
    assert line["restart"] == "always"
    assert "[sglang, image lmsysorg/sglang:v0.5, restart always]" in shown.out
    assert "would stop: docker:sglang by docker stop sglang" in shown.out
    assert calls(node, "stop") == []


def test_a_gpufleet_that_is_killed_while_stopping_loses_nothing(
    fleet: SimFleet, node: SimNode, gpufleet: Command, tmp_path: Path
) -> None:
    slow = RUNTIME.replace("stop*) ", "stop*) echo begun >/run/begun; sleep 2; ")
    container(node, "docker", slow)
    begun = node.path("/run/begun")
    begun.unlink(missing_ok=True)
    command = [*(sys.executable, "-m", "gpufleet", "reset", "-H", "gpu01", "--restart-owners")]
    command += ["--stop-owners", "-i", str(fleet.fleet_yaml)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=tmp_path) as running:
        until = time.monotonic() + 30
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert node.path(FILE).read_text().startswith(f"docker {CONTAINER_ID} ")  # before the stop
        running.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while node.path("/run/state").read_text() != "exited\n" and time.monotonic() < until:
        time.sleep(0.05)
    node.exec("true")

    ran = gpufleet("restore", "-H", "gpu01", "--json")

    report = ran.nodes()["gpu01"]
    assert (ran.code, report["verdict"]) == (0, "READY"), ran
    assert [stop["restored"] for stop in report["stopped"]] == ["yes"]
    assert calls(node, "start") == [f"docker start {CONTAINER_ID}"]


def test_what_an_earlier_run_stopped_is_kept_and_started_as_well(
    node: SimNode, reset_sim: Reset
) -> None:
    container(node, "docker")
    earlier = "e" * 64
    node.exec(f"mkdir -m 700 {Path(FILE).parent}; echo docker {earlier} r0 >{FILE}")

    reset_sim(stop="owner", restart=True)

    assert calls(node, "start") == [f"docker start {CONTAINER_ID}", f"docker start {earlier}"]


@pytest.mark.parametrize("mode", ["755", "770"])
def test_in_a_folder_that_others_may_enter_nothing_is_written_nor_stopped(
    mode: str, node: SimNode, reset_sim: Reset
) -> None:
    container(node, "docker")
    node.exec(f"mkdir -m {mode} {Path(FILE).parent}")

    report = reset_sim(stop="owner")

    assert report.verdict is Verdict.UNKNOWN, report
    assert report.reason.endswith("nothing was stopped or killed")
    assert (report.stopped, report.killed, calls(node, "stop")) == ((), (), [])


def test_on_a_full_disk_nothing_is_stopped(node: SimNode, reset_sim: Reset) -> None:
    container(node, "docker")
    node.exec(f"mkdir -m 700 {Path(FILE).parent}; ln -s /dev/full {FILE}.new")

    report = reset_sim(stop="owner")

    assert report.verdict is Verdict.UNKNOWN, report
    assert f"cannot write {FILE}" in report.reason
    assert calls(node, "stop") == []


def test_restore_where_nothing_was_stopped_is_ready(gpufleet: Command) -> None:
    ran = gpufleet("restore", "-H", "all")

    assert ran.code == 0
    assert "4 READY" in ran.out


def test_restore_says_what_does_not_come_up(node: SimNode, gpufleet: Command) -> None:
    node.tool("docker", 'case "$1" in inspect) exit 1;; esac; echo "No such container" >&2; exit 1')
    node.exec(f"mkdir -m 700 {Path(FILE).parent}; echo docker {'e' * 64} r0 >{FILE}")

    ran = gpufleet("restore", "-H", "gpu01", "--json")

    report = ran.nodes()["gpu01"]
    assert (ran.code, report["verdict"]) == (1, "BROKEN")
    assert "No such container" in report["reason"]
    assert (
        f"docker logs --tail 50 {'e' * 64}  # gpufleet restore --hosts gpu01" in report["next_step"]
    )
    assert node.path(FILE).exists()


def test_a_start_without_a_stop_is_refused(node: SimNode, gpufleet: Command) -> None:
    container(node, "docker")

    ran = gpufleet("reset", "-H", "gpu01", "--restart-owners")

    assert (ran.code, ran.out) == (2, "")
    assert "--restart-owners starts what --stop-owners stopped: give both" in ran.err
    assert calls(node, "stop") == []


def test_a_docker_that_hangs_costs_a_moment_and_the_container_is_killed(
    node: SimNode, reset_sim: Reset
) -> None:
    container(node, "docker", "sleep 600")

    report = reset_sim(stop="owner", limits=replace(QUICK, tool_s=3))

    assert [stop.stopped for stop in report.stopped] == ["docker did not answer"]
    assert [line.signal for line in report.killed] == ["KILL"]


# Pure


def stops(
    *lines: Line, policy: Policy | None = None, said: Managed | None = None
) -> dict[str, str]:
    policy = policy or Policy(stop="owner")
    found = make_stops(plan_of(*lines, policy=policy), observe(*lines), said or Managed(), policy)
    return {stop.owner: stop.why_not for stop in found}


@pytest.mark.parametrize(
    "path",
    [
        "/system.slice/sshd.service",
        "/system.slice/cron.service",
        "/system.slice/containerd.service",
        "/user.slice/user-0.slice/session-3.scope",
        "/user.slice/user-1000.slice/user@1000.service/init.scope",
        "/init.scope",
        "/system.slice",
    ],
)
def test_carriers_sessions_slices_and_managers_are_never_stopped(path: str) -> None:
    assert stops(Line(60, "python3 x.py", cgroup=path, cuda=True)) == {}


def test_the_unit_of_our_own_login_is_never_stopped() -> None:
    line = Line(60, "python3 x.py", cgroup="/system.slice/mysshd.service", cuda=True)
    own = Line(901, "sshd: root@notty", ppid=900, exe="/usr/sbin/sshd", cgroup=line.cgroup)
    seen = observe(line, own=(Line(1, "/sbin/init", ppid=0), Line(900, "sshd", exe="/usr/sbin/sshd"), own,
                              Line(902, "/bin/sh -s", ppid=901)))  # fmt: skip
    from gpufleet.plan import make_plan  # noqa: PLC0415

    policy = Policy(stop="owner")
    [stop] = make_stops(make_plan(seen, policy), seen, Managed(), policy)
    assert stop.why_not == "gpufleet's own login is in it"


def test_a_name_with_odd_characters_is_left_to_the_kill() -> None:
    said = {"supervisor": Section("supervisor", "a;reboot RUNNING pid 60, uptime 0:01\n", "0")}
    managed = parse_managed(Answer(said, started=True, finished=True))
    keeper = Line(
        59, "/usr/bin/python3 /usr/bin/supervisord", cgroup="/system.slice/supervisor.service"
    )
    job = Line(60, "python3 x.py", ppid=59, cgroup=keeper.cgroup, cuda=True)

    assert stops(keeper, job, said=managed) == {
        "a;reboot": "its name holds characters that no owner's has"
    }


def test_a_start_that_was_cut_off_is_not_taken_for_one() -> None:
    sections = {"start.1": Section("start.1", "", "0"), "owner.1": Section("owner.1", "up\n", "0")}

    assert parse_started(Answer(sections, started=True, finished=True)) == ()


def test_owners_have_their_own_time() -> None:
    assert Policy().owners_s == 0
    assert Policy(stop="owner", limits=Limits(owner_s=5)).owners_s == 10
