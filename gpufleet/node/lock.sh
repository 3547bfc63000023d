# shellcheck shell=sh
# The node's lock: one run at a time changes things here. In: GF_LOCK (text that tells others who is
# here).

# gf_lock: takes the lock on descriptor 9; 1 if somebody else has it, which is then said. It is this
# shell's: held while it lives and not a moment longer, and not to be inherited by what it starts (a
# child that can't die would keep it for ever): the body runs with the descriptor closed.
gf_lock() {
  true >>"$GF_DIR/lock" || gf_fail "cannot open $GF_DIR/lock"
  exec 9<>"$GF_DIR/lock"
  # Two seconds: as long as the script of a connection that was just lost may still live.
  timeout -k 2 "$GF_TOOL_S" flock -w 2 9
  case $? in
    0) ;;
    1)
      gf_begin locked
      cat "$GF_DIR/lock"
      gf_end locked 0
      return 1
      ;;
    *) gf_fail "flock failed (util-linux is needed on the node)" ;;
  esac
  printf '%s\n' "$GF_LOCK" >"$GF_DIR/lock"
}
