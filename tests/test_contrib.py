"""The files in contrib/ work as they stand: under a real cron, and read by systemd itself."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simfleet import SGLANG, SimFleet

CONTRIB = Path(__file__).parent.parent / "contrib"
SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# A mount namespace where cron finds only these files, and mail goes to a file of ours. cron's own
# state is in /run and /var/spool/cron; /usr/sbin is what it was, and a sendmail beside it.
ENTER = """
set -e
place=$1
mkdir -p "$place/sbin" "$place/real" "$place/cron.d" "$place/spool/crontabs" "$place/lib" "$place/etc"
mount --bind /usr/sbin "$place/real"
for file in "$place"/real/*; do ln -s "$file" "$place/sbin/"; done
rm -f "$place/sbin/sendmail"
printf '#!/bin/sh\\ncat >>%s/mail; echo ==== >>%s/mail\\n' "$place" "$place" >"$place/sbin/sendmail"
chmod 755 "$place/sbin/sendmail"
: >"$place/crontab"
mount --bind "$place/sbin" /usr/sbin
mount --bind "$place/cron.d" /etc/cron.d
mount --bind "$place/crontab" /etc/crontab
mount --bind "$place/spool" /var/spool/cron
mount --bind "$place/lib" /var/lib
mkdir -p /usr/local/bin
mount --bind "$place/bin" /usr/local/bin
mount -t tmpfs run /run
exec "$place/real/cron" -f
"""


@pytest.fixture
def installed(fleet: SimFleet, tmp_path: Path) -> Path:
    """Where the command is for cron, and its crontab line twice, for two halves of the fleet, made
    to run each minute. Nothing else of the line is changed, but the inventory's place."""
    place = tmp_path / "cron"
    (place / "bin").mkdir(parents=True)
    (place / "cron.d").mkdir()
    command = place / "bin/gpufleet"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpufleet "$@"\n')
    command.chmod(0o755)
    text = (CONTRIB / "gpufleet.cron").read_text()
    assert text.count("30 3 * * *") == text.count("/etc/gpufleet/fleet.yaml") == 1
    whole = fleet.fleet_yaml.read_text()
    assert whole.count("gpu[01-04]") == 1
    for name, half in (("first", "gpu[01-02]"), ("second", "gpu[03-04]")):
        inventory = place / f"{name}.yaml"
        inventory.write_text(whole.replace("gpu[01-04]", half))
        line = text.replace("30 3 * * *", "* * * * *")
        (place / "cron.d" / name).write_text(
            line.replace("/etc/gpufleet/fleet.yaml", str(inventory))
        )
    return place


@pytest.fixture
def cron(installed: Path) -> Iterator[Path]:
    """A real cron in a namespace of its own; its place. Ended with all that it started."""
    if not shutil.which("cron", path=SBIN) or not shutil.which("unshare"):
        pytest.skip("no cron here (Debian: apt-get install cron)")
    namespace = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    # A folder to start in, as an init would: not the source tree, where the command is found anyway.
    process = subprocess.Popen(
        [*namespace, "sh", "-c", ENTER, "sh", str(installed)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield installed
    finally:
        process.kill()
        process.communicate(timeout=30)


def until(condition: Callable[[], bool], seconds: float = 200) -> None:
    """cron begins a job at the next full minute."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)


def records_of(place: Path) -> dict[str, tuple[str, int]]:
    """Inventory → person and exit status, of each recorded run that has ended."""
    file = place / "lib/gpufleet/history.db"
    if not file.exists():
        return {}
    database = sqlite3.connect(file)
    try:
        query = "SELECT inventory, person, exit_code FROM runs WHERE finished NOT NULL"
        rows = database.execute(query).fetchall()
    except sqlite3.OperationalError:  # about to be made
        return {}
    finally:
        database.close()
    return {Path(inventory).name: (person, code) for inventory, person, code in rows}


def test_the_crontab_line_resets_in_silence_and_mails_only_what_failed(
    fleet: SimFleet, cron: Path
) -> None:
    procs = fleet["gpu01"].start(SGLANG)
    fleet["gpu03"].fault("missing7", "")
    mail = cron / "mail"

    until(lambda: len(records_of(cron)) == 2 and mail.exists() and "====" in mail.read_text())

    assert records_of(cron) == {"first.yaml": ("root", 0), "second.yaml": ("root", 1)}
    assert not [proc for proc in procs[5:] if fleet["gpu01"].alive(proc)]
    [text, rest] = mail.read_text().split("====\n")
    assert rest == ""
    assert "To: root" in text
    assert "gpufleet reset --hosts inference-pool --quiet" in text  # the subject
    assert "gpu03  BROKEN" in text
    assert "why: 7 of 8 GPUs reported, missing 7" in text
    assert "gpu01" not in text
    assert "gpu04" not in text


def test_the_crontab_line_runs_with_an_empty_environment(
    fleet: SimFleet, installed: Path, state: Path
) -> None:
    """Not even HOME, LOGNAME or a terminal: what cron leaves out on any system."""
    line = (installed / "cron.d/first").read_text().splitlines()[-1]
    schedule, command = line.split("  root  ")
    settings = {
        name: value
        for name, _, value in (
            text.partition("=") for text in (CONTRIB / "gpufleet.cron").read_text().splitlines()
        )
        if name in {"PATH", "LC_ALL"}
    }
    settings["PATH"] = f"{installed}/bin:{settings['PATH']}"
    for environment in (settings, {"PATH": f"{installed}/bin:/usr/bin:/bin", "LANG": "C"}):
        ran = subprocess.run(
            ["/bin/sh", "-c", command],
            env={**environment, "GPUFLEET_STATE": str(state)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert schedule == "* * * * *"
    assert (state / "history.db").exists()


def test_systemd_reads_the_units_without_a_word(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    command = tmp_path / "gpufleet"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    for name in ("gpufleet-reset.service", "gpufleet-reset.timer"):
        text = (CONTRIB / name).read_text()
        (tmp_path / name).write_text(text.replace("ExecStart=gpufleet", f"ExecStart={command}"))

    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.glob("*.*")))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_units_command_is_one_that_gpufleet_takes(
    fleet: SimFleet, installed: Path, state: Path
) -> None:
    """Its arguments as they stand in ExecStart, with the environment that systemd gives."""
    [line] = [
        line.removeprefix("ExecStart=")
        for line in (CONTRIB / "gpufleet-reset.service").read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    line = line.replace("/etc/gpufleet/fleet.yaml", str(installed / "first.yaml"))
    logs = installed / "logs"
    logs.mkdir()
    path = f"{installed}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    ran = subprocess.run(
        ["/bin/sh", "-c", line],
        env={
            "PATH": path,
            "LC_ALL": "C.UTF-8",
            "LOGS_DIRECTORY": str(logs),
            "STATE_DIRECTORY": str(state),
            "GPUFLEET_STATE": str(state),
        },
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert (logs / "reset.jsonl").stat().st_size > 0
