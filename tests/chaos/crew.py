"""Many rounds on several nodes at once, until enough resets were run; counts what they found.

Seeds of rounds follow from the run's seed: round k of seed S is the same on every machine.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.simfleet import SimFleet, SimNode

from .findings import Kind, Violation
from .leftovers import counted_here
from .playing import Played, play_round
from .runner import Tracebacks, quicken

STRIDE = 1_000_003
"""Rounds of neighbouring seeds don't overlap."""

WARM_UP = 12
"""Rounds after which threads and descriptors are counted for the first time (watchdog, caches)."""

Say = Callable[[str], None]


@dataclass
class Tally:
    """What all rounds of a run found together."""

    seed: int
    resets: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, Violation]] = field(default_factory=list)
    races: list[tuple[int, str]] = field(default_factory=list)
    needless: list[int] = field(default_factory=list)
    quiet: int = 0
    worst_over_s: float = 0.0
    took_s: float = 0.0

    def add(self, played: Played) -> None:
        seed = played.drawn.seed
        self.resets += len(played.verdicts)
        self.verdicts.update(played.verdicts)
        self.violations.extend((seed, violation) for violation in played.violations)
        self.races.extend((seed, race) for race in played.races)
        self.quiet += played.drawn.quiet
        self.needless.extend([seed] if played.needless else [])
        self.worst_over_s = max(self.worst_over_s, played.over_budget_s)

    def count(self, kind: Kind) -> int:
        return sum(1 for _, violation in self.violations if violation.kind is kind)

    @property
    def failed(self) -> bool:
        return bool(self.violations) or not self.resets

    def __str__(self) -> str:
        verdicts = ", ".join(f"{name} {count}" for name, count in self.verdicts.most_common())
        lines = [
            f"seed {self.seed}: {self.resets} resets in {self.took_s:.0f} s: {verdicts}",
            *(f"  {kind}: {self.count(kind)}" for kind in Kind),
            (
                f"  (races after the proof: {len(self.races)}; furthest over budget:"
                f" {self.worst_over_s:.1f} s; quiet rounds: {self.quiet}, not CLEAN of them:"
                f" {self.needless[:10]})"
            ),
        ]
        return "\n".join(lines)


def run(resets: int, seed: int, nodes: int, say: Say, *, loud: bool = False) -> Tally:
    """At least `resets` resets on `nodes` nodes. Prints each violation with its round's seed."""
    quicken()
    tally, tracebacks, lock = Tally(seed), Tracebacks(), threading.Lock()
    seeds = map(lambda number: seed * STRIDE + number, itertools.count())  # noqa: C417  # lazy
    begun = time.monotonic()
    with SimFleet(nodes) as fleet:

        def take() -> Iterator[int]:
            while True:
                with lock:
                    if tally.resets >= resets:
                        return
                    number = next(seeds)
                yield number

        def work(node: SimNode) -> None:
            for number in take():
                played = play_round(fleet, node, number)
                with lock:
                    tally.add(played)
                    tell(played, say, loud=loud)
                if played.stuck or played.spoilt:
                    return  # this node can't be trusted any more

        counted = _crews(fleet, work, tally, resets)
        tally.violations.extend((seed, leak) for leak in _leaks(counted))
    for text in tracebacks.texts:
        tally.violations.append((seed, Violation(Kind.TRACEBACK, text)))
        say(text)
    tally.took_s = time.monotonic() - begun
    return tally


def _crews(
    fleet: SimFleet, work: Callable[[SimNode], None], tally: Tally, resets: int
) -> tuple[tuple[int, int], int]:
    """One thread for each node; returns threads and descriptors early on, and the resets since."""
    base = counted_here()
    threads = [
        threading.Thread(target=work, args=(node,), name=f"crew {node.name}") for node in fleet
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return base, tally.resets


def _leaks(counted: tuple[tuple[int, int], int]) -> Iterator[Violation]:
    """After the last round as many as before the first, but for what is made once."""
    (threads, descriptors), resets = counted
    until = time.monotonic() + 8
    while True:
        now_threads, now_descriptors = counted_here()
        more = now_threads - threads - 2, now_descriptors - descriptors - 8
        if max(more) <= 0:
            return
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    names = [thread.name for thread in threading.enumerate()][:10]
    text = f"{now_threads} threads, {now_descriptors} descriptors after {resets} resets: {names}"
    yield Violation(Kind.LEAK, f"{text}; before {threads} and {descriptors}")


def replay(seed: int, say: Say) -> Tally:
    """One round alone, with all that happened in it."""
    quicken()
    tally, tracebacks = Tally(seed), Tracebacks()
    with SimFleet(1) as fleet:
        played = play_round(fleet, next(iter(fleet)), seed)
    tally.add(played)
    tell(played, say, loud=True)
    for text in tracebacks.texts:
        tally.violations.append((seed, Violation(Kind.TRACEBACK, text)))
        say(text)
    tally.took_s = played.took_s
    return tally


def tell(played: Played, say: Say, *, loud: bool) -> None:
    """The round, if something is wrong with it or all is wanted."""
    if not (loud or played.violations):
        return
    say(f"{played.drawn} ({played.took_s:.1f} s)")
    for line in (*played.deeds, *played.reasons):
        say(f"    {line}")
    for race in played.races:
        say(f"    race: {race}")
    for violation in played.violations:
        say(f"  ** {violation}")
        say(f"     replay: python -m tests.chaos --replay {played.drawn.seed}")


def on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
