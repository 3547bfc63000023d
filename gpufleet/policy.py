"""Settings of one node: what each means, its unit, its default, and why that default.

Plain frozen data, safe to share between threads and to pickle. No reading of files here:
`inventory.py` fills these from fleet.yaml, `cli.py` from the command line.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Literal

from gpufleet.records import dataclass

HostKeys = Literal["strict", "accept-new", "off"]
Jobs = Literal["spare", "kill"]
Stop = Literal["kill", "owner"]
Kubernetes = Literal["tell", "drain"]
Escalate = Literal["none", "gpu-reset", "reboot"]


@dataclass(frozen=True)
class Access:
    """How a node is reached over SSH."""

    address: str
    """Host name, IPv4 or IPv6 address without brackets. In fleet.yaml it defaults to the node's name."""

    user: str = "root"
    """Login name. root, because killing other users' processes and reading their descriptors needs it."""

    port: int = 22

    identity_file: tuple[str, ...] = ()
    """Private keys, `~` already expanded. Empty: the agent and the usual files in ~/.ssh. Given:
    these alone are offered, so that no server cuts us off for too many tries."""

    known_hosts: tuple[str, ...] = ()
    """known_hosts files, `~` already expanded. Empty: the user's and the system's usual ones."""

    host_keys: HostKeys = "strict"
    """strict refuses unknown keys: a root login handed to the wrong machine can't be taken back."""

    ssh_config: tuple[str, ...] | Literal[False] = ()
    """OpenSSH configuration files; empty: the usual ones, False: none."""

    jump: tuple[str, ...] = ()
    """Names of jump hosts, first hop first. Empty: a direct connection."""

    sudo: bool = False
    """Run the node's script through `sudo -n` (never asks for a password: parallel prompts can't work)."""

    connect_timeout_s: float = 10.0
    """Limit of each stage of connecting. 10 s: a loaded node answers in 2 to 3, a dead one never."""

    said: frozenset[str] = field(default=frozenset(), compare=False)
    """Fields that fleet.yaml or the command line gives, even if it gives the default."""

    @property
    def given(self) -> frozenset[str]:
        """Fields that OpenSSH's files may not change: those given, and those unlike the default."""
        unlike = {
            one.name
            for one in fields(self)
            if one.name not in {"address", "said"} and getattr(self, one.name) != one.default
        }
        return self.said | unlike

    @property
    def ssh_command(self) -> str:
        """What a person types to get there: `ssh -p 2222 root@192.0.2.7`."""
        port = f" -p {self.port}" if self.port != 22 else ""
        return f"ssh{port} {self.user}@{self.address}"


@dataclass(frozen=True)
class Limits:
    """How long things may take on a node, in seconds. Measured facts, not settings of a fleet."""

    smi_s: float = 30.0
    """One nvidia-smi: it blocks for seconds while memory is torn down and can take 25 s when idle."""

    tool_s: float = 30.0
    """Any other tool: only a process that hangs its readers takes more than a second."""

    still_s: float = 10.0
    """A reading that stays the same so long, with nobody left to free it, is held by nobody."""

    odd_s: float = 1.0
    """The same for a reading that isn't a number: words don't change by waiting."""

    owner_s: float = 60.0
    """One owner's stop or start: longer than most take to end their requests, shorter than systemd's
    own 90 s. What isn't stopped by then is killed as it is without."""

    unkillable_s: float = 30.0
    """So long after KILL a thread in state D may be called unkillable: 40 GB of pinned host memory
    took 9 s to free."""

    frozen_s: float = 5.0
    """... if its CPU time stood still this long: freeing costs CPU time."""

    daemon_s: float = 120.0
    """One GPU daemon's stop or start around a GPU reset: a fabric manager trains all links first."""

    gpu_reset_s: float = 180.0
    """`nvidia-smi --gpu-reset` of all GPUs, which it does one after the other."""

    ready_s: float = 300.0
    """After a rung, until the node's services run and its fabric is complete; see docs/runbook.md."""

    pause_s: float = 5.0
    """Between two looks at a node that comes back."""


