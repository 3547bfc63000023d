"""A YAML inventory of Ansible's: groups with `hosts`, `children` and `vars`. Tree in, no text."""

from __future__ import annotations

from gpufleet.inventory.ansible.groups import Inventory, Variables
from gpufleet.inventory.nodes import Node, Scalar, Table, plain
from gpufleet.inventory.problems import show

PARTS = ("hosts", "children", "vars")
_OURS = frozenset({"defaults", "jump_hosts", "hosts", "groups"})


def is_ansible(tree: Node | None) -> bool:
    """Its keys are groups: none is a part of fleet.yaml, and one at least has a part of a group."""
    if not isinstance(tree, Table) or _OURS & tree.entries.keys():
        return False
    if "plugin" in tree.entries:
        return True
    return any(
        isinstance(node, Table) and set(PARTS) & node.entries.keys()
        for _, node in tree.entries.values()
    )


def read_groups(tree: Table, inventory: Inventory) -> None:
    if "plugin" in tree.entries:
        line, node = tree.entries["plugin"]
        cure = "only Ansible can run it: ansible-inventory -i FILE --list --yaml > static.yaml"
        inventory.problems.stop(
            line, "plugin", f"read {show(plain(node))}: a dynamic inventory: {cure}"
        )
    for name, (line, node) in tree.entries.items():
        _group(name, line, node, inventory)


def _group(name: str, line: int, node: Node, inventory: Inventory) -> None:
    group = inventory.group(name, line)
    for key, (at, value) in _table(node, name, inventory).items():
        where = f"{name}.{key}"
        if key not in PARTS:
            known = "a group has hosts, children and vars"
            inventory.problems.add(at, where, f"read the unknown key {show(key)}: {known}")
            continue
        for item, (item_line, inner) in _table(value, where, inventory).items():
            if key == "vars":
                group.variables[item] = (item_line, inner)
            elif key == "children":
                group.children.setdefault(item, item_line)
                _group(item, item_line, inner, inventory)
            else:
                variables = _table(inner, f"{where}.{item}", inventory)
                inventory.add_hosts(item, item_line, name, variables)


def _table(node: Node, where: str, inventory: Inventory) -> Variables:
    if isinstance(node, Table):
        return node.entries
    if not isinstance(node, Scalar) or node.text is not None:
        text = f"read {show(plain(node))}: a mapping goes here"
        inventory.problems.add(node.line, where, text)
    return {}
