"""Who brings it back, and what is left behind: told from the node's own words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.judge import Evidence, judge_reset
from gpufleet.model import NodeReport, ProcessLine, Stopped, Verdict
from gpufleet.observation import Observation, parse_observation, parse_ports, unused
from gpufleet.observation.leftovers import parse_segments
from gpufleet.plan import make_plan
from gpufleet.policy import Limits, Policy
from gpufleet.report import syslog_line, with_ports
from tests.building import Proc, answer, changed
from tests.conftest import Reset
from tests.simfleet import Proc as SimProc
from tests.simfleet import SimNode
from tests.simfleet.scenes import CONTAINER, CONTAINER_ID

ID = "ab" * 32
DOCKER = f"/system.slice/docker-{ID}.scope"
POD = "12345678-1234-1234-1234-123456789abc"
PODS = f"/kubepods/burstable/pod{POD}/{ID}"


def judged(
    job: Proc, name: str, text: str, policy: Policy | None = None
) -> tuple[Verdict, str, str]:
    """The verdict after `job` was killed, with one more section in the act's answer."""
    policy = policy or Policy()
    before = parse_observation(answer([job], samples=1))
    after = parse_observation(changed(answer(act="stop free\n"), name, text))
    killed = make_plan(before, policy).kill
    evidence = Evidence(before, after, make_plan(after, policy), killed=killed)
    got = judge_reset(evidence, policy, "ssh root@n")
    return got.verdict, got.reason, got.next_step


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("restarting 0 always /sglang\n", Verdict.DIRTY),
        ("restarting 0 on-failure /sglang\n", Verdict.DIRTY),
        ("running 999 unless-stopped /sglang\n", Verdict.DIRTY),  # a new first process
        ("running 60 always /sglang\n", Verdict.CLEAN),  # the old one: only a worker was killed
        ("exited 0 no /sglang\n", Verdict.CLEAN),
        ("exited 0 always /sglang\n", Verdict.CLEAN),  # stopped by hand meanwhile
        ("", Verdict.CLEAN),
    ],
)
def test_a_container_with_a_restart_policy_is_never_clean_while_it_comes_back(
    text: str, verdict: Verdict
) -> None:
    job = Proc(60, "/opt/engine", cgroup=DOCKER, cuda=True)

    got = judged(job, f"container.{ID}", text)

    assert got[0] is verdict
    if verdict is Verdict.DIRTY:
        assert "container sglang comes back" in got[1]
        assert got[2] == "ssh root@n 'docker update --restart=no sglang && docker stop sglang'"


def test_a_container_that_nobody_could_ask_about_is_told() -> None:
    job = Proc(60, "/opt/engine", cgroup=DOCKER, cuda=True)
    before = parse_observation(answer([job], samples=1))
    after = parse_observation(answer(act="stop free\n"))
    killed = make_plan(before, Policy()).kill
    evidence = Evidence(before, after, make_plan(after, Policy()), killed=killed)

    got = judge_reset(evidence, Policy(), "ssh n")

    assert got.verdict is Verdict.CLEAN
    assert got.warnings == (f"nobody could tell whether container {ID[:12]} starts again",)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [(f"/sys/fs/cgroup/kubepods/burstable/pod{POD}\n", Verdict.DIRTY), ("", Verdict.CLEAN)],
)
def test_a_pod_that_still_exists_starts_again(found: str, verdict: Verdict) -> None:
    job = Proc(60, "sglang", cgroup=PODS, cuda=True)

    got = judged(job, f"pod.{POD}", found, Policy(jobs="kill"))

    assert got[0] is verdict
    assert (f"pod {POD} still exists" in got[1]) is (verdict is Verdict.DIRTY)


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("ActiveState=activating\nSubState=auto-restart\nMainPID=0", Verdict.DIRTY),
        ("ActiveState=active\nSubState=running\nMainPID=777", Verdict.DIRTY),
        ("ActiveState=active\nSubState=running\nMainPID=60", Verdict.DIRTY),  # just killed
        ("ActiveState=deactivating\nSubState=stop-post\nMainPID=0", Verdict.DIRTY),
        ("ActiveState=active\nSubState=running\nMainPID=902", Verdict.CLEAN),  # only a worker was
        ("ActiveState=failed\nSubState=failed\nMainPID=0", Verdict.CLEAN),
        ("ActiveState=inactive\nSubState=dead\nMainPID=0", Verdict.CLEAN),
    ],
)
def test_a_service_that_runs_again_is_never_clean(state: str, verdict: Verdict) -> None:
    job = Proc(60, "/opt/engine", cgroup="/system.slice/engine.service", cuda=True)
    units = answer().text("units") + f"\nId=engine.service\nRestart=always\n{state}\n"

    got = judged(job, "units", units)

    assert got[0] is verdict
    if verdict is Verdict.DIRTY:
        assert "engine.service comes back" in got[1]
        assert got[2] == "ssh root@n systemctl stop engine.service"


