"""Ansible's inventories mean to gpufleet what they mean to Ansible.

`ansible/answers.json` holds what `ansible-inventory --list` of ansible-core 2.19.14 said of each file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import InventoryError
from gpufleet.inventory import Fleet, load_fleet

FOLDER = Path(__file__).parent / "ansible"
ANSWERS: dict[str, Any] = json.loads((FOLDER / "answers.json").read_text())
Load = Callable[..., Fleet]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def write_and_load(text: str, name: str = "hosts.ini") -> Fleet:
        path = Path(name)
        path.write_text(text)
        path.chmod(0o600)
        return load_fleet(path)

    return write_and_load


def said(fleet: Fleet, name: str, keys: set[str]) -> dict[str, str]:
    spec = fleet.spec(name)
    values = {
        "ansible_host": spec.access.address,
        "ansible_port": str(spec.access.port),
        "ansible_user": spec.access.user,
        "ansible_ssh_private_key_file": ",".join(spec.access.identity_file),
        "ansible_become": str(spec.access.sudo),
        "gpufleet_gpus": str(spec.policy.gpus),
    }
    defaults = {"ansible_host": name, "ansible_port": "22", "ansible_user": "root"}
    defaults |= {"ansible_ssh_private_key_file": "", "ansible_become": "False"}
    defaults |= {"gpufleet_gpus": "8"}
    return {k: v for k, v in values.items() if k in keys or v != defaults[k]}


@pytest.mark.parametrize("file", sorted(ANSWERS))
def test_hosts_groups_and_variables_are_what_ansible_says(file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    shutil.copyfile(FOLDER / file, path)
    path.chmod(0o600)
    fleet = load_fleet(path)
    answer = ANSWERS[file]
    assert sorted(answer["hosts"]) == sorted(fleet.names())
    groups = {name: sorted(hosts) for name, hosts in fleet.groups().items()}
    assert answer["groups"] == groups
    for name, variables in answer["hosts"].items():
        expected = {k: {"true": "True"}.get(v, v) for k, v in variables.items()}
        assert expected == said(fleet, name, set(variables)), name


REFUSED = {
    "a_word_without_equals": (
        "[g]\na b\n",
        'hosts.ini:2: g.a: read "b": after the host\'s name come name=value pairs',
    ),
    "an_open_range": (
        "[g]\ngpu[01:]\n",
        'hosts.ini:2: g: read "gpu[01:]": "[01:]" has no end: gpu[01:16]',
    ),
    "a_range_of_fleet_yaml": (
        "[g]\ngpu[01-16]\n",
        (
            'hosts.ini:2: g: read "gpu[01-16]": '
            "no range of Ansible's: gpu[01:16], gpu[0:14:2] or rack[a:c]"
        ),
    ),
    "an_endless_range": (
        "[g]\ngpu[1:999999999]\n",
        (
            'hosts.ini:2: g: read "gpu[1:999999999]": '
            "a range of 999,999,999 names, and 100,000 is the most"
        ),
    ),
    "a_circle": (
        "[a:children]\nb\n[b:children]\na\n",
        "hosts.ini:1: a: a circle of groups: a > b > a: leave one out",
    ),
    "a_port": (
        "[g]\na ansible_port=70000\n",
        'hosts.ini:2: hosts.a.port: read "70000": a port is 1 to 65535',
    ),
    "a_template": (
        "[g]\na ansible_host={{ip}}\n",
        (
            'hosts.ini:2: a.address: read "{{ip}}": '
            "a template, which only Ansible can fill in: write the value"
        ),
    ),
    "a_local_connection": (
        "[g]\na ansible_connection=local\n",
        (
            'hosts.ini:2: a.ansible_connection: read "local": '
            "gpufleet goes by SSH: take this host out of its inventory"
        ),
    ),
    "a_setting_that_is_none": (
        "[g]\na gpufleet_gups=4\n",
        'hosts.ini:2: hosts.a.gups: read the unknown key "gups" (did you mean gpus?)',
    ),
    "a_section_of_no_kind": (
        "[g:hots]\na\n",
        'hosts.ini:1: read "[g:hots]": [group], [group:children] or [group:vars]',
    ),
    "two_names_for_one_machine": (
        "[g]\na ansible_host=192.0.2.1\nb ansible_host=192.0.2.1\n",
        "hosts.ini:3: hosts.b: b has the address and port of a (line 2): one name for each machine",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_line(case: str, load: Load) -> None:
    text, problem = REFUSED[case]
    with pytest.raises(InventoryError) as caught:
        load(text)
    assert [problem] == list(caught.value.problems)


def test_a_dynamic_inventory_is_refused_with_the_way_to_make_a_static_one(load: Load) -> None:
    with pytest.raises(InventoryError) as caught:
        load("plugin: aws_ec2\nregions: [x]\n", "aws.yaml")
    assert str(caught.value) == (
        'aws.yaml:1: plugin: read "aws_ec2": a dynamic inventory: only Ansible can run it: '
        "ansible-inventory -i FILE --list --yaml > static.yaml"
    )


def test_variables_that_are_left_out_are_noted_once(load: Load) -> None:
    fleet = load("[g]\na ansible_shell_type=csh other=1\nb ansible_shell_type=csh\n")
    assert fleet.notes == ("hosts.ini:2: ansible_shell_type is not used by gpufleet",)


@pytest.mark.parametrize(
    "arguments", ["-J ops@198.51.100.4:2222", "-o ProxyJump=ops@198.51.100.4:2222"]
)
def test_a_proxy_jump_becomes_a_jump_host(arguments: str, load: Load) -> None:
    fleet = load(f"[g]\na\n[g:vars]\nansible_ssh_common_args='{arguments}'\n")
    ((name, access),) = fleet.spec("a").jump_hosts
    assert (name, access.address, access.user, access.port) == (
        "198.51.100.4",
        "198.51.100.4",
        "ops",
        2222,
    )
    assert fleet.notes == ()


def test_a_proxy_command_is_not_kept_quiet(load: Load) -> None:
    fleet = load("[g]\na ansible_ssh_common_args='-o ProxyCommand=nc'\n")
    assert "ProxyCommand" in fleet.notes[0]


def test_an_inventory_without_extension_is_known_by_its_sections(load: Load) -> None:
    assert load("[g]\na\n", "hosts").groups() == {"g": ("a",)}
    assert load("hosts: {a: }\n", "fleet").names() == ("a",)


def test_our_own_keys_may_be_lists(load: Load) -> None:
    fleet = load("[g]\na\n[g:vars]\ngpufleet_workload=['vllm', 'sglang']\n")
    assert fleet.spec("a").policy.workload == ("vllm", "sglang")
