"""Where fleet.yaml is, whether it may be trusted, and its text, which isn't understood here."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from gpufleet.errors import InventoryError

SYSTEM_FILE = Path("/etc/gpufleet/fleet.yaml")
MAX_BYTES = 16 * 2**20
"""100,000 hosts on a line each are 5 MB."""


def find_inventory(given: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file to use: `given`, $GPUFLEET_INVENTORY, ./fleet.yaml, the user's, the system's.

    The first two are taken as they are; of the others the first that exists. Raises InventoryError
    that names all places looked at.
    """
    if given is not None:
        return given
    if named := environ.get("GPUFLEET_INVENTORY"):
        return Path(named)
    places = [Path("fleet.yaml"), *_user_file(), SYSTEM_FILE]
    for place in places:
        if _is_there(place):
            return place
    looked = ", ".join(["$GPUFLEET_INVENTORY (not set)", "./fleet.yaml", *map(str, places[1:])])
    raise InventoryError(
        [f"no inventory: looked at {looked}: write one (fleet.yaml.example) or give -i FILE"]
    )


def _user_file() -> list[Path]:
    import platformdirs  # noqa: PLC0415  # 10 ms that a given file doesn't need

    folder = platformdirs.user_config_path("gpufleet")
    # Without HOME and without an entry in the password file "~" stays as it is.
    return [folder / "fleet.yaml"] if folder.is_absolute() else []


def _is_there(place: Path) -> bool:
    """A file that may not be looked at counts: passing over it would mean another fleet."""
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def read_source(path: Path) -> str:
    """The text of the inventory. InventoryError, one line, when it can't be read or trusted."""
    try:
        # NONBLOCK: opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a NUL byte in its name"
        raise InventoryError([f"{path}: can't be read: {reason}"]) from error
    try:
        # The opened file, not the path, which could name another one by now.
        _check(path, os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read()
    except OSError as error:
        raise InventoryError([f"{path}: can't be read: {error.strerror}"]) from error
    finally:
        os.close(descriptor)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"0x{content[error.start]:02x}"
        problem = f"{path}:{line}: read the byte {byte}: not UTF-8: save the file as UTF-8"
        raise InventoryError([problem]) from error


def _check(path: Path, status: os.stat_result) -> None:
    """Its commands run as root on every node: only root and the caller may have written it.

    A folder that others may write is no way around: the file that they put there is theirs.
    """
    quoted = shlex.quote(str(path))
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise InventoryError([f"{path}: {what}: name a fleet.yaml"])
    if status.st_size > MAX_BYTES:
        raise InventoryError([f"{path}: larger than {MAX_BYTES // 2**20} MiB: not an inventory"])
    if status.st_uid not in {0, os.geteuid()}:
        owner = _login(status.st_uid)
        cure = f"chown {_login(os.geteuid())} {quoted}"
        raise InventoryError(
            [f"{path}: owned by {owner}, and its commands run as root on the nodes: {cure}"]
        )
    if writers := status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        who = "everybody" if writers & stat.S_IWOTH else "its group"
        cure = f"chmod go-w {quoted}"
        raise InventoryError(
            [f"{path}: {who} may write it, and its commands run as root on the nodes: {cure}"]
        )


def _login(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
