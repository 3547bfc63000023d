"""Ansible's variables → keys of fleet.yaml. Tree in, tree out; what is left out is noted."""

from __future__ import annotations

import re
import shlex

from gpufleet.inventory.ansible.groups import Inventory, Variables
from gpufleet.inventory.nodes import Items, Node, Scalar, Table, plain
from gpufleet.inventory.problems import show

KEYS = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_ssh_private_key_file": "identity_file",
    "ansible_private_key_file": "identity_file",
    "ansible_become": "sudo",
}
OURS = "gpufleet_"
"""Before a key of fleet.yaml: `gpufleet_gpus: 4`. Stronger than what Ansible calls the same."""

_SSH_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
_HARMLESS = frozenset(
    {"ansible_group_priority", "ansible_python_interpreter", "ansible_become_method"}
)
_SSH = frozenset({"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh"})
_JUMP = re.compile(r"(?:([^@\s]+)@)?(\[[0-9A-Fa-f:]+\]|[^:@\s]+)(?::([0-9]+))?")


class Translation:
    """One inventory as the tree of a fleet.yaml."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._left_out: dict[str, int] = {}
        self._jumps: dict[str, tuple[str, Table]] = {}
        """Text of a jump → name and entry."""

    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{self._inventory.problems.path}:{line}: {name} is not used by gpufleet"
            for name, line in sorted(self._left_out.items(), key=lambda item: (item[1], item[0]))
        )

    def tree(self) -> Table:
        inventory = self._inventory
        depths = inventory.depths()
        hosts = Table(0)
        members: dict[str, list[str]] = {name: [] for name in inventory.groups}
        for name, groups in inventory.groups_of().items():
            host = inventory.hosts[name]
            variables, said_by = inventory.winning(depths, groups)
            groups_only = {v: group for v, group in said_by.items() if v not in host.variables}
            table = self._host(variables | host.variables, groups_only, host.line, name)
            hosts.entries[name] = (host.line, table)
            for group in groups:
                members[group].append(name)
        whole = Table(1, {"hosts": (hosts.line, hosts)})
        listed = Table(0)
        for name, names in members.items():
            if name == "all" or (name == "ungrouped" and not names):
                continue
            line = inventory.groups[name].line
            items = Items(line, [Scalar(text, line) for text in sorted(names)])
            listed.entries[name] = (line, items)
        whole.entries["groups"] = (0, listed)
        if self._jumps:
            entries = {name: (entry.line, entry) for name, entry in self._jumps.values()}
            whole.entries["jump_hosts"] = (0, Table(0, {**entries}))
        return whole

    def _host(self, variables: Variables, said_by: dict[str, str], line: int, name: str) -> Table:
        """`said_by`: variable → group, of those that aren't the host's own."""
        found: Variables = {}
        ours: Variables = {}
        from_variable: dict[str, str] = {}
        from_ours: dict[str, str] = {}
        problems = self._inventory.problems
        for variable, (at, value) in variables.items():
            if variable.startswith(OURS):
                key = variable.removeprefix(OURS)
                ours[key] = (at, value)
                from_ours[key] = variable
            elif variable in KEYS:
                if KEYS[variable] not in found or not variable.startswith("ansible_ssh_"):
                    found[KEYS[variable]] = (at, value)
                    from_variable[KEYS[variable]] = variable
            elif variable in _SSH_ARGUMENTS:
                self._ssh_arguments(variable, at, value, found)
                from_variable["jump"] = variable
            elif variable == "ansible_connection":
                if plain(value) not in _SSH:
                    cure = "gpufleet goes by SSH: take this host out of its inventory"
                    problems.add(at, f"{name}.{variable}", f"read {show(plain(value))}: {cure}")
            elif variable.startswith("ansible_") and variable not in _HARMLESS:
                self._left_out.setdefault(variable, at)
        found |= ours
        from_variable |= from_ours
        for key, (at, value) in found.items():
            text = plain(value)
            if isinstance(text, str) and "{{" in text:
                cure = "a template, which only Ansible can fill in: write the value"
                problems.add(at, f"{name}.{key}", f"read {show(text)}: {cure}")
        origins = {
            key: f"group {said_by[variable]}"
            for key, variable in from_variable.items()
            if key in found and variable in said_by
        }
        return Table(line, found, origins)

    def _ssh_arguments(self, variable: str, line: int, value: Node, found: Variables) -> None:
        """`-J` and `-o ProxyJump=` become jump hosts: without them another machine of the same
        private address could answer. All else is left out."""
        try:
            words = shlex.split(str(plain(value) or ""))
        except ValueError:
            words = ["?"]
        jump, rest = "", False
        while words:
            word = words.pop(0)
            if word in {"-J", "-o"} and words:
                word += words.pop(0)
            if match := re.fullmatch(r"(?:-J|-o\s*ProxyJump[= ])(.+)", word, re.IGNORECASE):
                jump = match[1]
            else:
                rest = True
        if rest:
            self._left_out.setdefault(f"{variable} ({show(plain(value))})", line)
        if jump and jump != "none":
            names: list[Node] = [Scalar(self._jump(hop, line), line) for hop in jump.split(",")]
            found["jump"] = (line, Items(line, names))

    def _jump(self, text: str, line: int) -> str:
        if text not in self._jumps:
            match = _JUMP.fullmatch(text)
            host = match[2].strip("[]") if match else text
            said = {"address": host, "user": match[1] if match else None}
            said["port"] = match[3] if match else None
            entry = Table(line, {k: (line, Scalar(v, line)) for k, v in said.items() if v})
            base = re.sub(r"[^A-Za-z0-9_.-]", "-", host)
            taken = {*self._inventory.hosts, *self._inventory.groups}
            taken |= {name for name, _ in self._jumps.values()}
            while base in taken or base.isdigit() or base[:1] in "-.":
                base = f"jump-{base}"
            self._jumps[text] = (base, entry)
        return self._jumps[text][0]
