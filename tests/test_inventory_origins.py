"""`gpufleet hosts --explain`: every setting of a host, and who says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.cli import run_command
from gpufleet.inventory import load_fleet
from gpufleet.inventory.schema import HostSchema

TEXT = """\
defaults: {user: ops, protect: one, settle: 1s}
hosts:
  gpu[01-02]: {address: "192.0.2.[1-2]"}
  odd:
    port: 2222
    protect: [three]
groups:
  pool:
    hosts: [odd, gpu01]
    gpus: 4
    protect: two
    settle: 2s
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


def test_each_key_says_who_gave_it_and_on_which_line(path: Path) -> None:
    rows = {row.key: row for row in load_fleet(path).explain("odd", {"grace_s": 5.0})}
    assert {*HostSchema.model_fields} == {*rows}
    said = {key: (row.value, row.origins, row.lines) for key, row in rows.items()}
    assert said["address"] == ("odd", ("the name",), (4,))
    assert said["user"] == ("ops", ("defaults",), (1,))
    assert said["port"] == (2222, ("host",), (5,))
    assert said["gpus"] == (4, ("group pool",), (10,))
    assert said["settle"] == (2.0, ("group pool",), (12,))
    assert said["grace"] == (5.0, ("command line",), (0,))
    assert said["tolerance"] == (0, ("default",), (0,))
    assert said["protect"] == (
        ("one", "two", "three"),
        ("defaults", "group pool", "host"),
        (1, 11, 6),
    )
    (address, *_) = load_fleet(path).explain("gpu02")
    assert (address.value, address.origins, address.lines) == ("192.0.2.2", ("host",), (3,))


def test_the_command_shows_it_as_text_and_json(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["hosts", "-i", str(path), "--explain", "odd"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["gpus", "4", f"group pool ({path}:10)"] in lines
    assert ["attempts", "3", "default"] in lines
    assert run_command(["hosts", "-i", str(path), "--explain", "odd", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    gpus = {"key": "gpus", "value": 4, "from": [{"level": "group pool", "line": 10}]}
    assert gpus in document["settings"]


def test_an_unknown_host_is_one_line_and_exit_2(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["hosts", "-i", str(path), "--explain", "oddd"]) == 2
    assert capsys.readouterr().err == 'gpufleet: unknown host "oddd" (did you mean odd?)\n'


def test_a_variable_of_ansibles_group_is_the_groups_and_not_the_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(
        "[all:vars]\nansible_user=ops\n[pool]\ngpu01 ansible_port=2222\ngpu02\n"
        "[pool:vars]\nansible_port=22022\ngpufleet_gpus=4\nansible_ssh_common_args=-J bastion\n"
    )
    path.chmod(0o600)
    fleet = load_fleet(path)
    said = {row.key: (row.origins, row.lines) for row in fleet.explain("gpu01")}
    assert said["user"] == (("group all",), (2,))
    assert said["port"] == (("host",), (4,))
    assert said["gpus"] == (("group pool",), (8,))
    assert said["jump"] == (("group pool",), (9,))
    assert said["grace"] == (("default",), (0,))
    other = {row.key: row.origins for row in fleet.explain("gpu02")}
    assert other["port"] == ("group pool",)
