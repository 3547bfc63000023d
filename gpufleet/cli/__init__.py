"""Commands and options. Reads the command line, calls the API, prints what `render/` made of it.

The only room that decides on an exit status. Results go to standard output, everything else to
standard error. Nothing is asked where no terminal is. One module per command; `options`, `streams`,
`selecting` and `showing` hold what they share.
"""

from __future__ import annotations

import importlib
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from gpufleet import __version__
from gpufleet.cli.streams import note, nowhere, write
from gpufleet.errors import GpufleetError
from gpufleet.masking import printable

USAGE_ERROR = 2
NOT_TOLD = 3
"""A result that nobody got is as good as none."""

HELP = """Bring GPU nodes back to a proven clean slate over SSH.

\b
Three commands to begin with; only the last changes anything:
  gpufleet status -H pool            who holds which GPU
  gpufleet reset  -H pool --dry-run  whom it would kill, and whom it spares
  gpufleet reset  -H pool            kill them, and prove that GPUs are free
"""

EXIT_STATUS = """\b
Exit status of reset:
  0  all CLEAN           3  some UNKNOWN, UNREACHABLE or NOT STARTED
  1  some DIRTY, BROKEN  4  some SKIPPED (--allow-skipped: 0)
  2  usage, fleet.yaml   129, 130, 143  HUP, INT, TERM (result is printed)
"""

_VERSION = f"gpufleet {__version__}\n"

COMMANDS = {
    "status": "look",
    "reset": "reset",
    "restore": "restore",
    "check": "look",
    "hosts": "hosts",
    "history": "history",
    "merge": "merge",
    "report": "report",
}
"""Each command's module, in the order of `--help`."""


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands: building one costs 5 ms, and most runs want one."""
    app = typer.Typer(
        help=HELP,
        epilog=EXIT_STATUS,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_options)
    for name in names:
        module = importlib.import_module(f"gpufleet.cli.{COMMANDS[name]}")
        app.command()(getattr(module, name))
    return app


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; what went wrong is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper
    try:
        if list(arguments) == ["--version"]:  # Typer would load pydantic to read one switch
            write(_VERSION)
            return 0
        app = make_app(arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS)
        result = app(list(arguments), prog_name="gpufleet", standalone_mode=False)
    except TyperException as error:
        return _refuse(_worded(error.format_message()))
    except GpufleetError as error:
        return _refuse(str(error))
    except (Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except OSError as error:
        if sys.stdout is not None:
            sys.stdout = nowhere()
        note(f"gpufleet: the result could not be written: {error.strerror}")
        return NOT_TOLD
    return int(result or 0)


def _worded(message: str) -> str:
    """The library's two ways of guessing a word, as this program says it everywhere."""
    message = re.sub(r"\(Possible options: ([^,)]*).*\)$", r"(did you mean \1?)", message)
    return re.sub(r"\. Did you mean '([^']*)'.*\?$", r" (did you mean \1?)", message)


def _refuse(message: str) -> int:
    for line in message.splitlines() or [""]:
        note(f"gpufleet: {printable(line)}")
    return USAGE_ERROR


def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> int:
    if version:
        write(_VERSION)
        raise typer.Exit
    if context.invoked_subcommand is None:
        note(context.get_help())
        return USAGE_ERROR
    return 0
