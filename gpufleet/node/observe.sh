# shellcheck shell=sh
# What one sample reads: nvidia-smi's memory, all processes, all holders; and once per exec what
# changes slowly: health, charged memory, units. Runs commands and hands back what they print.
# In: GF_GPUS and GF_TOLERANCE_MIB (when is memory free), GF_HEALTH (comma list of nvidia-smi
# fields), GF_UNITS and GF_USERS (what to ask systemd and the user database for, blanks between),
# GF_QUICK and GF_QUICK_S (the text of quick.sh, and the seconds that it may take).

GF_HANGING= # not empty: a process hangs whoever reads its command line or its mappings
GF_CAREFUL= # not empty: quick.sh ran out of time, so each tool gets a limit of its own
GF_APART=   # not empty: memory and health are asked apart

# gf_stat FILE: GF_STATE, GF_CPU (ticks) and GF_START (ticks after boot) out of a stat file. A
# program's name may hold blanks, brackets and newlines; what counts stands behind the last bracket.
gf_stat() {
  gf_all=
  { while read -r gf_line; do gf_all="$gf_all $gf_line"; done <"$1"; } 2>/dev/null
  gf_all=${gf_all##*) }
  # shellcheck disable=SC2086  # words wanted; only numbers are left
  set -- $gf_all
  [ $# -ge 20 ] || return 1
  GF_STATE=$1
  # shellcheck disable=SC2034  # act.sh reads it
  GF_CPU=$((${12} + ${13}))
  GF_START=${20}
}

# gf_find_stuck: an nvidia-smi that has been in D for over a minute can't be killed, and each further
# one would join it. GF_STUCK becomes a sentence about it, or stays empty. Builtins only: comm and stat
# of a process that hangs can be read.
gf_find_stuck() {
  GF_STUCK=
  gf_now
  for gf_pid in [0-9]*; do
    gf_comm=
    { read -r gf_comm <"$gf_pid/comm"; } 2>/dev/null
    [ "$gf_comm" = nvidia-smi ] || continue
    gf_stat "$gf_pid/stat" || continue
    [ "$GF_STATE" = D ] && [ $((GF_NOW - GF_START)) -gt 6000 ] &&
      GF_STUCK="nvidia-smi (pid $gf_pid) has been in state D for over 60 s"
  done
}

# gf_run_smi OPTION...: nvidia-smi writes into files, since `$(...)` or a pipe would wait for a child
# that can't die. GF_STATUS is its exit status: 124 and 137 say that it ran out of time, and then it
# isn't asked again in this exec; `stuck` says that it wasn't started.
gf_run_smi() {
  if [ -n "$GF_STUCK" ]; then
    GF_STATUS=stuck
    true >"$GF_FILE.out"
    printf '%s\n' "$GF_STUCK" >"$GF_FILE.err"
    return
  fi
  timeout -k 2 "$GF_SMI_S" nvidia-smi "$@" >"$GF_FILE.out" 2>"$GF_FILE.err"
  GF_STATUS=$?
  case $GF_STATUS in 124 | 137) GF_STUCK="not asked again: it gave no answer in $GF_SMI_S s" ;; esac
}

gf_show_smi() {
  gf_begin "$1"
  cat "$GF_FILE.out"
  gf_end "$1" "$GF_STATUS"
  [ -s "$GF_FILE.err" ] || return 0
  gf_begin "$1.err"
  cat "$GF_FILE.err"
  gf_end "$1.err" 0
}

gf_read_memory() {
  gf_run_smi --query-gpu=index,memory.used --format=csv,noheader
  GF_READING=memory
}

# gf_read_gpus: memory and health in one query, because starting nvidia-smi is what costs (seconds,
# without persistence mode). A driver that answers it with anything but success is asked for the two
# apart from then on, as gf_slow says. GF_READING becomes what the reading is: gpus, or memory alone.
gf_read_gpus() {
  if [ -z "$GF_APART" ]; then
    gf_run_smi --query-gpu="index,memory.used,$GF_HEALTH" --format=csv,noheader
    GF_READING=gpus
    [ "$GF_STATUS" != 0 ] || return 0
    GF_APART=yes
    GF_READING=memory
    case $GF_STATUS in 124 | 137 | stuck) return 0 ;; esac
  fi
  gf_read_memory
}

