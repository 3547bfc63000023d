"""`gpu[01-16]` ↔ names. Text only: whether a host exists isn't known here.

Expanding is our own because ClusterShell's NodeSet sorts: `gpu[3,1]` beside `10.0.0.[7,8]` would
pair the wrong machines, and because an absurd range must be counted before it is built. A property
test holds it against NodeSet.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from ClusterShell.RangeSet import RangeSet

from gpufleet.inventory.problems import show

MAX_NAMES = 100_000
"""Names that one text may expand to, and hosts in one fleet. 20 times the largest fleet known."""

_ITEM = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NUMBERS = re.compile(r"([0-9]+)")
_LAST_NUMBER = re.compile(r"[0-9]+(?=[^0-9]*$)")


def expand(text: str) -> list[str]:
    """The names in `text`, in its own order: `gpu[3,01-02]` is gpu3, gpu01, gpu02.

    Padding is kept. Raises ValueError, with the cure, for what is no range or is too many.
    """
    if "[" not in text and "]" not in text:
        return [text]
    parts = _BRACKETS.split(text)
    literals, bodies = parts[::2], parts[1::2]
    if any("[" in literal or "]" in literal for literal in literals):
        raise ValueError("a [ and its ] don't match: gpu[01-16]")
    numbers = []
    count = 1
    for body in bodies:
        items = [_item(item) for item in body.split(",")]
        count *= sum(len(numbers_) for numbers_, _ in items)
        if count > MAX_NAMES:
            raise ValueError(f"a range of {count:,} names, and {MAX_NAMES:,} is the most")
        numbers.append([f"{n:0{width}}" for numbers_, width in items for n in numbers_])
    names = []
    for combination in itertools.product(*numbers):
        between = (*combination, "")
        names.append("".join(itertools.chain.from_iterable(zip(literals, between, strict=True))))
    return names


def _item(text: str) -> tuple[range, int]:
    """`01-16` or `7` or `0-30/2`: the numbers, and the width they are padded to."""
    match = _ITEM.fullmatch(text)
    if match is None:
        cure = "gpu[01-16], gpu[1,3,7] or gpu[0-14/2]"
        raise ValueError(f"{show(f'[{text}]')} is no range: {cure}")
    first, last, step = match[1], match[2] or match[1], int(match[3] or 1)
    padded = (len(first) > 1 and first[0] == "0") or (len(last) > 1 and last[0] == "0")
    if padded and len(first) != len(last):
        width = max(len(first), len(last))
        cure = f"{int(first):0{width}}-{int(last):0{width}} or {int(first)}-{int(last)}"
        raise ValueError(f"[{text}] pads its two ends differently: {cure}")
    if int(last) < int(first) or step == 0:
        raise ValueError(f"[{text}] names nothing: the smaller number comes first")
    return range(int(first), int(last) + 1, step), len(first) if padded else 1


def natural(name: str) -> tuple[tuple[str | int, ...], str]:
    """Sorting key: gpu2 before gpu10."""
    parts = _NUMBERS.split(name)
    return tuple([int(part) if i % 2 else part for i, part in enumerate(parts)]), name


def fold(names: Iterable[str]) -> str:
    """`gpu[01-15,17],odd` for display; `expand` of each part gives the names back.

    Folds on the last number only. NodeSet folds on all, and takes seconds for a thousand names with
    three numbers each (4.2 s measured; its difference of 5,000 IPv4 names: 9 s).
    """
    families: dict[tuple[str, str | None], list[str]] = {}
    for name in sorted(set(names), key=natural):
        number = _LAST_NUMBER.search(name)
        if number is None:
            families[name, None] = []
        else:
            family = (name[: number.start()], name[number.end() :])
            families.setdefault(family, []).append(number[0])
    return ",".join(
        before if after is None else f"{before}{_folded(numbers)}{after}"
        for (before, after), numbers in families.items()
    )


def _folded(numbers: list[str]) -> str:
    return numbers[0] if len(numbers) == 1 else f"[{RangeSet(','.join(numbers))}]"
