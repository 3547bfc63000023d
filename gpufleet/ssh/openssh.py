"""What OpenSSH's configuration says of a host, asked of OpenSSH itself (`ssh -G`).

Include, Match, tokens and the order of files have rules that nobody should write twice. It is asked
only where a file says something that matters here, and then costs one process per host.
"""

from __future__ import annotations

import getpass
import glob
import os
import pwd
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from gpufleet.errors import UsageError

SYSTEM_FILE = "/etc/ssh/ssh_config"
_LIMIT_S = 20.0
_NOBODY = "gpufleet-nobody"

READ = frozenset(
    {
        "addressfamily",
        "bindaddress",
        "canonicalizehostname",
        "certificatefile",
        "connecttimeout",
        "globalknownhostsfile",
        "hostkeyalias",
        "hostname",
        "identitiesonly",
        "identityagent",
        "identityfile",
        "port",
        "proxycommand",
        "proxyjump",
        "proxyusefdpass",
        "revokedhostkeys",
        "stricthostkeychecking",
        "user",
        "userknownhostsfile",
    }
)
"""What is taken over. All else (ciphers, forwarding, multiplexing) is OpenSSH's own business."""

_MANY = frozenset({"identityfile", "certificatefile"})

Answer = Mapping[str, Sequence[str]]
"""Keyword in lower case → its values as `ssh -G` prints them."""


class OpenSSH:
    """Some configuration files: the user's and the system's, or those that fleet.yaml names."""

    def __init__(self, files: tuple[str, ...] = ()) -> None:
        self._named = files
        home = _home()
        self._user_file = str(Path(os.path.expanduser("~"), ".ssh", "config"))
        self._own_home = os.path.expanduser("~") == home
        files = files or (self._user_file, SYSTEM_FILE)
        for file in self._named:
            if not os.access(file, os.R_OK):
                raise UsageError(
                    f"ssh_config {file}: cannot be read: correct the path, or say false"
                )
        self.keywords = frozenset(
            word for file in files for word in _keywords(file, self._base(file))
        )

    @property
    def says_anything(self) -> bool:
        return bool(self.keywords & READ)

    def ask(self, host: str, given: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """What holds for `host`, as far as a file says it: what is OpenSSH's own default is left
        out. `given`: keyword → value that the caller has already (they count in Match).

        Raises `UsageError` with OpenSSH's own words when a file can't be used.
        """
        options = [word for key, value in given.items() for word in ("-o", f"{key}={value}")]
        answer = self._run(host, options)
        default = _defaults()
        said = {
            key: values
            for key, values in answer.items()
            if key in READ and key not in given and values != default.get(key)
        }
        if said.get("hostname") == (host,):
            del said["hostname"]
        if "user" in self.keywords and "user" not in given:
            said.pop("user", None)
            if (user := self._user(host, options, answer)) is not None:
                said["user"] = (user,)
        else:
            said.pop("user", None)
        return said

    def _user(self, host: str, options: Sequence[str], answer: Answer) -> str | None:
        """The configured user. OpenSSH's default is the caller's own name, ours is root: where it
        answers that name, a second question with another default tells whether a file says so."""
        user = answer["user"][0]
        if user != getpass.getuser():
            return user
        again = self._run(host, options, fallback=f"User {_NOBODY}")["user"][0]
        return None if again == _NOBODY else user

    def _run(
        self, host: str, options: Sequence[str], fallback: str = ""
    ) -> dict[str, tuple[str, ...]]:
        command = ["ssh", "-T", "-G", *self._files(fallback), *options, "--", host]
        try:
            done = subprocess.run(
                command,
                input=self._wrapper(fallback),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                check=False,
            )
        except FileNotFoundError:
            raise UsageError(
                "an ssh_config is in use, and there is no ssh to read it: install openssh-client, "
                "or set ssh_config: false in fleet.yaml"
            ) from None
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"ssh -G {host}: no answer in {_LIMIT_S:g} s (a Match exec?)"
            ) from None
        if done.returncode != 0:
            said = " ".join(done.stderr.split())[:300]
            raise UsageError(f"ssh -G {host}: {said or f'ended with status {done.returncode}'}")
        return _parse(done.stdout)

    def _files(self, fallback: str) -> list[str]:
        if fallback or len(self._named) > 1 or not (self._named or self._own_home):
            return ["-F", "/dev/stdin"]
        return ["-F", self._named[0]] if self._named else []

    def _wrapper(self, fallback: str) -> str:
        """The same files, in the same order, with a last word for what none of them says."""
        files = self._named or (self._user_file, SYSTEM_FILE)
        return "".join(f'Include "{file}"\n' for file in files) + f"Match all\n{fallback}\n"

    def _base(self, file: str) -> str:
        return "/etc/ssh" if file == SYSTEM_FILE else str(Path(_home(), ".ssh"))


def _keywords(file: str, base: str, depth: int = 0) -> Iterator[str]:
    """The keywords that stand in a file and in what it includes, whether or not they apply."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        found = re.match(r'\s*"?([A-Za-z0-9]+)"?(?:[\s=]+(.*)|$)', line)
        if not found:
            continue
        word, rest = found[1].lower(), found[2] or ""
        yield word
        if word == "include" and depth < 16:
            for name in re.findall(r'"([^"]+)"|(\S+)', rest):
                pattern = os.path.join(base, os.path.expanduser(name[0] or name[1]))  # noqa: PTH118
                if "$" in pattern or "%" in pattern:
                    yield from READ  # filled in by OpenSSH: only it knows
                for path in sorted(glob.glob(pattern)):  # noqa: PTH207  # absolute patterns
                    yield from _keywords(path, base, depth + 1)


def _parse(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value)
    return {key: tuple(values) for key, values in found.items()}


@cache
def _defaults() -> dict[str, tuple[str, ...]]:
    """What `ssh -G` prints where no file says anything."""
    done = subprocess.run(
        ["ssh", "-T", "-G", "-F", "none", "host"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    return _parse(done.stdout)


def _home() -> str:
    """OpenSSH takes the home folder from the user database, not from $HOME."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.path.expanduser("~")
