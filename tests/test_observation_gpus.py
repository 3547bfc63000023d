"""nvidia-smi's text → rows: only `N, M MiB` becomes a number, and nothing is dropped unsaid."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.observation import (
    HEALTH_FIELDS,
    App,
    GpuRow,
    Health,
    parse_memory_csv,
    parse_observation,
)
from tests.building import FREE, HEALTHY, answer, changed, health_rows, observe, without

EIGHT = tuple(GpuRow(i, 0, "0 MiB") for i in range(8))
SENTENCE = "Unable to determine the device handle for GPU0000:0B:00.0: Unknown Error"


@pytest.mark.parametrize(
    "text",
    [
        FREE,
        FREE.replace("\n", "\r\n"),
        f"\n{FREE}\n",
        FREE.replace(", ", " ,   "),
        FREE.removesuffix("\n"),
    ],
)
def test_a01_a15_rows_are_read_whatever_stands_around_them(text: str) -> None:
    assert (EIGHT, ()) == parse_memory_csv(text)


@pytest.mark.parametrize(
    "word",
    [
        *("[N/A]", "[Not Supported]", "[Insufficient Permissions]", "[GPU requires reset]"),
        *("ERR!", "N/A", "[Unknown Error]", "[GPU is lost]", "", "0", "0 M", "0 GiB", "-1 MiB"),
        *(
            "0.0 MiB",
            "0 MiB, 5 MiB",
            "0 MiB 5",
            "0 KiB",
            "0x0 MiB",
            "٠ MiB",
            "1e3 MiB",
            "1,000 MiB",
        ),
    ],
)
def test_a02_a04_a_word_is_no_number_and_stays_as_read(word: str) -> None:
    rows, others = parse_memory_csv(f"0, 0 MiB\n3, {word}\n")
    assert ((GpuRow(0, 0, "0 MiB"), GpuRow(3, None, word)), ()) == (rows, others)


@pytest.mark.parametrize(
    "line",
    [
        *(SENTENCE, "No devices were found", "NVML library version: 535.161"),
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot now",
        "Failed to initialize NVML: Driver/library version mismatch",
        "ERROR: Option noheader is not recognized. Please run 'nvidia-smi -h' for help.",
        *("index, memory.used [MiB]", "7", "-1, 0 MiB", "GPU 0, 0 MiB", ", 0 MiB"),
    ],
)
def test_a05_a08_a09_a_sentence_is_no_row(line: str) -> None:
    assert ((), (line,)) == parse_memory_csv(f"{line}\n\n")


def test_a08_no_text_gives_no_rows() -> None:
    assert ((), ()) == parse_memory_csv("")


def test_a15_a_row_that_was_cut_off_has_no_number() -> None:
    rows, _ = parse_memory_csv(FREE[:-3])
    assert GpuRow(7, None, "0 M") == rows[-1]


def test_a_repeated_index_stays_two_rows() -> None:
    rows, _ = parse_memory_csv("0, 0 MiB\n0, 5 MiB\n")
    assert [(0, 0), (0, 5)] == [(row.index, row.used_mib) for row in rows]


LIKE_A_ROW = st.from_regex(r"\A\s*[0-9٠]{0,3}[,;\s]{0,3}[0-9.+-]{0,4}\s?[MGKi]{0,3}B?[\s,x]{0,2}\Z")


@given(st.lists(LIKE_A_ROW | st.text()).map("\n".join))
@example("0, 0MiB")
def test_only_an_index_and_mebibytes_ever_become_a_number(text: str) -> None:
    rows, others = parse_memory_csv(text)
    lines = [line for line in text.split("\n") if line.strip()]
    assert len(lines) == len(rows) + len(others)
    numbers = sum(bool(re.fullmatch(r"\s*[0-9]+\s*,\s*[0-9]+ MiB\s*", line)) for line in lines)
    assert numbers >= sum(row.used_mib is not None for row in rows)


def test_the_reading_keeps_status_and_standard_error() -> None:
    memory = observe(memory="", smi="9", smi_says=" NVIDIA-SMI has failed \n\n").last.memory
    assert ("9", "NVIDIA-SMI has failed") == (memory.status, memory.quote())


def test_what_else_it_said_is_quoted_on_one_short_line() -> None:
    memory = observe(memory=f"{SENTENCE}\n0, 0 MiB\n", smi_says="x" * 999).last.memory
    assert f"{SENTENCE}; xxx" == memory.quote()[: len(SENTENCE) + 5]
    assert 300 == len(memory.quote())


@pytest.mark.parametrize(
    ("status", "hung"), [("124", 1), ("137", 1), ("stuck", 1), ("0", 0), ("9", 0)]
)
def test_running_out_of_time_is_a_hang(status: str, hung: int) -> None:
    assert bool(hung) == observe(smi=status).last.memory.hung


# --- health -------------------------------------------------------------------------------------


def by_field(**columns: str) -> Health:
    """Health asked field by field after a refusal; `columns` replace sections ("" is a refusal)."""
    whole = changed(answer(samples=1), "health", 'Field "x" is not a valid field to query.\n', "2")
    for field in HEALTH_FIELDS:
        whole = changed(whole, f"health.{field}", health_rows(fields=[field]), "0")
    for name, text in columns.items():
        field = name.replace("__", ".")
        whole = changed(whole, f"health.{field}", text, "0" if text else "2")
    return parse_observation(whole).health


def test_one_query_gives_every_field_of_every_gpu() -> None:
    health = observe().health
    assert (8, (), "") == (len(health.values), health.refused, health.failure)
    assert {**HEALTHY, "uuid": "GPU-7"} == health.values[7]


def test_fields_asked_alone_give_the_same_as_asked_together() -> None:
    assert observe().health == by_field()


def test_refused_fields_are_named_and_the_others_kept() -> None:
    health = by_field(gpu_recovery_action="", fabric__state="")
    assert (("gpu_recovery_action", "fabric.state"), "") == (health.refused, health.failure)
    assert ("P0", None) == (health.values[3]["pstate"], health.values[3].get("fabric.state"))


def test_a_field_that_was_never_asked_is_no_refusal() -> None:
    whole = changed(answer(samples=1), "health", "", "2")
    for field in HEALTH_FIELDS[1:]:
        whole = changed(whole, f"health.{field}", health_rows(fields=[field]), "0")
    assert "uuid" in parse_observation(whole).health.failure


def test_a_field_that_failed_otherwise_is_a_failure_and_the_others_are_kept() -> None:
    whole = changed(answer(samples=1), "health", "", "2")
    for field in HEALTH_FIELDS:
        whole = changed(whole, f"health.{field}", health_rows(fields=[field]), "0")
    health = parse_observation(changed(whole, "health.pstate", "boom\n", "255")).health
    assert "pstate: the health query ended with status 255: boom" == health.failure
    assert "None" == health.values[0]["gpu_recovery_action"]


@pytest.mark.parametrize("status", ["1", "4", "14", "15", "124", "127", "255", "stuck"])
def test_a_health_query_that_fails_says_so(status: str) -> None:
    failure = parse_observation(changed(answer(), "health", "why\n", status)).health.failure
    assert f"the health query ended with status {status}: why" == failure


def test_a_health_query_that_was_not_made_says_so() -> None:
    assert parse_observation(without(answer(), "health")).health.failure


@pytest.mark.parametrize("text", [SENTENCE, "0, GPU-0\n", health_rows() + "8, cut", "x\n" * 3])
def test_a_health_line_of_another_shape_is_a_failure(text: str) -> None:
    assert "unreadable line" in observe(health=text).health.failure


# --- charged memory -----------------------------------------------------------------------------


def test_apps_are_pids_with_their_memory() -> None:
    text = "601, 103010 MiB, GPU-1f\n602, [N/A], GPU-2e\n\n"
    assert (App(601, 103010, "GPU-1f"), App(602, None, "GPU-2e")) == observe(apps=text).apps


def test_no_apps_is_not_the_same_as_apps_that_could_not_be_asked() -> None:
    assert () == observe().apps
    assert parse_observation(changed(answer(), "apps", status="15")).apps is None
    assert parse_observation(without(answer(), "apps")).apps is None
