# shellcheck shell=sh disable=SC2034  # GF_STATUS and GF_IS are for the scripts that come after
# What was stopped here and is to run again: a file that a reboot doesn't lose, one line for each
# owner in the order of stopping, "KIND TARGET RUN". And how each kind is stopped, started and asked.
# Kinds: service, user-service (UID:NAME), docker and podman (a container's id), supervisor, job,
# drain (the node's name in Kubernetes), daemon (a unit that a GPU reset stops), persistence (indices
# of GPUs).

# Not in /var/lib/gpufleet: that is root's record of runs, which others may be let into.
GF_STOPPED=/var/lib/gpufleet-node/stopped

gf_stopped_folder() {
  gf_folder=${GF_STOPPED%/*}
  [ -d "$gf_folder" ] || mkdir -p "$gf_folder" 2>/dev/null || # 0700 by the umask of frame.sh
    gf_fail "cannot make $gf_folder (disk full or read-only?)"
  # shellcheck disable=SC2012  # as in frame.sh
  gf_listing=$(ls -ldn "$gf_folder" 2>&1)
  # shellcheck disable=SC2086  # words wanted: mode, links, owner, ...
  set -- $gf_listing
  case "$1 $3" in
    'drwx------ 0' | 'drwx------'?' 0') ;;
    *) gf_fail "$gf_folder is not root's own folder with mode 0700: $gf_listing" ;;
  esac
}

# gf_write_stopped TEXT: the file becomes this, or goes if that is nothing. On the disk before
# anything else happens; renamed into place, so that there is always a whole one.
gf_write_stopped() {
  if [ -z "$1" ]; then
    rm -f "$GF_STOPPED"
    return
  fi
  { printf '%s' "$1" >"$GF_STOPPED.new"; } 2>/dev/null || return 1
  timeout -k 2 "$GF_TOOL_S" sync "$GF_STOPPED.new" 2>/dev/null || timeout -k 2 "$GF_TOOL_S" sync || return 1
  mv -f "$GF_STOPPED.new" "$GF_STOPPED" || return 1
  timeout -k 2 "$GF_TOOL_S" sync "${GF_STOPPED%/*}" 2>/dev/null || true
}

gf_read_stopped() {
  GF_LIST=
  [ -f "$GF_STOPPED" ] || return 0
  while read -r gf_line; do
    GF_LIST="$GF_LIST$gf_line
"
  done <"$GF_STOPPED"
}

# gf_bounded COMMAND...: its output in $GF_FILE.out, its exit status in GF_STATUS.
gf_bounded() {
  timeout -k 2 "$GF_TOOL_S" "$@" >"$GF_FILE.out" 2>&1 </dev/null
  GF_STATUS=$?
}

# gf_as_user UID COMMAND...: only the user himself is let in by his manager.
gf_as_user() {
  gf_user=$1
  shift
  gf_bounded setpriv --reuid="$gf_user" --regid="$gf_user" --clear-groups \
    env XDG_RUNTIME_DIR="/run/user/$gf_user" "$@"
}

# gf_do stop|start KIND TARGET
gf_do() {
  case $1.$2 in
    *.service | *.daemon) gf_bounded systemctl "$1" -- "$3" ;;
    stop.persistence) gf_bounded nvidia-smi -i "$3" -pm 0 ;;
    start.persistence) gf_bounded nvidia-smi -i "$3" -pm 1 ;;
    *.user-service) gf_as_user "${3%%:*}" systemctl --user "$1" -- "${3#*:}" ;;
    # Stopped by name, neither brings it back by its restart policy.
    stop.docker | stop.podman)
      # shellcheck disable=SC2086  # words wanted: an option and its value, or nothing
      gf_bounded "$2" stop $GF_CONTAINER_GRACE "$3"
      ;;
    start.docker | start.podman) gf_bounded "$2" start "$3" ;;
    *.supervisor) gf_bounded supervisorctl "$1" "$3" ;;
    stop.job) gf_bounded scancel "$3" ;;
    stop.drain)
      gf_bounded kubectl drain "$3" --ignore-daemonsets --delete-emptydir-data --timeout="${GF_TOOL_S%.*}s"
      ;;
    start.drain) gf_bounded kubectl uncordon "$3" ;;
    *)
      true >"$GF_FILE.out"
      GF_STATUS=unknown
      ;;
  esac
}

# gf_state_of KIND TARGET: GF_WORDS becomes the owner's own words on how it is, on one line; GF_IS one of
# up, starting, failing (it is started again and again), down, unknown.
gf_state_of() {
  case $1 in
    service | daemon) gf_bounded systemctl show --property=ActiveState,SubState,NRestarts -- "$2" ;;
    user-service)
      gf_as_user "${2%%:*}" systemctl --user show --property=ActiveState,SubState,NRestarts -- "${2#*:}"
      ;;
    docker | podman) gf_bounded "$1" inspect --type container --format 'status={{.State.Status}}=' "$2" ;;
    supervisor) gf_bounded supervisorctl status "$2" ;;
    persistence) gf_bounded nvidia-smi -i "$2" --query-gpu=persistence_mode --format=csv,noheader ;;
    drain) gf_bounded kubectl get node "$2" -o 'jsonpath=cordoned={.spec.unschedulable}=' ;;
    *) true >"$GF_FILE.out" ;;
  esac
  GF_WORDS=
  while read -r gf_line || [ -n "$gf_line" ]; do GF_WORDS="$GF_WORDS$gf_line "; done <"$GF_FILE.out"
  case $GF_WORDS in
    *SubState=auto-restart* | *=restarting=* | *BACKOFF*) GF_IS=failing ;;
    *ActiveState=active\ * | *ActiveState=reloading\ * | *=running=* | *=paused=* | *RUNNING* | *cordoned==*) GF_IS=up ;;
    *Disabled*) GF_IS=down ;;
    Enabled*) GF_IS=up ;;
    *ActiveState=activating\ * | *STARTING*) GF_IS=starting ;;
    *ActiveState=* | *status=*=* | *STOPPED* | *EXITED* | *FATAL* | *STOPPING* | *cordoned=true=*) GF_IS=down ;;
    *) GF_IS=unknown ;;
  esac
}
