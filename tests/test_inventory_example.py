"""fleet.yaml.example and docs/inventory.md teach what there is: every key, and nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gpufleet.inventory import Fleet, fold, load_fleet
from gpufleet.inventory.schema import GroupSchema, HostSchema, JumpHostSchema
from gpufleet.policy import Access, Hooks, Policy

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


def _default_cells() -> dict[str, str]:
    rows = [
        line.split(" | ") for line in REFERENCE.read_text().splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("|` "): row[-1].strip("| ") for row in rows if len(row) == 3}


def _seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(ms|s|m|h)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


@pytest.mark.parametrize(
    ("owner", "key", "field"),
    [
        *((Access("x"), key, key) for key in ("user", "port", "host_keys", "sudo")),
        (Access("x"), "connect_timeout", "connect_timeout_s"),
        *((Policy(), key, f"{key}_s") for key in ("timeout", "grace", "settle")),
        *((Policy(), key, key) for key in ("gpus", "attempts", "jobs", "stop", "restart")),
        *((Policy(), key, key) for key in ("kubernetes", "clean_shm", "workload", "interpreters")),
        (Policy(), "tolerance", "tolerance_mib"),
        *(
            (Hooks(), f"{name}_timeout", f"{name}_timeout_s")
            for name in ("guard", "before", "after")
        ),
    ],
)
def test_the_reference_tells_the_defaults_that_hold(owner: object, key: str, field: str) -> None:
    told = re.split(r"[:;,]? |[:;,]", _default_cells()[key], maxsplit=1)[0]
    value = getattr(owner, field)
    if field.endswith("_s"):
        assert value == _seconds(told)
    elif isinstance(value, bool):
        assert value == {"yes": True, "no": False}[told]
    elif isinstance(value, tuple):
        assert value == (told,)
    else:
        assert str(value) == told
