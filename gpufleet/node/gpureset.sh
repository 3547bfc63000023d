# shellcheck shell=sh disable=SC2034,SC2153  # variables of other files, and of the caller
# A GPU reset. All that has the GPUs open as a service is written down and stopped, nvidia-smi resets
# all GPUs in one command (on NVSwitch systems those of a fabric go together), and what was stopped is
# started again, last stopped first, however this script ends. In: GF_DAEMONS (units in the order to
# stop), GF_LOCK, GF_RUN, GF_WHO (for the syslog), GF_SETTLE_S, GF_TOOL_S and GF_ALL_CS as in start.sh,
# GF_RESET_S and GF_RESET_CS (limit of the reset itself).

# gf_daemon_is UNIT: GF_IS becomes how it is; 1 where systemctl doesn't say (it hangs, it prints nothing),
# but on a machine without systemd, where nothing is a unit. GF_OTHER says it.
gf_daemon_is() {
  gf_state_of daemon "$1"
  [ "$GF_IS" = unknown ] || return 0
  case $GF_STATUS.$GF_WORDS in
    127.* | *'not been booted with systemd'*)
      GF_IS=down
      return 0
      ;;
  esac
  GF_OTHER="systemctl did not tell how $1 is (status $GF_STATUS)"
  return 1
}

# gf_choose: GF_CHOSEN becomes "KIND TARGET" of each that is up, and of persistence mode where no daemon
# keeps it; 1 if nobody told. A GPU that is beyond saying its mode had the others'.
gf_choose() {
  GF_CHOSEN=
  for gf_unit in $GF_DAEMONS; do
    gf_daemon_is "$gf_unit" || return 1
    case $GF_IS in
      up | starting | failing) GF_CHOSEN="${GF_CHOSEN}daemon $gf_unit
" ;;
    esac
  done
  case $GF_CHOSEN in
    *"daemon nvidia-persistenced.service"*) ;; # the mode is the daemon's
    *)
      gf_bounded nvidia-smi --query-gpu=index,persistence_mode --format=csv,noheader
      gf_indices=
      gf_on=
      while IFS=', ' read -r gf_index gf_mode; do
        case $gf_index,$gf_mode in
          *[!0-9]*,*) ;;
          ,* | *,Disabled*) ;;
          *)
            gf_indices="$gf_indices${gf_indices:+,}$gf_index"
            case $gf_mode in Enabled*) gf_on=yes ;; esac
            ;;
        esac
      done <"$GF_FILE.out"
      [ -z "$gf_on" ] || GF_CHOSEN="${GF_CHOSEN}persistence $gf_indices
"
      ;;
  esac
}

# gf_note_daemons: they stand in the file before the first is stopped.
gf_note_daemons() {
  gf_read_stopped
  while read -r gf_kind gf_target; do
    [ -n "$gf_kind" ] || continue
    case "
$GF_LIST" in
      *"
$gf_kind $gf_target "*) ;;
      *) GF_LIST="$GF_LIST$gf_kind $gf_target $GF_RUN
" ;;
    esac
  done <<EOT
$GF_CHOSEN
EOT
  gf_write_stopped "$GF_LIST" || gf_fail "cannot write $GF_STOPPED (disk full or read-only?)"
}

# gf_alone: 1 if systemd would stop something else with a daemon, which nobody would start again, or if
# it didn't tell. A target is nothing by itself; what stops with it is asked as well. GF_OTHER says what.
gf_alone() {
  gf_asked=" "
  gf_queue=
  while read -r gf_kind gf_target; do
    [ "$gf_kind" != daemon ] || gf_queue="$gf_queue$gf_target "
  done <<EOT
$GF_CHOSEN
EOT
  while [ -n "$gf_queue" ]; do
    gf_target=${gf_queue%% *}
    gf_queue=${gf_queue#* }
    case $gf_asked in *" $gf_target "*) continue ;; esac
    gf_asked="$gf_asked$gf_target "
    gf_bounded systemctl show \
      --property=RequiredBy,RequisiteOf,BoundBy,ConsistsOf,PropagatesStopTo -- "$gf_target"
    GF_OTHER="systemctl did not tell what stops with $gf_target (status $GF_STATUS)"
    [ "$GF_STATUS" = 0 ] && grep -q '^RequiredBy=' "$GF_FILE.out" || return 1
    while read -r gf_line; do
      for gf_unit in ${gf_line#*=}; do
        case " $GF_DAEMONS " in *" $gf_unit "*) continue ;; esac
        gf_daemon_is "$gf_unit" || return 1
        case $GF_IS.$gf_unit in
          down.*) ;;
          *.target) gf_queue="$gf_queue$gf_unit " ;;
          *)
            GF_OTHER="$gf_unit stops with $gf_target"
            return 1
            ;;
        esac
      done
    done <<EOL
