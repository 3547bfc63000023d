"""`gpufleet history`: the recorded resets, and one of them whole. Contacts nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from gpufleet.cli.options import Json
from gpufleet.cli.streams import note, write


def history(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or last"),
    ] = None,
    last: Annotated[
        int, typer.Option("-n", "--last", metavar="N", min=1, help="So many runs at most")
    ] = 50,
    json: Json = False,
) -> int:
    """Which resets there were, by whom, and what came of them."""
    from gpufleet.history import find_run, load_run, reading_files, runs  # noqa: PLC0415  # SQLite
    from gpufleet.render import history as view  # noqa: PLC0415

    if run is not None:
        entry = find_run(run)
        document = load_run(entry.run_id)
        shown = view.run_record_document if json else view.run_record_text
        write(shown(document, entry.facts()))
        return 0
    facts = [entry.facts() for entry in runs(last)]
    if json:
        write(view.history_document(facts))
    elif facts:
        write(view.history_text(facts))
    else:
        places = reading_files()
        note(f"no reset is recorded{' in ' + ', '.join(map(str, places)) if places else ' yet'}")
    return 0
