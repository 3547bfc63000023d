"""What goes wrong in a round: one `Trouble` each, constant or from one moment to another.

Descriptions and their draw only; how each is done to a node is `stage.py`'s. Seconds count from the
start of the reset; a trouble from 0 is there before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

WORDS = (
    "[N/A]", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "ERR!",
    "[GPU is lost]", "[GPU requires reset]", "-1 MiB", "0 GiB", "none", "",
)  # fmt: skip
"""In place of a number of MiB; none of them is one."""

BAD_HEALTH = (
    ("gpu_recovery_action", "Reset"),
    ("gpu_recovery_action", "Reboot"),
    ("gpu_recovery_action", "Drain P2P"),
    ("gpu_recovery_action", "[Unknown Error]"),
    ("fabric.state", "In Progress"),
    ("fabric.state", "Not Started"),
    ("fabric.status", "Insufficient Resources"),
    ("pstate", "[GPU requires reset]"),
    ("uuid", "[GPU is lost]"),
    ("compute_mode", "ERR!"),
    ("memory.total", "[Unknown Error]"),
)
MEMORY, HEALTH, APPS = "memory.used", "gpu_recovery", "compute-apps"
"""Texts that stand only in the arguments of one kind of call. (`memory.used` isn't in `used_memory`.)"""


@dataclass(frozen=True)
class Trouble:
    """`kind` and `name` say what, `value` and `when` how; `until_s` None: to the end of the round.

    `bars`: while it is there the node isn't proven by anything, so CLEAN would be wrong.
    `slows_s`: how much longer than usual a script may live on because of it.
    """

    kind: str
    name: str = ""
    value: str = ""
    when: str = ""
    from_s: float = 0.0
    until_s: float | None = None
    bars: bool = False
    slows_s: float = 0.0

    def __str__(self) -> str:
        span = f"{self.from_s:.2f}-{'' if self.until_s is None else f'{self.until_s:.2f}'} s"
        what = " ".join(filter(None, [self.kind, self.name, repr(self.value)[:40], self.when]))
        return f"{what} [{span}]"


Maker = Callable[[random.Random], Trouble]


def gpu_word(rng: random.Random) -> Trouble:
    return Trouble("fault", f"gpu{rng.randrange(8)}", rng.choice(WORDS), bars=True)


def bad_health(rng: random.Random) -> Trouble:
    field, text = rng.choice(BAD_HEALTH)
    return Trouble("fault", f"{field}@{rng.randrange(8)}", text, bars=True)


def wrong_rows(rng: random.Random) -> Trouble:
    gpu = rng.randrange(8)
    if rng.random() < 0.5:
        return Trouble("fault", f"missing{gpu}", bars=True)
    return Trouble("fault", f"repeat{gpu}", str(rng.randrange(8)), bars=True)


def memory(rng: random.Random) -> Trouble:
    name = rng.choice(["idle", "stuck"])
    return Trouble("memory", f"{name}{rng.randrange(8)}", str(rng.choice([1, 4, 39, 812, 62_056])))


def lag(rng: random.Random) -> Trouble:
    return Trouble("fault", "lag", f"{rng.uniform(0.1, 3):.2f}")


def text(rng: random.Random) -> Trouble:
    ways = [
        ("output", ""),
        ("output", "No devices were found\n"),
        ("output", "0, 0 MiB\n1, 0 MiB\n2, 0 MiB\n"),
        ("output", "\x00\x01\n"),
        ("message", "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"),
        ("message", "8, 0 MiB\n"),
        ("stderr", "Failed to initialize NVML: Driver/library version mismatch\n"),
        ("garbled", ""),
        ("cut", ""),
    ]
    name, value = rng.choice(ways)
    when = MEMORY if name in {"message", "stderr"} else rng.choice(["", MEMORY])
    return Trouble("fault", name, value, when, bars=True)


def status(rng: random.Random) -> Trouble:
    number = rng.choice(["1", "2", "6", "8", "9", "10", "12", "14", "15", "16", "18", "127", "255"])
    when = rng.choice(["", MEMORY, HEALTH])
    # a health query may be refused field by field, with 2
    return Trouble("fault", "status", number, when, bars=number != "2" or when != HEALTH)


def hang(rng: random.Random) -> Trouble:
    when = rng.choice(["", MEMORY, HEALTH, APPS])
    return Trouble("fault", "hang", rng.choice(["", "deaf"]), when, bars=True, slows_s=5)


def slow(rng: random.Random) -> Trouble:
    return Trouble("fault", "slow", f"{rng.uniform(0.05, 1):.2f}", slows_s=3)


def harmless(rng: random.Random) -> Trouble:
    ways = [
        ("refuse", "gpu_recovery_action", ""),
        ("refuse", "fabric.state fabric.status", ""),
        ("apps", "4711, 100 MiB, GPU-x\n1, 5 MiB, GPU-y", APPS),
        ("status", "3", APPS),
        ("garbled", "", APPS),
        ("crlf", "", ""),
        ("fabric.state@3", "N/A", ""),
    ]
    return Trouble("fault", *rng.choice(ways))


def lost_tool(rng: random.Random) -> Trouble:
    tool = rng.choice(
        ["nvidia-smi", "find", "grep", "timeout", "sort", "fuser", "flock", "devices"]
    )
    bars = tool in {"nvidia-smi", "find", "grep", "timeout", "sort"}
    return Trouble("fault", f"no-{tool}", bars=bars)


def bad_tool(rng: random.Random) -> Trouble:
    tool = rng.choice(["find", "grep", "fuser", "flock", "nvidia-smi", "sort"])
    script = rng.choice(["sleep 60", "exit 3", "kill -9 $$", "echo 1 2 3; exit 1"])
    bars = tool in {"find", "grep", "nvidia-smi"}
    return Trouble("tool", tool, script, bars=bars, slows_s=10)


def lying_fuser(rng: random.Random) -> Trouble:
    """fuser names everybody: evidence at most, never a reason to kill."""
    return Trouble("tool", "fuser", "cd /proc; echo [0-9]* 0 -1 all")


def connection(rng: random.Random) -> Trouble:
    kind = rng.choice(["drop", "drop", "drop", "silence"])
    return Trouble(kind, from_s=rng.uniform(0.05, 2), slows_s=2 if kind == "silence" else 0)


def daemon(rng: random.Random) -> Trouble:
    """sshd: stopped, frozen or restarted, now or later."""
    start = rng.choice([0, rng.uniform(0.05, 1.5)])
    kind = rng.choice(["sshd-stop", "sshd-freeze", "sshd-restart"])
    until = start + rng.uniform(0.1, 3) if rng.random() < 0.7 else None
    return Trouble(kind, from_s=start, until_s=until)


def lock(rng: random.Random) -> Trouble:
    until = rng.choice([None, None, rng.uniform(0.3, 4)])
    return Trouble("lock", until_s=until)


def spoiled(rng: random.Random) -> Trouble:
    way = rng.choice(["open", "owner", "link", "file", "full", "lock-folder", "garbage"])
    return Trouble("spoil", way)


def gpu_daemon(rng: random.Random) -> Trouble:
    name = rng.choice(["fabricmanager", "persistenced", "hostengine"])
    return Trouble("daemon", name, rng.choice(["dies", "restarts"]), from_s=rng.uniform(0, 1.5))


def churn(rng: random.Random) -> Trouble:
    return Trouble("churn", rng.choice(["foreign", "foreign", "workload"]))


def latecomer(rng: random.Random) -> Trouble:
    name = rng.choice(["workload", "shielded", "shielded", "job"])
    return Trouble("late", name, from_s=rng.uniform(0.05, 2))


def frozen(rng: random.Random) -> Trouble:
    until = rng.choice([None, rng.uniform(0.5, 4)])
    return Trouble("freeze", rng.choice(["all", "threads"]), until_s=until)


def reused_pid(rng: random.Random) -> Trouble:
    """A workload process ends by itself and its pid goes to somebody else's program."""
    return Trouble("reuse", from_s=rng.uniform(0, 0.8))


def forker(rng: random.Random) -> Trouble:
    return Trouble("forker", value=f"{rng.choice([0.02, 0.1, 0.3])}")


def interrupt(rng: random.Random) -> Trouble:
    return Trouble("interrupt", from_s=rng.uniform(0, 2.5))


def second_run(rng: random.Random) -> Trouble:
    return Trouble("second run", from_s=rng.uniform(0, 1.5))


FLICKERING: tuple[Maker, ...] = (
    gpu_word, bad_health, wrong_rows, memory, lag, text, status, hang, slow, harmless, lost_tool,
    bad_tool, lying_fuser, spoiled,
)  # fmt: skip
"""May be constant, appear, or disappear."""

OTHERS: tuple[Maker, ...] = (
    connection, connection, daemon, lock, gpu_daemon, churn, latecomer, latecomer, frozen,
    reused_pid, forker, interrupt, second_run,
)  # fmt: skip
"""Have their own moments."""
