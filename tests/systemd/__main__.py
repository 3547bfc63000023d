"""`python -m tests.systemd`: makes the root file system of systemd nodes where it is missing, and
boots one to see that it works here."""

from __future__ import annotations

import sys

from tests.simfleet import SimFleetError

from .image import Image
from .machine import Machine

try:
    image = Image()
    image.build()
    with Machine():
        print(image.root)
except SimFleetError as error:
    sys.exit(str(error))
