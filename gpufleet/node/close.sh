# shellcheck shell=sh
# The end of a reset: a line in the node's syslog for whoever asks later what happened here, and the
# ports of what is left. In: GF_LINE, GF_PORTS (not empty: survivors are to be asked about).

gf_close() {
  ! command -v logger >/dev/null 2>&1 || gf_tool logged logger -t gpufleet -- "$GF_LINE"
  [ -z "$GF_PORTS" ] || gf_tool ports ss -Hltnp
}

gf_mark start
gf_close </dev/null
gf_mark finish
