"""The programs that a fleet's nodes run: the stand-ins of node/, and perl under many names.

Copied into the fleet's folder, because a node sees neither this checkout nor the caller's /tmp.
"""

from __future__ import annotations

import contextlib
import os
import py_compile
import shutil
from pathlib import Path

from .requirements import SBIN

NODE_FILES = Path(__file__).parent / "node"


class Programs:
    """Lies in one folder that all nodes of a fleet share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entry = folder / "node" / "enter.py"
        self._perl = folder / "perl"

    def make(self) -> None:
        self._perl.mkdir(parents=True)
        (self.folder / "node").mkdir()
        perl = os.path.realpath(str(shutil.which("perl", path=SBIN)))
        shutil.copyfile(perl, self._perl / "init")
        for path in NODE_FILES.iterdir():
            if path.is_file():
                shutil.copyfile(path, self.folder / "node" / path.name)
        for path in (self.folder / "node").glob("*.py"):
            # Sixteen nodes at once would compile it sixteen times. Useless, but harmless, if the
            # nodes' Python is another version than ours.
            py_compile.compile(str(path), doraise=True)
        self.add("nvidia-smi")
        for path in (self.folder, self._perl, self._perl / "init", *self.folder.rglob("node*/**")):
            path.chmod(0o755)  # whatever the caller's umask
        (self.folder / "node/nvidia-smi").chmod(0o755)

    def add(self, name: str) -> None:
        """Makes a copy of perl under a program's name; another thread may be doing the same."""
        with contextlib.suppress(FileExistsError):
            os.link(self._perl / "init", self._perl / name)
