"""Hosts, groups, jump hosts and their keys: what each takes, and the line that refuses the rest."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.errors import InventoryError, UsageError
from gpufleet.inventory import Fleet, load_fleet, parse_duration, parse_settings
from gpufleet.policy import Access, Hooks, Policy

Load = Callable[[str], Fleet]
Refused = Callable[[str], list[str]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def write_and_load(text: str) -> Fleet:
        path = Path("fleet.yaml")
        path.write_text(text)
        path.chmod(0o600)
        return load_fleet(path)

    return write_and_load


@pytest.fixture
def refused(load: Load) -> Refused:
    def problems_of(text: str) -> list[str]:
        with pytest.raises(InventoryError) as caught:
            load(text)
        return list(caught.value.problems)

    return problems_of


def test_a_host_is_an_address_or_nothing_or_keys(load: Load) -> None:
    fleet = load("hosts:\n  a: 192.0.2.1\n  b:\n  c: {}\n  d: {address: 192.0.2.4, port: 2222}\n")
    assert [fleet.spec(name).access for name in fleet.names()] == [
        Access("192.0.2.1"),
        Access("b"),
        Access("c"),
        Access("192.0.2.4", port=2222),
    ]


def test_what_is_not_said_is_the_policys_default(load: Load) -> None:
    spec = load("hosts: {a: }\n").spec("a")
    assert (spec.access, spec.policy, spec.jump_hosts) == (Access("a"), Policy(), ())


def test_every_key_fills_its_field(load: Load, tmp_path: Path) -> None:
    fleet = load(
        "jump_hosts: {bastion: 198.51.100.4}\n"
        "hosts:\n"
        "  a:\n"
        "    address: 192.0.2.1\n"
        "    user: ops\n"
        "    port: 2222\n"
        "    identity_file: [/keys/one, two]\n"
        "    known_hosts: known\n"
        "    ssh_config: /etc/ssh/fleet_config\n"
        "    host_keys: accept-new\n"
        "    jump: bastion\n"
        "    sudo: yes\n"
        "    connect_timeout: 500ms\n"
        "    timeout: 20m\n"
        "    gpus: 4\n"
        "    workload: [sglang, vllm]\n"
        "    interpreters: python3\n"
        "    protect: [node_exporter, 'unit:telegraf', 'user:alice']\n"
        "    jobs: kill\n"
        "    grace: 1.5s\n"
        "    settle: 0\n"
        "    attempts: 5\n"
        "    tolerance: 4 MiB\n"
        "    guard: exit 0\n"
        "    before: |\n"
        "      echo one\n"
        "      echo two\n"
        "    after: ''\n"
        "    guard_timeout: 5s\n"
        "    before_timeout: 10m\n"
        "    after_timeout: 1.5m\n"
    )
    spec = fleet.spec("a")
    assert spec.access == Access(
        "192.0.2.1",
        user="ops",
        port=2222,
        identity_file=("/keys/one", str(tmp_path / "two")),
        known_hosts=(str(tmp_path / "known"),),
        ssh_config=("/etc/ssh/fleet_config",),
        host_keys="accept-new",
        jump=("bastion",),
        sudo=True,
        connect_timeout_s=0.5,
    )
    assert spec.policy == Policy(
        gpus=4,
        workload=("sglang", "vllm"),
        interpreters=("python3",),
        protect=("node_exporter", "unit:telegraf", "user:alice"),
        jobs="kill",
        grace_s=1.5,
        settle_s=0.0,
        attempts=5,
        tolerance_mib=4,
        timeout_s=1200.0,
        dying_timeout_s=1200.0,
    )
    assert fleet.spec("a").hooks == Hooks("exit 0", 5.0, "echo one\necho two\n", 600.0, "", 90.0)


@pytest.mark.parametrize("no", ["no", "false", "False", "off"])
def test_ssh_config_can_be_switched_off(load: Load, no: str) -> None:
    assert load(f"hosts: {{a: {{ssh_config: {no}}}}}\n").spec("a").access.ssh_config is False


def test_a_file_in_home_needs_no_home_variable(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "hosts: {a: {identity_file: [~/.ssh/fleet, ~root/key]}}\n"
    monkeypatch.setenv("HOME", "/home/me")
    root = pwd.getpwnam("root").pw_dir
    assert load(text).spec("a").access.identity_file == ("/home/me/.ssh/fleet", f"{root}/key")
    monkeypatch.delenv("HOME")
    mine = pwd.getpwuid(os.getuid()).pw_dir
    assert load(text).spec("a").access.identity_file == (f"{mine}/.ssh/fleet", f"{root}/key")


def test_files_are_relative_to_the_inventory_not_to_the_caller(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("hosts: {a: {known_hosts: ../known}}\n")
    monkeypatch.chdir("/")
    spec = load_fleet(tmp_path / "fleet.yaml").spec("a")
    assert spec.access.known_hosts == (f"{tmp_path}/../known",)


def test_d02_a_port_with_a_leading_zero_is_what_it_looks_like(load: Load) -> None:
    assert load("hosts:\n  gpu-01: {port: 022}\n").spec("gpu-01").access.port == 22


def test_d02_a_quoted_port_is_a_port(load: Load) -> None:
    assert load("hosts:\n  gpu-01: {port: '2222'}\n").spec("gpu-01").access.port == 2222


def test_d06_ranges_of_hosts_keep_their_padding(load: Load) -> None:
    fleet = load("hosts:\n  gpu[08-10]: {}\n  n[1-2]-[01-02]: {}\n")
    assert fleet.names() == ("gpu08", "gpu09", "gpu10", "n1-01", "n1-02", "n2-01", "n2-02")


def test_ranges_side_by_side_pair_in_the_order_written(load: Load) -> None:
    fleet = load('hosts:\n  gpu[3,1-2]: {address: "10.1.230.[7,17-18]"}\n')
    addresses = {name: fleet.spec(name).access.address for name in fleet.names()}
    assert addresses == {"gpu3": "10.1.230.7", "gpu1": "10.1.230.17", "gpu2": "10.1.230.18"}


def test_d14_ipv6_addresses_keep_their_last_group_and_port_22(load: Load) -> None:
    fleet = load(
        "hosts:\n  a: {address: '2001:db8::3222'}\n  b: {address: '2001:db8::21', port: 2222}\n"
        "  c: fe80::1%eth0\n  d[1-2]: '2001:db8::[31-32]'\n"
    )
    assert [fleet.spec(name).access for name in fleet.names()] == [
        Access("2001:db8::3222"),
        Access("2001:db8::21", port=2222),
        Access("fe80::1%eth0"),
        Access("2001:db8::31"),
        Access("2001:db8::32"),
    ]


def test_jump_hosts_come_first_hop_first_and_take_over_the_defaults(load: Load) -> None:
    fleet = load(
        "defaults: {user: ops, identity_file: /key, gpus: 4, sudo: yes, jump: inner}\n"
        "jump_hosts:\n"
        "  inner: {address: 10.0.0.1, jump: outer, user: hop}\n"
        "  outer: {port: 2222}\n"
        "hosts:\n  a:\n  b: {jump: []}\n  c: {jump: [outer, inner]}\n"
    )
    outer = Access("outer", user="ops", port=2222, identity_file=("/key",))
    inner = Access("10.0.0.1", user="hop", identity_file=("/key",))
    assert fleet.spec("a").access.jump == ("outer", "inner")
    assert fleet.spec("a").jump_hosts == (("outer", outer), ("inner", inner))
    assert fleet.spec("b").jump_hosts == ()
    assert fleet.spec("c").jump_hosts == fleet.spec("a").jump_hosts


def test_one_private_address_behind_two_jump_hosts_is_two_machines(load: Load) -> None:
    fleet = load(
        "jump_hosts: {east: , west: }\n"
        "hosts:\n  a: {address: 10.0.0.1, jump: east}\n  b: {address: 10.0.0.1, jump: west}\n"
    )
    assert fleet.names() == ("a", "b")


DURATION = "a duration is a number with ms, s, m or h, such as 10s"
NAME = "a name has letters, digits, . _ - and starts with a letter, a digit or _"
ADDRESS = "an address is a host name or an IP address"
IPV4 = "no full IPv4 address: four numbers of 0 to 255, without leading zeros"
KEYS = {
    "port: 70000": 'port: read "70000": a port is 1 to 65535',
    "port: 22:22": 'port: read "22:22": a port is 1 to 65535',
    "port: 0x16": 'port: read "0x16": a port is 1 to 65535',
    "port: ٢٢": 'port: read "٢٢": a port is 1 to 65535',
    "port: [22]": "port: read a list: a single value goes here",
    "port:": "port: read nothing: write a value or remove the line",
    "user: -oProxyCommand=x": 'user: read "-oProxyCommand=x": '
    "a login name has letters, digits, . _ - and starts with no -",
    "address: user@192.0.2.1": 'address: read "user@192.0.2.1": '
    "the login has a key of its own: address: 192.0.2.1, user: user",
    "address: 192.0.2.1:22": 'address: read "192.0.2.1:22": '
    "the port has a key of its own: address: 192.0.2.1, port: 22",
    "address: '[2001:db8::21]:2222'": 'address: read "[2001:db8::21]:2222": '
    'IPv6 goes without brackets: address: "2001:db8::21", port: 2222',
    "address: '[2001:db8::21]'": 'address: read "[2001:db8::21]": '
    'IPv6 goes without brackets: address: "2001:db8::21"',
    "address: 10.10": f'address: read "10.10": {IPV4}',
    "address: 010.1.1.1": f'address: read "010.1.1.1": {IPV4}',
    "address: 0x7f000001": f'address: read "0x7f000001": {IPV4}',
    "address: 256.1.1.1": f'address: read "256.1.1.1": {IPV4}',
    "address: a b": f'address: read "a b": {ADDRESS}',
    "address: -oProxyCommand=x": f'address: read "-oProxyCommand=x": {ADDRESS}',
    "address: ssh://a": f'address: read "ssh://a": {ADDRESS}',
    'address: "gpu\\u00a0"': 'address: read "gpu<U+00A0>": '
    "U+00A0 can't stand in an address: retype it",
    "grace: 10x": f'grace: read "10x": {DURATION}',
    "grace: -1s": f'grace: read "-1s": {DURATION}',
    "grace: 1e3": f'grace: read "1e3": {DURATION}',
    "grace: nan": f'grace: read "nan": {DURATION}',
    "settle: 25h": 'settle: read "25h": 24h is the longest duration',
    "timeout: 0s": 'timeout: read "0s": a limit of 0 leaves no time at all: 10s is usual',
    "connect_timeout: 0": 'connect_timeout: read "0": '
    "a limit of 0 leaves no time at all: 10s is usual",
    "gpus: 0": 'gpus: read "0": a node has 1 to 64 GPUs',
    "gpus: 65": 'gpus: read "65": a node has 1 to 64 GPUs',
    "attempts: 21": 'attempts: read "21": attempts are 1 to 20',
    "tolerance: 4 GB": 'tolerance: read "4 GB": '
    "a tolerance is 0 to 1000000 MiB, such as 4 or 4 MiB",
    "tolerance: 1000001": 'tolerance: read "1000001": '
    "a tolerance is 0 to 1000000 MiB, such as 4 or 4 MiB",
    "sudo: maybe": 'sudo: read "maybe": yes or no',
    "host_keys: no": 'host_keys: read "no": strict, accept-new or off',
    "host_keys: Strict": 'host_keys: read "Strict": '
    "strict, accept-new or off (did you mean strict?)",
    "jobs: kil": 'jobs: read "kil": spare or kill (did you mean kill?)',
    "workload: ''": 'workload: read "": write a value or remove the line',
    "workload: '('": 'workload: read "(": no regular expression of Python\'s: '
    "missing ), unterminated subpattern at position 0",
    "workload: '[[:alpha:]]'": 'workload: read "[[:alpha:]]": no regular expression of '
    "Python's: Possible nested set at position 1",
    "workload: [sglang, 'vllm|']": 'workload: read "vllm|": '
    "this finds the empty text, so every process: name the workload",
    "interpreters: .": 'interpreters: read ".": '
    'this finds "/usr/sbin/sshd -D" and every other process: name the workload',
    "interpreters: '[a-z]+'": 'interpreters: read "[a-z]+": '
    'this finds "/usr/sbin/sshd -D" and every other process: name the workload',
    "workload: [a: b]": "workload: read a mapping: a single value goes here",
    "protect: 'service:x'": 'protect: read "service:x": a program\'s name, unit:NAME or user:NAME',
    "protect: /usr/bin/x": 'protect: read "/usr/bin/x": the program\'s name without its folder: x',
    "identity_file: ~nobody9/key": 'identity_file: read "~nobody9/key": '
    "no user nobody9 on this machine",
    "guard:": "guard: read nothing: write a value or remove the line",
    "jump: bastion": 'jump: read "bastion": no such jump host: list it under jump_hosts',
    "jump: one,two": 'jump: read "one,two": no such jump host: a chain is a list, [one, two]',
    "ssh_config: {a: b}": "ssh_config: read a mapping: a value or a list goes here",
    "prot: 22": 'prot: read the unknown key "prot" (did you mean port?)',
    "proxy-jump: x": 'proxy-jump: read the unknown key "proxy-jump" (did you mean jump?)',
    "ansible_host: x": 'ansible_host: read the unknown key "ansible_host" (did you mean address?)',
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_does_not_fit_is_refused(key: str, refused: Refused) -> None:
    assert refused(f"hosts:\n  gpu01:\n    {key}\n") == [f"fleet.yaml:3: hosts.gpu01.{KEYS[key]}"]


RANGES = {
    "gpu[1-99999999999]: {}": "a range of 99,999,999,999 names, and 100,000 is the most",
    "gpu[1-999][1-999]: {}": "a range of 998,001 names, and 100,000 is the most",
    "gpu[01-100]: {}": "[01-100] pads its two ends differently: 001-100 or 1-100",
    "gpu[16-01]: {}": "[16-01] names nothing: the smaller number comes first",
    "gpu[1-]: {}": '"[1-]" is no range: gpu[01-16], gpu[1,3,7] or gpu[0-14/2]',
    "gpu[a-c]: {}": '"[a-c]" is no range: gpu[01-16], gpu[1,3,7] or gpu[0-14/2]',
    "gpu[1: {}": "a [ and its ] don't match: gpu[01-16]",
    "gpu[1,1]: {}": "it has a name twice",
    "-oProxyCommand: {}": NAME,
    "gpu/01: {}": NAME,
    ".gpu: {}": NAME,
    "gpu01,gpu02: {}": NAME,
    "all: {}": "this word is reserved for selections: choose another name",
    "010: {address: 192.0.2.11}": "a name of digits only is a number to other tools: "
    "put a letter into it",
    "gpü: {}": "U+00FC can't stand in a name: retype it",
}


@pytest.mark.parametrize("entry", RANGES)
def test_a_host_name_that_does_not_fit_is_refused(entry: str, refused: Refused) -> None:
    name = entry.partition(": ")[0]
    problem = f'fleet.yaml:2: hosts.{name}: read "{name}": {RANGES[entry]}'
    assert refused(f"hosts:\n  {entry}\n") == [problem]


FILES = {
    "one_host_in_two_entries": (
        "hosts:\n  gpu[01-16]: {}\n  gpu05: {}\n  gpu[15-18]: {}\n",
        [
            (
                "fleet.yaml:3: hosts.gpu05: gpu05 stands in hosts.gpu[01-16] (line 2) already: "
                "one entry for each host"
            ),
            (
                "fleet.yaml:4: hosts.gpu[15-18]: gpu[15-16] stands in hosts.gpu[01-16] (line 2) "
                "already: one entry for each host"
            ),
        ],
    ),
    "ranges_of_unequal_length": (
        'hosts:\n  gpu[17-24]:\n    address: "10.1.230.[17-23]"\n',
        [
            (
                'fleet.yaml:3: hosts.gpu[17-24].address: read "10.1.230.[17-23]": '
                "7 addresses for 8 hosts: ranges side by side have equal lengths"
            )
        ],
    ),
    "one_address_for_many_hosts": (
        "hosts:\n  gpu[17-24]: 10.1.230.17\n",
        [
            (
                'fleet.yaml:2: hosts.gpu[17-24].address: read "10.1.230.17": '
                "1 address for 8 hosts: ranges side by side have equal lengths"
            )
        ],
    ),
    "two_names_for_one_machine": (
        "hosts:\n  a: 2001:db8::1\n  b: {address: '2001:DB8:0::1', port: 22}\n  c: d\n  D: {}\n",
        [
            (
                "fleet.yaml:3: hosts.b: b has the address and port of a (line 2): "
                "one name for each machine"
            ),
            (
                "fleet.yaml:5: hosts.D: D has the address and port of c (line 4): "
                "one name for each machine"
            ),
        ],
    ),
    "too_many_hosts": (
        "hosts:\n  a[1-60000]: {}\n  b[1-60000]: {}\n",
        [
            (
                'fleet.yaml:3: hosts.b[1-60000]: with "b[1-60000]" more than 100,000 hosts: '
                "split the fleet"
            )
        ],
    ),
    "a_circle_of_jump_hosts": (
        "jump_hosts:\n  a: {jump: b}\n  b: {jump: a}\nhosts: {c: }\n",
        ["fleet.yaml:2: jump_hosts.a: a circle of jump hosts: a > b > a: leave one out"],
    ),
    "a_misspelt_jump_host_in_defaults": (
        "defaults: {jump: basion}\njump_hosts: {bastion: 198.51.100.4}\nhosts: {c: }\n",
        [
            (
                'fleet.yaml:1: defaults.jump: read "basion": no such jump host '
                "(did you mean bastion?): list it under jump_hosts"
            )
        ],
    ),
    "a_setting_that_jump_hosts_do_not_have": (
        "jump_hosts:\n  b: {gpus: 4}\nhosts: {c: }\n",
        ['fleet.yaml:2: jump_hosts.b.gpus: read the unknown key "gpus" (hosts have it)'],
    ),
    "a_jump_host_called_like_a_host": (
        "jump_hosts: {b: 198.51.100.4}\nhosts:\n  b: {}\n",
        ["fleet.yaml:1: jump_hosts.b: b is hosts.b too (line 3): rename the jump host"],
    ),
    "an_address_where_none_belongs": (
        "defaults: {address: x}\nhosts: {c: }\ngroups: {g: {address: y}}\n",
        [
            'fleet.yaml:1: defaults.address: read the unknown key "address" (hosts have it)',
            'fleet.yaml:3: groups.g.address: read the unknown key "address" (hosts have it)',
        ],
    ),
    "sections_that_are_no_mappings": (
        "defaults: [a]\njump_hosts: b\nhosts: [c]\ngroups: d\n",
        [
            "fleet.yaml:1: defaults: read a list: a mapping of settings goes here",
            'fleet.yaml:2: jump_hosts: read "b": a mapping of names goes here',
            "fleet.yaml:3: hosts: read a list: a mapping of names goes here",
            'fleet.yaml:4: groups: read "d": a mapping of names goes here',
        ],
    ),
    "a_host_that_is_a_list": (
        "hosts:\n  a: [192.0.2.1]\n",
        ["fleet.yaml:2: hosts.a: read a list: a mapping of keys goes here"],
    ),
    "group_names_that_selections_need_themselves": (
        "hosts: {c: }\ngroups:\n  all: c\n  failed: c\n  '@g': c\n  -x: c\n  g[1-2]: c\n",
        [
            (
                'fleet.yaml:3: groups.all: read "all": '
                "this word is reserved for selections: choose another name"
            ),
            (
                'fleet.yaml:4: groups.failed: read "failed": '
                "this word is reserved for selections: choose another name"
            ),
            'fleet.yaml:5: groups.@g: read "@g": "@" belongs to selections: call it g',
            f'fleet.yaml:6: groups.-x: read "-x": {NAME}',
            f'fleet.yaml:7: groups.g[1-2]: read "g[1-2]": {NAME}',
        ],
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_refused_file(case: str, refused: Refused) -> None:
    text, problems = FILES[case]
    assert refused(text) == problems


def test_d10_a_group_called_like_a_host_is_refused_at_load(refused: Refused) -> None:
    text = "hosts:\n  train: 192.0.2.50\n  gpu-01: 192.0.2.11\ngroups:\n  train: [gpu-01]\n"
    problem = "fleet.yaml:5: groups.train: train is hosts.train too (line 2): rename the group"
    assert refused(text) == [problem]


def test_d02_values_that_yaml_would_read_otherwise_are_refused_as_read(refused: Refused) -> None:
    text = "hosts:\n  a: {port: 22:22}\n  b: {address: 10.10}\n  010: {}\n  c: {port: 70000}\n"
    assert refused(text) == [
        'fleet.yaml:2: hosts.a.port: read "22:22": a port is 1 to 65535',
        f'fleet.yaml:3: hosts.b.address: read "10.10": {IPV4}',
        (
            'fleet.yaml:4: hosts.010: read "010": a name of digits only is a number to other '
            "tools: put a letter into it"
        ),
        'fleet.yaml:5: hosts.c.port: read "70000": a port is 1 to 65535',
    ]


def test_d14_brackets_and_port_in_an_address_are_refused_with_the_cure(refused: Refused) -> None:
    problem = (
        'fleet.yaml:2: hosts.a.address: read "[2001:db8::21]:2222": '
        'IPv6 goes without brackets: address: "2001:db8::21", port: 2222'
    )
    assert refused("hosts:\n  a: '[2001:db8::21]:2222'\n") == [problem]


def test_a_long_value_is_cut_to_one_line(refused: Refused) -> None:
    (problem,) = refused("hosts: {a: {port: " + "9" * 5000 + "}}\n")
    assert problem == (f'fleet.yaml:1: hosts.a.port: read "{"9" * 60}…": a port is 1 to 65535')


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10.0), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0), ("7", 7.0), ("1.5 s", 1.5)],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_a_bad_option_says_what_was_read_and_the_cure() -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration("10x", "--grace")
    assert str(caught.value) == f'--grace: read "10x": {DURATION}'
    with pytest.raises(UsageError) as caught:
        parse_settings({"connect_timeout": "0"})
    assert str(caught.value) == (
        '--connect-timeout: read "0": a limit of 0 leaves no time at all: 10s is usual'
    )
    with pytest.raises(UsageError) as caught:
        parse_settings({"protect": ["ok", "a:b"]})
    assert str(caught.value) == ('--protect: read "a:b": a program\'s name, unit:NAME or user:NAME')


def test_options_become_fields_and_none_is_not_given() -> None:
    assert parse_settings(
        {"grace": "10s", "tolerance": "4", "jobs": None, "protect": ["a", "unit:b"]}
    ) == {"grace_s": 10.0, "tolerance_mib": 4, "protect": ("a", "unit:b")}
