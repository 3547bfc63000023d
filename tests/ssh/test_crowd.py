"""Sixty nodes behind one jump host whose sshd is as Debian ships it."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import command_for
from tests.simfleet import SGLANG, SimFleet

NODES = 60


def test_c08_sixty_busy_nodes_behind_one_bastion_all_end_clean(tmp_path: Path, state: Path) -> None:
    with SimFleet(NODES + 1, patience_s=180) as fleet:
        *nodes, bastion = fleet
        for node in nodes:
            node.request_start(SGLANG)
        for node in nodes:
            node.await_start(SGLANG)
        inventory = tmp_path / "fleet.yaml"
        inventory.write_text(
            f"defaults: {{identity_file: {fleet.identity_file}, known_hosts: {fleet.known_hosts},"
            f" jump: bastion, port: {bastion.port}}}\n"
            f"jump_hosts: {{bastion: {{address: {bastion.address}, port: {bastion.port}}}}}\n"
            "hosts:\n" + "".join(f"  {node.name}: {node.address}\n" for node in nodes)
        )

        gpufleet = command_for({"GPUFLEET_STATE": str(state)})
        ran = gpufleet(
            "reset", "--hosts", "all", "--yes", "--json", "-i", str(inventory), timeout=300
        )

        verdicts = {node["verdict"]: node["reason"] for node in ran.json["nodes"]}
        assert (0, {"CLEAN": ""}) == (ran.code, verdicts)
        assert NODES == len(ran.json["nodes"])
        assert all(10 == len(node["killed"]) for node in ran.json["nodes"])
