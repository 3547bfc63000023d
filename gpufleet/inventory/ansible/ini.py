"""An INI inventory of Ansible's: `[group]`, `[group:children]`, `[group:vars]`. Text only."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import PurePath

from gpufleet.inventory.ansible.groups import Inventory, Variables
from gpufleet.inventory.nodes import Items, Node, Scalar
from gpufleet.inventory.problems import show

_SECTION = re.compile(r"\[([^:\[\]]+)(?::(\w+))?\]\s*(?:[#;].*)?")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.*)")


def is_ini(path: str, text: str) -> bool:
    """By its name (.ini, .cfg), or by what no YAML inventory holds: a line that is a section."""
    suffix = PurePath(path).suffix.lower()
    if suffix in {".ini", ".cfg"}:
        return True
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    if _SECTION.fullmatch(first):
        return True
    return suffix not in {".yaml", ".yml", ".json"} and bool(
        re.search(r"(?m)^\[[^:\[\],]+(:\w+)?\]\s*$|^[^\s#:]+[ \t]+ansible_\w+=", text)
    )


def read_ini(text: str, inventory: Inventory) -> None:
    """Fills `inventory`; what can't be read is noted with its line."""
    problems = inventory.problems
    group, kind = "ungrouped", "hosts"
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if section := _SECTION.fullmatch(line):
            group, kind = section[1].strip(), section[2] or "hosts"
            if kind not in {"hosts", "children", "vars"}:
                cure = "[group], [group:children] or [group:vars]"
                problems.add(number, "", f"read {show(line)}: {cure}")
            inventory.group(group, number)
        elif kind == "vars":
            if variable := _VARIABLE.fullmatch(line):
                value = _value(variable[2], number)
                inventory.group(group, number).variables[variable[1]] = (number, value)
            else:
                problems.add(number, f"{group}:vars", f"read {show(line)}: name=value goes here")
        elif kind == "children":
            child = line.split("#")[0].strip()
            inventory.group(group, number).children.setdefault(child, number)
            inventory.group(child, number)
        elif kind == "hosts":
            _host_line(line, number, group, inventory)


def _host_line(line: str, number: int, group: str, inventory: Inventory) -> None:
    try:
        name, *words = shlex.split(line, comments=True)
    except ValueError as error:
        inventory.problems.add(number, group, f"read {show(line)}: {error}".replace("No", "no"))
        return
    variables: Variables = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            cure = "after the host's name come name=value pairs"
            inventory.problems.add(number, f"{group}.{name}", f"read {show(word)}: {cure}")
        variables[key] = (number, _value(value, number))
    inventory.add_hosts(name, number, group, variables)


def _value(text: str, line: int) -> Node:
    """Text; a quoted one without its quotes, a list as one, as Ansible reads Python's literals."""
    if text[:1] in {'"', "'", "["}:
        try:
            literal = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return Scalar(text, line)
        if isinstance(literal, list):
            return Items(line, [Scalar(str(item), line) for item in literal])
        return Scalar(str(literal), line)
    return Scalar(text, line)
