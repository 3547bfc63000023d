# shellcheck shell=sh
# One act: signal the processes of the kill list, watch until they and their memory are gone, and
# look again. Who is signalled was decided elsewhere; when to stop waiting is decided here, by the
# limits handed in. In: GF_KILL ("PID:START_TICKS ..." in the order to signal), GF_GRACE_CS (TERM
# first, then so long until KILL; 0: KILL at once), GF_LOCK (text that tells others who is here),
# and in hundredths of a second GF_SETTLE_CS (from sample to sample), GF_FREE_CS (until the memory
# must be free), GF_DYING_CS (the same while something is dying), GF_STILL_CS (an unchanged reading
# that nothing can change any more), GF_ODD_CS (the same for a reading that isn't a number),
# GF_UNKILLABLE_CS and GF_FROZEN_CS (so long after KILL a thread in D whose CPU time stood still so
# long won't die).

# gf_signal SIGNAL: to each process of the list that still is the one that was looked at. Builtins
# only, so that next to nothing lies between the check and the signal.
gf_signal() {
  for gf_target in $GF_KILL; do
    gf_pid=${gf_target%:*}
    if ! gf_stat "$gf_pid/stat"; then
      gf_done=gone
    elif [ "$GF_START" != "${gf_target#*:}" ]; then
      gf_done=reused
    elif kill -s "$1" "$gf_pid" 2>/dev/null; then
      gf_done=sent
    else
      gf_done=refused
    fi
    GF_LOG="$GF_LOG$gf_target $1 $gf_done
"
  done
}

# gf_dying [ALL]: is a process of the list still there, or a thread of it? A leader turns Z within a
# millisecond while its threads still free memory for seconds. Sets GF_WHO; the first that lives is
# answer enough, but for ALL, which sees all of them: GF_THREAD (a thread in D, or empty) and GF_TICKS
# (CPU time of the threads seen).
gf_dying() {
  GF_WHO=
  GF_THREAD=
  GF_TICKS=0
  for gf_target in $GF_KILL; do
    gf_stat "${gf_target%:*}/stat" || continue
    [ "$GF_START" = "${gf_target#*:}" ] || continue
    for gf_task in "${gf_target%:*}"/task/*/stat; do
      gf_stat "$gf_task" || continue
      case $GF_STATE in Z | X | x) continue ;; esac
      GF_WHO=${gf_target%:*}
      [ -n "${1-}" ] || return 0
      GF_TICKS=$((GF_TICKS + GF_CPU))
      [ "$GF_STATE" != D ] || GF_THREAD=$gf_task
    done
  done
  [ -n "$GF_WHO" ]
}

gf_grace() {
  gf_until=$((GF_NOW + GF_GRACE_CS))
  while gf_dying; do
    gf_beat "waiting for $GF_WHO to end after TERM"
    [ "$GF_NOW" -lt "$gf_until" ] || return 0
    sleep 0.05
  done
}

# gf_unkillable: the same thread in D with the same CPU time for GF_FROZEN_CS, long after KILL.
gf_unkillable() {
  [ $((GF_NOW - gf_began)) -ge "$GF_UNKILLABLE_CS" ] && gf_dying all && [ -n "$GF_THREAD" ] || return 1
  if [ "$GF_THREAD $GF_TICKS" != "$gf_frozen" ]; then
    gf_frozen="$GF_THREAD $GF_TICKS"
    gf_frozen_since=$GF_NOW
  fi
  [ $((GF_NOW - gf_frozen_since)) -ge "$GF_FROZEN_CS" ]
}

# gf_ask: reads the memory, and notes the reading where it differs from the last one. GF_SHOWN becomes
# what heartbeats say of it, for whoever watches.
gf_ask() {
  gf_read_memory
  gf_reading=$GF_STATUS
  while read -r gf_line; do gf_reading="$gf_reading;$gf_line"; done <"$GF_FILE.out"
  gf_now
  [ "$gf_reading" != "$gf_last" ] || return 0
  gf_last=$gf_reading
  GF_SHOWN=
  [ "$GF_STATUS" != 0 ] || [ ${#gf_last} -gt 1000 ] || GF_SHOWN=" | ${gf_last#*;}"
  gf_changed=$GF_NOW
  GF_LOG="${GF_LOG}reading $((GF_NOW - gf_began)) $gf_reading
"
}

# gf_still: the reading that can't change by waiting: nothing dies, and the text stays as it is.
gf_still() {
  gf_limit=$GF_ODD_CS
  case $gf_last in 0*MiB*) gf_limit=$GF_STILL_CS ;; esac
  [ $((GF_NOW - gf_changed)) -ge "$gf_limit" ]
}

gf_all_dead() {
  gf_gone=yes
  gf_next_ask=0
  gf_changed=$GF_NOW # a reading counts as unchanged only from here on
  GF_LOG="${GF_LOG}dead $((GF_NOW - gf_began))
"
}

# gf_watch: until all are dead and the memory is free, or until a limit. GF_STOP says which.
gf_watch() {
  gf_began=$GF_NOW
  gf_changed=$GF_NOW
  gf_last=
  gf_frozen=
  gf_frozen_since=$GF_NOW
  gf_next_ask=$((GF_NOW + 100))
  gf_gone=
  gf_pause=0.02 # most end at once
  while :; do
    gf_now
    if gf_dying; then
      gf_beat "dying: $GF_WHO$GF_SHOWN"
      [ $((GF_NOW - gf_began)) -lt "$GF_DYING_CS" ] || { GF_STOP=dying; return; }
      ! gf_unkillable || { GF_STOP="unkillable $GF_THREAD"; return; }
      gf_interval=100
    else
      [ -n "$gf_gone" ] || gf_all_dead
      gf_interval=25
    fi
    if [ "$GF_NOW" -ge "$gf_next_ask" ]; then
      gf_ask
      gf_next_ask=$((GF_NOW + gf_interval))
      if [ -n "$gf_gone" ]; then
        ! gf_free || { GF_STOP=free; return; }
        ! gf_still || { GF_STOP=still; return; }
        [ $((GF_NOW - gf_began)) -lt "$GF_FREE_CS" ] || { GF_STOP=late; return; }
      fi
      gf_beat "memory$GF_SHOWN"
    fi
    sleep "$gf_pause"
    gf_pause=0.05
  done
}

gf_act() {
  gf_find_stuck
  gf_now
  GF_LOG=
  GF_SHOWN=
  if [ "$GF_GRACE_CS" -gt 0 ] && [ -n "$GF_KILL" ]; then
    gf_signal TERM
    gf_mark beat "TERM sent"
    gf_grace
    gf_now
  fi
  gf_signal KILL
  gf_mark beat "signals sent"
  GF_STOP=
  gf_watch
  gf_text act "${GF_LOG}stop $GF_STOP"
  gf_self
  if [ "$GF_STOP" = free ]; then
    gf_sample 1
    gf_mark beat "settle$GF_SHOWN"
    gf_settle
    gf_read_gpus
    gf_sample 2 fuser
  else
    gf_read_gpus
    gf_sample 1 fuser
  fi
  gf_slow
}

# gf_sweep: files of scripts that were killed before they could take them away.
gf_sweep() {
  for gf_left in "$GF_DIR"/smi.*; do
    gf_pid=${gf_left#"$GF_DIR"/smi.}
    [ -d "/proc/${gf_pid%%.*}" ] || rm -f "$gf_left"
  done
}

gf_locked() {
  gf_workdir
  cd /proc || gf_fail "no /proc"
  gf_lock || return 0
  gf_sweep
  gf_once 9>&-
}

gf_mark start
gf_locked </dev/null
gf_mark finish
