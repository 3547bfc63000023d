# shellcheck shell=sh
# How a node answers: sections between markers that carry a random token, so that neither an rc
# file's noise nor a process's command line can be taken for one. Each section is raw output and an
# exit status. Nothing is decided here.
# In: GF_TOKEN, and the limits in seconds GF_TOOL_S (any tool) and GF_SMI_S (nvidia-smi).

LC_ALL=C
# The node's own order first; sshd's short default lacks sbin, and images put nvidia-smi elsewhere.
PATH=${PATH:-/usr/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin
export LC_ALL PATH
unset CDPATH GREP_OPTIONS
umask 077

# A line that can't be written means that nobody listens any more: end, and free the lock with it.
gf_mark() { printf '\n@@%s %s\n' "$GF_TOKEN" "$*" 2>/dev/null || exit 141; }
gf_begin() { gf_mark begin "$1"; }
gf_end() { gf_mark end "$1" "$2"; }

# gf_text NAME TEXT...: a section of lines that the script itself says.
gf_text() {
  gf_section=$1
  shift
  gf_begin "$gf_section"
  [ $# -eq 0 ] || printf '%s\n' "$@"
  gf_end "$gf_section" 0
}

# gf_tool NAME COMMAND...: a section from a tool that gets GF_TOOL_S seconds. -k: a tool that
# ignores TERM must go as well. Writes straight to the channel: a pipe would wait for a stuck child.
# GF_TOOL_STATUS becomes its exit status, 124 or 137 if it ran out of time.
gf_tool() {
  gf_section=$1
  shift
  gf_begin "$gf_section"
  timeout -k 2 "$GF_TOOL_S" "$@" 2>/dev/null
  GF_TOOL_STATUS=$?
  gf_end "$gf_section" "$GF_TOOL_STATUS"
}

# gf_fail REASON: the node can't be worked on; said, and the script ends.
gf_fail() {
  gf_text failed "$1"
  gf_mark finish
  exit 1
}

# gf_now: GF_NOW becomes the node's uptime in hundredths of a second (no fork: it is asked often).
gf_now() {
  read -r GF_NOW _ </proc/uptime
  GF_NOW=${GF_NOW%.*}${GF_NOW#*.}
}

GF_NEXT_BEAT=0
# gf_beat: says once a second that the script lives; ends it when nobody listens (see gf_mark).
gf_beat() {
  gf_now
  [ "$GF_NOW" -ge "$GF_NEXT_BEAT" ] || return 0
  gf_mark beat "$1"
  GF_NEXT_BEAT=$((GF_NOW + 100))
}

# gf_tools: the script rests on these; without one its answers would say something else than they
# seem to. (Builtins in some shells, hence `command -v` and not a path.)
gf_tools() {
  for gf_name in id ls mkdir cat rm sleep sort grep find tr timeout flock; do
    command -v "$gf_name" >/dev/null 2>&1 || gf_fail "$gf_name is missing on the node"
  done
}

# gf_whoami: GF_UID becomes the effective user, without a fork.
gf_whoami() {
  GF_UID=
  {
    while read -r gf_key _ gf_effective _; do
      [ "$gf_key" != Uid: ] || { GF_UID=$gf_effective; break; }
    done </proc/self/status
  } 2>/dev/null
  [ -n "$GF_UID" ] || gf_fail "no /proc"
}

# The working folder: root's own and closed to others, because a lock in a folder that others may
# enter can be taken by anyone who can open the file.
gf_workdir() {
  gf_tools
  gf_whoami
  if [ "$GF_UID" = 0 ]; then
    GF_DIR=/run/gpufleet
    [ -d "$GF_DIR" ] || mkdir -m 700 "$GF_DIR" 2>/dev/null
    # shellcheck disable=SC2012  # one fixed name; ls -ldn is everywhere, stat's options aren't
    gf_listing=$(ls -ldn "$GF_DIR" 2>&1)
    # shellcheck disable=SC2086  # words wanted: mode, links, owner, ...
    set -- $gf_listing
    case "$1 $3" in
      'drwx------ 0' | 'drwx------'?' 0') ;; # ?: a mark for SELinux or an access list
      *) gf_fail "$GF_DIR is not root's own folder with mode 0700: $gf_listing" ;;
    esac
  else
    GF_DIR=$(mktemp -d 2>&1) || gf_fail "no temporary folder: $GF_DIR"
  fi
  # Not named by the token: a command line that shows it would let others forge markers.
  GF_FILE=$GF_DIR/smi.$$
  trap 'gf_cleanup' EXIT
  trap 'exit 141' PIPE
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  # `true` and not `:`: a failed redirection of a special builtin would end the shell unheard.
  for gf_name in out err; do
    { true >"$GF_FILE.$gf_name" && printf 'probe\n' >"$GF_FILE.$gf_name"; } 2>/dev/null ||
      gf_fail "cannot write in $GF_DIR (disk full or read-only?)"
  done
}

gf_cleanup() {
  rm -f "$GF_FILE".*
  [ "$GF_UID" = 0 ] || rmdir "$GF_DIR" 2>/dev/null
}
