"""200 connections with faults at random stages: a verdict with its stage for each, and nothing left."""

from __future__ import annotations

import gc
import logging
import random
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet import dialing, look, run
from gpufleet.dialing import TRIES
from gpufleet.model import NodeReport, Verdict
from gpufleet.policy import NodeSpec, Policy
from gpufleet.ssh import connection
from gpufleet.ssh.knownhosts import known_hosts
from tests.conftest import QUICK, spec_of
from tests.simfleet import SimFleet
from tests.ssh.bastion import wait_until
from tests.ssh.faultproxy import Fault, FaultProxy
from tests.ssh.test_jumps import children
from tests.test_ssh import open_descriptors

RUNS, NODES = 3, 67
LOGGED_IN = 3500
"""Bytes of the server's after which the login is over; its look then has some 10,000 more."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(connection, "AUTH_S", 3.0)
    monkeypatch.setattr(dialing, "PATIENCE_S", 6.0)
    monkeypatch.setattr(look, "_ANSWER_MARGIN_S", 1.0)
    with FaultProxy() as running:
        yield running


class Faulty:
    """Nodes behind the proxy, each with an address of its own."""

    def __init__(self, fleet: SimFleet, proxy: FaultProxy, known: Path) -> None:
        self.fleet, self.proxy, self.known = fleet, proxy, known
        self.count = 0

    def node(self, fault: Fault) -> NodeSpec:
        self.count += 1
        node = list(self.fleet)[self.count % len(self.fleet)]
        address = f"127.251.{self.count // 200}.{self.count % 200 + 1}"
        port = self.proxy.place(address, fault, (node.address, node.port))
        key = (node.folder / "host_key.pub").read_text()
        with self.known.open("a") as file:
            file.write(f"[{address}]:{port} {key}")
        policy = Policy(limits=QUICK, timeout_s=12)
        spec = spec_of(self.fleet, node, policy, port=port, known_hosts=(str(self.known),))
        access = replace(spec.access, address=address, connect_timeout_s=3.0)
        return replace(spec, name=f"node{self.count:03d}", access=access)


@pytest.fixture
def faulty(fleet: SimFleet, proxy: FaultProxy, tmp_path: Path) -> Faulty:
    known_hosts.cache_clear()
    return Faulty(fleet, proxy, tmp_path / "known")


def draw(dice: random.Random) -> Fault:
    kind = dice.choice(["none", "refused", "silent", "hangs up", "garbage", "crumbs"] + ["at"] * 9)
    if kind != "at":
        return Fault(kind)  # type: ignore[arg-type]
    after = dice.choice([dice.randrange(1, LOGGED_IN), dice.randrange(LOGGED_IN, 9000)])
    return Fault(dice.choice(["cut", "stall", "reset"]), after, always=dice.random() < 0.8)  # type: ignore[arg-type]


def check(report: NodeReport, fault: Fault) -> None:
    said = f"{fault}: {report.verdict.value} [{report.stage}] {report.reason}"
    assert "internal error" not in report.reason, said
    if fault.kind == "none":
        assert report.verdict is Verdict.IDLE, said
    elif fault.kind == "refused":
        assert (report.verdict, report.stage) == (Verdict.UNREACHABLE, "connect"), said
    elif fault.kind in {"silent", "hangs up", "garbage", "crumbs"}:
        assert (report.verdict, report.stage) == (Verdict.UNREACHABLE, "handshake"), said
        assert report.next_step, said
    elif report.verdict is Verdict.UNREACHABLE:
        assert report.stage in {"handshake", "authentication", "channel"}, said
        assert report.reason, said
        assert report.next_step, said
    elif report.verdict is Verdict.UNKNOWN:
        assert "lost" in report.reason or "no answer" in report.reason, said
    else:  # the cut came too late, or only once
        assert report.verdict is Verdict.IDLE, said


def test_two_hundred_faulty_connections_each_get_a_verdict_and_leave_nothing(
    faulty: Faulty,
) -> None:
    warm_up = [faulty.node(Fault(kind)) for kind in ("none", "hangs up")]  # type: ignore[arg-type]
    known_hosts.cache_clear()
    run.status(warm_up)
    threads, descriptors, processes = threading.active_count(), open_descriptors(), children()
    memory = []
    logging.disable(logging.CRITICAL)  # pytest keeps each record, and its traceback
    tracemalloc.start()
    try:
        for number in range(RUNS):
            dice = random.Random(number)
            faults = [draw(dice) for _ in range(NODES)]
            specs = [faulty.node(fault) for fault in faults]
            known_hosts.cache_clear()
            report = run.status(specs, parallel=NODES)
            assert [node.host for node in report.nodes] == [spec.name for spec in specs]
            for node, fault in zip(report.nodes, faults, strict=True):
                check(node, fault)
            # The proxy's own threads and sockets end a moment after their clients.
            assert wait_until(lambda: threading.active_count() <= threads), threading.enumerate()
            assert wait_until(lambda: open_descriptors() <= descriptors)
            assert children() == processes
            del report, node
            gc.collect()
            memory.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)
    assert memory[-1] - memory[0] < 500_000, memory


def test_what_may_pass_is_tried_again(faulty: Faulty) -> None:
    dropped = faulty.node(Fault("hangs up", always=False))
    reset = faulty.node(Fault("reset", 500, always=False))
    known_hosts.cache_clear()

    report = run.status([dropped, reset])

    assert [node.verdict for node in report.nodes] == [Verdict.IDLE] * 2
    assert faulty.proxy.connections(dropped.access.address) == 2


def test_one_that_drops_us_always_is_left_after_some_tries(faulty: Faulty) -> None:
    spec = faulty.node(Fault("hangs up"))

    node = run.check([spec]).nodes[0]

    tries = faulty.proxy.connections(spec.access.address)
    assert node.verdict is Verdict.UNREACHABLE
    assert 2 <= tries <= TRIES
    assert f"({tries} tries)" in node.reason
