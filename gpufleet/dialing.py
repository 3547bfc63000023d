"""Connecting with patience: what may pass is tried again, what is refused is not.

An sshd that drops us (MaxStartups), a reset, a timeout: all who meet it together come back at random
moments (full jitter), not together. Knows no SSH: an error says itself whether it is transient, and
keys, logins and host keys never are, as a retry could lock an account.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import tenacity
from tenacity.stop import stop_base

from gpufleet.errors import Unreachable
from gpufleet.policy import Access
from gpufleet.records import dataclass
from gpufleet.transport import Connect, Transport

TRIES = 8
"""With pauses of up to 0.5, 1, 2, 4, 5, 5, 5 s: an sshd drops some more of us each round, and the
rounds of a node that answers at once are short."""

ROUNDS = 2
"""No further try once so many `connect_timeout` have passed: a node that never answers mustn't hold
up the others' result. One that drops us at once gets `PATIENCE_S` all the same."""

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Dialing:
    """How long, and what is told. `on_retry` gets the failed try's number, why, and the pause."""

    left_s: float
    """The node's own budget; no pause begins after it."""
    interrupted: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    on_retry: Callable[[int, str, float], None] = lambda number, why, pause_s: None


def dial(connect: Connect, access: Access, dialing: Dialing) -> Transport:
    """A transport from `connect`; raises the last `Unreachable`, with the number of tries."""
    tries = tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda error: (
                isinstance(error, Unreachable) and error.transient and not dialing.interrupted()
            )
        ),
        stop=tenacity.stop_after_attempt(TRIES)
        | tenacity.stop_after_delay(max(0.0, dialing.left_s))
        | _Silent(ROUNDS * access.connect_timeout_s, access.connect_timeout_s),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
        sleep=dialing.sleep,
        before_sleep=lambda call: dialing.on_retry(
            call.attempt_number, _reason(call), call.next_action.sleep if call.next_action else 0
        ),
        reraise=True,
    )
    try:
        return tries(connect)
    except Unreachable as error:
        number = int(tries.statistics.get("attempt_number", 1))
        if number == 1:
            raise
        raise Unreachable(
            error.stage,
            f"{error.reason} ({number} tries)",
            next_step=error.next_step,
            transient=error.transient,
        ) from error


class _Silent(stop_base):
    """Stop after `rounds_s` where tries take long; where they fail at once, after `PATIENCE_S`."""

    def __init__(self, rounds_s: float, one_s: float) -> None:
        self._rounds_s = rounds_s
        self._one_s = one_s

    def __call__(self, call: tenacity.RetryCallState) -> bool:
        elapsed_s = call.seconds_since_start or 0.0
        slow = elapsed_s - call.idle_for > self._one_s / 2
        return elapsed_s >= (self._rounds_s if slow else max(self._rounds_s, PATIENCE_S))


def _reason(call: tenacity.RetryCallState) -> str:
    return str(call.outcome.exception()) if call.outcome is not None else ""
