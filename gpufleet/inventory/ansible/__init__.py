"""Inventories written for Ansible, YAML or INI → the tree that a fleet.yaml of the same meaning has.

Text in, tree out: from there on the same rules and the same error lines hold as for fleet.yaml. What
gpufleet doesn't carry out is noted; what would be read as something else is refused.
"""

from __future__ import annotations

from gpufleet.inventory.ansible.groups import Inventory
from gpufleet.inventory.ansible.ini import is_ini, read_ini
from gpufleet.inventory.ansible.variables import Translation
from gpufleet.inventory.ansible.yamlform import is_ansible, read_groups
from gpufleet.inventory.nodes import Node, Table
from gpufleet.inventory.problems import Problems
from gpufleet.inventory.yamlerrors import refuse_characters
from gpufleet.inventory.yamltext import read_yaml

__all__ = ["read_tree"]


def read_tree(path: str, text: str, problems: Problems) -> tuple[Node | None, tuple[str, ...]]:
    """The tree of either form of inventory, and notes on what was left out.

    Recognised by extension and content: YAML whose keys are groups (`all:`, with `hosts`,
    `children`, `vars`), or an INI file.
    """
    inventory = Inventory(problems)
    if is_ini(path, text):
        refuse_characters(text, problems)
        read_ini(text, inventory)
    else:
        tree = read_yaml(text, problems)
        if not is_ansible(tree):
            return tree, ()
        assert isinstance(tree, Table)
        read_groups(tree, inventory)
    problems.check()
    translation = Translation(inventory)
    tree = translation.tree()
    problems.check()
    return tree, translation.notes()
