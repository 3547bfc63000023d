# shellcheck shell=sh disable=SC2034,SC2153  # GF_KILL is act.sh's, GF_TOKEN comes from outside
# What a run does here, it does once. An engine that loses sight of one of its workers has another do
# the same again, perhaps while the first is still at it: the second gets what came of the first, and
# touches nothing. In: GF_ACT (names the run and which of its acts this is; empty: one that anybody may
# repeat), GF_KEEP (yes: what the act says is kept for whoever comes again).

GF_KEPT_ACTS=64
GF_KEPT_ANSWERS=8
GF_CHANNEL=

# gf_first: has this not begun before? Notes that it begins now; else says so, and for how long. Needs
# the lock. Not on the disk: after a reboot nothing is as the run saw it.
gf_first() {
  GF_ACTS=$GF_DIR/acts
  [ -d "$GF_ACTS" ] || mkdir "$GF_ACTS" || gf_fail "cannot make $GF_ACTS" # 0700 by the umask of frame.sh
  gf_now
  if [ -e "$GF_ACTS/$GF_ACT" ]; then
    gf_since=$GF_NOW
    read -r gf_since <"$GF_ACTS/$GF_ACT"
    gf_kept=begun
    [ ! -f "$GF_ACTS/$GF_ACT.said" ] || gf_kept='done'
    gf_text again "$gf_kept $((GF_NOW - gf_since))"
    return 1
  fi
  if ! { printf '%s\n' "$GF_NOW" >"$GF_ACTS/$GF_ACT"; } 2>/dev/null; then
    rm -f "$GF_ACTS/$GF_ACT" # an empty one would say that it began
    gf_fail "cannot write in $GF_ACTS (disk full or read-only?)"
  fi
  gf_forget "$GF_KEPT_ANSWERS" "$GF_ACTS"/*.said
  gf_forget "$GF_KEPT_ACTS" "$GF_ACTS"/*
}

# gf_forget NUMBER FILE...: all but the last so many go: names begin with the time of their run.
gf_forget() {
  gf_number=$1
  shift
  while [ $# -gt "$gf_number" ]; do
    [ "$1" = "$GF_ACTS/$GF_ACT" ] || rm -f "$1"
    shift
  done
}

# gf_once: the act, or what came of it before.
gf_once() {
  if [ -z "$GF_ACT" ]; then
    gf_act
  elif gf_first; then
    if [ -n "$GF_KEEP" ]; then gf_kept_act; else gf_act; fi
  elif [ "$gf_kept" = "done" ]; then
    read -r gf_token <"$GF_ACTS/$GF_ACT.said"
    sed "1d; s/^@@$gf_token /@@$GF_TOKEN /" "$GF_ACTS/$GF_ACT.said"
  else
    GF_KILL= # it signalled, and nobody knows what came of it: only watch, and look
    gf_act
  fi
}

# gf_kept_act: the answer goes into a file, heartbeats to whoever listens, and then the file as well. No
# pipe: a child that can't die would hold it open.
gf_kept_act() {
  { printf '%s\n' "$GF_TOKEN" >"$GF_FILE.act"; } 2>/dev/null || gf_fail "cannot write in $GF_DIR"
  GF_CHANNEL=yes
  gf_act 8>&1 >>"$GF_FILE.act"
  GF_CHANNEL=
  sed 1d "$GF_FILE.act"
  # 1 MiB: 5,000 processes; a larger answer isn't kept, and the next one looks for itself.
  [ -z "$(find "$GF_FILE.act" -size -1025k)" ] || mv -f "$GF_FILE.act" "$GF_ACTS/$GF_ACT.said"
}

# As in frame.sh; while the answer goes into a file, only heartbeats, and what the end of a script says,
# go where somebody listens.
gf_mark() {
  case $GF_CHANNEL$1 in
    yesbeat) printf '\n@@%s %s\n' "$GF_TOKEN" "$*" 2>/dev/null >&8 || exit 141 ;;
    yesfinish)
      sed 1d "$GF_FILE.act" >&8
      printf '\n@@%s %s\n' "$GF_TOKEN" "$*" 2>/dev/null >&8 || exit 141
      ;;
    *) printf '\n@@%s %s\n' "$GF_TOKEN" "$*" 2>/dev/null || exit 141 ;;
  esac
}
