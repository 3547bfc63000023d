"""Parts of scenes that no reset may touch, and jobs: what DESIGN §3 protects.

Pure: descriptions only. Each function draws one variant.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simfleet import scenes
from tests.simfleet.scene import Scene
from tests.simfleet.scenes import ALL_GPUS, unit

from .fates import Fate, Maker, Part, die, live, titled

VITAL = ("nvidia-fabricmanager.service", "nvidia-persistenced.service")
"""Units of the daemons in scenes.GPU_DAEMONS without which CUDA fails or GPUs lose state."""


def all_live(name: str, scene: Scene) -> Part:
    return Part(name, tuple((proc, Fate.LIVE) for proc in scene))


def some(rng: random.Random, scene: Scene) -> Scene:
    """A few of a scene's processes that have no parent in it."""
    roots = [proc for proc in scene if proc.parent is None]
    return tuple(rng.sample(roots, rng.randint(1, len(roots))))


def gpu_daemons(rng: random.Random) -> Part:
    return all_live("gpu daemons", scenes.GPU_DAEMONS)


def more_daemons(rng: random.Random) -> Part:
    ways = [
        live("imex", "/usr/bin/nvidia-imex", exe="nvidia-imex", devices=("nvidiactl",)),
        live(
            "exporter", "dcgm-exporter -f x", exe="dcgm-exporter", devices=("nvidiactl", "nvidia0")
        ),
        live("mps", "nvidia-cuda-mps-control -d", exe="nvidia-cuda-mps-control"),
        live("xorg", "/usr/lib/xorg/Xorg :0", exe="Xorg", devices=("nvidiactl", "nvidia0")),
        live("plugin", "nvidia-device-plugin", exe="nvidia-device-plugin", devices=("nvidiactl",)),
    ]
    return Part("more daemons", tuple(rng.sample(ways, rng.randint(1, 3))))


def system_python(rng: random.Random) -> Part:
    return all_live("system python", some(rng, (*scenes.PYTHON_SERVICES, *scenes.SYSTEM_PYTHON)))


def unowned_python(rng: random.Random) -> Part:
    """System programs known by the script they run, without a unit."""
    ways = [
        live("fail2ban", "/usr/bin/python3 /usr/bin/fail2ban-server -xf start"),
        live("waagent", "/usr/bin/python3 -u /usr/sbin/waagent -daemon"),
        live("salt", "/usr/bin/python3 /usr/bin/salt-minion"),
        live("hub", "/usr/bin/python3 /usr/local/bin/jupyterhub --config x"),
        live("ceph", "/usr/bin/python3 /usr/bin/ceph-crash"),
        live("cloud", "/usr/bin/python3 /usr/bin/cloud-init modules"),
    ]
    return Part("unowned python", tuple(rng.sample(ways, rng.randint(1, 3))))


def bystanders(rng: random.Random) -> Part:
    return all_live("bystanders", some(rng, scenes.BYSTANDERS))


def shells(rng: random.Random) -> Part:
    login = live("login", ("-bash",), exe="bash", user="alice", tty=True)
    return Part("shells", (login, live("tail", "tail -f sglang.log", exe="tail", parent="login")))


def sheltered(rng: random.Random) -> Part:
    """Services, containers and pods without a GPU shelter what an interpreter pattern finds."""
    name = f"web{rng.randint(0, 99)}"
    mark = f"{rng.getrandbits(64):016x}" * 4
    ways = [
        live("web", "python3 /srv/web/app.py", owner=unit(name), user="svc"),
        (titled("gunicorn", "gunicorn: master [app]", owner=unit(name))[0], Fate.LIVE),
        live("boxed", "python3 /app/main.py", owner=f"/system.slice/docker-{mark}.scope"),
        live("pod", "python3 /app/operator.py", owner=scenes.POD_SCOPE.replace("0f9c", "77aa")),
    ]
    return Part("sheltered", (rng.choice(ways),))


