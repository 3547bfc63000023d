"""ClusterShell's group sources in selections, as a site has them configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command, command_for

INVENTORY = """
hosts:
  gpu[01-08]: {address: "192.0.2.[1-8]"}
groups:
  pool: gpu[01-04]
"""
GROUPS = """
[Main]
default: roles

[slurm]
map: {sinfo}

[roles]
map: [ "$GROUP" = infer ] && echo gpu03,gpu05 || exit 1
list: echo infer
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an inventory and a groups.conf; `sinfo` stands for what asks Slurm."""
    (tmp_path / "fleet.yaml").write_text(INVENTORY)
    configure(tmp_path, "echo 'gpu[01-02],gpu07 cpu99'")
    return tmp_path


def configure(site: Path, sinfo: str) -> None:
    (site / "groups.conf").write_text(GROUPS.replace("{sinfo}", sinfo))


def hosts(site: Path) -> Command:
    return command_for(
        {"GPUFLEET_INVENTORY": str(site / "fleet.yaml"), "CLUSTERSHELL_CFGDIR": str(site)}
    )


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_a_sources_group_selects_its_nodes_and_what_the_inventory_lacks_is_told(site: Path) -> None:
    ran = hosts(site)("hosts", "--hosts", "@slurm:gpu")

    assert (0, ["gpu01", "gpu02", "gpu07"]) == (ran.code, names(ran.out))
    assert f"@slurm:gpu: left out: cpu99 isn't in {site}/fleet.yaml" in ran.err


def test_sources_combine_with_groups_of_the_inventory(site: Path) -> None:
    ran = hosts(site)("hosts", "--hosts", "pool&@slurm:gpu,@infer", "-x", "@roles:infer")

    assert (0, ["gpu01", "gpu02"]) == (ran.code, names(ran.out))


def test_the_inventorys_own_group_comes_first(site: Path) -> None:
    (site / "groups.conf").write_text("[Main]\ndefault: roles\n[roles]\nmap: echo gpu08\n")

    assert names(hosts(site)("hosts", "--hosts", "@pool").out) == [f"gpu0{n}" for n in range(1, 5)]


@pytest.mark.parametrize(
    ("word", "sinfo", "said"),
    [
        ("@slurm:gpu", "exit 3", "@slurm:gpu: the group source failed"),
        ("@slurm:gpu", "echo cpu99", "names cpu99, none in"),
        ("@slurm:gpu", "true", "none in"),
        ("@nosuch:gpu", "echo gpu01", 'ClusterShell has no group source "nosuch"'),
        ("@slurm:$(touch pwned)", "echo gpu01", ""),
        ("@slurm:;id", "echo gpu01", "@source:group"),
        ("@typo", "echo gpu01", 'unknown group "typo"'),
    ],
)
def test_what_gives_no_nodes_is_one_line_and_nothing_else(
    site: Path, word: str, sinfo: str, said: str
) -> None:
    configure(site, sinfo)

    ran = hosts(site)("hosts", "--hosts", word, cwd=site)

    assert (2, "") == (ran.code, ran.out)
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (site / "pwned").exists()