def test_a_process_that_hangs_its_readers_is_never_clean() -> None:
    whole = answer([Proc(60, [], comm="python3", exe="/opt/x", state="D")])
    for sample in ("1", "2"):
        whole = changed(whole, f"{sample}/asleep", " 60\n")
    seen = parse_observation(whole)

    got = judge_reset(Evidence(seen, seen, make_plan(seen, Policy())), Policy(), "ssh n")

    assert got.verdict is Verdict.UNKNOWN
    assert "pid 60 (python3) is in state D and hangs whoever reads it" in got.reason


LISTING = """\
total 16388
-rw------- 1 0 0 16777216 Dec  1 02:00 psm_1a2b3c4d
-rw------- 1 0 0       32 Dec  1 02:00 sem.mp-abc
-rw-r--r-- 1 0 0     4096 Dec  1 02:00 somebody's notes
drwxr-xr-x 2 0 0       40 Dec  1 02:00 torch_folder
-rw------- 1 0 0      xyz Dec  1 02:00 nccl-odd
short line
"""


def test_segments_of_frameworks_are_read_and_nothing_else() -> None:
    found = parse_segments(LISTING)

    assert [(s.name, s.size) for s in found] == [
        ("psm_1a2b3c4d", 16777216),
        ("sem.mp-abc", 32),
        ("nccl-odd", 0),
    ]
    assert [s.name for s in unused(found, {"/dev/shm/psm_1a2b3c4d"})] == ["sem.mp-abc", "nccl-odd"]


def test_segments_that_a_living_process_uses_are_no_leftovers() -> None:
    def warned(links: str) -> tuple[str, ...]:
        whole = changed(answer(), "shm", LISTING)
        whole = changed(whole, "2/links", whole.text("2/links") + links)
        seen: Observation = parse_observation(whole)
        evidence = Evidence(seen, seen, make_plan(seen, Policy()))
        got = judge_reset(evidence, Policy(), "ssh n")
        assert got.verdict is Verdict.CLEAN
        return got.warnings

    assert warned("") == (
        "/dev/shm: 3 files that nobody uses, 16 MiB (psm_1a2b3c4d, sem.mp-abc, nccl-odd)",
    )
    paths = ("psm_1a2b3c4d", "sem.mp-abc")
    used = "".join(f"60/fd/{n} 0 root /dev/shm/{name}\0" for n, name in enumerate(paths))
    assert warned(used) == ("/dev/shm: 1 files that nobody uses, 0 MiB (nccl-odd)",)


def test_ports_of_survivors_are_told() -> None:
    listing = (
        'LISTEN 0 128 0.0.0.0:30000 0.0.0.0:* users:(("python3",pid=60,fd=7),("x",pid=61,fd=7))\n'
        'LISTEN 0 128 [::]:8000 [::]:* users:(("python3",pid=60,fd=8))\n'
        "LISTEN 0 128 127.0.0.1:22 0.0.0.0:*\nodd line\n"
    )
    line = ProcessLine(60, "root", "", "python3 serve.py", "interpreter", "matches python3")
    report = NodeReport("n", "192.0.2.1", Verdict.DIRTY, survivors=(line, replace(line, pid=62)))

    assert parse_ports(listing) == {60: [8000, 30000], 61: [30000]}
    told = with_ports(report, parse_ports(listing)).warnings
    assert told == ("pid 60 still listens on port 8000, 30000",)


