"""Where the record is: $GPUFLEET_STATE, else the shared folder, else the user's own.

root's record is the shared one, whatever $HOME says: cron has none, and sudo may keep the caller's.
Anybody else writes to it where its owner allows that, and to a record of their own where not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpufleet.errors import HistoryError

SHARED = Path("/var/lib/gpufleet")
FILE = "history.db"


def writing_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that this user's runs are recorded in; it may not exist yet."""
    if named := environ.get("GPUFLEET_STATE"):
        return Path(named).absolute()
    if os.geteuid() == 0 or os.access(SHARED / FILE, os.R_OK | os.W_OK):
        return SHARED
    return _own()


def reading_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Every record that this user can read, the shared one first; none before the first run."""
    folders = [writing_folder(environ)]
    if not environ.get("GPUFLEET_STATE") and SHARED not in folders:
        folders.insert(0, SHARED)
    files = [folder / FILE for folder in folders]
    return [file for file in files if os.access(file, os.R_OK) or _is_ours(file)]


def _is_ours(file: Path) -> bool:
    """One that can't be read although it is this user's is told, not passed over."""
    try:
        return file.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _own() -> Path:
    import platformdirs  # noqa: PLC0415  # 10 ms that root doesn't need

    folder = platformdirs.user_state_path("gpufleet")
    if not folder.is_absolute():  # neither HOME nor an entry in the password file
        raise HistoryError("no home folder to keep the record in: set GPUFLEET_STATE")
    return folder
