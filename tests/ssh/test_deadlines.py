"""Each stage of a connection has its limit, and says which it was. Links are cut in namespaces."""

from __future__ import annotations

import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from gpufleet.errors import ConnectionLost, Unreachable
from gpufleet.policy import NodeSpec
from gpufleet.ssh import Network, connect, connection
from gpufleet.ssh.jumpchannel import JumpChannel
from gpufleet.ssh.knownhosts import known_hosts
from gpufleet.ssh.watchdog import Watchdog
from tests.conftest import spec_of
from tests.simfleet import SimFleet, SimNode
from tests.ssh.bastion import Bastion, keygen, wait_until
from tests.ssh.faultproxy import Fault, FaultProxy
from tests.test_ssh import script

ADDRESS = "127.252.0.1"
LOGIN_BEGINS = 1730
"""Bytes of the server's: behind its new keys, before its word on the login. Found by trying: earlier
ones end in the handshake or the login, as the threads meet."""


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy() as running:
        yield running


def failing(fleet: SimFleet, node: SimNode, proxy: FaultProxy, fault: Fault) -> NodeSpec:
    port = proxy.place(ADDRESS, fault, (node.address, node.port))
    known_hosts.cache_clear()
    spec = spec_of(fleet, node, port=port, host_keys="off", connect_timeout_s=1.0)
    return replace(spec, access=replace(spec.access, address=ADDRESS))


def failure(spec: NodeSpec) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        connect(spec)
    return caught.value


def test_a_resolver_that_never_answers_ends_at_stage_dns(
    fleet: SimFleet, node: SimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    real = socket.getaddrinfo

    def silent(host: Any, *rest: Any, **more: Any) -> Any:
        if more.get("flags"):
            return real(host, *rest, **more)
        released.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "late")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    spec = spec_of(fleet, node, connect_timeout_s=0.5)

    error = failure(replace(spec, access=replace(spec.access, address="node.example")))
    released.set()

    assert (error.stage, error.transient) == ("dns", True)
    assert "the resolver gave no answer in 0.5 s" in error.reason


@pytest.mark.parametrize(
    ("fault", "stage", "said"),
    [
        (Fault("silent"), "handshake", "sshd says nothing"),
        (Fault("crumbs"), "handshake", "no answer during the SSH handshake"),
        (Fault("garbage"), "handshake", ""),
        (Fault("stall", 10), "handshake", "no answer during the SSH handshake"),
        (Fault("stall", 200), "handshake", "no answer during the SSH handshake"),
        (Fault("cut", 200), "handshake", "the server dropped the connection"),
        (Fault("reset", 200), "handshake", "the server dropped the connection"),
    ],
)
def test_a_handshake_that_stands_still_or_breaks_ends_at_stage_handshake(
    fault: Fault, stage: str, said: str, fleet: SimFleet, node: SimNode, proxy: FaultProxy
) -> None:
    error = failure(failing(fleet, node, proxy, fault))

    assert (error.stage, error.transient) == (stage, True)
    assert said in error.reason


@pytest.mark.parametrize(
    ("kind", "said"), [("stall", "no answer to the login"), ("cut", "was lost during the login")]
)
def test_a_login_that_stands_still_or_breaks_ends_at_stage_authentication(
    kind: Any,
    said: str,
    fleet: SimFleet,
    node: SimNode,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "AUTH_S", 1.0)
    error = failure(failing(fleet, node, proxy, Fault(kind, LOGIN_BEGINS)))

    assert (error.stage, error.transient) == ("authentication", True)
    assert said in error.reason


@pytest.mark.parametrize("after", range(1480, 1740, 20))
def test_a_connection_that_is_cut_around_the_login_is_never_taken_for_a_refusal(
    after: int, fleet: SimFleet, node: SimNode, proxy: FaultProxy
) -> None:
    """A refusal is final: nobody would try again."""
    error = failure(failing(fleet, node, proxy, Fault("cut", after)))

    assert error.stage in {"handshake", "authentication"}
    assert error.transient, error.reason


