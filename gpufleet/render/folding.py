"""Nodes with equal results become one entry: `gpu[01-15]`. Pure.

Equal means that a person would do the same about each: verdict, GPUs, reason, next step and warnings,
whatever the nodes' own names and addresses are in these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence

from gpufleet.inventory.ranges import fold
from gpufleet.model import NodeReport
from gpufleet.render.ink import WELL

FEW = 3
"""So many nodes that failed alike are still listed one by one, each with a next step to paste."""


def folded(
    nodes: Sequence[NodeReport], cells: Callable[[NodeReport], Hashable]
) -> list[list[NodeReport]]:
    """Groups in the order of their first node. `cells`: what the row shows besides."""
    groups: dict[Hashable, list[NodeReport]] = {}
    for node in nodes:
        groups.setdefault((cells(node), *_told(node)), []).append(node)
    entries: list[list[NodeReport]] = []
    for group in groups.values():
        apart = group[0].verdict not in WELL and len(group) <= FEW
        entries.extend([[node] for node in group] if apart else [group])
    place = {node.host: at for at, node in enumerate(nodes)}
    return sorted(entries, key=lambda entry: place[entry[0].host])


def names(entry: Sequence[NodeReport]) -> str:
    return fold([node.host for node in entry])


def _told(node: NodeReport) -> tuple[Hashable, ...]:
    """Survivors make a node its own: their pids are what a person needs."""
    own = node.host if node.survivors else ""
    texts = (node.reason, node.next_step, *node.warnings)
    return (
        node.verdict,
        node.stage,
        own,
        node.stopped,
        node.leftovers,
        *((one.rung, one.done, _without_name(one.why, node)) for one in node.escalations),
        *(_without_name(text, node) for text in texts),
    )


def _without_name(text: str, node: NodeReport) -> str:
    words = "|".join(re.escape(word) for word in (node.address, node.host) if word)
    return re.sub(rf"(?<![\w.-])(?:{words})(?![\w-]|\.\w)", "\0", text) if words else text
