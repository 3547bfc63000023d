"""Fixtures of simfleet's own tests: one fleet for all of them, an idle node for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import SimFleet, SimNode


@pytest.fixture(scope="package")
def fleet() -> Iterator[SimFleet]:
    with SimFleet(2) as fleet:
        yield fleet


@pytest.fixture
def node(fleet: SimFleet) -> Iterator[SimNode]:
    yield fleet["gpu01"]
    fleet.clear()
