"""Whole nodes as they are met in the field, with the fate of every candidate on them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpufleet.policy import Policy
from tests.building import (
    ALL_GPUS,
    COMPUTE,
    FABRIC_MANAGER,
    PERSISTENCED,
    Proc,
    fates,
    killed,
    plan_of,
)

ID = "1f" * 32
PTY = 34816
DAEMONS = {50: "spare gpu-daemon", 51: "spare gpu-daemon"}
SESSION = "/user.slice/user-1000.slice/session-7.scope"
DOCKER = f"/system.slice/docker-{ID}.scope"
PYTHON = "/usr/bin/python3.12"


def pod(number: int) -> str:
    uid = f"0000000{number}_1111_2222_3333_444455556666"
    return (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/"
        f"cri-containerd-{ID}.scope"
    )


SEED = [
    Proc(59, "python3 -m sglang.launch_server --tp 8", session=59, cgroup=SESSION),
    *(
        Proc(
            60 + i, [f"sglang::scheduler_TP{i}"], 59, PYTHON, cuda=True, session=59, cgroup=SESSION
        )
        for i in range(8)
    ),
    Proc(68, ["sglang::detokenizer"], ppid=59, exe=PYTHON, session=59, cgroup=SESSION),
    Proc(20, "/usr/bin/python3 /usr/bin/networkd-dispatcher", cgroup="/system.slice/n.service"),
]

LOOP = [
    Proc(80, "-bash", exe="/usr/bin/bash", uid=1000, tty=PTY, cgroup=SESSION),
    Proc(81, "bash ./serve.sh", ppid=80, uid=1000, tty=PTY, session=80, cgroup=SESSION),
    Proc(82, "python3 -m sglang", 81, uid=1000, tty=PTY, session=80, cgroup=SESSION, cuda=True),
    Proc(90, ["sh", "-c", "while :; do sglang serve; sleep 1; done"], ppid=1, cgroup=SESSION),
]

TMUX = [
    Proc(70, "tmux new -s sglang", exe="/usr/bin/tmux", comm="tmux: server", cgroup=SESSION),
    Proc(71, "-bash", ppid=70, exe="/usr/bin/bash", tty=PTY, cgroup=SESSION),
    Proc(72, "python3 -m sglang", ppid=71, session=71, tty=PTY, cgroup=SESSION, cuda=True),
    Proc(73, ["sglang::scheduler"], 72, PYTHON, session=71, tty=PTY, cgroup=SESSION, cuda=True),
    Proc(75, "tmux attach -t sglang", exe="/usr/bin/tmux", tty=PTY, session=74, cgroup=SESSION),
]

NOHUP = [
    Proc(82, "python3 -m sglang", ppid=1, session=40, cgroup=SESSION),
    Proc(83, ["sglang::scheduler"], ppid=82, exe=PYTHON, session=40, cgroup=SESSION, cuda=True),
]

CDI = [
    Proc(30, "/usr/bin/dockerd -H fd://", cgroup="/system.slice/docker.service"),
    Proc(31, "/usr/bin/containerd", cgroup="/system.slice/containerd.service"),
    Proc(
        32,
        f"/usr/bin/containerd-shim-runc-v2 -namespace moby -id {ID} sglang",
        cgroup="/system.slice/containerd.service",
    ),
    Proc(33, "/sbin/docker-init -- /opt/entry", ppid=32, exe="/sbin/docker-init", cgroup=DOCKER),
    Proc(34, "python3 -m sglang", ppid=33, session=33, cgroup=DOCKER),
    Proc(35, ["sglang::scheduler"], ppid=34, exe=PYTHON, session=33, cgroup=DOCKER, cuda=True),
    Proc(36, "/opt/nccl-helper", ppid=34, session=33, cgroup=DOCKER),
    Proc(40, "docker run --gpus all sglang python3 -m sglang", tty=PTY, cgroup=SESSION),
]

VLLM = [
    Proc(60, "/opt/conda/bin/python -m vllm serve", exe="/opt/conda/bin/python3.11", session=60),
    Proc(61, ["VLLM::EngineCore\0\0"], ppid=60, exe="/opt/conda/bin/python3.11", session=60),
    Proc(62, ["VLLM::Worker_TP0"], 61, "/opt/conda/bin/python3.11", session=60, cuda=True),
]

PODS = [
    Proc(60, "/usr/bin/kubelet", cgroup="/system.slice/kubelet.service"),
    Proc(61, "python3 /app/controller.py", cgroup=pod(1)),
    Proc(62, "/usr/bin/nvidia-device-plugin", cgroup=pod(2), devices=ALL_GPUS),
    Proc(63, "/usr/bin/dcgm-exporter", cgroup=pod(3), maps=("/dev/nvidiactl",)),
    Proc(64, "python3 train.py", cgroup=pod(4), uid=1000, cuda=True),
    Proc(65, "python3 sidecar.py", cgroup=pod(4)),
]

STEP = "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0"
SLURM = [
    Proc(60, "/usr/sbin/slurmd -D", cgroup="/system.slice/slurmd.service"),
    Proc(
        61,
        "slurmstepd: [77.0]",
        exe="/usr/sbin/slurmstepd",
        cgroup=STEP.replace("/user/task_0", ""),
    ),
    Proc(62, ["/bin/bash", "/var/spool/slurmd/job77/slurm_script"], 61, "/bin/bash", cgroup=STEP),
    Proc(63, "python3 train.py", ppid=62, session=62, uid=1000, cgroup=STEP, cuda=True),
    Proc(64, "/usr/bin/python3 /opt/health.py", ppid=60, cgroup="/system.slice/slurmd.service"),
]

RAY = [
    Proc(
        60,
        "/usr/lib/python3/dist-packages/ray/core/src/ray/gcs/gcs_server",
        session=60,
        cgroup=SESSION,
    ),
    Proc(
        61,
        "/opt/ray/raylet --python_worker_command=/usr/bin/python3 worker.py",
        session=60,
        cgroup=SESSION,
    ),
    Proc(62, ["ray::IDLE"], ppid=61, exe=PYTHON, session=60, cgroup=SESSION),
    Proc(63, ["ray::Actor.step"], 61, PYTHON, session=60, cgroup=SESSION, cuda=True),
]

HUB = "/system.slice/jupyterhub.service"
JUPYTERHUB = [
    Proc(60, "/opt/tljh/hub/bin/python3 /opt/tljh/hub/bin/jupyterhub", cgroup=HUB),
    Proc(61, "/opt/tljh/user/bin/python3 -m jupyterhub.singleuser", 60, cgroup=HUB, uid=1000),
    Proc(62, "python3 -m ipykernel_launcher -f a.json", 61, cgroup=HUB, uid=1000, cuda=True),
    Proc(63, "python3 -m ipykernel_launcher -f b.json", 61, cgroup=HUB, uid=1000),
    Proc(64, "/usr/bin/python3 /usr/sbin/other", cgroup="/system.slice/other.service"),
]

TRITON = [
    Proc(60, "/sbin/tini -- tritonserver", exe="/sbin/tini", cgroup=DOCKER),
    Proc(61, "tritonserver --model-repository=/m", 60, session=60, cgroup=DOCKER, cuda=True),
    Proc(
        62,
        "/opt/tritonserver/backends/python/triton_python_backend_stub /m/1/model.py",
        ppid=61,
        session=60,
        cgroup=DOCKER,
        cuda=True,
    ),
]

MPS = [
    Proc(60, "nvidia-cuda-mps-control -d", exe="/usr/bin/nvidia-cuda-mps-control"),
    Proc(61, "nvidia-cuda-mps-server", 60, "/usr/bin/nvidia-cuda-mps-server", cuda=True),
    Proc(62, "/home/u/solver", uid=1000, cgroup=SESSION, cuda=True),
]

MONITORING = [
    Proc(
        60, "/usr/bin/nv-hostengine -n", cgroup="/system.slice/nvidia-dcgm.service", devices=COMPUTE
    ),
    Proc(61, "/usr/bin/node_exporter", cgroup="/system.slice/node_exporter.service"),
    Proc(62, "/usr/bin/telegraf", cgroup="/system.slice/telegraf.service"),
    Proc(63, "nvidia-smi -l 5", ppid=62, cgroup="/system.slice/telegraf.service", devices=ALL_GPUS),
    Proc(64, "/opt/gpud run", cgroup="/system.slice/gpud.service", devices=(*ALL_GPUS, COMPUTE[1])),
    Proc(65, "python3 /opt/nvml.py", cgroup="/system.slice/nvml.service", devices=ALL_GPUS),
]

PLAY = [
    Proc(60, "sshd: root@notty", exe="/usr/sbin/sshd", cgroup=SESSION),
    Proc(
        61,
        ["/bin/sh", "-c", "/usr/bin/python3 /root/.ansible/tmp/t/AnsiballZ_apt.py && sleep 0"],
        ppid=60,
        exe="/usr/bin/dash",
        cgroup=SESSION,
    ),
    Proc(
        62, "/usr/bin/python3 /root/.ansible/tmp/t/AnsiballZ_apt.py", 61, session=61, cgroup=SESSION
    ),
    Proc(63, "/usr/bin/apt-get -y install python3-dev", 62, session=61, cgroup=SESSION),
    Proc(64, "/usr/bin/dpkg --configure python3-dev", 63, session=61, cgroup=SESSION),
    Proc(
        65,
        ["/bin/sh", "/var/lib/dpkg/info/python3-dev.postinst", "configure"],
        ppid=64,
        exe="/usr/bin/dash",
        session=61,
        cgroup=SESSION,
    ),
    Proc(66, "/usr/bin/python3 /usr/bin/py3compile -p python3-dev", 65, session=61, cgroup=SESSION),
]

CLOUD = [
    Proc(60, "/usr/bin/python3 -u /usr/sbin/waagent -daemon", cgroup="/system.slice/w.service"),
    Proc(
        61,
        "python3 -u bin/WALinuxAgent-2.9.1.1-py3.8.egg -run-exthandlers",
        60,
        cgroup="/azure.slice/x",
    ),
    Proc(
        62,
        "/snap/amazon-ssm-agent/1/amazon-ssm-agent",
        cgroup="/system.slice/amazon-ssm-agent.service",
    ),
    Proc(
        63, "/snap/x/ssm-agent-worker sglang", 62, cgroup="/system.slice/amazon-ssm-agent.service"
    ),
    Proc(
        64,
        "python3 /var/lib/amazon/ssm/x/script.py",
        63,
        cgroup="/system.slice/amazon-ssm-agent.service",
    ),
]

LOGIN = [
    Proc(60, "sshd: sglang [priv]", exe="/usr/sbin/sshd", cgroup="/system.slice/ssh.service"),
    Proc(61, "sshd: sglang@pts/0", ppid=60, exe="/usr/lib/openssh/sshd-session", uid=1002),
    Proc(62, "-bash", ppid=61, exe="/usr/bin/bash", uid=1002, tty=PTY),
    Proc(63, "tail -f sglang.log", ppid=62, uid=1002, session=62, tty=PTY),
    Proc(64, "vim sglang.conf", 62, "/usr/bin/vim.basic", uid=1002, session=62, tty=PTY),
    Proc(65, "journalctl -fu sglang", ppid=62, uid=1002, session=62, tty=PTY),
    Proc(66, "su - sglang", ppid=62, session=62, tty=PTY),
]

INTERRUPTED_UPGRADE = [
    Proc(
        60, "/usr/bin/python3 /usr/bin/unattended-upgrade", cgroup="/system.slice/apt-daily.service"
    ),
    Proc(
        61,
        "/usr/bin/dpkg --configure python3-minimal",
        60,
        cgroup="/system.slice/apt-daily.service",
    ),
    Proc(62, "python3 train.py", uid=1000, cgroup=SESSION, cuda=True),
]


NODES: list[tuple[str, Sequence[Proc], dict[int, str]]] = [
    (
        "seed",
        SEED,
        {20: "spare python-system", **dict.fromkeys(range(59, 61), "kill workload")}
        | dict.fromkeys(range(61, 69), "kill workload"),
    ),
    ("loop", LOOP, {81: "kill ancestor", 82: "kill workload", 90: "kill workload"}),
    (
        "tmux",
        TMUX,
        {70: "spare bystander", 75: "spare bystander", 72: "kill workload", 73: "kill workload"},
    ),
    ("nohup", NOHUP, {82: "kill workload", 83: "kill workload"}),
    (
        "docker with CDI",
        CDI,
        {
            32: "spare carrier",
            33: "kill ancestor",
            34: "kill workload",
            35: "kill workload",
            40: "spare carrier",
        },
    ),
    ("vLLM", VLLM, dict.fromkeys([60, 61, 62], "kill interpreter")),
    (
        "pods",
        PODS,
        {
            61: "spare service",
            62: "spare gpu-daemon",
            63: "spare gpu-daemon",
            64: "kill interpreter",
            65: "kill interpreter",
        },
    ),
    ("Slurm", SLURM, {62: "kill ancestor", 63: "kill interpreter", 64: "kill interpreter"}),
    ("Ray", RAY, dict.fromkeys([60, 61, 62, 63], "kill interpreter")),
    (
        "JupyterHub with one GPU kernel",
        JUPYTERHUB,
        {
            60: "spare python-system",
            61: "spare python-system",
            62: "kill interpreter",
            63: "kill interpreter",
            64: "spare service",
        },
    ),
    ("Triton", TRITON, {60: "kill ancestor", 61: "kill holder", 62: "kill holder"}),
    ("MPS", MPS, {60: "", 61: "spare gpu-daemon", 62: "kill holder"}),
    (
        "monitoring",
        MONITORING,
        {
            60: "spare gpu-daemon",
            63: "spare gpu-daemon",
            64: "spare monitor",
            65: "spare monitor",
        },
    ),
    (
        "cloud agents",
        CLOUD,
        {
            60: "spare python-system",
            61: "spare python-system",
            63: "spare carrier",
            64: "kill interpreter",
        },
    ),
    (
        "a login user named sglang",
        LOGIN,
        {60: "spare sshd", 61: "spare sshd"} | dict.fromkeys([63, 64, 65, 66], "spare bystander"),
    ),
    (
        "an upgrade beside a training",
        INTERRUPTED_UPGRADE,
        {60: "spare python-system", 61: "spare python-system", 62: "kill interpreter"},
    ),
]


@pytest.mark.parametrize(("procs", "expected"), [n[1:] for n in NODES], ids=[n[0] for n in NODES])
def test_every_candidate_meets_its_fate(procs: Sequence[Proc], expected: dict[int, str]) -> None:
    got = fates(plan_of(FABRIC_MANAGER, PERSISTENCED, *procs))
    assert {**DAEMONS, **{pid: fate for pid, fate in expected.items() if fate}} == got


def test_an_ansible_play_in_mid_install_loses_no_process_at_all() -> None:
    """Neither the play, nor the package manager that happens to install something named python3."""
    plan = plan_of(*PLAY)
    assert "spare python-system" == fates(plan)[62]
    assert [] == killed(plan)


def test_a_training_that_a_play_started_dies_without_the_play() -> None:
    assert [70] == [
        p for p in killed(plan_of(*PLAY, Proc(70, "/opt/train", 62, cuda=True))) if p > 66
    ]


def test_b01_orphans_under_other_names_are_found_by_what_they_hold() -> None:
    orphans = [
        Proc(4101, "sglang::scheduler_DP0_TP0_EP0", exe="/opt/w", devices=("/dev/nvidia0",)),
        Proc(4102, "VLLM::EngineCore", exe="/opt/w", devices=("/dev/nvidia1",)),
        Proc(4103, "ray::IDLE", exe="/opt/w", devices=("/dev/nvidia2",)),
    ]
    expected = {4101: "kill workload", 4102: "kill holder", 4103: "kill holder"}
    assert expected == fates(plan_of(*orphans))


def test_b05_only_the_training_dies_beside_the_gpu_daemons() -> None:
    training = Proc(4500, "python3 train.py", cuda=True)
    assert [4500] == killed(plan_of(FABRIC_MANAGER, PERSISTENCED, training))


def test_e12_the_rule_is_the_whole_node_whoever_owns_the_process() -> None:
    alice = Proc(7101, "python3 a.py", uid=1000, cuda=True)
    bob = Proc(7102, "python3 b.py", uid=1001, cuda=True)
    assert {"alice", "bob"} == {d.process.user for d in plan_of(alice, bob).kill}


def test_the_launcher_is_signalled_before_its_workers() -> None:
    assert [59, *range(60, 69)] == killed(plan_of(*SEED))
    assert [33, 34, 35] == killed(plan_of(*CDI))


@pytest.mark.parametrize(
    ("procs", "name"), [(PODS, "pod 00000004"), (SLURM, "job 77")], ids=["pods", "Slurm"]
)
def test_a_schedulers_node_is_left_alone_unless_told_otherwise(
    procs: Sequence[Proc], name: str
) -> None:
    plan = plan_of(*procs)
    assert [True] == [job.name.startswith(name) for job in plan.jobs]
    assert not plan.may_act
    assert plan_of(*procs, policy=Policy(jobs="kill")).may_act
