"""What the tests of SSH share: scripts of their own, and a store of host keys that starts empty."""

from __future__ import annotations

import pytest

from gpufleet.ssh import keys
from gpufleet.ssh.agent import agent_keys
from gpufleet.ssh.knownhosts import known_hosts, revoked_keys


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """As in a new process: nothing is kept of known_hosts, keys and agents."""
    known_hosts.cache_clear()
    revoked_keys.cache_clear()
    agent_keys.cache_clear()
    keys.forget()
