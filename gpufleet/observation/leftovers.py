"""What a killed workload leaves on the node: files in /dev/shm, ports of survivors. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from gpufleet.records import dataclass

_FAMILIES = re.compile(
    r"(?:psm_|sgl_shm_|multi_tokenizer_args_|nccl-|torch_|sem\.|vllm|cuda\.shm\.|nvshmem)"
)
"""Names that frameworks give their segments: a full /dev/shm ends the next start (sglang#40723,
vllm#51579). Others are nobody's business here."""


@dataclass(frozen=True)
class Segment:
    name: str
    size: int
    """Bytes."""


def parse_segments(listing: str) -> tuple[Segment, ...]:
    """The frameworks' segments.

    ls -lnA /dev/shm   ->   "-rw------- 1 0 0 16777216 Dec  1 02:00 psm_1a2b3c4d"
    """
    found = []
    for line in listing.split("\n"):
        words = line.split(None, 8)
        if len(words) == 9 and words[0].startswith("-") and _FAMILIES.match(words[8]):
            found.append(Segment(words[8], int(words[4]) if words[4].isdigit() else 0))
    return tuple(found)


def unused(segments: Collection[Segment], used: Collection[str]) -> list[Segment]:
    """Those that no living process has open or mapped."""
    return [segment for segment in segments if f"/dev/shm/{segment.name}" not in used]


def parse_ports(listing: str) -> dict[int, list[int]]:
    """Listening TCP ports by pid.

    ss -Hltnp   ->   'LISTEN 0 128 0.0.0.0:30000 0.0.0.0:* users:(("python3",pid=60,fd=7))'
    """
    found: dict[int, set[int]] = {}
    for line in listing.split("\n"):
        words = line.split()
        if len(words) < 5 or not (port := words[3].rpartition(":")[2]).isdigit():
            continue
        for pid in re.findall(r"\bpid=([0-9]+)", line):
            found.setdefault(int(pid), set()).add(int(port))
    return {pid: sorted(ports) for pid, ports in found.items()}
