"""A GPU reset around real services: systemd stops and starts them, and their processes hold real device
files. nvidia-smi is a stand-in that refuses while anybody holds one, as the driver does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.model import Verdict
from gpufleet.observation import Observation
from tests.simfleet import faults
from tests.simfleet.files import link_nvidia_smi, write_tool

from . import DAEMONS, Machine, daemon, unit
from .conftest import Reset

FILE = "/var/lib/gpufleet-node/stopped"
UNITS = tuple(f"{name}.service" for name in DAEMONS)
SMI = """
case "$*" in *--gpu-reset*) ;; *) exec /run/simnode/programs/node/nvidia-smi "$@" ;; esac
echo reset >>/run/resets
if find /proc/[0-9]*/fd -maxdepth 1 -lname '/dev/nvidia*' 2>/dev/null | grep -q .; then
  echo "The following GPUs could not be reset: In use by another client"; exit 255
fi
rm -f /run/simnode/state/faults/*
"""


@pytest.fixture
def wanting(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A node of which one GPU wants a reset, with its daemons up."""
    state: Path = machine.folder / machine.name
    monkeypatch.setattr(Observation, "on_host", True)
    machine.exec("rm -rf /var/lib/gpufleet-node /run/resets")
    write_tool(state / "bin/nvidia-smi", SMI)
    found = machine.exec("command -v nvidia-smi").stdout.strip()
    assert found == "/run/simnode/state/bin/nvidia-smi", "the machine's own would be used"
    faults.write(state / "faults", "gpu_recovery_action@3", "Reset")
    for name in DAEMONS:
        machine.start_unit(f"{name}.service", daemon(name, Restart="always"))
    yield machine
    faults.remove(state / "faults")
    link_nvidia_smi(state / "bin")


def pids(machine: Machine) -> dict[str, str]:
    return {unit: machine.show(unit, "MainPID") for unit in UNITS}


def resets(machine: Machine) -> int:
    return len(machine.exec("cat /run/resets").stdout.splitlines())


def test_services_are_stopped_for_the_reset_and_run_again(wanting: Machine, reset: Reset) -> None:
    before = pids(wanting)

    report = reset(escalate="gpu-reset")

    assert report.verdict is Verdict.CLEAN, report
    assert resets(wanting) == 1
    assert {(s.owner, s.stopped, s.restored) for s in report.stopped} == {
        (unit, "yes", "yes") for unit in UNITS
    }
    after = pids(wanting)
    assert all(after[unit] not in {before[unit], "0"} for unit in UNITS)
    assert not wanting.path(FILE).exists()


@pytest.mark.parametrize(
    "how", ["Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom"]
)
def test_a_service_that_would_stop_with_one_of_them_forbids_it(
    how: str, wanting: Machine, reset: Reset
) -> None:
    text = unit("/bin/sleep 1000").replace(
        "[Service]", f"{how}={UNITS[1]}\nAfter={UNITS[1]}\n[Service]"
    )
    wanting.write("billing.service", text)
    wanting.systemctl("start billing.service")
    before = pids(wanting)

    report = reset(escalate="gpu-reset")

    [rung] = report.escalations
    assert rung.done == f"no: billing.service stops with {UNITS[1]}"
    assert (pids(wanting), resets(wanting)) == (before, 0)


def test_a_service_that_would_stop_with_a_target_of_one_forbids_it(
    wanting: Machine, reset: Reset
) -> None:
    wanting.write("gpus.target", f"[Unit]\nBindsTo={UNITS[1]}\n")
    text = unit("/bin/sleep 1000").replace("[Service]", "PartOf=gpus.target\n[Service]")
    wanting.write("billing.service", text)
    wanting.systemctl("start gpus.target billing.service")

    report = reset(escalate="gpu-reset")

    [rung] = report.escalations
    assert rung.done == "no: billing.service stops with gpus.target"
    assert resets(wanting) == 0
    wanting.exec("systemctl stop gpus.target")


def test_a_daemon_that_does_not_come_up_is_told(wanting: Machine, reset: Reset) -> None:
    text = daemon("nvidia-fabricmanager", ExecStartPre="/bin/sh -c '! test -e /run/resets'")
    wanting.write(UNITS[0], text)

    report = reset(escalate="gpu-reset")

    assert report.verdict is Verdict.BROKEN, report
    assert report.reason.startswith(f"not up again after the GPU reset: {UNITS[0]} (")
    assert report.next_step == "gpufleet restore --hosts gpu01"
    assert wanting.path(FILE).read_text().startswith(f"daemon {UNITS[0]} ")
    assert [one.rung for one in report.escalations] == ["gpu-reset"]
