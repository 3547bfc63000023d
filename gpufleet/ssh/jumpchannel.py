"""A channel through a jump host that keeps its order: nothing is sent on it once it is closed.

paramiko sends data after it has let go of the channel's lock, so that the last packet of one node can
pass behind its channel's end. OpenSSH takes that for an attack and ends the whole connection
("data packet referred to nonexistent channel"), and with it all nodes behind that jump host.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE

_PATIENCE_S = 1.0
"""For a sender that waits itself (new keys are being agreed on): closing goes on without it."""


class JumpChannel(paramiko.Channel):
    """Sending and closing exclude each other."""

    order: threading.Lock

    @classmethod
    def of(cls, channel: paramiko.Channel) -> JumpChannel:
        """`channel` itself, of this kind from now on: paramiko makes its channels without asking."""
        channel.order = threading.Lock()  # type: ignore[attr-defined]
        channel.__class__ = cls
        assert isinstance(channel, cls)
        return channel

    def _send(self, data: Any, message: Any) -> Any:  # noqa: ANN401  # paramiko's types
        with self.order:
            return super()._send(data, message)  # type: ignore[misc]

    def close(self) -> None:
        with in_order(self):
            super().close()


@contextlib.contextmanager
def in_order(channel: paramiko.Channel) -> Iterator[None]:
    order: threading.Lock | None = getattr(channel, "order", None)
    taken = order is not None and order.acquire(timeout=_PATIENCE_S)
    try:
        yield
    finally:
        if order is not None and taken:
            order.release()


def _closed_by_the_other_side(channel: Any, message: Any) -> None:  # noqa: ANN401  # as above
    with in_order(channel):
        paramiko.Channel._handle_close(channel, message)  # type: ignore[attr-defined]  # noqa: SLF001


HANDLERS = {
    **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001
    MSG_CHANNEL_CLOSE: _closed_by_the_other_side,
}
"""For a transport whose channels are of this kind."""
