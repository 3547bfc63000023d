"""SSH: the only code that imports fabric and paramiko. Everything else sees `transport.Transport`.

The two are loaded when a first connection is made: by then nodes have been spoken to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpufleet.policy import NodeSpec
from gpufleet.ssh.lanes import Hops as Way
from gpufleet.ssh.network import Network

if TYPE_CHECKING:
    from gpufleet.ssh.session import Session

__all__ = ["Network", "Way", "connect"]


def connect(spec: NodeSpec) -> Session:
    """A session to one node with connections of its own: for a run over many, share a `Network`."""
    network = Network()
    session = network.connect(spec)
    session.also_close(network)
    return session
