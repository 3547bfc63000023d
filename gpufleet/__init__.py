"""gpufleet brings GPU nodes back to a proven clean slate over SSH.

    from gpufleet import load_fleet, reset, status

    fleet = load_fleet("fleet.yaml")
    report = reset(fleet.select("inference-pool"), selection="inference-pool")
    print(report.exit_code(), [(node.host, node.verdict.value) for node in report.nodes])

The public names are those of `__all__`; all else may change. They are loaded when first used, so
that `gpufleet --version` doesn't wait for SSH.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufleet.errors import GpufleetError, InventoryError, SelectionError, UsageError
    from gpufleet.inventory import Fleet, load_fleet
    from gpufleet.model import Gpu, NodeReport, ProcessLine, RunReport, Verdict
    from gpufleet.policy import Access, NodeSpec, Policy
    from gpufleet.run import Engine, Progress, check, reset, restore, status

__version__ = "0.1.0"

_HOMES = {
    "gpufleet.errors": ("GpufleetError", "InventoryError", "SelectionError", "UsageError"),
    "gpufleet.inventory": ("Fleet", "load_fleet"),
    "gpufleet.model": ("Gpu", "NodeReport", "ProcessLine", "RunReport", "Verdict"),
    "gpufleet.policy": ("Access", "NodeSpec", "Policy"),
    "gpufleet.run": ("Engine", "Progress", "check", "reset", "restore", "status"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Access",
    "Engine",
    "Fleet",
    "Gpu",
    "GpufleetError",
    "InventoryError",
    "NodeReport",
    "NodeSpec",
    "Policy",
    "ProcessLine",
    "Progress",
    "RunReport",
    "SelectionError",
    "UsageError",
    "Verdict",
    "__version__",
    "check",
    "load_fleet",
    "reset",
    "restore",
    "status",
]


class _Package(ModuleType):
    """Keeps `gpufleet.reset` the public function: importing the module of that name would put the
    module in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # only for the lazy names

    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
