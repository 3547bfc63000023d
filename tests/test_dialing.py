"""What is tried again, how often, and what never is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpufleet.dialing import TRIES, Dialing, dial
from gpufleet.errors import Unreachable
from gpufleet.policy import Access
from gpufleet.transport import Answer, Beat, Script, Transport

ACCESS = Access("192.0.2.1", connect_timeout_s=10.0)


class Line:
    def run(self, script: Script, *, timeout_s: float, beat: Beat | None = None) -> Answer:
        raise NotImplementedError

    def close(self) -> None: ...


class Exchange:
    """Fails so many times, then answers."""

    def __init__(self, failures: int, *, transient: bool = True) -> None:
        self.failures, self.transient, self.calls = failures, transient, 0
        self.pauses: list[float] = []

    def __call__(self) -> Transport:
        self.calls += 1
        if self.calls <= self.failures:
            raise Unreachable("handshake", "dropped", next_step="ssh x", transient=self.transient)
        return Line()

    def dial(
        self, left_s: float = 300, interrupted: Callable[[], bool] = lambda: False
    ) -> Transport:
        return dial(self, ACCESS, Dialing(left_s, interrupted, self.pauses.append))


def test_a_drop_is_tried_again_after_a_random_pause() -> None:
    exchange = Exchange(TRIES - 1)

    exchange.dial()

    assert exchange.calls == TRIES
    limits = [0.5, 1, 2, 4, 5, 5, 5]
    assert all(0 <= pause <= limit for pause, limit in zip(exchange.pauses, limits, strict=True))
    assert len(set(exchange.pauses)) > 1


def test_the_last_failure_comes_out_with_its_stage_and_the_number_of_tries() -> None:
    exchange = Exchange(99)

    with pytest.raises(Unreachable) as caught:
        exchange.dial()

    error = caught.value
    assert (error.stage, error.reason) == ("handshake", f"dropped ({TRIES} tries)")
    assert (error.next_step, error.transient) == ("ssh x", True)


def test_a_refusal_is_never_tried_again_nor_counted() -> None:
    exchange = Exchange(1, transient=False)

    with pytest.raises(Unreachable, match=r"^dropped$"):
        exchange.dial()

    assert exchange.calls == 1


def test_nothing_is_tried_again_after_an_interrupt_or_beyond_the_budget() -> None:
    for exchange, options in (
        (Exchange(9), {"interrupted": lambda: True}),
        (Exchange(9), {"left_s": 0.0}),
    ):
        with pytest.raises(Unreachable):
            exchange.dial(**options)  # type: ignore[arg-type]
        assert exchange.calls == 1


def test_each_retry_is_told() -> None:
    told: list[tuple[int, str]] = []

    def on_retry(number: int, why: str, pause_s: float) -> None:
        told.append((number, why))
        assert pause_s >= 0

    dial(Exchange(2), ACCESS, Dialing(300, sleep=lambda _: None, on_retry=on_retry))

    assert told == [(1, "dropped"), (2, "dropped")]


def test_a_node_that_never_answers_gets_two_rounds_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    exchange = Exchange(99)

    def slow() -> Transport:
        clock[0] += ACCESS.connect_timeout_s
        return exchange()

    with pytest.raises(Unreachable):
        dial(slow, ACCESS, Dialing(300, sleep=lambda _: None))

    assert exchange.calls == 2
