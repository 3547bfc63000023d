"""Login shells, noise and algorithms: whatever stands between a login and /bin/sh."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.errors import Unreachable
from gpufleet.ssh import connect
from tests.conftest import Command, spec_of
from tests.simfleet import IDLE, SGLANG, NodeSettings, SimFleet, SimNode
from tests.test_ssh import script

SHELLS = ("bash", "dash", "zsh", "fish", "tcsh")

NOISE = {
    "bash": (".bashrc", "echo '0, 99 MiB'; echo oops >&2; export PS1=x\n"),
    "zsh": (".zshenv", "echo '0, 99 MiB'; echo oops >&2\n"),
    "fish": (".config/fish/config.fish", "echo '0, 99 MiB'; echo oops >&2\n"),
    "tcsh": (".tcshrc", "echo '0, 99 MiB'\n"),
}
"""What each reads at a login without a terminal; dash reads nothing then."""


def home(node: SimNode) -> Path:
    return node.path("/run/home/root")


@pytest.fixture(scope="module", params=SHELLS)
def shelled(request: pytest.FixtureRequest) -> Iterator[tuple[str, SimFleet]]:
    """A node whose root has that login shell, with a start-up file that talks."""
    name: str = request.param
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} isn't on this machine (Debian: apt-get install {name})")
    with SimFleet(1, settings=NodeSettings(shell=path)) as fleet:
        if name in NOISE:
            file, text = NOISE[name]
            rc = home(fleet["gpu01"]) / file
            rc.parent.mkdir(parents=True, exist_ok=True)
            rc.write_text(text)
        yield name, fleet


def command(gpufleet: Command, fleet: SimFleet, *arguments: str) -> dict[str, object]:
    ran = gpufleet(*arguments, "--hosts", "gpu01", "--json", "-i", str(fleet.fleet_yaml))
    assert ran.code in {0, 3}, ran.err
    node: dict[str, object] = ran.nodes()["gpu01"]
    return node


def test_a_busy_node_is_reset_whatever_the_login_shell(
    shelled: tuple[str, SimFleet], gpufleet: Command
) -> None:
    _, fleet = shelled
    node = fleet["gpu01"]
    node.clear()
    node.start(SGLANG)

    told = command(gpufleet, fleet, "reset")

    assert "CLEAN" == told["verdict"], told
    assert told["killed"]


@pytest.fixture(scope="module")
def odd() -> Iterator[SimFleet]:
    """gpu01: chacha20 only; gpu02: a slow key exchange only; gpu03: a forced command that talks
    around the one asked for; gpu04: a locale that the node hasn't got, and text in none; gpu05: new
    keys every 16 KiB; gpu06: no cipher that seals and checks in one."""
    forced = 'ForceCommand echo "0, 77 MiB"; eval "$SSH_ORIGINAL_COMMAND"; echo "1, 77 MiB"'
    with SimFleet(
        6,
        scene=IDLE,
        overrides={
            "gpu01": NodeSettings(sshd_lines=("Ciphers chacha20-poly1305@openssh.com",)),
            "gpu02": NodeSettings(sshd_lines=("KexAlgorithms diffie-hellman-group16-sha512",)),
            "gpu03": NodeSettings(sshd_lines=(forced,)),
            "gpu05": NodeSettings(sshd_lines=("RekeyLimit 16K",)),
            "gpu06": NodeSettings(sshd_lines=("Ciphers aes128-ctr,aes256-ctr",)),
        },
    ) as fleet:
        rc = home(fleet["gpu04"]) / ".bashrc"
        rc.write_text("export LC_ALL=de_DE.ISO-8859-1 LANG=tlh; printf 'M\\374ll: 0, 9 MiB\\n'\n")
        yield fleet


def test_a_cipher_that_we_lack_is_final_and_says_what_to_allow(odd: SimFleet) -> None:
    with pytest.raises(Unreachable, match="no algorithm in common") as caught:
        connect(spec_of(odd, odd["gpu01"]))

    assert ("handshake", False) == (caught.value.stage, caught.value.transient)
    assert "aes-ctr" in caught.value.next_step


def test_the_cipher_that_costs_least_is_asked_for_first(odd: SimFleet) -> None:
    used = {}
    for name in ("gpu04", "gpu06"):
        session = connect(spec_of(odd, odd[name]))
        used[name] = session._connection.client.get_transport().remote_cipher
        session.close()

    assert used == {"gpu04": "aes128-gcm@openssh.com", "gpu06": "aes128-ctr"}


def test_new_keys_in_the_middle_of_an_answer_cost_nothing_of_it(odd: SimFleet) -> None:
    session = connect(spec_of(odd, odd["gpu05"]))
    try:
        for _ in range(5):
            answer = session.run(script("gf_text long $(seq 1 20000)"), timeout_s=60)
            assert [str(n) for n in range(1, 20001)] == answer.text("long").split()
    finally:
        session.close()


@pytest.mark.parametrize("name", ["gpu02", "gpu03", "gpu04", "gpu05", "gpu06"])
def test_odd_servers_are_read_right(odd: SimFleet, gpufleet: Command, name: str) -> None:
    ran = gpufleet("reset", "--hosts", name, "--json", "-i", str(odd.fleet_yaml))

    node = ran.nodes()[name]
    assert (0, "CLEAN") == (ran.code, node["verdict"]), node["reason"]
    assert [0] * 8 == [gpu["memory_used_mib"] for gpu in node["gpus"]]


def test_a_start_up_file_that_takes_seconds_is_waited_for(
    fleet: SimFleet, node: SimNode, gpufleet: Command
) -> None:
    rc = home(node) / ".bashrc"
    rc.write_text("sleep 3; echo '0, 55 MiB'\n")
    try:
        ran = gpufleet("status", "--hosts", "gpu01", "--json")
    finally:
        rc.unlink()

    assert "IDLE" == ran.nodes()["gpu01"]["verdict"]


@pytest.mark.parametrize("trouble", ["refused", "silent", "garbage"])
def test_the_library_stays_off_the_screen(
    fleet: SimFleet, node: SimNode, gpufleet: Command, tmp_path: Path, trouble: str
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    address, port = server.getsockname()

    peers: list[socket.socket] = []

    def answer() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            peers.append(peer)
            if trouble == "garbage":
                peer.sendall(b"SSH-2.0-x\r\n" + b"\xff" * 500)
                peer.close()

    if trouble != "refused":
        threading.Thread(target=answer, daemon=True).start()
    else:
        server.close()
    inventory = tmp_path / "fleet.yaml"
    inventory.write_text(
        "defaults: {connect_timeout: 1s}\n"
        f"hosts: {{n: {{address: {address}, port: {port}, identity_file: {fleet.identity_file}}}}}\n"
    )

    ran = gpufleet("status", "--hosts", "n", "-i", str(inventory))
    for listening in (server, *peers):
        listening.close()

    assert 3 == ran.code
    assert "" == ran.err
    assert "UNREACHABLE" in ran.out
    assert "Traceback" not in ran.out
