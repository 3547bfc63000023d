"""The scripts that run on a node, with the variables that they want. No decision is made here."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping

from gpufleet.observation import HEALTH_FIELDS, Owner
from gpufleet.policy import Policy
from gpufleet.transport import Script, node_file

UNITS = (
    "nvidia-fabricmanager.service",
    "nvlsm.service",
    "nvidia-imex.service",
    "nvidia-persistenced.service",
)
"""Units whose state every look asks for, where systemd runs."""


STAYS_UP_S = 2.0
"""So long what was started has to stay up: a server that lacks its model or its port is gone by then."""


def look_script(
    policy: Policy, *, two_samples: bool, budget_s: float, owners: Iterable[Owner] = ()
) -> Script:
    """One look. `two_samples`: a second one after `settle` if memory is free in the first. `owners`:
    services, containers and pods that were hit before and may start it all again."""
    variables = _common(policy, budget_s, owners)
    variables["GF_SETTLE_CS"] = _hundredths(policy.settle_s) if two_samples else ""
    files = ("frame.sh", "observe.sh", "look.sh")
    return Script("look", files, variables, _silence_s(policy))


def act_script(
    policy: Policy,
    *,
    kill: Iterable[tuple[int, int]],
    lock: str,
    budget_s: float,
    dying_budget_s: float,
    owners: Iterable[Owner] = (),
    name: str = "",
    keep: bool = False,
) -> Script:
    """One act on `kill`, pairs of pid and start time in the order to signal; may be empty: only watch.

    `name`: done once under this (`act_name`), whoever asks again. `keep`: what came of it is kept on the
    node for those.

    `owners`: services, containers and pods whose state is asked for afterwards, because they may
    start it all again.
    """
    limits = policy.limits
    variables = _common(policy, budget_s, owners)
    variables |= {
        "GF_SETTLE_CS": _hundredths(policy.settle_s),
        "GF_KILL": " ".join(f"{pid}:{start}" for pid, start in kill),
        "GF_LOCK": lock,
        "GF_ACT": name,
        "GF_KEEP": "yes" if keep else "",
        "GF_GRACE_CS": _hundredths(policy.grace_s),
        "GF_FREE_CS": _hundredths(budget_s),
        "GF_DYING_CS": _hundredths(dying_budget_s),
        "GF_STILL_CS": _hundredths(limits.still_s),
        "GF_ODD_CS": _hundredths(limits.odd_s),
        "GF_UNKILLABLE_CS": _hundredths(limits.unkillable_s),
        "GF_FROZEN_CS": _hundredths(limits.frozen_s),
    }
    files = ("frame.sh", "observe.sh", "lock.sh", "once.sh", "act.sh")
    return Script("act", files, variables, _silence_s(policy))


def act_name(run_id: str, which: str) -> str:
    """Names an act of a run on a node: a file's name there, whatever a caller's run ids look like."""
    if not run_id:
        return ""
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}", run_id)
    return f"{run_id if plain else hashlib.sha256(run_id.encode('utf-8', 'replace')).hexdigest()}.{which}"


def hook_script(
    name: str, command: str, *, timeout_s: float, lock: str, facts: Mapping[str, str]
) -> Script:
    """A guard, `before` or `after`. `lock`: hold the node's lock meanwhile, under this text.
    `facts`: what the command may read, by name without GPUFLEET_. Without a command the lock is
    only asked for. An `after` puts back what `before` took away: an interrupt doesn't cut it."""
    variables = {
        "GF_HOOK": command,
        "GF_HOOK_S": _seconds(timeout_s),
        "GF_HOOK_CS": _hundredths(max(timeout_s, 1.0)),
        "GF_LOCK": lock,
        "GF_TOOL_S": "10.0",
        **{f"GPUFLEET_{fact}": value for fact, value in facts.items()},
    }
    return Script(name, ("frame.sh", "lock.sh", "hook.sh"), variables, shielded=name == "after")


def owners_script(policy: Policy, owners: Iterable[Owner], *, supervisor: bool) -> Script:
    """What the owners of workload say of themselves. Changes nothing."""
    asked = _common(policy, policy.limits.tool_s, owners)
    names = ("GF_USER_UNITS", "GF_CONTAINERS", "GF_PODS")
    variables = {
        "GF_SERVICES": " ".join(asked["GF_UNITS"].split()[len(UNITS) :]),
        **{name: asked[name] for name in names},
        "GF_SUPERVISOR": "yes" if supervisor else "",
        "GF_TOOL_S": "10.0",
    }
    return Script("owners", ("frame.sh", "owners.sh"), variables)


def stop_script(
    policy: Policy, stops: Iterable[tuple[str, str]], *, lock: str, run: str, name: str = ""
) -> Script:
    """`stops`: kind and target of each, in the order to stop; see stopped.sh. `name`: as for an act."""
    grace = f"-t {math.ceil(policy.grace_s)}" if policy.grace_s else ""  # else the container's own
    variables = {
        **_owners_common(policy, lock),
        "GF_STOP": "\n".join(" ".join(stop) for stop in stops),
        "GF_RUN": run,
        "GF_ACT": name,
        "GF_CONTAINER_GRACE": grace,
    }
    files = ("frame.sh", "lock.sh", "once.sh", "stopped.sh", "stop.sh")
    return Script("stop", files, variables, 2 * policy.limits.owner_s + 10)


