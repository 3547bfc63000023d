# shellcheck shell=sh
# Owners are stopped by their own tools. What runs is written down before the first is stopped. In:
# GF_STOP (lines "KIND TARGET" in the order to stop), GF_LOCK, GF_RUN (whose run this is),
# GF_CONTAINER_GRACE (options of `docker stop`), GF_TOOL_S (limit of each), GF_ALL_CS (of all
# together: what isn't stopped by then is left to the kill).

# gf_note_stopped: notes what is up now and can be started again; sets GF_ABSENT (not up: nothing to
# stop, nothing to start).
gf_note_stopped() {
  gf_read_stopped
  GF_ABSENT=" "
  while read -r gf_kind gf_target; do
    [ "$gf_kind" != job ] || continue # its user submits it again
    gf_state_of "$gf_kind" "$gf_target"
    case $GF_IS in
      up | starting | failing) ;;
      *)
        # A cordoned node can be drained all the same; it only isn't uncordoned.
        [ "$gf_kind.$GF_IS" = drain.down ] || GF_ABSENT="$GF_ABSENT$gf_kind:$gf_target "
        continue
        ;;
    esac
    case "
$GF_LIST" in
      *"
$gf_kind $gf_target "*) ;;
      *) GF_LIST="$GF_LIST$gf_kind $gf_target $GF_RUN
" ;;
    esac
  done <<EOT
$GF_STOP
EOT
  gf_write_stopped "$GF_LIST" || gf_fail "cannot write $GF_STOPPED (disk full or read-only?)"
}

gf_stop_all() {
  gf_stopped_folder
  gf_note_stopped
  gf_now
  gf_began=$GF_NOW
  gf_number=0
  while read -r gf_kind gf_target; do
    gf_number=$((gf_number + 1))
    gf_now
    true >"$GF_FILE.out"
    case $GF_ABSENT in
      *" $gf_kind:$gf_target "*) GF_STATUS=absent ;;
      *)
        if [ $((GF_NOW - gf_began)) -gt "$GF_ALL_CS" ]; then
          GF_STATUS=late
        else
          gf_mark beat "stopping $gf_target"
          gf_do stop "$gf_kind" "$gf_target"
        fi
        ;;
    esac
    gf_begin "stop.$gf_number"
    head -c 600 "$GF_FILE.out"
    gf_end "stop.$gf_number" "$GF_STATUS"
  done <<EOT
$GF_STOP
EOT
}

gf_stop() {
  gf_workdir
  gf_lock || return 0
  [ -z "$GF_ACT" ] || gf_first || return 0
  gf_stop_all 9>&-
}

gf_mark start
gf_stop </dev/null
gf_mark finish
