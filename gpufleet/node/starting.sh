# shellcheck shell=sh
# What was stopped is started again, last stopped first; what came up leaves the file, what didn't
# stays in it. In: GF_ONLY (kinds to start; empty: all; the others stay in the file), GF_SETTLE_S (so
# long it has to stay up), GF_TOOL_S (limit of each), GF_ALL_CS (of all together).

# gf_starts: GF_STARTS becomes how often its owner has started it by itself, as far as that is counted. Not
# its words: a slow one is activating at first, and that it became active is what is wanted.
gf_starts() {
  GF_STARTS=
  case $GF_IS.$GF_WORDS in
    failing.*) GF_STARTS=failing ;;
    *NRestarts=*)
      GF_STARTS=${GF_WORDS##*NRestarts=}
      GF_STARTS=${GF_STARTS%% *}
      ;;
  esac
}

gf_start_all() {
  gf_stopped_folder
  gf_read_stopped
  [ -n "$GF_LIST" ] || return 0
  gf_turned=
  gf_kept=
  while read -r gf_line; do
    [ -n "$gf_line" ] || continue
    case " ${GF_ONLY:-${gf_line%% *}} " in
      *" ${gf_line%% *} "*) gf_turned="$gf_line
$gf_turned" ;;
      *) gf_kept="$gf_kept$gf_line
" ;;
    esac
  done <<EOT
$GF_LIST
EOT
  [ -n "$gf_turned" ] || return 0
  gf_now
  gf_began=$GF_NOW
  gf_number=0
  while read -r gf_kind gf_target gf_run; do
    [ -n "$gf_kind" ] || continue
    gf_number=$((gf_number + 1))
    gf_now
    GF_STATUS=late
    true >"$GF_FILE.out"
    if [ $((GF_NOW - gf_began)) -le "$GF_ALL_CS" ]; then
      gf_mark beat "starting $gf_target"
      gf_do start "$gf_kind" "$gf_target"
    fi
    gf_begin "start.$gf_number"
    head -c 600 "$GF_FILE.out"
    gf_end "start.$gf_number" "$GF_STATUS"
    gf_state_of "$gf_kind" "$gf_target"
    gf_starts
    eval "gf_first_$gf_number=\$GF_STARTS"
  done <<EOT
$gf_turned
EOT
  sleep "$GF_SETTLE_S"
  gf_number=0
  gf_left=
  while read -r gf_kind gf_target gf_run; do
    [ -n "$gf_kind" ] || continue
    gf_number=$((gf_number + 1))
    gf_state_of "$gf_kind" "$gf_target"
    gf_first=
    eval "gf_first=\$gf_first_$gf_number"
    gf_starts
    # Up, and started only once.
    [ "$GF_IS" != up ] || [ "$gf_kind" = supervisor ] || [ "$gf_first" = "$GF_STARTS" ] || GF_IS=failing
    gf_text "owner.$gf_number" "$GF_IS" "$gf_kind" "$gf_target" "$GF_WORDS"
    case $GF_IS in
      up | starting) ;;
      *) gf_left="$gf_kind $gf_target $gf_run
$gf_left" ;;
    esac
  done <<EOT
$gf_turned
EOT
  gf_write_stopped "$gf_kept$gf_left" || gf_fail "cannot write $GF_STOPPED (disk full or read-only?)"
}
