#!/bin/sh
# Starts a systemd node and ends it, and all that belongs to it, at the end of standard input: also
# when its owner was killed. Usage: keeper.sh FOLDER "CGROUP..." COMMAND...
# FOLDER and the cgroups are removed with the node. Prints the command's pid.
set -u
folder=$1
groups=$2
shift 2

for group in $groups; do mkdir "$group" || exit 1; done
(
  for group in $groups; do echo 0 >"$group/cgroup.procs" || exit 1; done
  exec setpriv --pdeathsig KILL "$@"
) </dev/null >"$folder/boot.log" 2>&1 &
nspawn=$!
echo "$nspawn"
exec >/dev/null
while read -r _; do :; done

# TERM to nspawn would ask systemd to shut down, and may wait for ever.
children=$(cat "/proc/$nspawn/task/$nspawn/children" 2>/dev/null)
for init in $children; do kill -KILL "$init"; done
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  case $(cut -d ' ' -f 3 "/proc/$nspawn/stat" 2>/dev/null) in Z | '') break ;; esac
  sleep 0.1
done
kill -KILL "$nspawn" 2>/dev/null
wait
for _ in 1 2 3 4 5 6 7 8 9 10; do
  left=
  rm -rf -- "$folder" 2>/dev/null
  for group in $groups "$folder"; do
    [ "$group" = "$folder" ] || find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null
    [ ! -e "$group" ] || left=$group
  done
  [ -n "$left" ] || exit 0
  sleep 0.1
done
