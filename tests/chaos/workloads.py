"""Parts of scenes that a reset has to end: the workloads of DESIGN §3, plain and difficult.

Pure: descriptions only. Each function draws one variant.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simfleet import scenes
from tests.simfleet.scene import Proc, Scene

from .fates import Fate, Maker, Part, Row, die, live, titled

USERS = ("root", "ml", "alice", "bob", "svc")


def gpus(rng: random.Random, most: int = 4) -> list[int]:
    return sorted(rng.sample(range(8), rng.randint(1, most)))


def all_die(name: str, scene: Scene, **more: object) -> Part:
    return Part(name, tuple((proc, Fate.DIE) for proc in scene), **more)  # type: ignore[arg-type]


def lag(rng: random.Random) -> float:
    """Seconds that memory outlives its process: mostly none, at most 3."""
    return rng.choice([0, 0, 0, 0.1, 0.3, rng.uniform(0.5, 3)])


def sglang(rng: random.Random) -> Part:
    late = lag(rng)
    workers = [
        titled(f"tp{n}", f"sglang::scheduler_TP{n}", {n: 150_000}, parent="launcher", lag=late)
        for n in gpus(rng, 8)
    ]
    rows = [die("launcher", scenes.LAUNCH, user=rng.choice(USERS)), *workers]
    return Part("sglang", (*rows, titled("ray", "ray::worker", term="ignore")))


def vllm(rng: random.Random) -> Part:
    return all_die("vllm", scenes.VLLM)


def training(rng: random.Random) -> Part:
    chosen = {f"rank{gpu}" for gpu in gpus(rng)} | {"torchrun"}
    return all_die("training", tuple(p for p in scenes.TRAINING if p.label in chosen))


def ray(rng: random.Random) -> Part:
    """raylet is no Python and holds nothing; it goes as the holder's ancestor in the same session."""
    rows = [die("raylet", "/opt/ray/raylet --node-ip=10.0.0.7", exe="raylet", user="ml")]
    rows += [
        titled(f"w{n}", f"ray::Worker.run{n}", {n: 9000}, parent="raylet") for n in gpus(rng, 3)
    ]
    return Part("ray", tuple(rows))


def nameless(rng: random.Random) -> Part:
    """Matches no pattern; only what it holds gives it away, by descriptors, by mappings, or both."""
    gpu = gpus(rng, 1)[0]
    memory = {gpu: rng.choice([4, 900, 80_000])}
    ways: list[Row] = [
        die("trainer", "/opt/app/trainer", exe="trainer", memory=memory),
        die("tritond", "tritonserver --model-repository=/m", exe="tritonserver", memory=memory),
        die("opener", "/opt/app/probe", exe="probe", devices=(f"nvidia{gpu}",)),
        die("editor", "vim notes.txt", exe="vim", memory=memory, user="bob"),
        die("mapper", "/opt/conda/bin/run -x", memory=memory, descriptors=False),
    ]
    return Part("nameless", (rng.choice(ways),))


def launchers(rng: random.Random) -> Part:
    """A script's shell goes with its holder; the person's shell above it stays."""
    engine = {"exe": "engine", "memory": {gpus(rng, 1)[0]: 70_000}}
    if rng.random() < 0.5:
        script = die("script", "bash /srv/run_engine.sh", exe="bash", user="ml")
        return Part("launcher", (script, die("engine", "/srv/engine", parent="script", **engine)))
    login = live("login", ("-bash",), exe="bash", user="alice", tty=True)
    script = die("script", "bash ./go.sh", exe="bash", parent="login")
    return Part("login job", (login, script, die("engine", "./engine", parent="script", **engine)))


def stubborn(rng: random.Random) -> Part:
    memory = {gpus(rng, 1)[0]: 20_000}
    term = rng.choice(["ignore", 0.2, 0.7, "die"])
    many = rng.randint(0, 6)
    return Part(
        "stubborn", (die("deaf", "python3 serve.py", memory=memory, term=term, threads=many),)
    )


def slow_death(rng: random.Random) -> Part:
    dying = rng.choice([0.2, 0.6, 1.2])
    memory = {gpus(rng, 1)[0]: 62_056}
    return Part("slow death", (die("pinned", "python3 offload.py", memory=memory, dying=dying),))


