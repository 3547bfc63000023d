"""Fixtures of the tests with a real systemd: one node for all of them, without units for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.look import status_node
from gpufleet.model import NodeReport
from gpufleet.policy import Access, Limits, NodeSpec, Policy
from gpufleet.reset import Resetting, reset_node
from gpufleet.run import new_run_id
from gpufleet.ssh import connect
from tests.simfleet import NodeProcess

from . import Image, Machine, missing

QUICK = Limits(still_s=1.5, unkillable_s=2, frozen_s=1, smi_s=3)


@pytest.fixture(scope="session")
def booted() -> Iterator[Machine]:
    if line := missing():
        pytest.skip(line)
    if not Image().exists:
        pytest.skip("no root file system for a node with systemd yet: make test-systemd builds it")
    with Machine() as running:
        yield running


@pytest.fixture
def machine(booted: Machine) -> Iterator[Machine]:
    """A node without units of its own."""
    yield booted
    booted.clear()


def spec_of(machine: Machine, **policy: Any) -> NodeSpec:
    access = Access(
        machine.address,
        port=machine.port,
        identity_file=(str(machine.keys.identity),),
        known_hosts=(str(machine.keys.known_hosts),),
    )
    quick = Policy(limits=QUICK, timeout_s=20, dying_timeout_s=20)
    return NodeSpec(machine.name, access, replace(quick, **policy))


Reset = Callable[..., NodeReport]


@pytest.fixture
def reset(machine: Machine) -> Reset:
    """Reset over real SSH, with quick limits; keywords are fields of Policy."""

    def run(*, dry_run: bool = False, **policy: Any) -> NodeReport:
        spec = spec_of(machine, **policy)
        return reset_node(spec, lambda: connect(spec), Resetting(new_run_id(), "tests", dry_run))

    return run


@pytest.fixture
def status(machine: Machine) -> Reset:
    spec = spec_of(machine)
    return lambda: status_node(spec, lambda: connect(spec))


@pytest.fixture
def at_death(machine: Machine) -> Callable[[NodeProcess, str], threading.Thread]:
    """`at_death(process, command)` runs a shell command in the node as soon as the process is dead."""

    def watch(process: NodeProcess, command: str) -> threading.Thread:
        def wait() -> None:
            until = time.monotonic() + 20
            while machine.alive(process) and time.monotonic() < until:
                time.sleep(0.005)
            machine.exec(command)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    return watch
