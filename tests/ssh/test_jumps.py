"""Jump hosts: few connections for many nodes, chains, deaths, refusals, and small sshd's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet import run
from gpufleet.dialing import Dialing, dial
from gpufleet.errors import ConnectionLost, Unreachable
from gpufleet.model import Verdict
from gpufleet.policy import Access, NodeSpec, Policy
from gpufleet.ssh import Network, lanes
from gpufleet.ssh.knownhosts import known_hosts
from tests.conftest import QUICK, spec_of
from tests.simfleet import Proc, SimFleet, SimNode
from tests.ssh.bastion import Bastion, wait_until
from tests.ssh.faultproxy import Fault, FaultProxy
from tests.test_ssh import open_descriptors, script

OTHER_USER = "nobody"
"""No password, no shell: what a jump host's account needs."""


@pytest.fixture
def known(fleet: SimFleet, tmp_path: Path) -> Path:
    """known_hosts with the fleet's nodes; tests add their bastions."""
    known_hosts.cache_clear()
    path = tmp_path / "known"
    path.write_text(fleet.known_hosts.read_text())
    return path


@pytest.fixture
def bastion(fleet: SimFleet, known: Path) -> Iterator[Bastion]:
    with Bastion(fleet.keys.authorized) as running:
        know(known, running)
        yield running


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy() as running:
        yield running


def know(known: Path, *bastions: Bastion) -> None:
    with known.open("a") as file:
        file.writelines(bastion.known_line for bastion in bastions)
    known_hosts.cache_clear()


def behind(
    fleet: SimFleet, known: Path, count: int, *hops: tuple[str, Access], **access: Any
) -> list[NodeSpec]:
    """So many names for the fleet's four nodes, each reached through `hops`."""
    nodes = list(fleet)
    names = tuple(name for name, _ in hops)
    specs = []
    for number in range(count):
        spec = spec_of(
            fleet, nodes[number % len(nodes)], jump=names, known_hosts=(str(known),), **access
        )
        specs.append(replace(spec, name=f"node{number:02d}", jump_hosts=hops))
    return specs


def hello(network: Network, spec: NodeSpec) -> str:
    session = network.connect(spec)
    try:
        return session.run(script("gf_text hello world"), timeout_s=30).text("hello")
    finally:
        session.close()


def test_nodes_share_one_connection_to_their_jump_host(
    fleet: SimFleet, bastion: Bastion, known: Path
) -> None:
    hop = ("bastion", bastion.access(fleet.identity_file, known))
    specs = behind(fleet, known, 24, hop)
    network = Network()

    with ThreadPoolExecutor(24) as pool:
        said = list(pool.map(lambda spec: hello(network, spec), specs))
    network.close()

    assert said == ["world\n"] * 24
    assert bastion.connections == 1
    assert wait_until(lambda: not bastion.processes())


def test_a_full_connection_gets_a_second_beside_it(
    fleet: SimFleet, bastion: Bastion, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "PER_CONNECTION", 3)
    hop = ("bastion", bastion.access(fleet.identity_file, known))
    network = Network()

    sessions = [network.connect(spec) for spec in behind(fleet, known, 4, hop)]
    assert bastion.connections == 2
    sessions.pop().close()
    sessions.append(network.connect(behind(fleet, known, 1, hop)[0]))
    assert bastion.connections == 2  # the place that was given back
    for session in sessions:
        session.close()
    network.close()

    assert wait_until(lambda: not bastion.processes())


