# shellcheck shell=sh
# One command of the fleet's owner: a guard, `before` or `after`. In: GF_HOOK (the command), GF_HOOK_S
# (its limit in seconds) and GF_HOOK_CS (the same in hundredths), GF_LOCK (not empty: hold the node's
# lock while it runs; without a command only ask whether it is free), and what the command may read:
# GPUFLEET_HOOK, GPUFLEET_HOST, GPUFLEET_ADDRESS, GPUFLEET_RUN_ID, GPUFLEET_DRY_RUN, GPUFLEET_VERDICT,
# GPUFLEET_REASON, GPUFLEET_KILLED.

# gf_start_hook: the command in the background, by a shell that has it from its environment: in an
# argument list a pattern could find it. `timeout` gives it a process group, and ends all of that. What
# it says goes through a pipe to a reader that keeps the first lines, so that no flood fills /run, and
# nothing that it leaves behind holds the connection. Dash and bash read such a pipe byte by byte, so
# the reader is one process, and `$!` is its pid.
gf_start_hook() {
  export GF_HOOK GPUFLEET_HOOK GPUFLEET_HOST GPUFLEET_ADDRESS GPUFLEET_RUN_ID GPUFLEET_DRY_RUN \
    GPUFLEET_VERDICT GPUFLEET_REASON GPUFLEET_KILLED
  {
    umask 022
    cd /
    # shellcheck disable=SC2016  # the inner shell expands it
    timeout -k 2 "$GF_HOOK_S" /bin/sh -c 'gf_hook=$GF_HOOK; unset GF_HOOK; eval "$gf_hook"' \
      "$GPUFLEET_HOOK" </dev/null &
    echo $! >"$GF_FILE.pid"
    wait $! 2>/dev/null # the shell's own word about a killed child isn't the hook's
    echo $? >"$GF_FILE.status"
  } 2>&1 | {
    gf_count=0
    while IFS= read -r gf_line || [ -n "$gf_line" ]; do
      gf_count=$((gf_count + 1))
      [ "$gf_count" -gt 20 ] || printf '%.500s\n' "$gf_line"
    done
    true >"$GF_FILE.eof"
  } >"$GF_FILE.out" 2>/dev/null &
  GF_READER=$!
}

# gf_end_hook: what still runs of it when this script ends, whyever; `timeout` hands TERM on to the
# whole group, and KILL after two seconds.
gf_end_hook() {
  if [ -s "$GF_FILE.pid" ] && [ ! -s "$GF_FILE.status" ]; then
    read -r gf_pid <"$GF_FILE.pid"
    kill "$gf_pid" 2>/dev/null
  fi
  [ -z "$GF_READER" ] || kill "$GF_READER" 2>/dev/null
  gf_cleanup
}

gf_run_hook() {
  gf_now
  gf_began=$GF_NOW
  gf_start_hook
  gf_result=timeout
  # Five seconds more than its limit: then it can't even be killed.
  while [ $((GF_NOW - gf_began)) -lt $((GF_HOOK_CS + 500)) ]; do
    gf_beat "$GPUFLEET_HOOK runs"
    if [ -s "$GF_FILE.status" ]; then
      read -r gf_result <"$GF_FILE.status"
      break
    fi
    sleep 0.05
  done
  # 124 is what `timeout` says, 137 when TERM wasn't enough; a command may end so by itself as well.
  case $gf_result in
    124 | 137) [ $((GF_NOW - gf_began)) -lt "$GF_HOOK_CS" ] || gf_result=timeout ;;
  esac
  # What it started may hold the pipe open: the end of the output isn't waited for long.
  gf_now
  gf_until=$((GF_NOW + 30))
  while [ ! -e "$GF_FILE.eof" ] && [ "$GF_NOW" -lt "$gf_until" ]; do
    sleep 0.05
    gf_now
  done
  gf_begin hook
  cat "$GF_FILE.out"
  gf_end hook "$gf_result"
}

gf_hook() {
  GF_READER=
  gf_workdir
  trap 'gf_end_hook' EXIT
  [ -z "$GF_LOCK" ] || gf_lock || return 0
  [ -z "$GF_HOOK" ] || gf_run_hook 9>&-
}

gf_mark start
gf_hook </dev/null
gf_mark finish
