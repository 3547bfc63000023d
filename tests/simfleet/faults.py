"""The faults of a node: what they are called and how they reach its stand-in nvidia-smi.

Writes fault files only; what they mean in an answer is node/nvidia-smi's business. All take effect
at the next call and can be set while the node runs.

| name | value | nvidia-smi then |
|---|---|---|
| gpu3, fabric.state@3, other FIELD@INDEX | text | prints it for GPU 3; gpu3: as memory.used |
| missing3 | | leaves GPU 3 out |
| repeat3 | other index | prints GPU 3's row once more before it, under that index |
| idle3, stuck3 | MiB | adds memory to GPU 3 that no process holds |
| lag | seconds | keeps memory that long after its last holder's death |
| output | text or bytes | prints just that (exit status 0, or as `status` says) |
| message | text or bytes | prints it after the rows |
| stderr | text | writes it to standard error |
| status | number | exits with it |
| hang | "" or "deaf" | never ends; deaf: not even by SIGTERM |
| slow | seconds | waits before it answers |
| refuse | fields | calls each of them no valid field (exit 2) |
| apps | lines | adds them to the answer about processes |
| garbled | | ends each row in bytes that are no UTF-8 |
| crlf | | ends lines as a pty does |
| cut | | loses the last 3 bytes |
| no-nvidia-smi, no-fuser, no-find, other no-TOOL | | isn't there (the tool isn't) |
| no-devices | | /dev/nvidia* is gone |

Any but the no-… can be limited to calls whose arguments contain a text: `when="compute-apps"`.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

PLAIN = {
    "lag",
    "output",
    "message",
    "stderr",
    "status",
    "hang",
    "slow",
    "refuse",
    "apps",
    "garbled",
}
PLAIN |= {"crlf", "cut"}
NUMBERED = re.compile(r"(missing|repeat|idle|stuck)\d+|[a-z_.]+@\d+")


def file_name(name: str, when: str = "") -> str:
    """The file that stands for a fault; ValueError when there is no such fault."""
    if match := re.fullmatch(r"gpu(\d+)", name):
        name = f"memory.used@{match[1]}"
    if name not in PLAIN and not NUMBERED.fullmatch(name):
        raise ValueError(f"no fault is called {name!r}: see tests/simfleet/faults.py")
    return quote(f"{name}~{when}" if when else name, safe="@~, ")


def write(folder: Path, name: str, value: str | bytes, when: str = "") -> None:
    """Sets a fault at one stroke: a call sees all of it or nothing."""
    path = folder / file_name(name, when)
    fresh = path.with_name(f".{path.name}")
    fresh.write_bytes(value if isinstance(value, bytes) else value.encode())
    fresh.replace(path)


def remove(folder: Path, name: str = "", when: str = "") -> None:
    """Takes one fault back, or all of them."""
    if name:
        (folder / file_name(name, when)).unlink(missing_ok=True)
        return
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
