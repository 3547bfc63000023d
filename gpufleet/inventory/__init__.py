"""fleet.yaml and selections: which nodes there are, how each is reached and what applies to it.

Reads one file and answers questions about it. Contacts nothing, resolves no names, prints nothing,
and never looks at ClusterShell's own groups or at anything else on this machine.
"""

from gpufleet.inventory.completion import names_for_completion
from gpufleet.inventory.fleet import Fleet
from gpufleet.inventory.loading import load_fleet
from gpufleet.inventory.options import parse_duration, parse_settings
from gpufleet.inventory.ranges import fold
from gpufleet.inventory.selection import words
from gpufleet.inventory.sharding import Shard, parse_shard
from gpufleet.inventory.source import find_inventory

__all__ = [
    "Fleet",
    "Shard",
    "find_inventory",
    "fold",
    "load_fleet",
    "names_for_completion",
    "parse_duration",
    "parse_settings",
    "parse_shard",
    "words",
]
