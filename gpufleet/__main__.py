"""`python -m gpufleet`, and the entry point of the command."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from types import ModuleType


def main() -> None:
    # Start-up is half of a short run's CPU. What imports make stays, so looking through it for garbage
    # finds none. And pydantic needn't search all installed packages for plugins, which have no
    # business in a root tool anyway.
    gc.set_threshold(200_000, 10, 10)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _lend_mock()
    from gpufleet.cli import run_command  # noqa: PLC0415  # only a real start pays for the imports

    code = run_command(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):  # what a command wrote was flushed where it was written
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    # A worker that still waits for a dead node must not hold up an exit that has its result, nor
    # need anybody wait for the interpreter to take a few hundred modules apart.
    os._exit(code)


def _lend_mock() -> None:
    """Invoke imports `unittest.mock` for a helper of other people's tests, and that imports asyncio:
    0.02 s. Here it gets one that is loaded should it ever be used."""

    def mock(*args: object, **options: object) -> object:
        del sys.modules[lent.__name__]
        from unittest.mock import Mock  # noqa: PLC0415  # the real one

        return Mock(*args, **options)

    lent = ModuleType("unittest.mock")
    lent.Mock = mock  # type: ignore[attr-defined]
    sys.modules.setdefault(lent.__name__, lent)


if __name__ == "__main__":
    main()