$(cat "$GF_FILE.out")
EOL
  done
}

# gf_stop_daemons: 1 at the first that doesn't stop: the reset would be refused.
gf_stop_daemons() {
  gf_number=0
  while read -r gf_kind gf_target; do
    [ -n "$gf_kind" ] || continue
    gf_number=$((gf_number + 1))
    gf_mark beat "stop $gf_target"
    gf_do stop "$gf_kind" "$gf_target"
    gf_begin "stop.$gf_number"
    printf '%s %s\n' "$gf_kind" "$gf_target"
    head -c 600 "$GF_FILE.out"
    gf_end "stop.$gf_number" "$GF_STATUS"
    # Of a GPU that is beyond answering the mode can't be changed: the reset itself says more.
    [ "$GF_STATUS" = 0 ] || [ "$gf_kind" = persistence ] || return 1
  done <<EOT
$GF_CHOSEN
EOT
}

# gf_nobody_holds: 1 if anybody has a GPU open or mapped for five seconds; GF_OTHER says who. Who came
# since the look isn't known to be workload.
gf_nobody_holds() {
  gf_now
  gf_until=$((GF_NOW + 500))
  while :; do
    gf_beat "who holds a GPU?"
    gf_bounded find /proc/[0-9]*/fd /proc/[0-9]*/map_files -maxdepth 1 \
      -lname '*/dev/nvidia*' -xtype c -printf '@%h\n'
    GF_OTHER="nobody could tell who holds a GPU (status $GF_STATUS)"
    case $GF_STATUS in 0 | 1) ;; *) return 1 ;; esac # 1: processes that ended meanwhile
    gf_who=$(grep '^@' "$GF_FILE.out" | head -n 1)
    [ -n "$gf_who" ] || return 0
    gf_pid=${gf_who#@/proc/}
    gf_pid=${gf_pid%%/*}
    GF_OTHER="pid $gf_pid ($(head -c 60 "/proc/$gf_pid/comm" 2>/dev/null)) holds a GPU"
    gf_now
    [ "$GF_NOW" -lt "$gf_until" ] || return 1
    sleep 0.25
  done
}

# gf_reset_gpus: in the background, since a child that can't die would hold this shell and with it the
# start of what was stopped. Nothing ends the script from here on: a daemon that opens a GPU in the
# midst of its reset is worse than one that waits.
gf_reset_gpus() {
  gf_mark beat "nvidia-smi --gpu-reset"
  {
    timeout -k 2 "$GF_RESET_S" nvidia-smi --gpu-reset >"$GF_FILE.out" 2>&1
    echo $? >"$GF_FILE.status"
  } &
  gf_never_mind
  gf_now
  gf_until=$((GF_NOW + GF_RESET_CS + 500))
  while [ ! -s "$GF_FILE.status" ] && [ "$GF_NOW" -lt "$gf_until" ]; do
    gf_beat "nvidia-smi --gpu-reset"
    sleep 0.1
    gf_now
  done
  gf_status=timeout
  [ ! -s "$GF_FILE.status" ] || read -r gf_status <"$GF_FILE.status"
  gf_begin reset
  head -c 2000 "$GF_FILE.out"
  gf_end reset "$gf_status"
}

# gf_never_mind: from here on neither a signal nor a lost connection ends the script. Caught and not
# ignored, because what it starts would inherit that.
gf_never_mind() {
  trap : PIPE HUP INT TERM
  gf_mark() { printf '\n@@%s %s\n' "$GF_TOKEN" "$*" 2>/dev/null || true; }
}

gf_put_back() {
  trap - EXIT
  gf_never_mind
  GF_ONLY='daemon persistence'
  gf_start_all
  gf_cleanup
}

gf_climb() {
  gf_stopped_folder
  if gf_daemon_is nvidia-imex.service && [ "$GF_IS" != down ]; then
    gf_text refused "nvidia-imex runs: it shares this node's fabric with other nodes"
    return
  fi
  if [ "$GF_IS" = unknown ] || ! gf_choose || ! gf_alone; then
    gf_text refused "$GF_OTHER"
    return
  fi
  gf_note_daemons
  trap 'gf_put_back' EXIT
  ! command -v logger >/dev/null 2>&1 ||
    timeout -k 2 5 logger -t gpufleet -- "$GF_WHO: GPU reset" 2>/dev/null
  if ! gf_stop_daemons; then
    gf_text refused "$gf_target didn't stop (status $GF_STATUS)"
  elif ! gf_nobody_holds; then
    gf_text refused "$GF_OTHER"
  else
    gf_reset_gpus
  fi
  gf_put_back
}

gf_gpu_reset() {
  gf_workdir
  gf_lock || return 0
  gf_climb 9>&-
}

gf_mark start
gf_gpu_reset </dev/null
gf_mark finish