# gf_free: does the last reading show every GPU within the tolerance? Says only when waiting may end;
# the verdict is made elsewhere, from the same text.
gf_free() {
  [ "$GF_STATUS" = 0 ] || return 1
  gf_rows=0
  while IFS=', ' read -r gf_index gf_used gf_unit gf_rest; do
    [ -n "$gf_index" ] || continue
    case $gf_unit in MiB | MiB?) ;; *) return 1 ;; esac # MiB?: a carriage return, or health behind
    case $gf_index,$gf_used in *[!0-9,]* | ,* | *,) return 1 ;; esac
    [ "$gf_used" -le "$GF_TOLERANCE_MIB" ] || return 1
    gf_rows=$((gf_rows + 1))
  done <"$GF_FILE.out"
  [ "$gf_rows" -eq "$GF_GPUS" ]
}

# gf_processes NAME: every process's stat, command line and cgroup, each line with its file's name
# before it (so that no command line can pose as another process); the user in a second pass,
# because status has sixty lines more. -s: processes end while one reads. A process that hangs
# whoever reads its command line or its mappings is left out at the second try: GF_HANGING.
gf_processes() {
  if [ -z "$GF_HANGING" ]; then
    gf_tool "$1/procs" grep -aHs '' [0-9]*/stat [0-9]*/cmdline [0-9]*/cgroup
    case $GF_TOOL_STATUS in 124 | 137) GF_HANGING=yes ;; esac
  fi
  if [ -n "$GF_HANGING" ]; then
    gf_awake cmdline cgroup
    # shellcheck disable=SC2086  # words wanted: names of files
    gf_tool "$1/procs" grep -aHs '' [0-9]*/stat $GF_AWAKE
    gf_text "$1/asleep" "$GF_ASLEEP"
  fi
  gf_tool "$1/uids" grep -aHs '^Uid:' [0-9]*/status
}

# gf_awake FILE...: GF_AWAKE becomes these files of all processes of which no thread is in D,
# GF_ASLEEP the pids of the others.
gf_awake() {
  GF_AWAKE=/dev/null
  GF_ASLEEP=
  for gf_proc in [0-9]*; do
    for gf_task in "$gf_proc"/task/*/stat; do
      gf_stat "$gf_task" || continue
      [ "$GF_STATE" != D ] || { GF_ASLEEP="$GF_ASLEEP $gf_proc"; continue 2; }
    done
    for gf_name in "$@"; do GF_AWAKE="$GF_AWAKE $gf_proc/$gf_name"; done
  done
}

# gf_holders NAME: who has a GPU device open or mapped, by the text of the links: it also finds
# device nodes that a container made for itself, which fuser can't. -xtype c: a character device, not
# a file in somebody's folder dev/nvidia. The executable's link and the names of users come along,
# and who uses which file in /dev/shm.
gf_holders() {
  gf_tool "$1/links" find self/ns/pid [0-9]*/exe [0-9]*/fd -maxdepth 1 \
    \( -name exe -o -name pid -o -lname '/dev/shm/*' -o -lname '*/dev/nvidia*' -xtype c \) \
    -printf '%p %U %u %l\0'
  [ -z "$GF_HANGING" ] || gf_awake maps
  gf_begin "$1/maps"
  gf_maps | timeout -k 2 "$GF_TOOL_S" sort -u
  gf_end "$1/maps" 0
}

