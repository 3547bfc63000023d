"""Scripts that a node runs for chaos: a systemctl that tells the truth, restless processes, bystanders.

Texts only. Their own names match no pattern of gpufleet's, but for those of the workload.
"""

from __future__ import annotations

SYSTEMCTL = r"""
# systemctl show PROPERTIES -- UNIT...: active where a process of the unit lives; else activating where
# it will be started again (a file in units/), inactive where it is only installed (in installed/).
state=/run/simnode/state
read -r now _ </proc/uptime
while [ $# -gt 0 ] && [ "$1" != -- ]; do shift; done
shift
[ ! -d $state/told ] || echo "$now $*" >>$state/told/units
first=1
for unit; do
  [ -n "$first" ] || echo
  first=
  load=loaded enabled=enabled restart=no
  [ ! -e "$state/units/$unit" ] || restart=always
  if grep -qsx "0::/system.slice/$unit" /proc/[0-9]*/cgroup; then active=active sub=running
  elif [ -e "$state/units/$unit" ]; then active=activating sub=auto-restart
  elif [ -e "$state/installed/$unit" ]; then active=failed sub=failed
  else load=not-found enabled='' active=inactive sub=dead
  fi
  printf '%s\n' "Id=$unit" "LoadState=$load" "UnitFileState=$enabled" "ActiveState=$active" \
    "SubState=$sub" "Restart=$restart" "NRestarts=0" "MainPID=0"
done
"""

CHURN = "while :; do sleep 0.03; done\n"
CHURN_WORKLOAD = "while :; do /bin/sh /tmp/sglang-tick.sh; done\n"
TICK = "sleep 0.05\n"
FORKER = """
n=0
while [ $n -lt 150 ]; do
  (exec -a sglang-forked sleep 30) &
  n=$((n + 1))
  sleep "$1"
done
"""
FORKED = (b"sglang-forked", b"30")
BYSTANDER = "exec tail -f /dev/null /tmp/sglang.log\n"

FILES = {
    "chaos-churn.sh": CHURN,
    "chaos-churn-workload.sh": CHURN_WORKLOAD,
    "sglang-tick.sh": TICK,
    "sglang-forker.sh": FORKER,
    "chaos-bystander.sh": BYSTANDER,
    "sglang.log": "",
}
"""In the node's /tmp."""


def in_background(command: str) -> str:
    """A session of its own, adopted by init; prints its pid."""
    return f"setsid {command} >/dev/null 2>&1 </dev/null & echo $!"


def with_pid(pid: int, command: str) -> str:
    """As `in_background`, under a pid that is free at the moment."""
    return f"echo {pid - 1} >/proc/sys/kernel/ns_last_pid; {in_background(command)}"
