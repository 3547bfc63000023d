"""Text → HTML: the only way by which anything gets into a page."""

from __future__ import annotations

from html import escape

from gpufleet.masking import printable


def html(text: object) -> str:
    """Control characters escaped first, then all that HTML could take for its own, quotes too."""
    return escape(printable(str(text)), quote=True)
