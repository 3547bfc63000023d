"""`gpufleet report`: one page, self-contained, in which whatever a node said is only text."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import UsageError
from gpufleet.render.document import run_data
from gpufleet.render.page import run_page
from tests.conftest import Command, command_for
from tests.leaves import with_odd
from tests.screens.made import reset_run, status_run
from tests.simfleet import SGLANG, SimFleet

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(1)>'\"&\x1b[2J\u202e"


class Seen(HTMLParser):
    """The tags, attributes and text of a page, and whether all that was opened was closed."""

    EMPTY = frozenset({"meta", "rect", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def document(count: int = 16) -> dict[str, Any]:
    report = reset_run(count)
    return run_data(report, report.exit_code())


def poisoned(value: Any, key: str = "") -> Any:
    """Every text in a document replaced by a hostile one, where any text may stand."""
    if isinstance(value, dict):
        return {name: poisoned(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, key) for item in value]
    return HOSTILE if isinstance(value, str) and key != "verdict" else value


def test_a_page_shows_all_that_a_ticket_needs() -> None:
    text = Seen(run_page(document())).text

    for words in (
        "Reset of inference-pool",
        "2 of 16 nodes need a look",
        "20260131-020000-9f3a1c",
        "2026-01-31 02:00:00 UTC",
        "7 of 8 GPUs reported, missing 7",
        "ssh root@10.1.230.1 systemctl stop sglang.service",
        "python3 -m sglang.launch_server --api-key ***",
        "Warning: /dev/shm: 12 files",
        "nv-fabricmanager",
        "GPU 0 after: 62,056 MiB",
        "GPU 3 after: reads [N/A]",
        "retry 1.90 to 2.00 s: try 1: came back",
    ):
        assert words in text, words


def test_nodes_that_need_a_look_come_first_and_the_worst_of_them_before_all() -> None:
    text = Seen(run_page(document())).text
    places = [text.index(words) for words in ("7 of 8 GPUs", "came back after", "GPU memory, ")]
    assert places == sorted(places)


@pytest.mark.parametrize("make", [reset_run, status_run])
def test_whatever_a_node_said_is_only_text(make: Any) -> None:
    report = make(28)
    hostile = poisoned(run_data(report, 3)) | {"command": report.command}

    page = run_page(hostile)

    seen = Seen(page)
    assert seen.open == []
    assert not seen.tags & {"script", "img", "link", "iframe", "object", "base", "form"}
    assert not [a for a in seen.attributes if a[1].startswith("on") or a[1] in {"src", "srcset"}]
    assert {value[:2] for _, name, value in seen.attributes if name == "href"} == {"#n"}
    assert "<script>alert(1)</script>" in seen.text  # told as it is, and nothing but told
    assert not [c for c in page if not c.isprintable() and c != "\n"]


def test_it_asks_nothing_of_anybody() -> None:
    page = run_page(document())

    assert not re.search(r"https?://|//[a-z]|url\(|@import|<script", page)
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": "none"}, "nodes: Input should be a valid list"),
        ({"nodes": [{"host": "gpu01", "verdict": "FINE"}]}, "nodes.0.verdict"),
        ({"nodes": [{"verdict": "CLEAN"}]}, "nodes.0.host: Field required"),
        ({"command": "hosts"}, "command"),
        ({"schema": 99}, "schema 99 is newer than this version's 1: update gpufleet"),
    ],
)
def test_what_is_no_run_is_refused_with_its_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        run_page(document(1) | change)
    assert words in str(refused.value)


def page_of(changed: dict[str, Any]) -> str | UsageError:
    try:
        return run_page(changed)
    except UsageError as error:
        return error


@pytest.mark.parametrize("make", [reset_run, status_run])
def test_whatever_stands_in_whatever_place_is_refused_or_shown_as_text(make: Any) -> None:
    report = make(1)
    drawn = 0
    for at, odd, changed in with_odd(run_data(report, 1)):
        page = page_of(changed)
        drawn += isinstance(page, str)
        assert str(page).replace("\n", "").isprintable(), (at, odd)
    assert drawn > 100


def test_keys_of_later_versions_do_no_harm() -> None:
    later = document(1) | {"weather": "fine"}
    later["nodes"][0]["mood"] = 7
    assert run_page(later) == run_page(document(1))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document()))
    return path


def test_a_file_becomes_a_page_named_after_its_run(recorded: Path, tmp_path: Path) -> None:
    ran = command_for({})("report", str(recorded), cwd=tmp_path)

    assert (ran.code, ran.out, ran.err) == (0, "gpufleet-20260131-020000-9f3a1c.html\n", "")
    page = (tmp_path / "gpufleet-20260131-020000-9f3a1c.html").read_text()
    assert page == run_page(json.loads(recorded.read_text()))


def test_standard_input_and_output_stand_in_for_files(recorded: Path) -> None:
    with recorded.open() as stdin:
        ran = command_for({})("report", "-", "-o", "-", stdin=stdin)

    assert ran.code == 0
    assert ran.out.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "run.json: not a JSON document"),
        ("[]", "run.json: not the JSON document of a run"),
        (
            '{"schema": 1, "command": "reset", "nodes": []}',
            "run.json: not the JSON document of a run: ",
        ),
    ],
)
def test_a_file_that_is_none_is_one_line_and_exit_2(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)

    ran = command_for({})("report", "run.json", cwd=tmp_path)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"gpufleet: {words}")
    assert len(ran.err.splitlines()) == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ran = command_for({})("report", "none.json", cwd=tmp_path)
    assert (ran.code, ran.err) == (2, "gpufleet: none.json: no such file\n")


def test_where_nothing_can_be_written_it_says_so(recorded: Path) -> None:
    ran = command_for({})("report", str(recorded), "-o", "/proc/no.html")
    assert ran.code == 2
    assert ran.err.startswith("gpufleet: /proc/no.html: can't be written: ")


def test_an_unknown_run_is_one_line_and_exit_2(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    ran = command_for(home)("report", "20990101-nowhere", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1


def test_a_run_that_was_killed_says_so() -> None:
    text = Seen(run_page(document(1) | {"finished": None, "exit_code": None})).text
    assert "none: the run was killed" in text
    assert "not known" in text


def test_a_recorded_run_becomes_its_page(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    fleet["gpu01"].start(SGLANG)
    run_id = gpufleet("reset", "--hosts", "gpu01", "--json").json["run_id"]

    ran = gpufleet("report", run_id, cwd=tmp_path)

    assert (ran.code, ran.out) == (0, f"gpufleet-{run_id}.html\n")
    text = Seen((tmp_path / f"gpufleet-{run_id}.html").read_text()).text
    assert "The node: 1 CLEAN" in text
    assert "sglang::scheduler_TP3" in text


def test_the_json_of_a_real_run_becomes_its_page(
    fleet: SimFleet, gpufleet: Command, tmp_path: Path
) -> None:
    fleet["gpu01"].start(SGLANG)
    fleet["gpu02"].fault("missing7", "")
    path = tmp_path / "run.json"
    path.write_text(gpufleet("reset", "--hosts", "gpu[01-02]", "--json").out)

    ran = gpufleet("report", str(path), "-o", "-")

    text = Seen(ran.out).text
    assert ran.code == 0
    assert "1 of 2 nodes needs a look" in text
    assert "sglang::scheduler_TP3" in text
    assert "settle" in text


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_has_nothing_to_complain_about(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    report = reset_run(28)
    path.write_text(run_page(poisoned(run_data(report, 3)) | {"command": "reset"}))

    done = subprocess.run(
        [
            *(
                str(CHROMIUM),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--enable-logging=stderr",
            ),
            *(f"--user-data-dir={tmp_path}/profile", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "4 of 28 nodes need a look" in done.stdout
    assert "CONSOLE" not in done.stderr


def test_a_report_is_read_from_a_pipe_as_from_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = json.dumps(document(2))
    writer = threading.Thread(target=lambda: pipe.write_text(text))
    writer.start()

    ran = command_for({})("report", str(pipe), "-o", "-")
    writer.join()

    assert 0 == ran.code, ran.err
    assert "<html" in ran.out


def test_a_run_whose_name_no_file_could_have_is_no_run(tmp_path: Path) -> None:
    ran = command_for({"GPUFLEET_STATE": str(tmp_path)})("report", "x" * 5000)

    assert (2, "") == (ran.code, ran.out)
    assert "Traceback" not in ran.err
