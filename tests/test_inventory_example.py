"""fleet.yaml.example and docs/inventory.md teach what there is: every key, and nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gpufleet.inventory import Fleet, fold, load_fleet
from gpufleet.inventory.schema import GroupSchema, HostSchema, JumpHostSchema
from gpufleet.policy import Policy

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "fleet.yaml.example"
REFERENCE = ROOT / "docs/inventory.md"
KEYS = sorted({*HostSchema.model_fields, *GroupSchema.model_fields, *JumpHostSchema.model_fields})


def load(source: Path, tmp_path: Path) -> Fleet:
    path = tmp_path / "fleet.yaml"
    shutil.copyfile(source, path)
    path.chmod(0o600)  # a checkout's mode is the umask's
    return load_fleet(path)


def test_the_example_loads_and_means_what_its_comments_say(tmp_path: Path) -> None:
    fleet = load(EXAMPLE, tmp_path)
    assert fold(fleet.names()) == "gpu[01-24],odd,v6"
    assert fold(fleet.resolve("everything-else")) == "v6"
    assert fleet.spec("gpu18").access.address == "10.1.230.18"
    assert fleet.spec("odd").access.jump == ("bastion", "inner")
    assert fleet.spec("odd").policy.grace_s == 10.0
    assert fleet.groups()["spare"] == ()


def test_the_examples_defaults_are_the_policys(tmp_path: Path) -> None:
    spec = load(EXAMPLE, tmp_path).spec("gpu01")
    assert spec.policy == Policy(protect=("node_exporter", "unit:telegraf", "user:monitoring"))
    assert (spec.access.user, spec.access.port, spec.access.host_keys) == ("root", 22, "strict")
    assert spec.access.connect_timeout_s == 10.0


@pytest.mark.parametrize("key", KEYS)
def test_every_key_stands_in_the_example_and_in_the_reference(key: str) -> None:
    assert re.search(rf"(?m)^\s*(# )?{key}:|[{{ ]{key}: ", EXAMPLE.read_text())
    assert f"| `{key}` |" in REFERENCE.read_text()


def test_the_reference_has_no_keys_of_its_own() -> None:
    section = REFERENCE.read_text().partition("## Keys")[2].partition("## ")[0]
    rows = re.findall(r"(?m)^\| `(\w+)` \|", section)
    assert sorted(rows) == KEYS


def test_the_references_example_loads(tmp_path: Path) -> None:
    (text,) = re.findall(r"(?s)```yaml\n(.*?)```", REFERENCE.read_text())
    path = tmp_path / "example"
    path.write_text(text)
    fleet = load(path, tmp_path)
    rows = re.findall(r"(?m)^\| `([^`]+)` \|[^|]*\| `([^`]+)` \|$", REFERENCE.read_text())
    assert {selection: fold(fleet.resolve(selection)) for selection, _ in rows} == dict(rows)
    assert len(rows) > 5