def late_memory(rng: random.Random) -> Part:
    row = die("late", "python3 train.py --late", memory=dict.fromkeys(gpus(rng), 40_000))
    return Part("late memory", ((replace(row[0], lag=rng.uniform(0.2, 3)), Fate.DIE),))


def orphan(rng: random.Random) -> Part:
    return all_die("orphan", scenes.ORPHAN)


def container(rng: random.Random) -> Part:
    mark = f"{rng.getrandbits(64):016x}" * 4
    shim = live(
        "shim",
        f"/usr/bin/containerd-shim-runc-v2 -namespace moby -id {mark}",
        exe="containerd-shim-runc-v2",
        owner=scenes.unit("containerd"),
    )
    inside = {"owner": f"/system.slice/docker-{mark}.scope", "session": True, "container": True}
    rows = [
        shim,
        die("app", "/app/serve", exe="serve", parent="shim", memory={5: 30_000}, **inside),
    ]
    if rng.random() < 0.5:  # the shelter is gone for interpreters beside a holder
        rows.append(die("side", "python3 /app/metrics.py", parent="shim", **inside))
    return Part("container", tuple(rows))


def own_node(rng: random.Random) -> Part:
    memory = {gpus(rng, 1)[0]: 11_000}
    return Part(
        "own mknod", (die("chroot", "/jail/solver", exe="solver", memory=memory, container=True),)
    )


def odd(rng: random.Random) -> Part:
    return all_die("odd names", scenes.ODD_NAMES)


def lookalike(rng: random.Random) -> Part:
    return all_die("lookalike", rng.choice([scenes.LOOKALIKES, scenes.UPGRADED, scenes.ZOMBIE[:1]]))


def tainted_service(rng: random.Random) -> Part:
    """A unit in which a workload holds a GPU shelters no interpreter."""
    name = f"llm{rng.randint(0, 99)}"
    rows = (
        die("serve", "/opt/llm/serve", exe="serve", owner=scenes.unit(name), memory={1: 5000}),
        die("helper", "/usr/bin/python3 /opt/llm/helper.py", owner=scenes.unit(name)),
    )
    return Part("tainted service", rows)


def unsheltered(rng: random.Random) -> Part:
    """Python where no service shelters it: cron's, a user's own manager, a named workload anywhere."""
    manager = "/user.slice/user-1002.slice/user@1002.service/app.slice/train.service"
    ways = [
        die("nightly", "python3 /home/alice/nightly.py", owner=scenes.unit("cron"), user="alice"),
        die("own", "python3 /home/alice/train.py", owner=manager, user="alice"),
        die("named", "/opt/bin/router --sglang-url x", exe="router", owner=scenes.unit("router")),
        die("session", "python3 /root/x.py", owner="/user.slice/user-0.slice/session-3.scope"),
    ]
    return Part("unsheltered", (rng.choice(ways),))


def watched(rng: random.Random) -> Part:
    """Its parent starts it again; the parent is workload too and is signalled first."""
    delay = rng.choice([0.05, 0.2, 0.5, 1, 3])
    parent = die("watchdog", "python3 -m sglang.launch_server --port 30001", user="ml")
    worker = titled("again", "sglang::scheduler_TP9", {0: 60_000}, parent="watchdog", respawn=delay)
    return Part("respawning parent", (parent, worker))


def restarted(rng: random.Random) -> Part:
    delay = rng.choice([0.05, 0.1, 0.3, 1, 2, 3])
    name = f"sglang-{rng.randint(0, 99)}"
    service = Proc(
        "service",
        ("python3", "-m", "sglang.launch_server", "--unit", name),
        owner=scenes.unit(name),
        memory={1: 60_000},
        respawn=delay,
    )
    return Part("respawning unit", ((service, Fate.DIE),), units=(f"{name}.service",))


WORKLOADS: tuple[Maker, ...] = (
    sglang, vllm, training, ray, nameless, launchers, stubborn, slow_death, late_memory, orphan,
    container, own_node, odd, lookalike, tainted_service, unsheltered,
)  # fmt: skip

RESPAWNERS: tuple[Maker, ...] = (watched, restarted)
