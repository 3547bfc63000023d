"""Command lines as people may see them: secrets masked, control characters escaped. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

MASK = "***"

_WORDS = r"api[-_]?key|secret[-_]?key|access[-_]?key|token|password|passwd|passphrase|secret|credentials?"
_SECRET = rf"(?:{_WORDS})"  # names of secrets, no secret
_NAMED = re.compile(rf"(?i)\A(-{{0,2}}[\w.=-]*{_SECRET})=.+", re.DOTALL)
_OPTION = re.compile(rf"(?i)\A--?[\w.-]*{_SECRET}\Z")
_VALUE = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s;&|]+)"""
_INLINE = re.compile(rf"""(?i)([\w.-]*{_SECRET}["']?)(=|:\s*)({_VALUE})""")
_INLINE_OPTION = re.compile(
    rf"(?i)(--?[\w.-]*{_SECRET})(\s+)({_VALUE}(?:[ \t]+(?![-;&|]){_VALUE})*)"
)
_HEADER = re.compile(r"(?i)(authorization:\s*(?:\w+\s+)?)(\S+)")
_IN_URL = re.compile(r"(://[^/\s:@]*:)\S+@")


def masked_command(args: Sequence[str]) -> str:
    """The arguments joined by blanks; what follows `--api-key`, `--hf-token`, `token=` is masked.

    An option may have several values; all up to the next option are masked. An argument that holds
    a whole command (`sh -c '… --api-key X'`, a retitled process) is masked inside as well.
    """
    shown: list[str] = []
    hide = False
    for arg in args:
        if arg.startswith("-"):
            hide = bool(_OPTION.match(arg))
            shown.append(_mask(arg))
        elif hide:
            shown.append(MASK)
        else:
            shown.append(_mask(arg))
    return printable(" ".join(shown))


_SHORT = 200
"""Longer arguments are rarely the same, and a store of them could grow large."""


def _mask(arg: str) -> str:
    return _mask_short(arg) if len(arg) <= _SHORT else _mask_any(arg)


def _mask_any(arg: str) -> str:
    if match := _NAMED.match(arg):
        return f"{match[1]}={MASK}"
    arg = _INLINE.sub(rf"\1\2{MASK}", arg)
    arg = _INLINE_OPTION.sub(rf"\1\2{MASK}", arg)
    arg = _HEADER.sub(rf"\1{MASK}", arg)
    return _IN_URL.sub(rf"\1{MASK}@", arg)


_mask_short = lru_cache(maxsize=4096)(_mask_any)
"""Nodes of a pool run the same commands, and a report shows each several times."""


def printable(text: str) -> str:
    """`text` with every character that could move a cursor or change a colour escaped.

    What a node says goes to terminals, mails and pages; it is data there, never an instruction.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable()
        else char.encode("unicode_escape").decode("ascii")
        if not 0xDC80 <= ord(char) <= 0xDCFF
        else f"\\x{ord(char) - 0xDC00:02x}"
        for char in text
    )
