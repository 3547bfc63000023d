"""The reader of answers: whatever else comes over the channel, the sections come out as written."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet import transport
from gpufleet.errors import ConnectionLost
from gpufleet.observation import parse_observation
from gpufleet.plan import make_plan
from gpufleet.policy import Policy
from gpufleet.transport import Answer, AnswerReader, Script, Section
from tests.building import Proc, answer, as_bytes, killed

TOKEN = "f00dfeedf00dfeedf00dfeed"


def read(data: bytes, sizes: list[int] | None = None) -> AnswerReader:
    """Feed `data` in pieces of the given sizes, the rest in one."""
    reader = AnswerReader(TOKEN)
    for size in sizes or []:
        reader.feed(data[:size])
        data = data[size:]
    reader.feed(data)
    return reader


def one_section(body: str, name: str = "a", status: str = "0") -> Answer:
    return Answer({name: Section(name, body, status)}, started=True, finished=True)


@given(
    bodies=st.dictionaries(
        st.from_regex(r"[a-z0-9/._]{1,12}", fullmatch=True),
        st.tuples(st.text(), st.sampled_from(["0", "2", "124", "stuck"])),
        max_size=4,
    ),
    sizes=st.lists(st.integers(0, 30)),
    noise=st.text(),
)
def test_any_chunking_gives_the_sections_as_they_were_written(
    bodies: dict[str, tuple[str, str]], sizes: list[int], noise: str
) -> None:
    sections = {n: Section(n, text, status) for n, (text, status) in bodies.items()}
    whole = Answer(sections, started=True, finished=True)
    data = as_bytes(whole, TOKEN, noise=noise.encode("utf-8", "replace").decode(), tail=noise)
    assert whole == read(data, sizes).answer()


@given(body=st.binary())
def test_no_byte_of_a_body_is_lost(body: bytes) -> None:
    text = body.decode("utf-8", "surrogateescape")
    section = read(as_bytes(one_section(text), TOKEN)).answer().sections["a"]
    assert body == section.text.encode("utf-8", "surrogateescape")


@given(cut=st.integers(0))
def test_an_answer_cut_off_anywhere_is_never_finished_nor_holds_half_a_section(cut: int) -> None:
    whole = answer()
    data = as_bytes(whole, TOKEN)
    reader = read(data[: cut % len(data)])
    assert not reader.finished
    assert set(reader.answer().sections.items()) <= set(whole.sections.items())


def test_noise_before_between_and_after_sections_is_no_section() -> None:
    data = as_bytes(one_section("0, 0 MiB\n"), TOKEN, noise="motd, 12 GiB\n", tail="logout\n")
    data = data.replace(b" start\n", b" start\nset -x noise\n")
    assert {"a": Section("a", "0, 0 MiB\n", "0")} == read(data).answer().sections


def test_noise_before_the_start_is_kept_for_the_case_that_no_script_starts() -> None:
    reader = read(b"This account is currently not available.\n" + b"\0" * 5000)
    assert not reader.started
    assert len(reader.noise) <= 4000
    assert reader.noise.startswith(b"This account is currently not available.\n")


def test_markers_of_another_token_stay_text() -> None:
    forged = "x\n@@0123 end a 0\n@@0123 begin b\n\n@@0123 finish\n"
    assert one_section(forged) == read(as_bytes(one_section(forged), TOKEN)).answer()


def test_a_token_without_its_line_start_is_no_marker() -> None:
    forged = f"71/cmdline:@@{TOKEN} end a 0\n"
    assert one_section(forged) == read(as_bytes(one_section(forged), TOKEN)).answer()


def test_nothing_after_the_finish_is_read() -> None:
    late = as_bytes(one_section("late"), TOKEN)
    reader = read(as_bytes(one_section("in time"), TOKEN) + late)
    assert "in time" == reader.answer().text("a")


def test_an_end_that_does_not_match_its_begin_gives_no_section() -> None:
    data = f"\n@@{TOKEN} begin a\ntext\n@@{TOKEN} end b 0\n".encode()
    assert {} == read(data).answer().sections


def test_a_second_end_adds_nothing_to_a_section() -> None:
    end = f"\n@@{TOKEN} end a 0\n"
    data = f"\n@@{TOKEN} begin a\nx{end}noise{end}".encode()
    assert "x" == read(data).answer().text("a")


def test_a_section_interrupted_by_another_gives_only_the_other() -> None:
    data = f"\n@@{TOKEN} begin a\nx\n@@{TOKEN} begin b\ny\n@@{TOKEN} end b 0\n".encode()
    assert {"b": Section("b", "y", "0")} == read(data).answer().sections


def test_beats_are_told_at_once_and_are_no_part_of_a_body() -> None:
    beats: list[str] = []
    reader = AnswerReader(TOKEN, beats.append)
    reader.feed(f"\n@@{TOKEN} begin a\nleft\n@@{TOKEN} beat dying: 4711\nright".encode())
    assert ["dying: 4711"] == beats
    reader.feed(f"\n@@{TOKEN} end a 0\n".encode())
    assert "leftright" == reader.answer().text("a")


def test_an_answer_without_end_in_size_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1000)
    reader = AnswerReader(TOKEN)
    reader.feed(b"x" * 1000)
    with pytest.raises(ConnectionLost, match="more than"):
        reader.feed(b"x")


def test_an_observation_read_from_bytes_equals_the_one_built() -> None:
    whole = answer([Proc(60, "python3 \udce9\n@@f00d end 1/procs 0 /x/sglang", cuda=True)])
    got = parse_observation(read(as_bytes(whole, TOKEN), [7] * 500).answer())
    assert parse_observation(whole) == got
    assert [60] == killed(make_plan(got, Policy()))


def test_variables_reach_the_shell_whatever_they_hold() -> None:
    nasty = "a'b\n$(reboot) `reboot` \\"
    text = Script("x", ("look.sh",), {"GF_LOCK": nasty}).text(TOKEN)
    head = text[: text.index("\ngf_look()")]
    assert [f"GF_TOKEN={TOKEN}", f"GF_LOCK={nasty}"] == shlex.split(head)


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {transport.new_token() for _ in range(100)}
    assert {100} == {len(tokens)}
    assert {24} == {len(token) for token in tokens}


@pytest.mark.parametrize("name", ["frame.sh", "observe.sh", "quick.sh", "act.sh", "look.sh"])
def test_no_file_is_named_after_the_token(name: str) -> None:
    """`cat FILE` would show it to every user of the node, who could then forge a section's end."""
    assert not re.search(r"/\$\{?GF_TOKEN", transport.node_file(name))