# gf_threads NAME: a leader that has ended shows nothing any more, but its living threads still hold
# what it held: state, command line and devices of these. Such a leader has no namespaces any more,
# which a builtin can see; where links can't be followed grep looks for them.
gf_threads() {
  gf_files=
  gf_links=
  if [ -e 1/ns/uts ]; then
    set -- "$1"
    for gf_pid in [0-9]*; do [ -e "$gf_pid/ns/uts" ] || set -- "$@" "$gf_pid/stat"; done
  else
    # shellcheck disable=SC2046  # words without blanks
    set -- "$1" $(timeout -k 2 "$GF_TOOL_S" grep -ls ') Z ' [0-9]*/stat)
  fi
  gf_sample=$1
  shift
  for gf_name in "$@"; do
    gf_stat "$gf_name" || continue
    [ "$GF_STATE" = Z ] || continue
    for gf_task in "${gf_name%/stat}"/task/[0-9]*; do
      gf_files="$gf_files $gf_task/stat $gf_task/cmdline"
      gf_links="$gf_links $gf_task/fd"
    done
  done
  [ -n "$gf_files" ] || return 0
  # shellcheck disable=SC2086  # words wanted: names of files
  gf_tool "$gf_sample/threads" grep -aHs '' $gf_files
  # shellcheck disable=SC2086  # as above
  gf_tool "$gf_sample/threadlinks" find $gf_links -maxdepth 1 \
    -lname '*/dev/nvidia*' -xtype c -printf '%p %U %u %l\0'
}

gf_maps() {
  # shellcheck disable=SC2086  # words wanted: names of files
  set -- ${GF_HANGING:+$GF_AWAKE}
  [ $# -gt 0 ] || set -- [0-9]*/maps
  timeout -k 2 "$GF_TOOL_S" grep -aHos -e '[^ ]*/dev/nvidia[^ ]*' -e '/dev/shm/[^ ]*' "$@"
  printf 'status %s\n' "$?"
}

# gf_sample NAME [fuser]: one complete sample, with fuser's own list of holders beside it where that
# is asked for. The memory was read just before. Fuser reads mappings as well, and isn't asked where
# somebody hangs who reads these.
gf_sample() {
  gf_now
  GF_SAMPLED=$GF_NOW
  gf_text "$1/uptime" "$GF_NOW"
  gf_threads "$1"
  [ -n "$GF_CAREFUL" ] || gf_quick "$1" "${2-}"
  [ -n "$GF_CAREFUL" ] || return 0
  gf_show_smi "$1/$GF_READING"
  gf_processes "$1"
  gf_holders "$1"
  [ -z "${2-}" ] || [ -n "$GF_HANGING" ] || gf_tool "$1/fuser" fuser /dev/nvidia*
}

# gf_quick NAME FUSER: the sample as quick.sh reads it; GF_CAREFUL when that took too long. The token
# goes by the environment, which nobody else can read as they could a command line.
gf_quick() {
  gf_begin "$1/$GF_READING"
  gf_end "$1/$GF_READING" "$GF_STATUS"
  # shellcheck disable=SC2016  # the inner shell's variable
  GF_TOKEN=$GF_TOKEN GF_QUICK=$GF_QUICK GF_SAMPLE=$1 GF_FILE=$GF_FILE GF_FUSER=$2 \
    timeout -k 2 "$GF_QUICK_S" sh -c 'eval "$GF_QUICK"' 2>/dev/null
  case $? in 0) ;; *) GF_CAREFUL=yes ;; esac
}

# gf_settle: waits until GF_SETTLE_CS have passed since the last sample began, so that the second one
# begins so long after the first; reading the first counts.
gf_settle() {
  gf_now
  gf_left=$((GF_SAMPLED + GF_SETTLE_CS + 1 - GF_NOW)) # + 1: both times are cut to hundredths
  [ "$gf_left" -gt 0 ] && [ "$GF_SETTLE_CS" -gt 0 ] || return 0
  gf_part=0$((gf_left % 100))
  sleep "$((gf_left / 100)).${gf_part#"${gf_part%??}"}"
}