DAEMON_KINDS = ("daemon", "persistence")
"""What a GPU reset stops: started again whatever becomes of the node."""


def start_script(policy: Policy, *, lock: str, only: Iterable[str] = ()) -> Script:
    """Starts what the node's file says was stopped, or of that the kinds in `only`. An interrupt of the
    run doesn't cut it."""
    variables = {
        **_owners_common(policy, lock),
        "GF_SETTLE_S": f"{max(policy.settle_s, STAYS_UP_S):.2f}",
        "GF_ONLY": " ".join(only),
    }
    files = ("frame.sh", "lock.sh", "stopped.sh", "starting.sh", "start.sh")
    return Script("start", files, variables, 2 * policy.limits.owner_s + 10, shielded=True)


def gpu_reset_script(
    policy: Policy, daemons: Iterable[str], *, lock: str, run: str, who: str
) -> Script:
    """Stops `daemons`, resets all GPUs, starts them again. An interrupt of the run doesn't cut it."""
    limits = policy.limits
    variables = {
        "GF_DAEMONS": " ".join(daemons),
        "GF_LOCK": lock,
        "GF_RUN": run,
        "GF_WHO": who,
        "GF_SETTLE_S": f"{max(policy.settle_s, STAYS_UP_S):.2f}",
        "GF_TOOL_S": _seconds(limits.daemon_s),
        "GF_ALL_CS": _hundredths(4 * limits.daemon_s),
        "GF_RESET_S": _seconds(limits.gpu_reset_s),
        "GF_RESET_CS": _hundredths(max(limits.gpu_reset_s, 1.0)),
    }
    files = ("frame.sh", "lock.sh", "stopped.sh", "starting.sh", "gpureset.sh")
    return Script("gpu-reset", files, variables, 2 * limits.daemon_s + 10, shielded=True)


def reboot_script(policy: Policy, *, boot_id: str, lock: str, who: str) -> Script:
    """Reboots the node, if it still is the boot that was looked at."""
    variables = {
        "GF_BOOT": boot_id,
        "GF_LOCK": lock,
        "GF_WHO": who,
        "GF_TOOL_S": _seconds(policy.limits.tool_s),
    }
    files = ("frame.sh", "lock.sh", "reboot.sh")
    return Script("reboot", files, variables, 2 * policy.limits.tool_s + 10)


def boot_script(policy: Policy) -> Script:
    """Which boot this is, and whether all its services are up."""
    variables = {"GF_TOOL_S": _seconds(min(policy.limits.tool_s, 10.0))}
    return Script("boot", ("frame.sh", "boot.sh"), variables)


def shm_script(names: Iterable[str], *, lock: str) -> Script:
    """Removes files in /dev/shm, each if nobody uses it at that moment."""
    variables = {"GF_SHM": "\n".join(names), "GF_LOCK": lock, "GF_TOOL_S": "10.0"}
    return Script("shm", ("frame.sh", "lock.sh", "shm.sh"), variables)


def _owners_common(policy: Policy, lock: str) -> dict[str, str]:
    limit_s = policy.limits.owner_s
    return {
        "GF_LOCK": lock,
        "GF_TOOL_S": _seconds(limit_s),
        "GF_ALL_CS": _hundredths(limit_s),
    }


def close_script(*, line: str, ports: bool) -> Script:
    """The end of a reset that acted: `line` for the node's syslog; `ports`: who listens there?"""
    variables = {"GF_LINE": line, "GF_PORTS": "yes" if ports else "", "GF_TOOL_S": "5.0"}
    return Script("close", ("frame.sh", "close.sh"), variables)


def _silence_s(policy: Policy) -> float:
    """The longest that a living script can be silent: one tool at its limit, or settling; doubled."""
    limits = policy.limits
    return 2 * max(limits.smi_s, limits.tool_s, policy.settle_s) + 2


def _common(policy: Policy, budget_s: float, owners: Iterable[Owner]) -> dict[str, str]:
    limits = policy.limits
    owners = sorted(set(owners), key=str)
    services = [owner.name for owner in owners if owner.kind == "service"]
    containers = [
        f"{owner.runtime}:{owner.name}"
        for owner in owners
        if owner.kind == "container" and owner.runtime in {"docker", "podman"}
    ]
    users = [entry.removeprefix("user:") for entry in policy.protect if entry.startswith("user:")]
    return {
        "GF_GPUS": str(policy.gpus),
        "GF_TOLERANCE_MIB": str(policy.tolerance_mib),
        "GF_HEALTH": ",".join(HEALTH_FIELDS),
        "GF_QUICK": node_file("quick.sh"),
        "GF_QUICK_S": _seconds(min(limits.tool_s, budget_s) / 3),
        "GF_UNITS": " ".join([*UNITS, *services]),
        "GF_USER_UNITS": " ".join(
            f"{owner.runtime}:{owner.name}" for owner in owners if owner.kind == "user-service"
        ),
        "GF_CONTAINERS": " ".join(containers),
        "GF_PODS": " ".join(owner.name for owner in owners if owner.kind == "pod"),
        "GF_USERS": " ".join(users),
        "GF_TOOL_S": _seconds(min(limits.tool_s, budget_s)),
        "GF_SMI_S": _seconds(min(limits.smi_s, budget_s)),
    }


def _seconds(value: float) -> str:
    return f"{max(value, 1.0):.1f}"


def _hundredths(value: float) -> str:
    return str(max(0, round(value * 100)))
