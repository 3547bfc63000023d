"""The scenes that tests, the demo and benchmarks put on nodes; they add up: `(*IDLE, *CONTAINER)`.

Only descriptions here. Names and command lines are as on real nodes; memory is in MiB.
"""

from __future__ import annotations

from .scene import Proc, Scene, Text

ALL_GPUS = tuple(f"nvidia{gpu}" for gpu in range(8))
LAUNCH = (
    "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-405B-Instruct-FP8"
    " --tp 8 --host 0.0.0.0 --port 30000"
)
CONTAINER_ID = "9f2c" * 16
POD_ID = "1b7d" * 16
DOCKER_SCOPE = f"/system.slice/docker-{CONTAINER_ID}.scope"
POD_SCOPE = (
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f9c1d52_77aa_4c1e_9a37_"
    f"5d1f0e6b2c11.slice/cri-containerd-{POD_ID}.scope"
)


def words(line: str) -> tuple[str, ...]:
    return tuple(line.split())


def unit(name: str) -> str:
    return f"/system.slice/{name}.service"


def worker(label: str, title: Text, gpu: int, mib: int = 150_000, **more: object) -> Proc:
    """A process retitled by setproctitle that computes on one GPU."""
    return Proc(label, (title,), memory={gpu: mib}, retitled=True, **more)  # type: ignore[arg-type]


GPU_DAEMONS: Scene = (
    Proc(
        "persistenced",
        words("/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode"),
        exe="nvidia-persistenced",
        user="nvidia-persistenced",
        owner=unit("nvidia-persistenced"),
        devices=("nvidiactl", *ALL_GPUS),
    ),
    Proc(
        "fabricmanager",
        words("/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg"),
        exe="nv-fabricmanager",
        owner=unit("nvidia-fabricmanager"),
        devices=("nvidiactl", "nvidia-nvswitchctl"),
    ),
    Proc(
        "hostengine",
        words("/usr/bin/nv-hostengine -n --service-account nvidia-dcgm"),
        exe="nv-hostengine",
        owner=unit("nvidia-dcgm"),
        devices=("nvidiactl", *ALL_GPUS),
    ),
)

PYTHON_SERVICES: Scene = (
    Proc(
        "networkd-dispatcher",
        words("/usr/bin/python3 /usr/bin/networkd-dispatcher --run-startup-triggers"),
        comm="networkd-dispat",
        owner=unit("networkd-dispatcher"),
    ),
    Proc(
        "unattended-upgrades",
        words(
            "/usr/bin/python3 /usr/share/unattended-upgrades/unattended-upgrade-shutdown"
            " --wait-for-signal"
        ),
        comm="unattended-upgr",
        owner=unit("unattended-upgrades"),
    ),
)

IDLE: Scene = (*GPU_DAEMONS, *PYTHON_SERVICES)
"""Nothing but the five daemons of a healthy node: none of them may ever be killed."""

SGLANG_WORKLOAD: Scene = (
    Proc("launcher", words(LAUNCH)),
    *(
        worker(f"scheduler{gpu}", f"sglang::scheduler_TP{gpu}", gpu, parent="launcher")
        for gpu in range(8)
    ),
    Proc("ray", ("ray::worker",), term="ignore", retitled=True),
)
"""Ten processes: a launcher without GPU, eight schedulers, a TERM-proof worker without GPU."""

SGLANG: Scene = (*IDLE, *SGLANG_WORKLOAD)
"""The acceptance scene: five daemons and ten workload processes."""

VLLM: Scene = (
    Proc("vllm", words("/opt/venv/bin/python3 /opt/venv/bin/vllm serve qwen --tp 4"), user="ml"),
    worker("engine", "VLLM::EngineCore", 0, 600, parent="vllm"),
    *(
        worker(f"worker{gpu}", f"VLLM::Worker_TP{gpu}", gpu, 90_000, parent="engine")
        for gpu in range(4)
    ),
)

TRAINING: Scene = (
    Proc(
        "torchrun", words("/opt/conda/bin/python -m torch.distributed.run train.py"), user="alice"
    ),
    *(
        Proc(
            f"rank{gpu}",
            words(f"/opt/conda/bin/python -u train.py --local-rank {gpu}"),
            comm="pt_main_thread",
            parent="torchrun",
            memory={gpu: 70_000},
            threads=2,
        )
        for gpu in range(8)
    ),
)
"""Found by the executable (`python3.NN`): the command line says only `python`."""

BYSTANDERS: Scene = (
    Proc("shell", ("-bash",), exe="bash", user="alice", tty=True),
    Proc("tail", words("tail -f /var/log/sglang.log"), exe="tail", parent="shell"),
    Proc("vim", words("vim sglang.conf"), exe="vim", user="bob", tty=True),
    Proc("less", words("less /srv/sglang/README"), exe="less", user="bob"),
    Proc("journalctl", words("journalctl -fu sglang"), exe="journalctl"),
    Proc("ssh", words("ssh -N -L 30000:localhost:30000 sglang-gateway"), exe="ssh", user="alice"),
    Proc("grep", words("grep -r python3 /srv/sglang"), exe="grep", user="bob"),
    Proc("tmux", words("tmux new-session -s sglang"), exe="tmux", user="alice"),
    Proc("docker", words("docker logs -f sglang"), exe="docker"),
)
"""They mention a pattern and hold no GPU: none of them may be killed."""

