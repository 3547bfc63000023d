"""Which owners may be stopped, how, and how each is shown. Pure.

Only owners of what the plan kills, and of these only whose own main process is among it: a service
that carries somebody else's work beside the workload isn't the workload's to stop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpufleet.masking import printable
from gpufleet.observation import Observation, Owner, Process, ancestors
from gpufleet.observation.managed import Managed
from gpufleet.observation.owner import NOBODY
from gpufleet.plan import Decision, Plan, job_above
from gpufleet.plan.names import CARRIER_UNITS, GPU_DAEMON_UNITS
from gpufleet.plan.program import named, program_name, script_names
from gpufleet.plan.rules import Hit, Setting, own_pids, spared_by
from gpufleet.policy import Policy
from gpufleet.records import dataclass

_NAME = re.compile(r"[A-Za-z0-9:_.@\\-]+\Z")
"""Characters of units, containers and programs. Anything else is left to the kill."""

_SUPERVISORS = ("supervisord", "supervisor.supervisord")


@dataclass(frozen=True)
class Stop:
    """`kind` and `target` as stop.sh knows them; `owner` as reports call it; `action`: the command.

    `why_not`: it is left alone, and only its processes are killed. `source`: the owner as seen.
    """

    kind: str
    target: str
    owner: str
    action: str
    why_not: str = ""
    source: Owner = NOBODY

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.target


def owners_of(plan: Plan, observation: Observation) -> tuple[frozenset[Owner], bool]:
    """Whom to ask about what would be killed; and whether a supervisor is among them."""
    processes = observation.last.processes
    kinds = {"service", "user-service", "container", "pod"}
    found = frozenset(
        d.process.owner for d in plan.kill if d.process.owner.kind in kinds and _told(d)
    )
    return found, any(_supervisor(d.process, processes) for d in plan.kill)


def make_stops(
    plan: Plan, observation: Observation, managed: Managed, policy: Policy
) -> tuple[Stop, ...]:
    """In the order to stop. Those that mustn't be have a reason."""
    found: dict[tuple[str, str], Stop] = {}
    for decision in plan.kill:
        for stop in _stops_of(decision, plan, observation, managed, policy):
            checked = stop
            if not stop.why_not and not _NAME.match(stop.target):
                checked = replace(stop, why_not="its name holds characters that no owner's has")
            found.setdefault(stop.key, checked)
    return tuple(found.values())


def described(decision: Decision, managed: Managed, observation: Observation) -> tuple[str, str]:
    """What its owner says of itself: more of its name, and its restart policy. "" where unknown."""
    owner = decision.process.owner
    program = _program(decision.process, managed, observation.last.processes)
    if program:
        return f"supervisor program {printable(program)}", ""
    if owner.kind == "service" and (unit := managed.units.get(owner.name)):
        return "", printable(unit.restart)
    if owner.kind == "user-service":
        user_unit = managed.user_units.get(f"{owner.runtime}:{owner.name}")
        return f"user {decision.process.user}", printable(user_unit.restart if user_unit else "")
    if owner.kind == "container" and (container := managed.containers.get(owner.name)):
        image = f", image {container.image}" if container.image else ""
        return printable(f"{container.name.lstrip('/')}{image}"), printable(container.restart)
    if owner.kind == "pod" and (name := managed.pods.get(owner.name)):
        return f"pod {printable(name)}", "its kubelet's"
    return "", ""


def _stops_of(
    decision: Decision, plan: Plan, observation: Observation, managed: Managed, policy: Policy
) -> Iterator[Stop]:
    process, owner = decision.process, decision.process.owner
    processes = observation.last.processes
    if job := job_above(process, processes):
        if policy.jobs == "kill":
            yield Stop("job", job, f"slurm job {job}", f"scancel {job}", source=owner)
    elif owner.kind == "pod":
        if policy.jobs == "kill":
            yield _pod_stop(owner, managed, policy)
    elif owner.kind == "container":
        yield _container_stop(owner, plan, observation, managed, policy)
    elif program := _program(process, managed, processes):
        yield Stop("supervisor", program, program, f"supervisorctl stop {program}", source=owner)
    elif owner.kind in {"service", "user-service"} and not named(owner.name, CARRIER_UNITS):
        yield _unit_stop(owner, plan, observation, managed, policy)


