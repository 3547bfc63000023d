"""`python -m gpufleet`, and the entry point of the command."""

from __future__ import annotations

import os
import sys
import threading


def main() -> None:
    from gpufleet.cli import run_command  # noqa: PLC0415  # only a real start pays for the imports

    code = run_command(sys.argv[1:])
    if threading.active_count() > 1:
        # A worker that still waits for a dead node must not hold up an exit that has its result.
        # Standard output was flushed where it was written.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
