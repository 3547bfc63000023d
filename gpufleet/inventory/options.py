"""Texts of command-line options → typed settings, by the same rules as the keys of fleet.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gpufleet.errors import UsageError
from gpufleet.inventory import values
from gpufleet.inventory.problems import show
from gpufleet.inventory.schema import NodeSchema
from gpufleet.inventory.settings import FIELDS


def parse_duration(text: str, option: str = "") -> float:
    """Seconds: `10s`, `500ms`, `2m`, `1h` or a plain number of seconds, 0 to 24 hours.

    Raises UsageError, `--grace: read "10x": a duration is …`, where `option` is "--grace".
    """
    try:
        return values.duration(text)
    except ValueError as error:
        where = f"{option}: " if option else ""
        raise UsageError(f"{where}read {show(text)}: {error}") from error


_CALLED = {"workload": "match-workload"}
"""Options that aren't called as their key is."""


def parse_settings(options: Mapping[str, str | list[str] | None]) -> dict[str, Any]:
    """Options named like keys of fleet.yaml → fields of Policy and Access for `Fleet.select`.

    {"grace": "10s", "tolerance": "4", "jobs": None} -> {"grace_s": 10.0, "tolerance_mib": 4}

    None means "not given". Raises UsageError for the first that doesn't fit its key.
    """
    given = {key: value for key, value in options.items() if value is not None}
    try:
        read = NodeSchema.model_validate(given, context={"folder": ""})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        cure = problem.get("ctx", {}).get("error", problem["msg"])
        key = str(problem["loc"][0])
        option = _CALLED.get(key, key).replace("_", "-")
        raise UsageError(f"--{option}: read {show(problem['input'])}: {cure}") from error
    return {FIELDS.get(key, key): getattr(read, key) for key in given}
