"""The JSON document of a run, read back and checked: what a file holds isn't trusted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpufleet.errors import UsageError
from gpufleet.masking import printable
from gpufleet.model import Verdict
from gpufleet.render.document import SCHEMA

Count = Annotated[int, Field(ge=0, le=2**53)]
"""Of anything. What is larger was edited, and has no share or bar that could be drawn."""

Seconds = Annotated[float, Field(ge=0, le=2**53, allow_inf_nan=False)]


class _Part(BaseModel):
    """Keys that this version doesn't know are left out: newer versions may add some."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class PageGpu(_Part):
    """Memory in MiB, None where it couldn't be read or wasn't asked."""

    index: Count
    uuid: str = ""
    memory_before_mib: Count | None = None
    memory_used_mib: Count | None = None
    memory_total_mib: Count | None = None
    raw: str = ""


class PageProcess(_Part):
    """One killed, spared or surviving process."""

    pid: Count
    user: str = ""
    owner: str = ""
    command: str = ""
    rule: str = ""
    why: str = ""
    signal: str = ""
    age_s: Count | None = None
    memory_mib: Count | None = None


class PageMoment(_Part):
    """The beginning of a phase, seconds since the node's own start."""

    at_s: Seconds
    phase: str
    detail: str = ""


class PageNode(_Part):
    """One node's result."""

    host: str
    address: str = ""
    verdict: Verdict
    reason: str = ""
    next_step: str = ""
    stage: str = ""
    attempts: Count = 0
    elapsed_s: Seconds = 0
    gpus: list[PageGpu] = []
    warnings: list[str] = []
    killed: list[PageProcess] = []
    spared: list[PageProcess] = []
    survivors: list[PageProcess] = []
    would_kill: list[PageProcess] = []
    timeline: list[PageMoment] = []


class PageRun(_Part):
    """A whole run. `finished` and `exit_code` are None of one that was killed."""

    schema_number: int = Field(alias="schema")
    run_id: str = Field(alias="run_id")
    command: Literal["reset", "status", "check", "restore"]
    dry_run: bool = False
    selection: str = ""
    started: str = ""
    finished: str | None = None
    exit_code: Count | None = None
    nodes: list[PageNode]


def read_run(document: Mapping[str, object]) -> PageRun:
    """Raises `UsageError`, with the place in the document, for what isn't a run of this schema."""
    number = document.get("schema")
    if isinstance(number, int) and number > SCHEMA:
        raise UsageError(f"schema {number} is newer than this version's {SCHEMA}: update gpufleet")
    try:
        return PageRun.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = f"not the JSON document of a run: {place}: {first['msg']}"
        raise UsageError(printable(message)[:300]) from error
