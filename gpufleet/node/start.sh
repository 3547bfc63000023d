# shellcheck shell=sh
# Starts what earlier scripts stopped here: starting.sh, under the lock. In: GF_LOCK.

gf_start() {
  gf_workdir
  gf_lock || return 0
  gf_start_all 9>&-
}

gf_mark start
gf_start </dev/null
gf_mark finish