def test_a_jump_connection_that_dies_ends_its_nodes_and_is_opened_again(
    fleet: SimFleet, bastion: Bastion, known: Path
) -> None:
    hop = ("bastion", bastion.access(fleet.identity_file, known))
    specs = behind(fleet, known, 4, hop)
    network = Network()
    sessions = [network.connect(spec) for spec in specs]
    ended: list[BaseException] = []

    def wait(session: Any) -> None:
        try:
            session.run(script("sleep 60"), timeout_s=90)
        except ConnectionLost as error:
            ended.append(error)

    threads = [threading.Thread(target=wait, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    bastion.kill_connections()
    for thread in threads:
        thread.join(30)
    for session in sessions:
        session.close()
    assert len(ended) == 4

    assert [hello(network, spec) for spec in specs] == ["world\n"] * 4
    assert bastion.connections == 2
    network.close()
    assert wait_until(lambda: not bastion.processes())


def test_a_jump_host_that_worked_and_is_restarted_is_only_away(
    fleet: SimFleet, bastion: Bastion, known: Path
) -> None:
    spec = behind(fleet, known, 1, ("bastion", bastion.access(fleet.identity_file, known)))[0]
    network = Network()
    assert hello(network, spec) == "world\n"

    bastion.stop()
    errors: list[Unreachable] = []

    def refused() -> bool:
        """At first it may only be seen that the connection ended."""
        with pytest.raises(Unreachable) as caught:
            hello(network, spec)
        errors.append(caught.value)
        return caught.value.reason.startswith("jump host bastion: connection refused")

    assert wait_until(refused)
    assert all(error.transient for error in errors)
    bastion.start()

    assert hello(network, spec) == "world\n"
    network.close()


def test_a_chain_of_two_with_a_user_for_each(
    fleet: SimFleet, bastion: Bastion, known: Path
) -> None:
    with Bastion(fleet.keys.authorized) as inner:
        inner.folder.chmod(0o755)  # sshd reads the keys as the user
        know(known, inner)
        hops = (
            ("bastion", bastion.access(fleet.identity_file, known)),
            ("inner", inner.access(fleet.identity_file, known, user=OTHER_USER)),
        )
        specs = behind(fleet, known, 8, *hops)
        network = Network()

        with ThreadPoolExecutor(8) as pool:
            said = list(pool.map(lambda spec: hello(network, spec), specs))
        network.close()

        assert said == ["world\n"] * 8
        assert (bastion.logins, inner.logins) == (["root"], [OTHER_USER])
        assert wait_until(lambda: not inner.processes() and not bastion.processes())


def test_a_login_that_a_jump_host_refuses_is_tried_once_and_named(
    fleet: SimFleet, known: Path
) -> None:
    with Bastion("") as bastion:
        know(known, bastion)
        hop = ("bastion", bastion.access(fleet.identity_file, known))
        specs = behind(fleet, known, 12, hop)

        report = run.status(specs, parallel=12)

        assert {node.verdict for node in report.nodes} == {Verdict.UNREACHABLE}
        assert {node.stage for node in report.nodes} == {"authentication"}
        assert all(node.reason.startswith("jump host bastion: ") for node in report.nodes)
        assert bastion.connections == 1


def test_jump_hosts_are_held_to_the_same_host_key_policy(
    fleet: SimFleet, bastion: Bastion, known: Path
) -> None:
    known.write_text(fleet.known_hosts.read_text())
    known_hosts.cache_clear()
    hop = ("bastion", bastion.access(fleet.identity_file, known))

    with pytest.raises(Unreachable, match="jump host bastion: host key not known") as caught:
        hello(Network(), behind(fleet, known, 1, hop)[0])

    assert caught.value.stage == "host-key"
    assert bastion.logins == []


def test_a_node_that_a_jump_host_cannot_reach_is_told_as_that(
    fleet: SimFleet, node: SimNode, bastion: Bastion, known: Path
) -> None:
    node.stop_sshd()
    hop = ("bastion", bastion.access(fleet.identity_file, known))
    spec = behind(fleet, known, 1, hop)[0]

    with pytest.raises(Unreachable, match=r"cannot reach .*Connect failed") as caught:
        hello(Network(), spec)

    assert caught.value.stage == "connect"
    assert not caught.value.transient


def test_a_jump_host_that_forbids_forwarding_is_told_as_that(fleet: SimFleet, known: Path) -> None:
    with Bastion(fleet.keys.authorized, ["AllowTcpForwarding no"]) as bastion:
        know(known, bastion)
        hop = ("bastion", bastion.access(fleet.identity_file, known))

        with pytest.raises(Unreachable, match="Administratively prohibited") as caught:
            hello(Network(), behind(fleet, known, 1, hop)[0])

    assert not caught.value.transient


def test_silent_nodes_behind_a_jump_host_keep_no_place_from_the_others(
    fleet: SimFleet, node: SimNode, bastion: Bastion, known: Path
) -> None:
    """Twelve that accept and stay silent, more than logins go through one connection at once."""
    node.freeze_sshd()
    hop = ("bastion", bastion.access(fleet.identity_file, known, connect_timeout_s=10.0))
    specs = behind(fleet, known, 48, hop, connect_timeout_s=60.0)
    silent, lively = specs[::4], [spec for spec in specs if spec not in specs[::4]]
    network = Network()
    hanging = ThreadPoolExecutor(12)
    for spec in silent:
        hanging.submit(network.connect, spec)
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(hello, network, spec) for spec in lively]
            said = [answer.result(45) for answer in answers]  # before the silent ones give up
    finally:
        network.close()
        hanging.shutdown()

    assert said == ["world\n"] * 36


def test_c08_sixty_nodes_behind_one_default_sshd_all_end_clean(
    fleet: SimFleet, known: Path
) -> None:
    """Four real nodes, each busy and reset; then sixty names for them, looked at all at once."""
    with Bastion(fleet.keys.authorized, ["MaxStartups 10:30:100"]) as bastion:
        know(known, bastion)
        hop = ("bastion", bastion.access(fleet.identity_file, known))
        for node in fleet:
            node.start((Proc("w", ("python3", "-m", "sglang.launch_server"), memory={0: 900}),))
        reset = run.reset(behind(fleet, known, 4, hop))
        looked = run.check(behind(fleet, known, 60, hop))

        assert [node.verdict for node in reset.nodes] == [Verdict.CLEAN] * 4
        assert sum(len(node.killed) for node in reset.nodes) == 4
        assert {(n.verdict, n.reason) for n in looked.nodes} == {(Verdict.READY, "")}
        assert bastion.connections <= 3  # one for each run, and one more for its last ten nodes


def test_one_small_sshd_under_sixty_names_lets_all_of_them_in(fleet: SimFleet, known: Path) -> None:
    """MaxStartups 3:50:10 drops at random from the fourth login on."""
    with Bastion(fleet.keys.authorized, ["MaxStartups 3:50:10"]) as small:
        know(known, small)
        access = small.access(fleet.identity_file, known)
        specs = [NodeSpec(f"node{n:02d}", access, Policy(limits=QUICK)) for n in range(60)]
        network = Network()

        def log_in(spec: NodeSpec) -> None:
            dial(lambda: network.connect(spec), spec.access, Dialing(300)).close()

        with ThreadPoolExecutor(60) as pool:
            list(pool.map(log_in, specs))
        network.close()

        assert len(small.logins) == 60
        assert wait_until(lambda: not small.processes())


def relay(fleet: SimFleet, tmp_path: Path, says: str = "") -> str:
    """A ProxyCommand in Python: standard input and output to %h %p."""
    program = tmp_path / "relay.py"
    program.write_text(
        "import os, socket, sys, threading\n"
        f"sys.stderr.write({says!r}); sys.stderr.flush()\n"
        "if len(sys.argv) < 3: sys.exit(1)\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "    s.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    return f"/usr/bin/env python3 {program}"


def by_command(fleet: SimFleet, node: SimNode, tmp_path: Path, command: str) -> NodeSpec:
    config = tmp_path / "config"
    config.write_text(f"Host *\n  ProxyCommand {command}\n")
    return spec_of(fleet, node, ssh_config=(str(config),))


def children() -> list[str]:
    """This process's, zombies among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text(errors="replace").rpartition(")")  # a name is any bytes
        except OSError:
            continue
        if int(rest.split()[1]) == os.getpid():
            found.append(f"{head}) {rest.split()[0]}")
    return sorted(found)


def test_proxy_commands_work_and_leave_nothing(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    spec = by_command(fleet, node, tmp_path, f"{relay(fleet, tmp_path)} %h %p")
    assert hello(Network(), spec) == "world\n"
    before, descriptors = children(), open_descriptors()

    for _ in range(3):
        assert hello(Network(), spec) == "world\n"
    with ThreadPoolExecutor(12) as pool:
        network = Network()
        said = list(pool.map(lambda _: hello(network, spec), range(24)))

    assert said == ["world\n"] * 24
    assert children() == before
    assert wait_until(lambda: open_descriptors() <= descriptors)


def test_what_a_failing_proxy_command_says_stands_in_the_error_and_nowhere_else(
    fleet: SimFleet, node: SimNode, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = by_command(fleet, node, tmp_path, relay(fleet, tmp_path, "no route to the moon\n"))
    before = children()

    with pytest.raises(Unreachable, match="ProxyCommand said: no route to the moon") as caught:
        hello(Network(), spec)

    assert caught.value.stage == "handshake"
    assert children() == before
    assert capfd.readouterr() == ("", "")


def test_a_proxy_command_that_hangs_is_ended(
    fleet: SimFleet, node: SimNode, tmp_path: Path
) -> None:
    spec = by_command(fleet, node, tmp_path, "sleep 4711")
    spec = replace(spec, access=replace(spec.access, connect_timeout_s=1.0))
    before = children()

    with pytest.raises(Unreachable, match="no answer during the SSH handshake") as caught:
        hello(Network(), spec)

    assert caught.value.transient
    assert children() == before


def silent_nodes(proxy: FaultProxy, count: int) -> str:
    """Entries of fleet.yaml: nodes that accept and say nothing."""
    lines = []
    for number in range(count):
        address = f"127.250.0.{number + 1}"
        port = proxy.place(address, Fault("silent"), ("", 0))
        lines.append(f"  node{number:02d}: {{address: {address}, port: {port}}}\n")
    return "".join(lines)


@pytest.mark.parametrize("silent", ["nodes", "bastion"])
def test_an_interrupt_while_sixty_connect_through_a_jump_host_ends_with_a_report(
    silent: str, fleet: SimFleet, bastion: Bastion, known: Path, tmp_path: Path, proxy: FaultProxy
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        f"defaults:\n  identity_file: {fleet.identity_file}\n  known_hosts: {known}\n"
        "  jump: bastion\n  connect_timeout: 100s\n"
        f"jump_hosts:\n  bastion: {{address: {bastion.address}, port: {bastion.port}}}\n"
        f"hosts:\n{silent_nodes(proxy, 60)}"
    )
    path.chmod(0o600)
    if silent == "bastion":
        bastion.freeze()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "gpufleet", "reset", "--hosts", "all", "--yes", "--json"),
            *("-i", str(path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        if silent == "nodes":
            assert wait_until(lambda: bastion.connections == 2)  # sixty nodes: fifty on one
        else:
            assert wait_until(lambda: connected_to(bastion.address))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)  # far below connect_timeout

    assert process.returncode == 130
    assert {node["verdict"] for node in json.loads(out)["nodes"]} == {"NOT STARTED"}
    assert len(json.loads(out)["nodes"]) == 60
    assert "Traceback" not in err
    bastion.thaw()
    assert wait_until(lambda: not bastion.processes())


def connected_to(address: str) -> bool:
    host = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].startswith(host) and row[3] == "01" for row in rows)


def test_a_cut_ends_logins_under_way_and_what_must_run_anyway_still_may(
    fleet: SimFleet, node: SimNode, bastion: Bastion, known: Path
) -> None:
    hop = ("bastion", bastion.access(fleet.identity_file, known))
    spec, silent = behind(fleet, known, 2, hop, connect_timeout_s=120.0)
    network = Network()
    other = fleet["gpu02"]
    other.freeze_sshd()
    last_words = network.connect(spec)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(network.connect, silent)
        assert wait_until(lambda: len(network._under_way) == 1)
        network.cut()
        assert isinstance(waiting.exception(60), Unreachable)

    with pytest.raises(Unreachable, match="the run was stopped"):
        network.connect(spec)
    assert last_words.run(script("gf_text hello world"), timeout_s=30).text("hello") == "world\n"
    last_words.close()
    network.connect(spec, anyway=True).close()
    assert bastion.connections == 1
    network.close()
    assert wait_until(lambda: not bastion.processes())
