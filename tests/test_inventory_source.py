"""Which inventory is used, and when it is not to be trusted."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gpufleet.errors import InventoryError
from gpufleet.inventory import find_inventory, load_fleet, names_for_completion, source


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, a config folder of its own, and no system file."""
    (tmp_path / "config/gpufleet").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(source, "SYSTEM_FILE", tmp_path / "etc/gpufleet/fleet.yaml")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def problem_of(path: Path | str) -> str:
    with pytest.raises(InventoryError) as caught:
        load_fleet(path)
    (problem,) = caught.value.problems
    return problem


def write(path: Path, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("hosts: {a: }\n")
    path.chmod(mode)
    return path


def test_the_file_given_wins_whether_it_exists_or_not(folder: Path) -> None:
    write(Path("fleet.yaml"))
    assert find_inventory(Path("x"), {"GPUFLEET_INVENTORY": "y"}) == Path("x")


def test_then_the_environments_then_the_folders_then_the_users_then_the_systems(
    folder: Path,
) -> None:
    system = write(folder / "etc/gpufleet/fleet.yaml")
    assert find_inventory(None, {}) == system
    users = write(folder / "config/gpufleet/fleet.yaml")
    assert find_inventory(None, {}) == users
    write(Path("fleet.yaml"))
    assert find_inventory(None, {}) == Path("fleet.yaml")
    assert find_inventory(None, {"GPUFLEET_INVENTORY": "y"}) == Path("y")
    assert find_inventory(None, {"GPUFLEET_INVENTORY": ""}) == Path("fleet.yaml")


def test_without_any_all_places_are_named(folder: Path) -> None:
    with pytest.raises(InventoryError) as caught:
        find_inventory(None, {})
    assert str(caught.value) == (
        "no inventory: looked at $GPUFLEET_INVENTORY (not set), ./fleet.yaml, "
        f"{folder}/config/gpufleet/fleet.yaml, {folder}/etc/gpufleet/fleet.yaml: "
        "write one (fleet.yaml.example) or give -i FILE"
    )


def test_without_home_the_password_file_says_where_the_users_file_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    home = pwd.getpwuid(os.getuid()).pw_dir
    with pytest.raises(InventoryError) as caught:
        find_inventory(None, {})
    assert f", {home}/.config/gpufleet/fleet.yaml, " in str(caught.value)


def test_a_dangling_link_is_told_and_not_passed_over(folder: Path) -> None:
    write(folder / "etc/gpufleet/fleet.yaml")
    Path("fleet.yaml").symlink_to("gone")
    found = find_inventory(None, {})
    assert problem_of(found) == "fleet.yaml: can't be read: No such file or directory"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o444])
def test_a_file_that_only_its_owner_may_write_is_taken(mode: int, tmp_path: Path) -> None:
    assert load_fleet(write(tmp_path / "fleet.yaml", mode)).names() == ("a",)


@pytest.mark.parametrize(
    ("mode", "who"), [(0o664, "its group"), (0o602, "everybody"), (0o666, "everybody")]
)
def test_a_file_that_others_may_write_is_refused_with_the_command(
    mode: int, who: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "my fleet.yaml", mode)
    assert problem_of(path) == (
        f"{path}: {who} may write it, and its commands run as root on the nodes: "
        f"chmod go-w '{path}'"
    )


def test_a_link_to_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(write(tmp_path / "fleet.yaml", 0o666))
    assert problem_of(link).endswith(f"chmod go-w {link}")


def test_a_file_of_somebody_else_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "fleet.yaml")
    status = list(path.stat())
    status[4] = 4_000_000_000  # st_uid: nobody's on any machine
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(status))
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert problem_of(path) == (
        f"{path}: owned by 4000000000, and its commands run as root on the nodes: chown {me} {path}"
    )


def test_roots_file_is_taken_by_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "fleet.yaml")
    status = list(path.stat())
    status[4] = 0
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result(status))
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert load_fleet(path).names() == ("a",)


def test_what_is_no_file_is_told_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    assert problem_of(fifo) == f"{fifo}: no regular file: name a fleet.yaml"
    assert problem_of(tmp_path) == f"{tmp_path}: a folder: name a fleet.yaml"
    assert problem_of("/dev/null") == "/dev/null: no regular file: name a fleet.yaml"
    missing = tmp_path / "missing"
    assert problem_of(missing) == f"{missing}: can't be read: No such file or directory"
    assert problem_of("a\0b") == "a\0b: can't be read: a NUL byte in its name"


def test_a_file_without_permission_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # root could read it
    assert problem_of("fleet.yaml") == "fleet.yaml: can't be read: Permission denied"


def test_bytes_that_are_no_utf8_are_told_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "fleet.yaml")
    path.write_bytes(b"hosts:\n  g\xfc: {}\n")
    assert problem_of(path) == f"{path}:2: read the byte 0xfc: not UTF-8: save the file as UTF-8"


def test_a_file_of_another_kind_is_too_large(tmp_path: Path) -> None:
    path = write(tmp_path / "fleet.yaml")
    os.truncate(path, source.MAX_BYTES + 1)
    assert problem_of(path) == f"{path}: larger than 16 MiB: not an inventory"


def test_completion_never_fails(tmp_path: Path) -> None:
    path = write(tmp_path / "fleet.yaml")
    assert names_for_completion(path) == ["all", "a"]
    path.chmod(0o666)
    assert names_for_completion(path) == []
    assert names_for_completion(tmp_path / "gone") == []
    assert names_for_completion("a\0b") == []
