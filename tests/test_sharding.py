"""`--shard I/N`: parts that never share a node and never lose one, whoever asks and in which order."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.errors import UsageError
from gpufleet.inventory.sharding import Shard, parse_shard, part_of
from gpufleet.policy import Access, NodeSpec
from tests.conftest import Command, command_for
from tests.simfleet import SGLANG, SimFleet
from tests.test_schema import validate

NAMES = st.text("abgpu-0123456789", min_size=1, max_size=12)


def specs(names: list[str]) -> list[NodeSpec]:
    return [NodeSpec(name, Access("192.0.2.1")) for name in names]


@settings(deadline=None)
@given(st.lists(NAMES, unique=True, max_size=40), st.integers(1, 12), st.randoms())
def test_parts_are_disjoint_complete_and_the_same_in_any_order(
    names: list[str], of: int, mixing: random.Random
) -> None:
    parts = [[s.name for s in Shard(i, of).of_specs(specs(names))] for i in range(1, of + 1)]
    assert sorted(name for part in parts for name in part) == sorted(names)

    mixed = names.copy()
    mixing.shuffle(mixed)
    again = [[s.name for s in Shard(i, of).of_specs(specs(mixed))] for i in range(1, of + 1)]
    assert [set(part) for part in again] == [set(part) for part in parts]


@settings(deadline=None)
@given(st.lists(NAMES, unique=True, min_size=1, max_size=40), st.integers(1, 12))
def test_a_node_stays_in_its_part_whoever_else_is_selected(names: list[str], of: int) -> None:
    alone = {name for name in names if Shard(1, of).of_specs(specs([name]))}
    assert {spec.name for spec in Shard(1, of).of_specs(specs(names))} == alone


def test_parts_keep_the_order_of_the_selection() -> None:
    names = [f"gpu{i:03}" for i in range(300)]
    part = [spec.name for spec in Shard(2, 3).of_specs(specs(names))]
    assert part == sorted(part)


def test_no_part_of_a_large_fleet_is_much_larger_than_another() -> None:
    counts = Counter(part_of(f"gpu-{i:05}", 8) for i in range(20_000))
    assert set(counts) == set(range(1, 9))
    assert max(counts.values()) < 2_500 * 1.06
    assert min(counts.values()) > 2_500 * 0.94


def test_another_version_and_another_machine_take_the_same_parts() -> None:
    """These are a promise: half a job array may run another version of gpufleet."""
    assert [part_of(name, 8) for name in ("gpu01", "gpu02", "gpu-00001", "odd")] == [2, 1, 1, 6]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        ("0/4", "parts are counted from 1: 1/4 to 4/4"),
        ("5/4", "parts are counted from 1: 1/4 to 4/4"),
        ("2/1", "parts are counted from 1: 1/1"),
        ("1/0", "1 to 100,000 parts"),
        ("1/100001", "1 to 100,000 parts"),
        ("2", "like 2/8"),
        ("", "like 2/8"),
        ("1/", "like 2/8"),
        ("/8", "like 2/8"),
        ("-1/8", "like 2/8"),
        ("02/8", "like 2/8"),
        ("2 / 8", "like 2/8"),
        ("٢/8", "like 2/8"),
        ("9" * 5000 + "/8", "like 2/8"),
    ],
)
def test_what_names_no_part_is_refused(read: str, said: str) -> None:
    with pytest.raises(UsageError, match="--shard") as refused:
        parse_shard(read)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def offline(tmp_path: Path) -> Command:
    """A fleet of which nothing is ever contacted."""
    path = tmp_path / "fleet.yaml"
    path.write_text("hosts: {'gpu[01-16]': {}, odd: 192.0.2.1}\ngroups: {pool: 'gpu[01-16]'}\n")
    path.chmod(0o644)
    return command_for({"GPUFLEET_INVENTORY": str(path)})


def test_hosts_shows_what_a_part_has(offline: Command) -> None:
    def shown(*arguments: str) -> list[str]:
        done = offline("hosts", "--json", *arguments)
        assert done.code == 0, done.err
        return [host["host"] for host in done.json["hosts"]]

    parts = [shown("-H", "pool", "--shard", f"{i}/4") for i in range(1, 5)]
    assert sorted(name for part in parts for name in part) == [f"gpu{i:02}" for i in range(1, 17)]
    # An order of its own, and nodes that aren't wanted, move nobody.
    other = shown("-H", "gpu16,gpu[01-15],odd", "-x", "gpu03", "--shard", "2/4")
    assert set(other) - {"odd"} == set(parts[1]) - {"gpu03"}


@pytest.mark.parametrize("command", ["hosts", "status", "check", "reset", "restore"])
def test_a_bad_part_is_one_line_and_exit_2(command: str, offline: Command) -> None:
    done = offline(command, "-H", "pool", "--shard", "4/3")
    expected = 'gpufleet: --shard: read "4/3": parts are counted from 1: 1/3 to 3/3\n'
    assert (done.code, done.out, done.err) == (2, "", expected)


@pytest.mark.parametrize("command", ["status", "check", "reset", "restore"])
def test_a_task_without_work_is_well(command: str, offline: Command) -> None:
    """As job arrays expect: an array has as many tasks as it has, and none fails for that."""
    empty = next(f"{i}/9" for i in range(1, 10) if i != part_of("gpu01", 9))
    done = offline(command, "-H", "gpu01", "--shard", empty)
    told = f"nothing to do: shard {empty} of gpu01 has no node\n"
    assert (done.code, done.out, done.err) == (0, "", told)

    done = offline(command, "-H", "gpu01", "--shard", empty, "--json")
    assert (done.code, done.json["nodes"], done.json["exit_code"]) == (0, [], 0)
    assert done.json["shard"] == empty
    validate(done.json, "run")

    done = offline(command, "-H", "gpu01", "--shard", empty, "--jsonl", "-q")
    assert (done.code, done.err) == (0, "")
    assert [line.split('"')[3] for line in done.out.splitlines()] == ["start", "end"]


def test_an_empty_selection_is_no_empty_part(offline: Command) -> None:
    done = offline("status", "-H", "pool", "-x", "pool", "--shard", "1/2")
    assert done.code == 2
    assert "selects no hosts" in done.err


DOC = (Path(__file__).parent.parent / "docs" / "scaling.md").read_text(encoding="utf-8")


def blocks(title: str) -> list[str]:
    """The indented blocks of a section, as they would be pasted."""
    section = DOC.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0]
    found = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", section, re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


STAND_INS = {
    "gpufleet": 'exec "$PYTHON" -m gpufleet "$@"',
    # ssh joins its words and hands them to a shell: here to one in a folder named after the host.
    "ssh": 'while [ "$1" = -x ]; do shift; done; mkdir -p "$VAR/$1"; cd "$VAR/$1"; shift\n'
    'exec sh -c "$(echo "$*" | sed "s,/var/tmp/,,")"',
    "sbatch": 'case "$*" in *--wrap*) shift 3; exec sh -c "$1";; esac\n'
    "for i in 1 2 3 4 5 6 7 8; do\n"
    'SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=8 sh "$2" || exit; done; echo 4711',
}


@pytest.mark.parametrize(
    "title",
    [
        "One machine, several processes",
        "Over ssh, one part per control host",
        pytest.param(
            "pdsh",
            marks=pytest.mark.skipif(shutil.which("pdsh") is None, reason="needs pdsh"),
        ),
        "Slurm job arrays",
    ],
)
def test_what_the_page_says_can_be_pasted(title: str, fleet: SimFleet, tmp_path: Path) -> None:
    """Every way resets each node once, and ends with one report. ssh and sbatch are stand-ins here."""
    started = {node.name: node.start(SGLANG) for node in fleet}
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    pasted = blocks(title)
    if title.startswith("Slurm"):
        (work / "reset.sbatch").write_text(pasted.pop(0))
    done = subprocess.run(
        ["sh", "-c", "\n".join(pasted)],
        check=False,
        capture_output=True,
        text=True,
        cwd=work,
        timeout=180,
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "PYTHON": sys.executable,
            "VAR": str(tmp_path / "var"),
            "GPUFLEET_INVENTORY": str(fleet.fleet_yaml),
            "GPUFLEET_STATE": str(tmp_path / "state"),
            "PYTHONPATH": str(Path(__file__).parent.parent),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 nodes: 4 CLEAN (" in done.stdout
    parts = [json.loads(path.read_text()) for path in work.glob("part-*.json")]
    hosts = [node["host"] for part in parts for node in part["nodes"]]
    assert sorted(hosts) == ["gpu01", "gpu02", "gpu03", "gpu04"]
    for node in fleet:
        workload = [p for p in started[node.name] if b"sglang" in b" ".join(p.args)]
        assert workload
        assert not any(node.alive(process) for process in workload)


def test_the_record_and_failed_say_which_part_it_was(fleet: SimFleet, gpufleet: Command) -> None:
    of = 2
    name = "gpu01"
    shard = f"{part_of(name, of)}/{of}"
    fleet[name].fault("gpu3", "[N/A]")
    done = gpufleet("reset", "-H", "inference-pool", "--shard", shard, "--json")
    assert done.json["shard"] == shard
    assert {part_of(host, of) for host in done.nodes()} == {part_of(name, of)}
    validate(done.json, "run")

    assert f"shard: {shard}" in gpufleet("history", "last").out
    assert gpufleet("history", "last", "--json").json["shard"] == shard
    again = gpufleet("hosts", "-H", "@failed")
    assert f"shard {shard} only" in again.err
