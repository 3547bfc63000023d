# shellcheck shell=sh
# Which boot this is, and whether it is complete. Changes nothing.

gf_ask_boot() {
  read -r gf_boot </proc/sys/kernel/random/boot_id
  gf_text boot "$gf_boot"
  gf_tool running systemctl is-system-running
}

gf_mark start
gf_ask_boot </dev/null
gf_mark finish
