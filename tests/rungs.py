"""A simulated node on which a GPU reset and a reboot can be asked for: stand-ins that record what they
are called for, and fail, hang, wait or kill their caller where a test wants it.

Nothing here may ever reach the machine's own nvidia-smi, systemctl or reboot: `Rig` makes sure that
its own come first, and fails before anything is asked.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.simfleet import SimNode

FILE = "/var/lib/gpufleet-node/stopped"
BIN = "/run/simnode/state/bin"
TOOLS = ("nvidia-smi", "systemctl", "reboot", "shutdown")
UNITS = ("nvidia-dcgm.service", "nvidia-persistenced.service", "nvidia-fabricmanager.service")
"""What runs on the node, in the order in which a GPU reset stops it."""

STOPS = tuple(f"systemctl stop -- {unit}" for unit in UNITS)
RESET = "nvidia-smi --gpu-reset"
STARTS = tuple(f"systemctl start -- {unit}" for unit in reversed(UNITS))
STEPS = (*STOPS, RESET, *STARTS)

_TROUBLE = """
call="${0##*/} $*"
is() { grep -qxF -e "$call" "/run/trouble/$1" 2>/dev/null; }
does=
for kind in kill wait hang fail; do ! is $kind || does="$does $kind "; done
does() { case $does in *" $1 "*) ;; *) false ;; esac; }
echo "$call" >>/run/calls # what it does is settled by now, whatever a test takes back then
if does kill; then # the script that called: all shells above
  above=$PPID; shells=
  while :; do
    read -r stat </proc/$above/stat; set -- $stat; above=$4
    [ "$(cat /proc/$above/comm)" = sh ] || break
    shells="$shells $above"
  done
  kill -KILL $shells; sleep 60
fi
if does wait; then
  for i in $(seq 600); do [ -e /run/go ] && break; sleep 0.05; done
fi
if does hang; then trap '' TERM; sleep 600; fi
if does fail; then echo "stand-in: it failed" >&2; exit 1; fi
"""

_SMI = f"""
case "$*" in
  *--gpu-reset*) {_TROUBLE}
    ! is busy || {{ echo "The following GPUs could not be reset:
  GPU 00000000:1B:00.0: In use by another client"; exit 255; }}
    is vain || rm -f /run/simnode/state/faults/*
    echo "All done." ;;
  *-pm*) {_TROUBLE} ;;
  *) exec /run/simnode/programs/node/nvidia-smi "$@" ;;
esac
"""

_SYSTEMCTL = f"""
for unit in "$@"; do :; done
if [ -e "/run/mute/$unit" ]; then # or all that a property is asked of
  case "$* " in *"$(cat "/run/mute/$unit")"*) exit 0 ;; esac
fi
state() {{ cat "/run/units/$unit" 2>/dev/null || echo inactive; }}
case "$1" in
  show)
    case "$*" in
      *RequiredBy*)
        for how in RequiredBy RequisiteOf BoundBy ConsistsOf PropagatesStopTo; do
          case "$*" in *$how*) echo "$how=$(cat "/run/bound/$unit.$how" 2>/dev/null)" ;; esac
        done ;;
      *) echo NRestarts=0; echo "ActiveState=$(state)"; echo "SubState=$(state)" ;;
    esac ;;
  is-active) [ "$(state)" = active ] ;;
  is-system-running) cat /run/running 2>/dev/null || echo running ;;
  stop) {_TROUBLE} [ ! -e "/run/pids/$unit" ] || kill -KILL "$(cat "/run/pids/$unit")"
    echo inactive >"/run/units/$unit" ;;
  start) {_TROUBLE}
    if is slow; then
      echo activating >"/run/units/$unit"
      setsid sh -c "sleep 0.5; echo active >'/run/units/$unit'" </dev/null >/dev/null 2>&1 &
      exit 1
    fi
    is down || echo active >"/run/units/$unit" ;;
  reboot) {_TROUBLE} setsid /bin/sh /run/boot </dev/null >/dev/null 2>&1 & ;;
esac
"""

_BOOT = """
[ ! -e /run/stays ] || exit 0
sleep 0.2
rm -f /run/simnode/state/faults/*
for comm in /proc/[0-9]*/comm; do # sessions, not the listener
  pid=${comm#/proc/}; pid=${pid%/comm}
  case "$(cat "$comm")" in sshd*) ;; *) continue ;; esac
  case "$(tr '\\0' ' ' <"/proc/$pid/cmdline")" in *listener*) ;; *) kill -KILL "$pid" ;; esac
done
echo "$(cat /run/next_boot)" >/run/boot_id
if [ -e /run/cuts ]; then # the network, started once more
  sleep 1; rm -f /run/cuts; . /run/boot; echo running >/run/running
fi
"""


class Rig:
    """The stand-ins on one node, until `close`."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        node.exec("cd /run; rm -rf calls trouble units bound pids go stays cuts mute")
        node.exec(
            "rm -rf /run/running /var/lib/gpufleet-node; mkdir /run/trouble /run/units /run/bound"
        )
        node.exec("mkdir /run/pids /run/mute")
        for unit in UNITS:
            self.write(f"/run/units/{unit}", "active")
        node.tool("nvidia-smi", _SMI)
        node.tool("systemctl", _SYSTEMCTL)
        for name in ("reboot", "shutdown"):
            node.tool(name, f"{_TROUBLE} setsid /bin/sh /run/boot </dev/null >/dev/null 2>&1 &")
        self.write("/run/boot", _BOOT)
        self.write("/run/boot_id", "11111111-1111-4111-8111-111111111111")
        self.write("/run/next_boot", "22222222-2222-4222-8222-222222222222")
        node.exec("mount --bind /run/boot_id /proc/sys/kernel/random/boot_id")
        found = node.exec(f"for t in {' '.join(TOOLS)}; do command -v $t; done").stdout.split()
        boot = node.exec("cat /proc/sys/kernel/random/boot_id").stdout
        self.boot_id = boot.strip()
        if found != [f"{BIN}/{tool}" for tool in TOOLS] or not boot.startswith("11111111"):
            self.close()
            raise AssertionError(f"the node would use the machine's own tools: {found} {boot}")

    def close(self) -> None:
        self.node.exec("umount /proc/sys/kernel/random/boot_id; touch /run/go")

    def write(self, path: str, text: str) -> None:
        self.node.path(path).write_text(text + "\n")

    def trouble(self, kind: str, *steps: str) -> None:
        """kill, wait, hang, fail: what a step does. vain: a reset that cures nothing; busy: one that is
        refused; down: a unit that doesn't come up."""
        with self.node.path(f"/run/trouble/{kind}").open("a") as file:
            file.writelines(f"{step}\n" for step in steps)

    def calm(self) -> None:
        self.node.exec("rm -f /run/trouble/*; touch /run/go")

    def calls(self) -> list[str]:
        path = self.node.path("/run/calls")
        return path.read_text().splitlines() if path.exists() else []

    def down(self) -> list[str]:
        """Units that don't run."""
        return [u for u in UNITS if self.node.path(f"/run/units/{u}").read_text() != "active\n"]

    def written(self) -> list[str]:
        """What the node's file says is to be started."""
        path: Path = self.node.path(FILE)
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []

    def await_call(self, call: str) -> None:
        self.await_that(lambda: call in self.calls(), call)

    def await_that(self, is_so: object, what: str = "") -> None:
        assert callable(is_so)
        until = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < until, (what, self.calls())
            time.sleep(0.02)
