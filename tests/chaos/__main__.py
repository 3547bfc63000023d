"""python -m tests.chaos --resets 1000 --seed 7 --nodes 6      python -m tests.chaos --replay 7000021

Ends with 0 when nothing was found, 1 when something was (or nothing was run), 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import secrets
import sys

from tests.simfleet import missing

from . import crew


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--resets", type=int, default=1000, help="at least so many (1000)")
    parser.add_argument("--seed", type=int, default=None, help="of the whole run (drawn)")
    parser.add_argument("--nodes", type=int, default=6, help="simulated nodes at once (6)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one round, by its own seed")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell every round")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    if line := missing():
        crew.on_stderr(f"chaos: {line}")
        return 1
    if options.replay is not None:
        tally = crew.replay(options.replay, crew.on_stderr)
    else:
        seed = secrets.randbelow(100_000) if options.seed is None else options.seed
        crew.on_stderr(f"chaos: seed {seed}, {options.resets} resets on {options.nodes} nodes")
        say = crew.on_stderr
        tally = crew.run(options.resets, seed, options.nodes, say, loud=options.verbose)
    print(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
