"""Logins at once at one sshd: never more than it takes, and fewer after it dropped one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.errors import NodeError, Unreachable
from gpufleet.ssh.gates import AT_ONE, Gate, Gates

PATIENCE_S = 30


def together(gate: Gate, count: int) -> int:
    """The most that were inside at once, when so many came; each stays until no more can come."""
    changed = threading.Condition()
    inside = most = 0

    def visit(_: int) -> None:
        nonlocal inside, most
        with gate.place():
            with changed:
                inside += 1
                most = max(most, inside)
                changed.notify_all()
                changed.wait_for(lambda: most >= min(gate.places, count), PATIENCE_S)
            with changed:
                inside -= 1

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(visit, range(count)))
    return most


def fail(gate: Gate, error: Exception) -> None:
    with pytest.raises(type(error)), gate.place():
        raise error


DROPPED = Unreachable("handshake", "dropped", transient=True)


def test_no_more_than_its_places_are_inside() -> None:
    assert together(Gate(), 3 * AT_ONE) == AT_ONE


def test_each_drop_halves_the_places_down_to_one() -> None:
    gate = Gate()
    seen = []
    for _ in range(5):
        fail(gate, DROPPED)
        seen.append(gate.places)
    assert seen == [4, 2, 1, 1, 1]
    assert together(gate, 4) == 1


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("authentication", "wrong key"),
        Unreachable("connect", "timed out", transient=True),  # nobody was there to drop it
        NodeError("something else"),
        KeyboardInterrupt(),
    ],
    ids=["login", "connect", "other", "interrupt"],
)
def test_what_is_no_drop_costs_no_place_and_frees_its_own(error: Exception) -> None:
    gate = Gate()
    for _ in range(2 * AT_ONE):  # a place that is kept would let nobody in any more
        fail(gate, error)
    assert gate.places == AT_ONE


def test_who_waits_comes_in_when_a_place_is_free() -> None:
    gate = Gate()
    gate.places = 1
    came = threading.Event()

    def visit() -> None:
        with gate.place():
            came.set()

    with gate.place():
        thread = threading.Thread(target=visit)
        thread.start()
        assert not came.wait(0.05)
    assert came.wait(PATIENCE_S)
    thread.join()


def test_each_address_and_port_has_a_gate_of_its_own() -> None:
    gates = Gates()
    assert gates.at("192.0.2.1", 22) is gates.at("192.0.2.1", 22)
    assert gates.at("192.0.2.1", 22) is not gates.at("192.0.2.1", 2222)
    assert gates.at("192.0.2.1", 22) is not gates.at("192.0.2.2", 22)
