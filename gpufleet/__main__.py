"""`python -m gpufleet`, and the entry point of the command."""

from __future__ import annotations

import sys


def main() -> None:
    from gpufleet.cli import run_command  # noqa: PLC0415  # only a real start pays for the imports

    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
