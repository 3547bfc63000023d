"""Fixtures shared by the tests: fleets of simulated nodes, and ways to reset them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.model import NodeReport
from gpufleet.policy import Access, Limits, NodeSpec, Policy
from gpufleet.reset import Resetting, reset_node
from gpufleet.run import new_run_id
from gpufleet.ssh import connect
from tests.simfleet import SimFleet, SimNode

QUICK = Limits(still_s=1.5, unkillable_s=2, frozen_s=1, smi_s=3)
"""A node's limits for tests that wait for one of them to pass."""


# A job in the background of a script is started with ^C ignored, and all that tests start with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def fleet() -> Iterator[SimFleet]:
    """Four nodes, gpu01 to gpu04, group inference-pool; idle and without faults at each test's start."""
    with SimFleet(4) as running:
        yield running


@pytest.fixture(autouse=True)
def _as_new(request: pytest.FixtureRequest) -> None:
    if "fleet" in request.fixturenames:
        shared: SimFleet = request.getfixturevalue("fleet")
        for node in shared:
            node.start_sshd()
            node.thaw_sshd()
        shared.clear()


@pytest.fixture
def node(fleet: SimFleet) -> SimNode:
    return fleet["gpu01"]


def spec_of(
    fleet: SimFleet, node: SimNode, policy: Policy | None = None, **access: Any
) -> NodeSpec:
    """How gpufleet reaches a simulated node."""
    settings: dict[str, Any] = {
        "port": node.port,
        "identity_file": (str(fleet.identity_file),),
        "known_hosts": (str(fleet.known_hosts),),
        **access,
    }
    policy = policy or Policy(limits=QUICK, timeout_s=20, dying_timeout_s=20)
    return NodeSpec(node.name, Access(node.address, **settings), policy)


Reset = Callable[..., NodeReport]


@pytest.fixture
def reset_sim(fleet: SimFleet, node: SimNode) -> Reset:
    """Reset gpu01 (or `of`) over real SSH, with quick limits; keywords are fields of Policy."""

    def run(*, of: SimNode | None = None, dry_run: bool = False, **policy: Any) -> NodeReport:
        settings = replace(Policy(limits=QUICK, timeout_s=20, dying_timeout_s=20), **policy)
        spec = spec_of(fleet, of or node, settings)
        return reset_node(spec, lambda: connect(spec), Resetting(new_run_id(), "tests", dry_run))

    return run


@dataclass(frozen=True)
class Ran:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["host"]: node for node in self.json["nodes"]}


Command = Callable[..., Ran]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's runs are recorded: never in the machine's own record."""
    folder = tmp_path / "state"
    monkeypatch.setenv("GPUFLEET_STATE", str(folder))
    return folder


@pytest.fixture
def gpufleet(fleet: SimFleet, state: Path) -> Command:
    """The command as cron runs it: no terminal, and the simulated fleet's inventory."""
    return command_for({"GPUFLEET_INVENTORY": str(fleet.fleet_yaml), "GPUFLEET_STATE": str(state)})


def command_for(environment: Mapping[str, str]) -> Command:
    def run(*arguments: str, env: Mapping[str, str] | None = None, **options: Any) -> Ran:
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("timeout", 60)
        done = subprocess.run(
            [sys.executable, "-m", "gpufleet", *arguments],
            env={**os.environ, **environment} if env is None else {**env, **environment},
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
