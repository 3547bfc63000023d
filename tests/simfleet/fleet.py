"""A fleet of simulated nodes on one machine, side by side with other fleets.

Gives each node its address, keys and folder, starts and ends them together, and writes fleet.yaml.
May not look into a node: that is `simnode.py`.
"""

from __future__ import annotations

import atexit
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from .keys import Keys
from .network import Lease, await_listening
from .programs import Programs
from .requirements import require
from .scene import RunningProcess, Scene
from .settings import NodeSettings
from .simnode import SimNode

WARDEN = """
while read -r _; do :; done
for _ in 1 2 3 4 5 6 7 8 9; do
  rm -rf -- "$1" 2>/dev/null && [ ! -e "$1" ] && exit
  sleep 0.2
done
"""
"""Removes the fleet's folder at end of file: also when its owner was killed."""


class SimFleet:
    """Starts on entry, ends on exit; `fleet["gpu01"]` is a node, iteration gives all of them."""

    def __init__(
        self,
        count: int = 1,
        names: str | Sequence[str] = "gpu{:02d}",
        *,
        scene: Scene | None = None,
        folder: Path | None = None,
        settings: NodeSettings | None = None,
        overrides: Mapping[str, NodeSettings] | None = None,
        patience_s: float = 60.0,
    ) -> None:
        """`names`: a pattern for 1…count, or the names themselves.

        `folder` may not exist yet and is removed at the end. `overrides`: settings of single nodes,
        in place of `settings`. `patience_s`: how long all sshd's together may take to listen.
        """
        self.names = (
            [names.format(number) for number in range(1, count + 1)]
            if isinstance(names, str)
            else list(names)
        )
        self.folder = Path() if folder is None else folder.absolute()
        self.scene = scene
        self.settings = settings or NodeSettings()
        self.overrides = dict(overrides or {})
        self.patience_s = patience_s
        self.nodes: dict[str, SimNode] = {}
        self.running: dict[str, list[RunningProcess]] = {}
        """What `scene` became on each node."""
        self._given_folder = folder is not None
        self._lease: Lease | None = None
        self._warden: subprocess.Popen[bytes] | None = None

    @property
    def identity_file(self) -> Path:
        """Private key that logs in as any user of any node."""
        return self.keys.identity

    @property
    def known_hosts(self) -> Path:
        return self.keys.known_hosts

    @property
    def fleet_yaml(self) -> Path:
        return self.folder / "fleet.yaml"

    @property
    def keys(self) -> Keys:
        return Keys(self.folder, self.names)

    @property
    def port(self) -> int:
        """Of every node's sshd."""
        return next(iter(self)).port

    def __getitem__(self, name: str) -> SimNode:
        return self.nodes[name]

    def __iter__(self) -> Iterator[SimNode]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when every node's sshd listens and every scene is ready."""
        require()
        try:
            self._make_folder()
            self._make_nodes()
            self.write_known_hosts()
            self.fleet_yaml.write_text(fleet_yaml(self))
            self._start_nodes()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all nodes and removes the folder; may be called again."""
        for node in self:
            node.hang_up()
        for node in self:
            node.stop()
        if self._warden is not None:
            assert self._warden.stdin is not None
            self._warden.stdin.close()
            self._warden.wait()
            self._warden = None
        if self._lease is not None:
            self._lease.give_back()
            self._lease = None
        atexit.unregister(self.stop)

    def write_known_hosts(self, wrong: Mapping[str, str] | None = None) -> None:
        """Right keys for all nodes but those in `wrong`."""
        addresses = {node.name: (node.address, node.port) for node in self}
        self.keys.write_known_hosts(addresses, wrong)

    def forge_host_key(self, name: str) -> None:
        """known_hosts now has another key for that node, as after a reinstallation."""
        self.write_known_hosts({name: self.keys.authorized.strip()})

    def forget_host_key(self, name: str) -> None:
        """known_hosts doesn't know the node."""
        self.write_known_hosts({name: ""})

    def clear(self) -> None:
        """All nodes back to idle, known_hosts right again."""
        for node in self:
            node.clear()
        self.write_known_hosts()

    def _make_folder(self) -> None:
        if self._given_folder:
            self.folder.mkdir(parents=True)
        else:
            self.folder = Path(tempfile.mkdtemp(prefix="simfleet-"))
        self._warden = subprocess.Popen(
            ["/bin/sh", "-c", WARDEN, "simfleet-warden", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # whoever reads our output may not wait for it
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.stop)

    def _make_nodes(self) -> None:
        self._lease = Lease()
        programs = Programs(self.folder / "programs")
        programs.make()
        self.keys.make()
        for index, name in enumerate(self.names):
            settings = self.overrides.get(name, self.settings)
            address = self._lease.address(index)
            node = SimNode(name, address, self._lease.port, self.folder / name, programs, settings)
            node.prepare(self.keys.authorized)
            self.nodes[name] = node

    def _start_nodes(self) -> None:
        for node in self:
            node.launch()
        for node in self:
            node.await_ready()
        if self.scene is not None:
            for node in self:
                node.request_start(self.scene)
            for node in self:
                self.running[node.name] = node.await_start(self.scene)
        addresses = [(node.address, node.port) for node in self]
        await_listening(addresses, self.patience_s)


def fleet_yaml(fleet: SimFleet) -> str:
    lines = [
        "defaults:",
        "  user: root",
        f"  port: {fleet.port}",
        f"  identity_file: {fleet.identity_file}",
        f"  known_hosts: {fleet.known_hosts}",
        "hosts:",
        *(f"  {node.name}: {node.address}" for node in fleet),
        "groups:",
        f'  inference-pool: "{fold(fleet.names)}"',
    ]
    return "\n".join(lines) + "\n"


def fold(names: Sequence[str]) -> str:
    """gpu01, gpu02, gpu03   ->   gpu[01-03]; what isn't one row stays a list."""
    prefix = names[0].rstrip("0123456789")
    digits = names[0][len(prefix) :]
    row = [f"{prefix}{int(digits or 0) + step:0{len(digits)}d}" for step in range(len(names))]
    if len(names) > 1 and digits and row == list(names):
        return f"{prefix}[{digits}-{row[-1].removeprefix(prefix)}]"
    return ",".join(names)
