"""Connections that are begun before they are asked for: one login each, and none left behind."""

from __future__ import annotations

import pytest

from gpufleet.errors import Unreachable
from gpufleet.ssh import Network
from tests.conftest import Command, spec_of
from tests.simfleet import SimFleet, SimNode
from tests.ssh.bastion import wait_until
from tests.test_ssh import script


def logins(node: SimNode) -> int:
    return node.path("/run/simnode/state/sshd.log").read_text().count("Accepted publickey")


def sessions(node: SimNode) -> int:
    """sshd's of connections, beside the one that listens."""
    return sum(b"sshd" in p.comm for p in node.processes()) - 1


@pytest.mark.parametrize("command", ["status", "reset"])
def test_a_run_logs_in_once(
    fleet: SimFleet, node: SimNode, gpufleet: Command, command: str
) -> None:
    before = [logins(each) for each in fleet]

    assert gpufleet(command, "--hosts", "all", "--yes" if command == "reset" else "-v").code == 0
    assert [logins(each) for each in fleet] == [count + 1 for count in before]


def test_only_what_the_first_batch_takes_is_begun(
    fleet: SimFleet, node: SimNode, gpufleet: Command
) -> None:
    node.fault("missing3")
    before = [logins(each) for each in fleet]

    ran = gpufleet("reset", "-H", "all", "--yes", "--batch", "1", "--max-failures", "0", "--json")

    assert ran.nodes()["gpu01"]["verdict"] != "CLEAN"
    assert [logins(each) - old for each, old in zip(fleet, before, strict=True)] == [1, 0, 0, 0]


def test_what_was_begun_is_taken_once_and_the_rest_is_ended(fleet: SimFleet, node: SimNode) -> None:
    other = fleet["gpu02"]
    specs = [spec_of(fleet, node), spec_of(fleet, other)]
    network = Network()
    before = logins(node)
    network.begin(specs)

    first, second = network.connect(specs[0]), network.connect(specs[0])
    assert first.run(script("gf_text hello world"), timeout_s=30).text("hello") == "world\n"
    assert logins(node) == before + 2
    first.close()
    second.close()
    assert wait_until(lambda: sessions(other) > 0)
    network.close()

    assert wait_until(lambda: sessions(other) == 0 and sessions(node) == 0)


def test_one_that_failed_raises_where_it_is_taken_and_the_next_try_is_new(
    fleet: SimFleet, node: SimNode
) -> None:
    spec = spec_of(fleet, node)
    network = Network()
    node.stop_sshd()
    network.begin([spec])

    with pytest.raises(Unreachable, match="refused"):
        network.connect(spec)
    node.start_sshd()
    network.connect(spec).close()
    network.close()


def test_after_a_stop_nobody_gets_one(fleet: SimFleet, node: SimNode) -> None:
    spec = spec_of(fleet, node)
    network = Network()
    network.begin([spec])
    assert wait_until(lambda: sessions(node) > 0)
    network.cut()

    with pytest.raises(Unreachable):
        network.connect(spec)
    network.connect(spec, anyway=True).close()
    network.close()
    assert wait_until(lambda: sessions(node) == 0)
