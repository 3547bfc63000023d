#!/bin/sh
# The demo: four simulated nodes with eight busy GPUs each, a look, a reset, the result. Leaves
# nothing running. Usage: demo.sh FOLDER-OF-GPUFLEET
set -eu
bin=$1
folder=$(mktemp -d)
fleet=
# The simulated fleet ends, with all that runs in it, when its standard input does.
stop() {
  exec 3>&-
  [ -z "$fleet" ] || wait "$fleet" || true
  rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

bold=
plain=
if [ -t 1 ]; then
  bold=$(printf '\033[1m')
  plain=$(printf '\033[0m')
fi
show() {
  printf '\n%s$ gpufleet %s%s\n' "$bold" "$*" "$plain"
  "$bin/gpufleet" "$@"
}

echo "Starting four simulated nodes: real sshd, real processes, no GPU needed ..."
mkfifo "$folder/stdin"
"$bin/python" -m tests.simfleet --nodes 4 --scene sglang --folder "$folder/fleet" \
  <"$folder/stdin" >"$folder/ready" &
fleet=$!
exec 3>"$folder/stdin"
until [ -s "$folder/ready" ]; do
  kill -0 "$fleet" 2>/dev/null || { echo "the simulated nodes did not start" >&2; exit 1; }
  sleep 0.1
done
GPUFLEET_INVENTORY=$(cat "$folder/ready")
GPUFLEET_STATE=$folder/state
export GPUFLEET_INVENTORY GPUFLEET_STATE

show hosts --hosts inference-pool
show status --hosts inference-pool
show reset --hosts gpu01 --dry-run
show reset --hosts inference-pool --yes
show status --hosts inference-pool
show history
printf '\nStopping the simulated nodes.\n'