# gf_self: who the script is on this node, so that the plan can spare it.
gf_self() {
  read -r gf_boot </proc/sys/kernel/random/boot_id
  gf_text self "pid $$" "uid $GF_UID" "boot $gf_boot" "dir $GF_DIR"
  gf_begin missing
  for gf_name in nvidia-smi grep find timeout flock sort fuser; do
    command -v "$gf_name" >/dev/null 2>&1 || printf '%s\n' "$gf_name"
  done
  gf_end missing 0
  gf_begin devices
  printf '%s\n' /dev/nvidia* /run/nvidia/driver/dev/nvidia*
  gf_end devices 0
  for gf_name in $GF_USERS; do gf_text "user.$gf_name" "$(timeout -k 2 5 id -u "$gf_name" 2>/dev/null)"; done
}

# gf_slow: what is asked once per exec. Health only where it couldn't be had beside the memory: a
# driver that doesn't know a field refuses the whole query with exit 2 and names one field at a time;
# then each field is asked alone.
gf_slow() {
  if [ -n "$GF_APART" ]; then
    gf_run_smi --query-gpu="index,$GF_HEALTH" --format=csv,noheader
    gf_show_smi health
    if [ "$GF_STATUS" = 2 ]; then
      gf_rest=$GF_HEALTH,
      while [ -n "$gf_rest" ]; do
        gf_field=${gf_rest%%,*}
        gf_rest=${gf_rest#*,}
        gf_run_smi --query-gpu="index,$gf_field" --format=csv,noheader
        gf_show_smi "health.$gf_field"
      done
    fi
  fi
  gf_run_smi --query-compute-apps=pid,used_memory,gpu_uuid --format=csv,noheader
  gf_show_smi apps
  gf_begin shm
  gf_empty /dev/shm || ls -lnA /dev/shm 2>/dev/null
  gf_end shm "$?"
  if [ -d /run/systemd/system ]; then
    gf_properties=Id,LoadState,UnitFileState,ActiveState,SubState,Restart,NRestarts,MainPID,TriggeredBy
    set -f # a unit's name may hold a pattern
    # shellcheck disable=SC2086  # words wanted: unit names
    gf_tool units systemctl show --property="$gf_properties" -- $GF_UNITS
    for gf_unit in $GF_USER_UNITS; do # only the user himself is let in
      gf_tool "user-unit.$gf_unit" setpriv --reuid="${gf_unit%%:*}" --regid="${gf_unit%%:*}" --clear-groups \
        env XDG_RUNTIME_DIR="/run/user/${gf_unit%%:*}" systemctl --user show --property="$gf_properties" -- "${gf_unit#*:}"
    done
    set +f
    # Units that were hit by others, or by an earlier run, and wait for their restart.
    gf_tool due systemctl show --state=activating --property="$gf_properties,ExecStart" -- '*.service'
  else
    gf_begin units
    gf_end units none
  fi
  gf_owners
}

# gf_empty FOLDER: is nothing in it? By builtins.
gf_empty() {
  for gf_name in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ ! -e "$gf_name" ] && [ ! -L "$gf_name" ] || return 1
  done
}

# gf_owners: what containers and pods that were hit do next: a restart policy, a kubelet. In:
# GF_CONTAINERS ("docker:ID ..." or "podman:ID ..."), GF_PODS (uids).
gf_owners() {
  for gf_target in $GF_CONTAINERS; do
    gf_tool "container.${gf_target#*:}" "${gf_target%%:*}" inspect --type container \
      --format '{{.State.Status}} {{.State.Pid}} {{.HostConfig.RestartPolicy.Name}} {{.Name}}' \
      "${gf_target#*:}"
  done
  for gf_target in $GF_PODS; do
    gf_other=$(printf '%s' "$gf_target" | tr - _) # systemd's cgroup driver can't have a hyphen
    gf_tool "pod.$gf_target" find /sys/fs/cgroup -maxdepth 5 -type d \
      \( -name "*pod$gf_target*" -o -name "*pod$gf_other*" \)
  done
}
