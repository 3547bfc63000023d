"""What a command loads before it does anything: names of modules, since times depend on the machine."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SSH = {"paramiko", "cryptography", "fabric", "invoke"}
NEVER = {"asyncio", "unittest", "rich", "jsonschema", "prometheus_client"}
"""Of no use to any command without a terminal and --metrics-file."""


START = """
import sys
sys.modules["tornado"] = None  # tenacity takes it, and asyncio with it, where Dask has brought it
from gpufleet.__main__ import main
main()
"""


def loaded(*arguments: str) -> set[str]:
    """Every module that the command imports from its start to its end, but for the command's own:
    those of `cli/` are known by what they alone import (reset: asking, status: watch)."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", START, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^import time:.*\|\s+(\S+)$", done.stderr, re.MULTILINE)
    assert "gpufleet.cli.streams" in found, done.stderr
    return set(found)


def named(modules: set[str], wanted: set[str]) -> set[str]:
    """Which of `wanted` are there, themselves or by a part."""
    return {name for name in wanted if any(f"{m}.".startswith(f"{name}.") for m in modules)}


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """A fleet of one node where nobody listens: a command goes all its way without a node."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    path = tmp_path / "fleet.yaml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    path.write_text(
        f"defaults: {{identity_file: {key}, ssh_config: no}}\n"
        f"hosts:\n  gpu01: {{address: 127.0.0.1, port: {port}}}\n"
    )
    return path


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_a_word_about_itself_needs_neither_ssh_nor_files(option: str) -> None:
    unwanted = {*SSH, *NEVER, "yaml", "sqlite3", "ClusterShell", "tenacity", "gpufleet.run"}
    if option == "--version":
        unwanted |= {"pydantic", "gpufleet.cli.asking"}

    assert named(loaded(option), unwanted) == set()


def test_the_inventory_alone_needs_no_ssh_and_no_other_command(refused: Path) -> None:
    found = loaded("hosts", "-i", str(refused))

    unwanted = {*SSH, *NEVER, "sqlite3", "tenacity", "gpufleet.run", "gpufleet.cli.asking"}
    assert named(found, unwanted) == set()
    assert "yaml" in found


def test_a_reset_loads_what_it_uses_and_one_command(refused: Path) -> None:
    found = loaded("reset", "-i", str(refused), "-H", "gpu01", "--yes")

    unwanted = {*NEVER, "gpufleet.metrics"}
    unwanted |= {"gpufleet.render.page", "gpufleet.render.live", "gpufleet.cli.watch"}
    assert named(found, unwanted) == set()
    assert {"fabric", "gpufleet.cli.asking", "sqlite3"} <= found


def test_mock_is_the_real_one_for_who_asks() -> None:
    code = (
        "from gpufleet.__main__ import _lend_mock\n"
        "_lend_mock()\n"
        "from invoke import MockContext, Result\n"
        "context = MockContext(run={'ls': Result('x')})\n"
        "assert context.run('ls').stdout == 'x'\n"
        "import unittest.mock\n"
        "assert isinstance(context.run, unittest.mock.Mock)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_nodes_are_spoken_to_while_the_ssh_libraries_are_loaded(tmp_path: Path) -> None:
    """The import of paramiko, and of what judges, waits here until the connection has come."""
    code = (
        "import sys, pathlib, time\n"
        "from gpufleet.policy import Access, NodeSpec\n"
        "from gpufleet import status\n"
        "came = pathlib.Path(sys.argv[2])\n"
        "class Waiting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        while name in ('paramiko', 'gpufleet.judge') and not came.exists(): time.sleep(0.02)\n"
        "sys.meta_path.insert(0, Waiting())\n"
        "access = Access('127.0.0.1', port=int(sys.argv[1]), ssh_config=False, host_keys='off',\n"
        "                connect_timeout_s=60, identity_file=('/nowhere',))\n"
        "print(status([NodeSpec('gpu01', access)]).nodes[0].stage)\n"
    )
    came = tmp_path / "came"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(
            [sys.executable, "-c", code, str(server.getsockname()[1]), str(came)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        server.settimeout(60)
        try:
            peer, _ = server.accept()
        finally:
            came.touch()
        peer.close()
        out, _ = process.communicate(timeout=60)

    assert out.strip() == "authentication"  # by then it has read its key


def test_a_library_that_is_missing_is_told_before_any_node(tmp_path: Path, refused: Path) -> None:
    (tmp_path / "paramiko.py").write_text("raise ImportError('no paramiko here')\n")
    done = subprocess.run(
        [sys.executable, "-m", "gpufleet", "status", "-i", str(refused), "-H", "all"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "no paramiko here" in done.stderr
    assert done.stdout == ""
