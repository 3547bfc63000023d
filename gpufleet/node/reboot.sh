# shellcheck shell=sh disable=SC2153  # variables of the caller
# A reboot, by the first of these that the node takes: systemctl, shutdown, reboot. Nothing harder: a
# node that doesn't go down by them is a person's. In: GF_BOOT (the boot that was looked at), GF_LOCK,
# GF_WHO (for the syslog), GF_TOOL_S.

gf_try_reboot() {
  read -r gf_boot </proc/sys/kernel/random/boot_id
  if [ "$gf_boot" != "$GF_BOOT" ]; then
    gf_text refused "it was rebooted since the look"
    return
  fi
  ! command -v logger >/dev/null 2>&1 ||
    timeout -k 2 5 logger -t gpufleet -- "$GF_WHO: reboot" 2>/dev/null
  gf_number=0
  for gf_command in 'systemctl reboot' 'shutdown -r now' reboot; do
    gf_number=$((gf_number + 1))
    command -v "${gf_command%% *}" >/dev/null 2>&1 || continue
    gf_mark beat "$gf_command"
    # shellcheck disable=SC2086  # words wanted: the command and its options
    timeout -k 2 "$GF_TOOL_S" $gf_command >"$GF_FILE.out" 2>&1
    gf_status=$?
    gf_begin "reboot.$gf_number"
    printf '%s: ' "$gf_command"
    head -c 300 "$GF_FILE.out"
    gf_end "reboot.$gf_number" "$gf_status"
    [ "$gf_status" != 0 ] || return 0
  done
}

gf_reboot() {
  gf_workdir
  gf_lock || return 0
  gf_try_reboot 9>&-
}

gf_mark start
gf_reboot </dev/null
gf_mark finish