def _unit_stop(
    owner: Owner, plan: Plan, observation: Observation, managed: Managed, policy: Policy
) -> Stop:
    users = owner.kind == "user-service"
    target = f"{owner.runtime}:{owner.name}" if users else owner.name
    action = f"systemctl {'--user ' if users else ''}stop {owner.name}"
    if users:
        action += f" (user {owner.runtime})"
    unit = (managed.user_units if users else managed.units).get(target)
    processes = observation.last.processes
    own = {processes[pid].owner for pid in own_pids(observation) if pid in processes}
    why = ""
    if named(owner.name, GPU_DAEMON_UNITS):
        why = "it is a GPU daemon"
    elif owner in own:
        why = "gpufleet's own login is in it"
    elif unit is None:
        why = "its manager did not answer"
    else:
        why = _shared(owner, plan, observation, policy) or _main(unit.main_pid, plan)
    return Stop(owner.kind, target, owner.name, action, why, owner)


def _container_stop(
    owner: Owner, plan: Plan, observation: Observation, managed: Managed, policy: Policy
) -> Stop:
    container = managed.containers.get(owner.name)
    if owner.runtime not in {"docker", "podman"}:
        why = "neither docker nor podman runs it"
    elif container is None:
        why = f"{owner.runtime} did not answer"
    else:
        why = _shared(owner, plan, observation, policy) or _main(container.pid, plan)
    name = container.name.lstrip("/") if container else owner.name[:12]
    action = f"{owner.runtime} stop {name}"
    return Stop(owner.runtime, owner.name, f"{owner.runtime}:{name}", action, why, owner)


def _pod_stop(owner: Owner, managed: Managed, policy: Policy) -> Stop:
    name = managed.pods.get(owner.name, "")
    space, _, pod = name.partition("/")
    drain = f"kubectl drain {managed.node} --ignore-daemonsets --delete-emptydir-data"
    if policy.kubernetes == "drain":
        return Stop("drain", managed.node, f"node {managed.node} in Kubernetes", drain, "", owner)
    delete = f"kubectl -n {space} delete pod {pod}" if name else drain
    return Stop("pod", owner.name, f"pod {name or owner.name}", delete, f"by hand: {delete}", owner)


def _shared(owner: Owner, plan: Plan, observation: Observation, policy: Policy) -> str:
    """Why it must go on: who in it is spared, or would be if a pattern hit it."""
    setting = Setting(observation, policy, own=own_pids(observation))
    spared = {decision.process.pid: decision.why for decision in plan.spare}
    killed = {decision.process.pid for decision in plan.kill}
    for process in observation.last.processes.values():
        if process.owner != owner or process.dead or process.pid in killed:
            continue
        found = spared_by(process, Hit("workload", ""), setting)
        why = found[1] if found and found[0] != "bystander" else spared.get(process.pid)
        if why:
            return f"pid {process.pid} in it is spared ({why})"
    return ""


def _main(pid: int, plan: Plan) -> str:
    """A unit between two starts has no main process, and nothing but its next start to lose."""
    if pid and pid not in {decision.process.pid for decision in plan.kill}:
        return f"its main process (pid {pid}) is no workload"
    return ""


def _told(decision: Decision) -> bool:
    return bool(_NAME.match(decision.process.owner.name))


def _supervisor(process: Process, processes: Mapping[int, Process]) -> bool:
    return any(
        program_name(above) in _SUPERVISORS or set(script_names(above)) & set(_SUPERVISORS)
        for above in ancestors(process.pid, processes)
    )


def _program(process: Process, managed: Managed, processes: Mapping[int, Process]) -> str:
    """The supervisor's program that it is, or was started by."""
    if not managed.supervised or not _supervisor(process, processes):
        return ""
    chain = (process, *ancestors(process.pid, processes))
    return next((managed.supervised[p.pid] for p in chain if p.pid in managed.supervised), "")
