"""`python -m gpufleet`, and the entry point of the command."""

from __future__ import annotations

import contextlib
import gc
import os
import sys


def main() -> None:
    # Start-up is half of a short run's CPU. What imports make stays, so looking through it for garbage
    # finds none. And pydantic needn't search all installed packages for plugins, which have no
    # business in a root tool anyway.
    gc.set_threshold(200_000, 10, 10)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from gpufleet.cli import run_command  # noqa: PLC0415  # only a real start pays for the imports

    code = run_command(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):  # what a command wrote was flushed where it was written
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    # A worker that still waits for a dead node must not hold up an exit that has its result, nor
    # need anybody wait for the interpreter to take a few hundred modules apart.
    os._exit(code)


if __name__ == "__main__":
    main()