@dataclass(frozen=True)
class Policy:
    """What a node must look like to be CLEAN, what may be killed, and how long that may take."""

    gpus: int = 8
    """GPUs that nvidia-smi must list, each index once. 8: a Blackwell or Hopper HGX node."""

    workload: tuple[str, ...] = ("sglang",)
    """Regular expressions, searched in full command lines: these are the workload wherever they run."""

    interpreters: tuple[str, ...] = ("python3",)
    """Regular expressions, searched in command lines and in the executable: workload unless sheltered."""

    protect: tuple[str, ...] = ()
    """Never killed, beside the built-in list: program names, `unit:NAME`, `user:NAME`."""

    jobs: Jobs = "spare"
    """What a candidate in a Slurm job or a pod means: `spare` skips the node, `kill` kills it as well."""

    stop: Stop = "kill"
    """`owner` has the workload's owners (systemd, docker, podman, supervisor) stop it before the kill.
    kill, because stopping a service is a bigger step than ending its processes."""

    restart: bool = False
    """Start again what was stopped, once the node is CLEAN."""

    kubernetes: Kubernetes = "tell"
    """`drain` runs `kubectl drain` on the node itself, under `stop: owner` and `jobs: kill`."""

    escalate: Escalate = "none"
    """The highest rung that a reset may take where killing can't help. none, because a GPU reset stops
    daemons that others may rely on, and a reboot ends everything on the node."""

    reboot_timeout_s: float = 1200.0
    """A rebooted node must be back within this. 20 min: firmware of an HGX node with 2 TB of memory
    takes up to ten."""

    clean_shm: bool = False
    """Remove the shared memory that killed workload left in /dev/shm, once the node is CLEAN."""

    grace_s: float = 0.0
    """Seconds between TERM and KILL. 0, straight KILL, as in the command that gpufleet replaces."""

    settle_s: float = 0.5
    """Seconds between the two samples that must both be clean. 0.5 s: a supervisor's first restart
    (systemd's RestartSec is 0.1 s) falls into it."""

    attempts: int = 3
    """How many times something new or surviving may be killed. Waiting for memory isn't an attempt."""

    tolerance_mib: int = 0
    """Memory per GPU that still counts as free. 0, as Blackwell and Hopper read when idle."""

    timeout_s: float = 300.0
    """Budget of one node from its own start. 300 s: 8 × 180 GB with pinned host memory frees in tens."""

    dying_timeout_s: float = 900.0
    """The budget while killed processes are still dying: killing more can't speed them up."""

    limits: Limits = field(default_factory=Limits)

    @property
    def rungs_s(self) -> float:
        """What escalation may take, beside the node's budget and the wait for its turn."""
        limits = self.limits
        gpu_reset_s = 8 * limits.daemon_s + limits.gpu_reset_s + limits.ready_s
        reboot_s = self.reboot_timeout_s + 2 * limits.ready_s
        return {"none": 0.0, "gpu-reset": gpu_reset_s, "reboot": gpu_reset_s + reboot_s}[
            self.escalate
        ]

    @property
    def owners_s(self) -> float:
        """What stopping all owners, or starting them, may take: theirs, not the node's budget."""
        return 2 * self.limits.owner_s if self.stop == "owner" or self.restart else 0.0


@dataclass(frozen=True)
class Hooks:
    """Shell commands of one node's owner, run there as root, each with a limit. Empty: none."""

    guard: str = ""
    """Asks whether this node may be reset: 0 go on, 1 SKIPPED, anything else UNKNOWN."""
    guard_timeout_s: float = 30.0
    """30 s: a question; what takes longer, as a scheduler that doesn't answer, is no answer."""

    before: str = ""
    """Run before the first kill, if there is anything to do. `local:` in front: on this machine."""
    before_timeout_s: float = 60.0
    """60 s: to drain a node or stop a service. It doesn't count against the node's `timeout`."""

    after: str = ""
    """Run in the end, whatever came of it. `local:` in front: on this machine."""
    after_timeout_s: float = 60.0

    @property
    def longest_s(self) -> float:
        """What the hooks that there are may take together, with their ends by KILL."""
        given = (
            (self.guard, self.guard_timeout_s),
            (self.before, self.before_timeout_s),
            (self.after, self.after_timeout_s),
        )
        return sum(limit_s + 10 for command, limit_s in given if command)


@dataclass(frozen=True)
class NodeSpec:
    """One selected node with all that applies to it. Plain and picklable: no secret, no connection."""

    name: str
    access: Access
    policy: Policy = field(default_factory=Policy)
    jump_hosts: tuple[tuple[str, Access], ...] = ()
    """The access of each name in `access.jump`, in the same order."""

    hooks: Hooks = field(default_factory=Hooks)