class Deaf(paramiko.ServerInterface):
    """Lets everybody in, and then stands still where it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.over = threading.Event()

    def get_allowed_auths(self, _username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, _username: str, _key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, _kind: str, _chanid: int) -> int:
        if self.where == "channel":
            self.over.wait(60)
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, _channel: paramiko.Channel, _command: bytes) -> bool:
        if self.where == "exec":
            self.over.wait(60)
        return True


@pytest.mark.parametrize(
    ("where", "said"),
    [("channel", "sshd opens no session"), ("exec", "sshd started no shell: no answer in 1 s")],
)
def test_an_sshd_that_lets_us_in_and_starts_nothing_ends_at_stage_channel(
    where: str, said: str, fleet: SimFleet, node: SimNode
) -> None:
    listener = socket.create_server((ADDRESS, 0))
    deaf = Deaf(where)
    transports: list[paramiko.Transport] = []

    def serve() -> None:
        transport = paramiko.Transport(listener.accept()[0])
        transports.append(transport)
        transport.add_server_key(paramiko.ECDSAKey.generate())
        transport.start_server(server=deaf)

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    spec = spec_of(fleet, node, port=port, host_keys="off", connect_timeout_s=1.0)
    session = connect(replace(spec, access=replace(spec.access, address=ADDRESS)))

    with pytest.raises(Unreachable, match=said) as caught:
        session.run(replace(script("gf_text a b"), silence_s=1.0), timeout_s=50)
    session.close()
    deaf.over.set()
    listener.close()
    for transport in transports:
        transport.close()
        transport.join(10)

    assert (caught.value.stage, caught.value.transient) == ("channel", True)


class Namespaces:
    """Machines of their own, in a row: this one, m1, m2 …, each with links to its neighbours only."""

    def __init__(self, count: int) -> None:
        self.tag = secrets.token_hex(3)
        self.net = f"10.251.{secrets.randbelow(250)}"
        self.count = count

    def name(self, number: int) -> str:
        return f"gf{self.tag}{number}"

    def address(self, number: int) -> str:
        """Of machine `number`, as its left neighbour sees it."""
        return f"{self.net}.{4 * number + 2}"

    def left(self, number: int) -> str:
        """The address of its left neighbour on their link."""
        return f"{self.net}.{4 * number + 1}"

    def inside(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", self.name(number)] if number else []

    def ip(self, number: int, command: str) -> None:
        subprocess.run([*self.inside(number), "ip", *command.split()], check=True)

    def __enter__(self) -> Namespaces:  # noqa: PYI034
        for number in range(1, self.count + 1):
            self.ip(0, f"netns add {self.name(number)}")
            self.ip(number, "link set lo up")
            near, far = f"gn{self.tag}{number}", f"gf{self.tag}{number}"
            self.ip(0, f"link add {near} type veth peer name {far}")
            self.ip(0, f"link set {far} netns {self.name(number)}")
            if number > 1:
                self.ip(0, f"link set {near} netns {self.name(number - 1)}")
            self.ip(number - 1, f"addr add {self.left(number)}/30 dev {near}")
            self.ip(number - 1, f"link set {near} up")
            self.ip(number, f"addr add {self.address(number)}/30 dev {far}")
            self.ip(number, f"link set {far} up")
        return self

    def cut(self, number: int) -> None:
        """Nothing passes between machine `number` and its left neighbour any more."""
        self.ip(number, f"link set {self.name(number)} down")

    def deafen(self, number: int) -> None:
        """It gets what its left neighbour sends, and its answers go nowhere."""
        self.ip(number, f"addr del {self.address(number)}/30 dev {self.name(number)}")
        self.ip(number, f"addr add {self.address(number)}/32 dev {self.name(number)}")
        self.ip(number, f"route add blackhole {self.left(number)}")

    def __exit__(self, *_: object) -> None:
        for number in range(1, self.count + 1):
            subprocess.run(["ip", "netns", "del", self.name(number)], check=False)


class Row:
    """An sshd on each machine of a row; the last is the node, the others lead to it."""

    def __init__(self, count: int, folder: Path, stack: ExitStack) -> None:
        self.key, self.known = folder / "key", folder / "known"
        public = keygen(self.key)
        self.machines = stack.enter_context(Namespaces(count))
        self.sshds = []
        for number in range(1, count + 1):
            sshd = Bastion(
                public,
                address=self.machines.address(number),
                port=22022,
                run_in=self.machines.inside(number),
            )
            self.sshds.append(stack.enter_context(sshd))
            assert wait_until(lambda one=sshd: "Server listening" in one.log)
        self.known.write_text("".join(sshd.known_line for sshd in self.sshds))
        known_hosts.cache_clear()

    def spec(self, **access: Any) -> NodeSpec:
        *hops, node = [sshd.access(self.key, self.known, **access) for sshd in self.sshds]
        named = tuple((f"bastion{number}", hop) for number, hop in enumerate(hops, 1))
        node = replace(node, jump=tuple(name for name, _ in named))
        return NodeSpec("node", node, jump_hosts=named)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def test_a_node_behind_two_jump_hosts_that_nobody_else_reaches(
    tmp_path: Path, stack: ExitStack
) -> None:
    row = Row(3, tmp_path, stack)
    spec = row.spec(connect_timeout_s=5.0)
    network = Network()
    stack.callback(network.close)

    with pytest.raises(Unreachable):
        connect(replace(spec, access=replace(spec.access, jump=()), jump_hosts=()))
    session = network.connect(spec)
    answer = session.run(script("gf_text hello world"), timeout_s=30)
    session.close()

    assert answer.text("hello") == "world\n"
    assert [sshd.connections for sshd in row.sshds] == [1, 1, 1]


def test_an_address_that_swallows_everything_ends_at_stage_connect(
    tmp_path: Path, stack: ExitStack
) -> None:
    row = Row(1, tmp_path, stack)
    row.machines.deafen(1)

    error = failure(row.spec(connect_timeout_s=1.0))

    assert (error.stage, error.transient) == ("connect", True)
    assert "no answer from" in error.reason


@pytest.mark.parametrize("length", [1, 2])
def test_a_link_that_is_cut_in_mid_command_is_noticed_by_the_silence(
    length: int, tmp_path: Path, stack: ExitStack
) -> None:
    row = Row(length, tmp_path, stack)
    network = Network()
    stack.callback(network.close)
    session = network.connect(row.spec(connect_timeout_s=5.0))
    beats: list[str] = []

    def cut(text: str) -> None:
        if not beats:
            row.machines.cut(length)
        beats.append(text)

    body = "while :; do gf_mark beat on; sleep 0.2; done"
    with pytest.raises(ConnectionLost, match="no sign of life for 2 s"):
        session.run(replace(script(body), silence_s=2.0), timeout_s=300, beat=cut)
    session.close()

    assert beats


def test_a_lost_jump_host_ends_at_its_name(tmp_path: Path, stack: ExitStack) -> None:
    row = Row(2, tmp_path, stack)
    row.machines.cut(1)

    error = failure(row.spec(connect_timeout_s=1.0))

    assert error.stage == "connect"
    assert error.reason.startswith("jump host bastion1: ")


def test_one_expiry_that_takes_its_time_or_fails_holds_up_no_other() -> None:
    watchdog = Watchdog()
    release, second = threading.Event(), threading.Event()

    def slow() -> None:
        release.wait(30)
        raise OSError

    with watchdog.watch(0.01, slow), watchdog.watch(0.05, second.set) as watch:
        assert second.wait(20)
    release.set()

    assert watch.expired


def test_a_watch_that_is_over_lets_go_of_what_it_watched() -> None:
    watchdog = Watchdog()
    called = threading.Event()

    with watchdog.watch(0.05, called.set) as watch:
        pass
    with watchdog.watch(0.2, lambda: None) as later:
        assert wait_until(lambda: later.expired)

    assert watch._expire is None
    assert not called.is_set()


def test_nothing_is_sent_on_a_channel_through_a_jump_host_after_its_end() -> None:
    """OpenSSH would end the whole connection, with all other nodes behind it."""
    sent: list[int] = []
    held, go_on = threading.Event(), threading.Event()

    class Wire:
        active = True

        def get_log_channel(self) -> str:
            return "wire"

        def _send_user_message(self, message: paramiko.Message) -> None:
            kind = message.asbytes()[0]
            if kind == paramiko.common.MSG_CHANNEL_DATA:
                held.set()
                go_on.wait(30)
            sent.append(kind)

        def _sanitize_packet_size(self, size: int) -> int:
            return size

        def _sanitize_window_size(self, size: int) -> int:
            return size

        def _unlink_channel(self, _chanid: int) -> None: ...

    channel = paramiko.Channel(1)
    channel._set_transport(Wire())
    channel._set_window(1 << 20, 1 << 15)
    channel._set_remote_channel(7, 1 << 20, 1 << 15)
    through = JumpChannel.of(channel)

    sending = threading.Thread(target=through.send, args=(b"last words",))
    sending.start()
    assert held.wait(30)
    closing = threading.Thread(target=through.close)
    closing.start()
    closing.join(0.2)
    go_on.set()
    sending.join(30)
    closing.join(30)

    assert sent[0] == paramiko.common.MSG_CHANNEL_DATA
    assert sent[-1] == paramiko.common.MSG_CHANNEL_CLOSE