SYSTEM_PYTHON: Scene = (
    Proc(
        "firewalld",
        words("/usr/bin/python3 -s /usr/sbin/firewalld --nofork --nopid"),
        owner=unit("firewalld"),
    ),
    Proc("tuned", words("/usr/bin/python3 -Es /usr/sbin/tuned -l -P"), owner=unit("tuned")),
    Proc("waagent", words("python3 -u /usr/sbin/waagent -daemon"), comm="python3"),
    Proc("ansible", words("/usr/bin/python3 /root/.ansible/tmp/AnsiballZ_setup.py")),
    Proc(
        "exporter",
        words("/usr/bin/python3 /opt/exporter/gpu_exporter.py"),
        user="svc",
        owner=unit("gpu-exporter"),
        devices=("nvidiactl",),
    ),
)
"""Services and system programs in Python; the exporter is a monitor that holds nvidiactl only."""

LOOKALIKES: Scene = (
    Proc(
        "bench",
        words("/home/bob/nv-fabricmanager-bench --gpu 2"),
        exe="nv-fabricmanager-bench",
        user="bob",
        memory={2: 1200},
    ),
)
"""Its 15 letters of comm are the daemon's: it is workload all the same."""

STUBBORN: Scene = (
    Proc("deaf", words("python3 serve.py --model sglang"), memory={0: 20_000}, term="ignore"),
    Proc("slow", words("python3 save_checkpoint.py"), memory={1: 20_000}, term=1.0),
)
"""One ignores TERM, one needs a second after it."""

ORPHAN: Scene = (
    Proc("parent", words("python3 train.py"), memory={4: 4706}, dead=True),
    Proc(
        "child",
        ("python3", "-c", "from multiprocessing.spawn import spawn_main"),
        parent="parent",
        inherits=True,
        session=True,
    ),
)
"""The parent is dead, nvidia-smi names it, and the child keeps its memory."""

CONTAINER: Scene = (
    Proc(
        "shim",
        words(f"/usr/bin/containerd-shim-runc-v2 -namespace moby -id {CONTAINER_ID}"),
        exe="containerd-shim-runc-v2",
        owner=unit("containerd"),
    ),
    Proc(
        "contained",
        words("/opt/app/serve --tp 1"),
        exe="serve",
        parent="shim",
        session=True,
        owner=DOCKER_SCOPE,
        memory={5: 30_000},
        container=True,
    ),
)
"""Matches no pattern and made its device node by mknod: only the link text gives it away."""

POD: Scene = (
    Proc("kubelet", words("/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml"), exe="kubelet"),
    Proc(
        "pod",
        words("python3 -m sglang.launch_server --port 8000"),
        owner=POD_SCOPE,
        memory={6: 40_000},
        container=True,
    ),
)

SLURM: Scene = (
    Proc("slurmd", words("/usr/sbin/slurmd -D --systemd"), exe="slurmd", owner=unit("slurmd")),
    Proc(
        "slurmstepd",
        ("slurmstepd: [123.batch]",),
        exe="slurmstepd",
        owner="/system.slice/slurmstepd.scope/job_123/step_batch/slurm",
    ),
    Proc(
        "job",
        words("python3 finetune.py"),
        user="alice",
        parent="slurmstepd",
        owner="/system.slice/slurmstepd.scope/job_123/step_batch/user/task_0",
        memory={7: 60_000},
    ),
)
"""Job 123 of alice."""

RESPAWNING_PARENT: Scene = (
    Proc("watchdog", words("python3 -m sglang.launch_server --port 30000"), user="ml"),
    worker("respawned", "sglang::scheduler_TP0", 0, 60_000, parent="watchdog", respawn=0.3),
)
"""The parent holds no GPU and starts its worker again 0.3 s after its death."""

RESPAWNING_UNIT: Scene = (
    Proc(
        "service",
        words("python3 -m sglang.launch_server --port 30000"),
        user="svc",
        owner=unit("sglang"),
        memory={1: 60_000},
        respawn=0.3,
    ),
)
"""As with Restart=always: the node's init starts it again, 0.3 s after its death."""

SLOW_DEATH: Scene = (Proc("pinned", words("python3 offload.py"), memory={3: 62_056}, dying=1.5),)
"""Killed, it is a zombie whose threads hold the memory for 1.5 s more (version 1 freezer)."""

ODD_NAMES: Scene = (
    Proc("newline", ("python3", "-c", "import time\ntime.sleep(9)"), comm="a\nb) R 1"),
    Proc("escape", ("python3", b"\x1b[2J\x1b]0;owned\x07", b"\xff\xfe.py"), comm=b"\x1b[31m\xff"),
    Proc("blanks", ("python3", "", "  ", "a b", "")),
    Proc("empty", (b"",), comm="kworker/0:1"),
    Proc("long", ("/opt/" + "x" * 300 + "/bin/py", "--module", "sglang.launch_server"), exe="py"),
)
"""Command lines and names that break parsers; all but "empty" are found by a pattern."""

ZOMBIE: Scene = (
    Proc("careless", ("/opt/runner",), exe="python3"),
    Proc("zombie", ("python3",), parent="careless", zombie=True),
)

UPGRADED: Scene = (Proc("upgraded", ("/opt/app/run",), deleted=True, memory={2: 500}),)
"""Its executable is "…/python3.NN (deleted)"."""

SCENES: dict[str, Scene] = {
    name.lower().replace("_", "-"): scene
    for name, scene in list(globals().items())
    if name.isupper() and isinstance(scene, tuple) and scene and isinstance(scene[0], Proc)
}
"""By name, for the command line."""
