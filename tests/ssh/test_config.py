"""OpenSSH's configuration files: the same outcome as `ssh -G`, fleet.yaml over it, nothing for free."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.errors import Unreachable, UsageError
from gpufleet.policy import Access, NodeSpec
from gpufleet.ssh import Network
from gpufleet.ssh.route import route
from gpufleet.ssh.target import Target
from tests.conftest import Command
from tests.simfleet import SimFleet

HOME = os.path.expanduser("~")

SNIPPETS = {
    "nothing for this host": "Host other\n User x\n Port 9\n",
    "host name": "Host gpu01\n HostName 192.0.2.1\n",
    "host name with a token": "Host gpu*\n HostName %h.example.com\n",
    "user and port": "Host gpu01\n User ops\n Port 2222\n",
    "pattern": "Host gpu*\n User ops\n",
    "one character": "Host gpu0?\n User ops\n",
    "several patterns": "Host cpu* gpu01\n User ops\n",
    "negated pattern": "Host gpu* !gpu01\n User ops\nHost *\n Port 23\n",
    "first one wins": "Host gpu01\n Port 1\nHost *\n Port 2\n User late\n",
    "before any Host": "User early\nHost gpu01\n User late\n",
    "equals sign": "Host=gpu01\n User=ops\n Port = 24\n",
    "upper case": "HOST gpu01\n USER ops\n pOrT 25\n",
    "quotes": 'Host "gpu01"\n User "ops"\n IdentityFile "~/.ssh/a key"\n',
    "comments and blanks": "# x\n\n  Host gpu01\n\t# y\n\tPort\t26\n",
    "match host": "Match host gpu01\n User m\n",
    "match host after HostName": "Host gpu01\n HostName 10.0.0.1\nMatch host 10.0.*\n User m\n",
    "match original host": "Host gpu01\n HostName 10.0.0.1\nMatch originalhost gpu*\n User m\n",
    "match user": "Host gpu01\n User ops\nMatch user ops\n Port 27\n",
    "match local user": "Match localuser nobody-here\n Port 28\nMatch all\n Port 29\n",
    "match negated": "Match !host gpu01\n Port 30\nMatch all\n Port 31\n",
    "match exec true": "Match exec true\n Port 32\n",
    "match exec false": "Match exec false\n Port 33\n",
    "match final": "Match final host gpu01\n Port 34\n",
    "identity files in order": "Host *\n IdentityFile ~/.ssh/one\nHost gpu01\n IdentityFile ~/.ssh/two\n",
    "identity file none": "Host gpu01\n IdentityFile none\n",
    "identities only": "Host gpu01\n IdentitiesOnly yes\n IdentityFile /k/one\n",
    "certificate": "Host gpu01\n IdentityFile /k/one\n CertificateFile /k/one-cert.pub\n",
    "agent": "Host gpu01\n IdentityAgent /run/agent.sock\n",
    "no agent": "Host gpu01\n IdentityAgent none\n",
    "strict yes": "Host gpu01\n StrictHostKeyChecking yes\n",
    "strict ask": "Host gpu01\n StrictHostKeyChecking ask\n",
    "strict no": "Host gpu01\n StrictHostKeyChecking no\n",
    "strict off": "Host gpu01\n StrictHostKeyChecking off\n",
    "strict accept-new": "Host gpu01\n StrictHostKeyChecking accept-new\n",
    "host key alias": "Host gpu01\n HostKeyAlias the-node\n",
    "known hosts": "Host gpu01\n UserKnownHostsFile /k/one /k/two\n",
    "known hosts in home": "Host gpu01\n UserKnownHostsFile ~/.ssh/fleet_hosts\n",
    "system known hosts": "Host gpu01\n GlobalKnownHostsFile /k/sys1 /k/sys2\n",
    "jump": "Host gpu01\n ProxyJump bastion\n",
    "jump none": "Host gpu01\n ProxyJump none\nHost *\n ProxyJump bastion\n",
    "jump with user and port": "Host gpu01\n ProxyJump ops@bastion:2200\n",
    "jump as a URI": "Host gpu01\n ProxyJump ssh://ops@bastion:2200\n",
    "jump by IPv6": "Host gpu01\n ProxyJump ops@[2001:db8::1]:2200\n",
    "jump chain": "Host gpu01\n ProxyJump a@first,second:23\n",
    "proxy command": "Host gpu01\n ProxyCommand nc gate 22\n",
    "proxy command none": "Host gpu01\n ProxyCommand none\nHost *\n ProxyCommand nc gate 22\n",
    "jump before command": "Host gpu01\n ProxyJump bastion\n ProxyCommand nc gate 22\n",
    "family": "Host gpu01\n AddressFamily inet6\n",
    "bind address": "Host gpu01\n BindAddress 127.0.0.9\n",
    "connect timeout": "Host gpu01\n ConnectTimeout 7\n",
    "include": "Include {folder}/extra.conf\nHost *\n Port 35\n",
    "include by pattern": "Include {folder}/e*.conf\n",
    "include nested": "Include {folder}/nest.conf\n",
    "include in a block that doesn't match": "Host other\n Include {folder}/extra.conf\n",
    "include of nothing": "Include {folder}/none-*.conf\nHost gpu01\n User ops\n",
}

CHECKING = {"true": "strict", "ask": "strict", "false": "off", "accept-new": "accept-new"}


def openssh(*arguments: str) -> dict[str, list[str]]:
    """What OpenSSH itself makes of it."""
    done = subprocess.run(
        ["ssh", "-T", "-G", *arguments], capture_output=True, text=True, check=True
    )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


def files(said: dict[str, list[str]], key: str) -> tuple[str, ...]:
    """Paths as OpenSSH opens them, () where they are its defaults."""
    if said.get(key) == openssh("-F", "none", "host").get(key):
        return ()
    paths = [path.strip('"') for path in said.get(key, ()) if path != "none"]
    if key.endswith("hostsfile"):
        paths = [path for text in paths for path in text.split()]
    return tuple(path.replace("~", HOME, 1) if path.startswith("~") else path for path in paths)


def resolved(config: Path, name: str = "gpu01", **access: object) -> tuple[Target, ...]:
    settings = Access(name, ssh_config=(str(config),))
    return route(NodeSpec(name, replace(settings, **access)))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "extra.conf").write_text("Host gpu01\n User included\n Port 36\n")
    (tmp_path / "nest.conf").write_text(f"Include {tmp_path}/extra.conf\n")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "config"
    path.write_text(text.replace("{folder}", str(folder)))
    return path


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_outcome_is_that_of_ssh(name: str, folder: Path) -> None:
    config = write(folder, SNIPPETS[name])
    said = openssh("-F", str(config), "gpu01")

    *hops, node = resolved(config)

    access = node.access
    assert access.address == said["hostname"][0]
    assert (access.user, str(access.port)) == (said["user"][0], said["port"][0])
    assert access.host_keys == CHECKING[said["stricthostkeychecking"][0]]
    assert node.host_key_alias == said.get("hostkeyalias", [""])[0]
    assert node.identities == files(said, "identityfile")
    assert node.certificates == files(said, "certificatefile")
    assert node.identities_only == (said["identitiesonly"][0] == "yes")
    assert node.agent == said.get("identityagent", [""])[0]
    assert node.user_known_hosts == files(said, "userknownhostsfile")
    assert (node.system_known_hosts or ()) == files(said, "globalknownhostsfile")
    assert node.family == said["addressfamily"][0]
    assert node.bind_address == said.get("bindaddress", [""])[0]
    timeout = said["connecttimeout"][0]
    assert access.connect_timeout_s == (10 if timeout == "none" else float(timeout))
    jump = said.get("proxyjump", ["none"])[0]
    shown = ",".join(
        f"{'' if hop.access.user == 'root' else hop.access.user + '@'}"
        f"{f'[{hop.name}]' if ':' in hop.name else hop.name}"
        f"{'' if hop.access.port == 22 else f':{hop.access.port}'}"
        for hop in hops
    )
    assert (shown or "none") == jump.removeprefix("ssh://")
    command = said.get("proxycommand", ["none"])[0]
    assert (node.proxy_command or "none") == (command if jump == "none" else "none")


def test_the_table_is_long_enough_to_mean_something() -> None:
    assert len(SNIPPETS) >= 30


def test_tokens_are_filled_in_as_openssh_documents_them(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        "Host gpu01\n HostName 192.0.2.1\n User ops\n Port 2222\n HostKeyAlias alias\n"
        " IdentityFile ~/.ssh/%h-%r-%n-%p-%%-%k\n ProxyCommand gate %h %p %r %n %%\n",
    )

    (node,) = resolved(config)

    assert node.identities == (f"{HOME}/.ssh/192.0.2.1-ops-gpu01-2222-%-alias",)
    assert node.proxy_command == "gate 192.0.2.1 2222 ops gpu01 %"


def test_a_hop_has_its_own_settings_and_its_own_hops(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        "Host gpu*\n ProxyJump near\n User ops\n"
        "Host near\n HostName 192.0.2.9\n User hop\n Port 23\n IdentityFile /k/near\n ProxyJump far\n"
        "Host far\n HostName 192.0.2.8\n HostKeyAlias far-key\n",
    )

    far, near, node = resolved(config)

    assert (far.access.address, far.host_key_alias) == ("192.0.2.8", "far-key")
    assert (near.access.address, near.access.user, near.access.port) == ("192.0.2.9", "hop", 23)
    assert near.identities == ("/k/near",)
    assert (node.access.address, node.access.user) == ("gpu01", "ops")


def test_a_chain_takes_only_the_first_hops_own_hops(tmp_path: Path) -> None:
    config = write(tmp_path, "Host gpu01\n ProxyJump a,b\nHost a b\n ProxyJump z\n")

    assert ["z", "a", "b", "gpu01"] == [target.name for target in resolved(config)]


def test_a_circle_of_jump_hosts_is_told_as_a_chain(tmp_path: Path) -> None:
    config = write(
        tmp_path, "Host gpu01\n ProxyJump a\nHost a\n ProxyJump b\nHost b\n ProxyJump a\n"
    )

    with pytest.raises(Unreachable, match="circle of jump hosts: gpu01 > a > b > a"):
        resolved(config)


def test_fleet_yaml_wins_where_it_says_something(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        "Host *\n HostName 10.0.0.1\n User cfg\n Port 99\n IdentityFile /k/cfg\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /k/hosts\n ProxyJump bastion\n",
    )
    said = frozenset({"user", "port", "host_keys", "jump"})

    (node,) = resolved(
        config, address="192.0.2.1", identity_file=("/k/own",), known_hosts=("/k/known",), said=said
    )

    access = node.access
    assert ("192.0.2.1", "root", 22) == (access.address, access.user, access.port)
    assert ("strict", ("/k/known",)) == (access.host_keys, access.known_hosts)
    assert ((), True) == (node.identities, node.identities_only)


def test_the_default_user_is_root_even_where_the_caller_is_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path, "Host gpu01\n User root\nHost gpu02\n Port 23\n")
    monkeypatch.setattr("gpufleet.ssh.openssh.getpass.getuser", lambda: "root")

    assert ["root", "root"] == [
        resolved(config, name)[-1].access.user for name in ("gpu01", "gpu02")
    ]


def test_settings_for_the_address_count_where_the_name_has_none(tmp_path: Path) -> None:
    config = write(tmp_path, "Host 192.0.2.*\n User ops\n")

    (node,) = resolved(config, address="192.0.2.1")

    assert ("192.0.2.1", "ops") == (node.access.address, node.access.user)


@pytest.mark.parametrize(
    "text", ["", "Host *\n SendEnv LANG\n ForwardAgent yes\n Ciphers aes128-ctr\n"]
)
def test_files_that_say_nothing_cost_no_process(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path, text)
    monkeypatch.setenv("PATH", str(tmp_path))  # no ssh there

    (node,) = resolved(config)

    assert Target("gpu01", Access("gpu01", ssh_config=(str(config),))) == node


def test_false_means_no_file_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ".ssh"
    home.mkdir()
    (home / "config").write_text("Host *\n User cfg\n")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert "cfg" == route(NodeSpec("gpu01", Access("gpu01")))[0].access.user
    assert "root" == route(NodeSpec("gpu01", Access("gpu01", ssh_config=False)))[0].access.user


def test_several_files_are_read_in_their_order(tmp_path: Path) -> None:
    for name, text in (("a", "Host *\n User first\n"), ("b", "Host *\n User second\n Port 24\n")):
        (tmp_path / name).write_text(text)
    files = (str(tmp_path / "a"), str(tmp_path / "b"))

    (node,) = route(NodeSpec("gpu01", Access("gpu01", ssh_config=files)))

    assert ("first", 24) == (node.access.user, node.access.port)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Host *\n User\n", "ssh -G gpu01"),
        ("Host *\n Port many\n User x\n", "Bad"),
        ("Nonsense yes\nUser x\n", "Bad configuration option"),
    ],
)
def test_a_broken_file_stops_the_run_with_opensshs_words(
    text: str, said: str, tmp_path: Path
) -> None:
    spec = NodeSpec("gpu01", Access("gpu01", ssh_config=(str(write(tmp_path, text)),)))

    with pytest.raises(UsageError, match=said) as caught:
        Network().prepare([spec])

    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    spec = NodeSpec("gpu01", Access("gpu01", ssh_config=(str(tmp_path / "none"),)))

    with pytest.raises(UsageError, match=r"ssh_config .*/none: cannot be read"):
        Network().prepare([spec])


C05 = """
Host gpu0*
    ProxyJump jump
    User root
    UserKnownHostsFile {known}
    IdentityFile {identity}
Host jump
    HostName {address}
    Port {port}
    User root
    UserKnownHostsFile {known}
    IdentityFile {identity}
"""


def test_c05_a_node_behind_a_jump_host_of_ssh_config(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    bastion, target = fleet["gpu04"], fleet["gpu01"]
    config = tmp_path / "ssh_config"
    config.write_text(
        C05.format(
            known=fleet.known_hosts,
            identity=fleet.identity_file,
            address=bastion.address,
            port=bastion.port,
        )
    )
    inventory = tmp_path / "fleet.yaml"
    inventory.write_text(
        f"defaults: {{ssh_config: {config}}}\n"
        f"hosts: {{gpu01: {{address: {target.address}, port: {target.port}}}}}\n"
    )

    ran = gpufleet("status", "--hosts", "gpu01", "--json", "-i", str(inventory))

    assert ran.code == 0, ran.err
    assert "IDLE" == ran.nodes()["gpu01"]["verdict"]

    bastion.stop_sshd()
    ran = gpufleet("status", "--hosts", "gpu01", "--json", "-i", str(inventory))
    assert ran.nodes()["gpu01"]["reason"].startswith("jump host jump: connection refused")
