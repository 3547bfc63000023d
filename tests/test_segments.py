"""--clean-shm on simulated nodes: what goes, and what stays and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.model import NodeReport, Verdict
from tests.conftest import Command, Reset
from tests.simfleet import Proc, SimNode

JOB = (Proc("job", ("python3", "x.py"), memory={0: 5}),)
KEEPER = "exec 5<>/dev/shm/psm_used; exec sleep 300"


@pytest.fixture(autouse=True)
def _empty(node: SimNode) -> None:
    node.exec("rm -rf /dev/shm/* /dev/shm2; umount /mnt 2>/dev/null")


def put(node: SimNode, *names: str) -> None:
    for name in names:
        node.path(f"/dev/shm/{name}").write_bytes(b"x" * 2048)


def listing(node: SimNode) -> list[str]:
    return sorted(path.name for path in node.path("/dev/shm").iterdir())


def fates(report: NodeReport) -> dict[str, str]:
    return {Path(one.path).name: one.removed for one in report.leftovers}


def test_known_names_that_nobody_uses_go_and_others_stay(node: SimNode, reset_sim: Reset) -> None:
    put(node, "psm_1a2b3c4d", "nccl-aB3xYz", "torch_4000000_12_0", "sem.mp-x", "notes", "mine")
    node.start(JOB)

    report = reset_sim(clean_shm=True)

    assert report.verdict is Verdict.CLEAN, report
    assert set(fates(report).values()) == {"yes"}
    assert len(report.leftovers) == 4
    assert {one.size_bytes for one in report.leftovers} == {2048}
    assert listing(node) == ["mine", "notes"]
    assert report.warnings == ()


def test_without_the_setting_and_in_a_dry_run_nothing_goes(node: SimNode, reset_sim: Reset) -> None:
    put(node, "psm_1a2b3c4d")

    told, planned = reset_sim(), reset_sim(clean_shm=True, dry_run=True)

    assert told.leftovers == ()
    assert "/dev/shm: 1 files that nobody uses" in told.warnings[0]
    assert fates(planned) == {"psm_1a2b3c4d": ""}
    assert listing(node) == ["psm_1a2b3c4d"]


def test_on_a_node_that_is_not_clean_nothing_goes(node: SimNode, reset_sim: Reset) -> None:
    put(node, "psm_1a2b3c4d")

    report = reset_sim(clean_shm=True, gpus=9)

    assert report.verdict is Verdict.BROKEN
    assert listing(node) == ["psm_1a2b3c4d"]


def test_what_is_open_or_mapped_stays(node: SimNode, reset_sim: Reset) -> None:
    put(node, "psm_used")
    node.exec(f"setsid sh -c '{KEEPER}' >/dev/null 2>&1 </dev/null &")

    report = reset_sim(clean_shm=True)

    assert report.verdict is Verdict.CLEAN, report
    assert fates(report) == {}
    assert listing(node) == ["psm_used"]


def test_what_is_opened_after_the_look_stays(node: SimNode, reset_sim: Reset) -> None:
    """The stand-in opens the file when fuser is asked about it, at the moment of the removal."""
    put(node, "psm_used")
    real = node.exec("command -v fuser").stdout.strip()
    start = f'setsid sh -c "{KEEPER}" >/dev/null 2>&1 </dev/null & sleep 1'
    opened = f"[ -e /run/o ] || {{ touch /run/o; {start}; }}"
    node.exec("rm -f /run/o")
    node.tool("fuser", f'case "$*" in *shm*) {opened} ;; esac\nexec {real} "$@"')

    report = reset_sim(clean_shm=True)

    assert fates(report) == {"psm_used": "in use"}, report
    assert listing(node) == ["psm_used"]
    assert "1 files not removed (/dev/shm/psm_used: in use)" in report.warnings[0]


def test_what_is_open_under_another_name_stays(node: SimNode, reset_sim: Reset) -> None:
    """As in a container that has /dev/shm elsewhere: only fuser's comparison of inodes sees it."""
    put(node, "psm_used")
    elsewhere = "mkdir -p /run/other; mount --bind /dev/shm /run/other"
    elsewhere += "; exec 5</run/other/psm_used; exec sleep 300"
    node.exec(f"setsid unshare --mount sh -c '{elsewhere}' >/dev/null 2>&1 </dev/null & sleep 0.5")

    report = reset_sim(clean_shm=True)

    assert fates(report) == {"psm_used": "in use"}, report
    assert listing(node) == ["psm_used"]


@pytest.mark.parametrize("name", ["torch_{}_12_0", "cuda.shm.0.{:x}.1"])
def test_what_a_living_process_is_named_in_stays(
    name: str, node: SimNode, reset_sim: Reset
) -> None:
    [other] = node.start((Proc("other", ("/usr/bin/tail", "-f", "/dev/null"), exe="tail"),))
    put(node, name.format(other.pid))

    report = reset_sim(clean_shm=True)

    assert fates(report) == {name.format(other.pid): f"pid {other.pid} in its name lives"}, report
    assert listing(node) == [name.format(other.pid)]


def test_a_link_in_place_of_a_file_is_not_followed(node: SimNode, reset_sim: Reset) -> None:
    put(node, "notes")
    node.exec("ln -s /dev/shm/notes /dev/shm/psm_link")

    reset_sim(clean_shm=True)

    assert listing(node) == ["notes", "psm_link"]


def test_a_name_with_blanks_is_left_and_told(node: SimNode, reset_sim: Reset) -> None:
    put(node, "psm_a b", "notes")

    report = reset_sim(clean_shm=True)

    assert fates(report) == {"psm_a b": "its name holds odd characters"}
    assert listing(node) == ["notes", "psm_a b"]


def test_the_option_and_the_table(node: SimNode, gpufleet: Command) -> None:
    put(node, "psm_1a2b3c4d")

    ran = gpufleet("reset", "-H", "gpu01", "--clean-shm")

    assert ran.code == 0
    assert "removed: /dev/shm/psm_1a2b3c4d, 0.0 MiB" in ran.out
