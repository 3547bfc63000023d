"""A GPU node with a real systemd: units, control groups, logins and restarts as on a real one.

One container of systemd-nspawn on a root file system made by debootstrap, with what tests/simfleet
gives its nodes: device files, the stand-in nvidia-smi, keys. Nothing here imports gpufleet.
"""

from __future__ import annotations

from .image import Image, missing
from .machine import Machine
from .units import DAEMONS, daemon, job, unit

__all__ = ["DAEMONS", "Image", "Machine", "daemon", "job", "missing", "unit"]
