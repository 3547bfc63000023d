"""What owners say of themselves, and what came of stopping and starting them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from gpufleet.masking import masked_command
from gpufleet.observation.keepers import (
    Container,
    Unit,
    parse_units,
    read_containers,
    read_user_units,
)
from gpufleet.records import dataclass
from gpufleet.transport import Answer

_PROGRAM = re.compile(r"(\S+)\s+(?:RUNNING|STARTING|BACKOFF)\s+pid ([0-9]+),")
_SHOWN = 200


@dataclass(frozen=True)
class Managed:
    """The owners of what would be killed. `supervised`: supervisor's programs by pid. `pods`:
    `NAMESPACE/NAME` by uid. `node`: the node's name for itself."""

    units: Mapping[str, Unit] = field(default_factory=dict)
    user_units: Mapping[str, Unit] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    supervised: Mapping[int, str] = field(default_factory=dict)
    pods: Mapping[str, str] = field(default_factory=dict)
    node: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one stop came to: `status` of its command, or `absent` (it wasn't up), or `late`."""

    status: str
    text: str


@dataclass(frozen=True)
class Started:
    """How an owner is after its start: up, starting, failing, down, unknown; its own words."""

    kind: str
    target: str
    state: str
    words: str

    @property
    def runs(self) -> bool:
        return self.state in {"up", "starting"}

    @property
    def name(self) -> str:
        """As a reader knows it."""
        if self.kind == "persistence":
            return f"persistence mode of GPU {self.target}"
        return self.target


def parse_managed(answer: Answer) -> Managed:
    pods = {}
    for name, section in answer.sections.items():
        uid = name.removeprefix("podname.")
        words = section.text.strip().removesuffix(f"_{uid}").split("_")
        if uid != name and len(words) == 2:  # neither name may hold a _
            pods[uid] = "/".join(words)
    programs = answer.text("supervisor").split("\n")
    found = [match for line in programs if (match := _PROGRAM.match(line))]
    return Managed(
        units=parse_units(answer.text("units")),
        user_units=read_user_units(answer),
        containers=read_containers(answer),
        supervised={int(match[2]): match[1] for match in found},
        pods=pods,
        node=answer.text("node").strip(),
    )


def parse_outcomes(answer: Answer) -> dict[int, Outcome]:
    """By the number of the stop, from 1. What is missing wasn't tried, or nobody knows."""
    return {
        int(number): Outcome(section.status, one_line(section.text))
        for name, section in answer.sections.items()
        if (number := name.removeprefix("stop.")) != name and number.isdigit()
    }


def parse_started(answer: Answer) -> tuple[Started, ...]:
    found = []
    for name, section in answer.sections.items():
        lines = section.text.split("\n")
        number = name.removeprefix("owner.")
        if number == name or len(lines) < 4:
            continue
        said = answer.get(f"start.{number}")
        words = lines[3] if said is None or said.status == "0" else said.text
        found.append(Started(lines[1], lines[2], lines[0], one_line(words)))
    return tuple(found)


def one_line(text: str) -> str:
    """Secrets masked, control characters escaped, cut."""
    return masked_command([" ".join(text.split())])[:_SHOWN]