def test_the_syslog_line_is_one_line_of_bounded_length() -> None:
    line = ProcessLine(60, "root", "", "python3 serve.py --api-key ***", "workload", "matches x")
    report = NodeReport("n", "192.0.2.1", Verdict.DIRTY, reason="GPU 0: 5 MiB", killed=(line,) * 99)

    text = syslog_line(report, "r1", "alice@ops1 pid 7")

    assert text.startswith(
        "run r1 by alice@ops1 pid 7: DIRTY, killed 99; GPU 0: 5 MiB: "
        "60 root python3 serve.py --api-key ***, 60 root"
    )
    assert len(text) == 900
    assert "\n" not in text

    stops = (Stopped("docker:sglang", "docker stop"), Stopped("pod x", "kubectl", "no: denied"))
    text = syslog_line(replace(report, killed=(), stopped=stops), "r1", "alice@ops1 pid 7")
    assert text.endswith("DIRTY, killed 0, stopped docker:sglang; GPU 0: 5 MiB")


def test_a_reset_that_acted_leaves_a_line_in_the_nodes_syslog(
    node: SimNode, reset_sim: Reset
) -> None:
    node.tool("logger", 'printf "%s\\n" "$*" >>/run/logged')
    node.start((SimProc("job", ("python3", "x.py", "--hf-token", "s3cret"), memory={0: 5}),))

    reset_sim()

    logged = node.path("/run/logged").read_text()
    assert logged.startswith("-t gpufleet -- run 2")
    assert " by tests: CLEAN, killed 1: " in logged
    assert "root python3 x.py --hf-token ***" in logged
    assert "s3cret" not in logged


def test_docker_is_asked_whether_it_starts_the_container_again(
    node: SimNode, reset_sim: Reset
) -> None:
    node.tool("docker", 'echo "$*" >/run/asked; echo "restarting 0 always /sglang"')
    node.start(CONTAINER)

    report = reset_sim()

    assert report.verdict is Verdict.DIRTY, report
    assert "container sglang comes back (restarting, restart policy always)" in report.reason
    assert node.path("/run/asked").read_text().endswith(f"{CONTAINER_ID}\n")


def test_a_process_that_hangs_whoever_reads_it_does_not_hang_the_look(
    node: SimNode, reset_sim: Reset
) -> None:
    """grep hangs when it reads every command line, and not when the sleeper is left out."""
    [job] = node.start((SimProc("job", ("python3", "x.py"), memory={0: 5}),))
    real = node.exec("command -v grep").stdout.strip()
    all_of_them = "*' 1/cmdline '*|*' 1/maps '*"
    once = "[ -e /run/awake ] || { touch /run/awake; sleep 60; }"
    node.tool("grep", f'case "$*" in {all_of_them}) {once};; esac\nexec {real} "$@"')

    started = reset_sim(limits=Limits(tool_s=1))

    assert started.verdict is Verdict.CLEAN, started
    assert not node.alive(job)


@pytest.mark.parametrize(
    ("command", "verdict"),
    [("python3 -m sglang.launch_server", Verdict.DIRTY), ("/usr/bin/apt-daily", Verdict.CLEAN)],
)
def test_workload_whose_restart_is_due_from_before_is_never_clean(
    command: str, verdict: Verdict
) -> None:
    due = (
        "Id=server.service\nActiveState=activating\nSubState=auto-restart\nRestart=always\n"
        f"ExecStart={{ path=/x ; argv[]={command} ; }}\n"
    )
    seen = parse_observation(changed(answer(), "due", due))

    got = judge_reset(Evidence(seen, seen, make_plan(seen, Policy())), Policy(), "ssh n")

    assert got.verdict is verdict
    assert ("server.service comes back" in got.reason) is (verdict is Verdict.DIRTY)