def monitors(rng: random.Random) -> Part:
    row = live(
        "monitor",
        "/usr/bin/python3 /opt/mon/gpu_exporter.py",
        owner=unit(f"mon{rng.randint(0, 99)}"),
        devices=rng.choice([("nvidiactl",), ("nvidiactl", *ALL_GPUS)]),
        maps=False,
    )
    return Part("monitors", (row,))


def protected(rng: random.Random) -> Part:
    """What the settings name: a program, a unit, a user."""
    keeps = rng.random() < 0.15
    memory = {7: 512} if keeps else {}
    held = {"memory": memory} if keeps else {"devices": ("nvidia7", "nvidiactl")}
    entry, row = rng.choice(
        [
            ("render-farm", live("farm", "/opt/render-farm -n", exe="render-farm", **held)),
            ("unit:billing", live("bill", "/opt/bill", exe="bill", owner=unit("billing"), **held)),
            ("user:ops", live("ops", "python3 /home/ops/tool.py", user="ops", **held)),
        ]
    )
    return Part("protect rule", (row,), protect=(entry,), keeps_memory=keeps)


def packages(rng: random.Random) -> Part:
    """A package manager's scripts, whatever they run in."""
    rows = (
        live("apt", "apt-get -y install x", exe="apt-get", tty=True),
        live("dpkg", "/usr/bin/dpkg --configure -a", exe="dpkg", parent="apt"),
        live("postinst", "/bin/sh /var/lib/dpkg/info/x.postinst", exe="sh", parent="dpkg"),
        live("compile", "python3 /usr/bin/py3compile -p x", parent="postinst"),
    )
    return Part("package manager", rows)


def ansible(rng: random.Random) -> Part:
    """A module that Ansible runs, and what that runs."""
    script = "/root/.ansible/tmp/AnsiballZ_command.py"
    rows = (
        live("sh", ("/bin/sh", "-c", f"/usr/bin/python3 {script} && sleep 0"), exe="sh"),
        live("module", f"/usr/bin/python3 {script}", parent="sh"),
        live("task", "python3 /opt/site/migrate.py", parent="module"),
    )
    return Part("ansible", rows)


def foreigners(rng: random.Random) -> Part:
    ways = [
        live("db", "postgres: checkpointer", exe="postgres"),
        live("cache", "redis-server *:6379", exe="redis-server"),
        live("kubelet", "/usr/bin/kubelet --config=x", exe="kubelet"),
        live("slurmd", "/usr/sbin/slurmd -D", exe="slurmd", owner=unit("slurmd")),
        live("proxy", "nginx: worker for sglang", exe="nginx"),
    ]
    return Part("foreigners", tuple(rng.sample(ways, rng.randint(1, 3))))


def supervised(rng: random.Random) -> Part:
    """supervisord is protected and starts its worker again, sooner than two samples can pass."""
    keeper = live("supervisord", "/usr/bin/python3 /usr/bin/supervisord -n", user="root")
    worker = die(
        "worker", "python3 -m sglang.serve --supervised", parent="supervisord", session=True,
        memory={2: 800}, respawn=rng.choice([0.05, 0.1]),
    )  # fmt: skip
    return Part("supervised", (keeper, worker), returns=True)


def slurm(rng: random.Random) -> Part:
    part = all_live("slurm", scenes.SLURM)
    rows = tuple((p, Fate.DIE if p.label == "job" else fate) for p, fate in part.rows)
    return replace(part, rows=rows, job=True)


def pod(rng: random.Random) -> Part:
    part = all_live("pod", scenes.POD)
    rows = tuple((p, Fate.DIE if p.label == "pod" else fate) for p, fate in part.rows)
    return replace(part, rows=rows, job=True)


SHIELDED: tuple[Maker, ...] = (
    more_daemons, system_python, unowned_python, bystanders, shells, sheltered, monitors,
    protected, packages, ansible, foreigners,
)  # fmt: skip

JOBS: tuple[Maker, ...] = (slurm, pod)
