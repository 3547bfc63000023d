"""Kinds of mistakes and of silence in an inventory: each is one line, or does what it looks like."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.errors import InventoryError
from gpufleet.inventory import Fleet, jumps, load_fleet
from gpufleet.model import Gpu, NodeReport, RunReport, Verdict
from gpufleet.render.text import run_text


def load(folder: Path, text: str, name: str = "fleet.yaml") -> Fleet:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return load_fleet(path)


def refusal(folder: Path, text: str, name: str = "fleet.yaml") -> str:
    with pytest.raises(InventoryError) as caught:
        load(folder, text, name)
    (line,) = caught.value.problems
    return line


@pytest.mark.parametrize("word", ["none", "[]"])
def test_no_jump_is_said_over_the_defaults_and_over_an_ssh_config(
    word: str, tmp_path: Path
) -> None:
    fleet = load(
        tmp_path,
        "defaults: {jump: bastion}\njump_hosts: {bastion: 192.0.2.9}\n"
        f"hosts:\n  far: 192.0.2.1\n  near: {{address: 192.0.2.2, jump: {word}}}\n",
    )

    assert ["bastion"] == [name for name, _ in fleet.spec("far").jump_hosts]
    near = fleet.spec("near")
    assert ((), ()) == (near.jump_hosts, near.access.jump)
    assert "jump" in near.access.said


def test_a_host_that_says_nothing_of_jumps_leaves_them_to_ssh_config(tmp_path: Path) -> None:
    assert "jump" not in load(tmp_path, "hosts: {n: 192.0.2.1}\n").spec("n").access.said


def test_a_jump_host_called_none_could_never_be_named(tmp_path: Path) -> None:
    line = refusal(tmp_path, "jump_hosts: {none: 192.0.2.9}\nhosts: {n: 192.0.2.1}\n")

    assert "`jump: none` means no jump host: choose another name" in line


@pytest.mark.parametrize(
    "key", ["password", "ssh_pass", "sudo_password", "passphrase", "secret_file"]
)
def test_a_password_is_refused_with_what_is_taken_instead(key: str, tmp_path: Path) -> None:
    line = refusal(tmp_path, f"hosts:\n  n: {{address: 192.0.2.1, {key}: hunter2}}\n")

    assert "gpufleet logs in with keys or an agent only: remove it" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("word", ["null", "~", ""])
def test_nothing_is_nothing_however_it_is_written(word: str, tmp_path: Path) -> None:
    fleet = load(tmp_path, f"hosts:\n  gpu01: {word}\n")

    assert "gpu01" == fleet.spec("gpu01").access.address
    line = refusal(tmp_path, f"hosts:\n  gpu01: {{user: {word}}}\n")
    assert "hosts.gpu01.user: read nothing: write a value or remove the line" in line


@pytest.mark.parametrize("address", ["a" * 64, "gpu..example.com", f"x.{'b' * 70}.com"])
def test_a_name_that_no_resolver_takes_is_told_before_anything_is_contacted(
    address: str, tmp_path: Path
) -> None:
    line = refusal(tmp_path, f"hosts:\n  n: {address}\n")

    assert "between the dots of a host name stand 1 to 63 letters" in line


def test_one_machine_in_two_spellings_of_its_address_is_found(tmp_path: Path) -> None:
    line = refusal(tmp_path, 'hosts:\n  a: 192.0.2.1\n  b: "::ffff:192.0.2.1"\n')

    assert "b has the address and port of a (line 2): one name for each machine" in line


def test_an_ini_inventory_with_hidden_characters_is_refused_by_line(tmp_path: Path) -> None:
    line = refusal(tmp_path, "[gpu]\ngpu01 ansible_host=192.0.2.1\ngpu\x0002\n", "hosts.ini")

    assert ":3:" in line
    assert "U+0000" in line


def test_nodes_that_differ_in_what_a_row_has_no_room_for_do_not_fold() -> None:
    def node(host: str, last: str) -> NodeReport:
        raws = ["a", "b", "c", "d", "e", last]
        gpus = tuple(Gpu(i, raw=raw) for i, raw in enumerate(raws))
        return NodeReport(host, "", Verdict.UNKNOWN, "odd rows", gpus=gpus)

    def shown(*nodes: NodeReport) -> list[str]:
        now = "2026-01-01T00:00:00.000Z"
        report = RunReport("r", "reset", "all", now, now, nodes)
        return [line for line in run_text(report).splitlines() if line.startswith("n")]

    alike = shown(*(node(f"n{i}", "f") for i in range(4)))
    unlike = shown(*(node(f"n{i}", "f") for i in range(3)), node("n3", "g"))

    assert 1 == len(alike)
    assert len(unlike) > 1


def test_thousands_of_words_for_every_host_are_counted_before_they_cost_minutes(
    tmp_path: Path,
) -> None:
    words = ",".join(["g"] * 2000)
    text = f'hosts: {{"a[1-50000]": {{}}}}\ngroups:\n  g: "a[1-50000]"\n  x: "{words}"\n'
    with pytest.raises(InventoryError, match=r"fleet.yaml:4: groups.x: .*repeats counted"):
        load(tmp_path, text)


def test_many_misspelt_jump_hosts_are_told_without_as_many_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []

    def suggest(word: str, known: object) -> str:
        searched.append(word)
        return ""

    monkeypatch.setattr(jumps, "suggest", suggest)
    hosts = "".join(f"  h{n}: {{jump: j{n}}}\n" for n in range(100))
    with pytest.raises(InventoryError) as caught:
        load(tmp_path, f"jump_hosts: {{b: 192.0.2.1}}\nhosts:\n{hosts}")
    assert len(caught.value.problems) == 100
    assert len(searched) == 20
