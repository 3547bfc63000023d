# shellcheck shell=sh
# One look: changes nothing, takes no lock. In: GF_SETTLE_CS: if the memory is free, the hundredths of
# a second to the second sample; empty: one sample only.

gf_look() {
  gf_workdir
  cd /proc || gf_fail "no /proc"
  gf_self
  gf_find_stuck
  gf_read_gpus
  if [ -n "$GF_SETTLE_CS" ] && gf_free; then
    gf_sample 1
    gf_mark beat settle
    gf_settle
    gf_read_gpus
    gf_sample 2 fuser
  else
    gf_sample 1 fuser
  fi
  gf_slow
}

gf_mark start
gf_look </dev/null
gf_mark finish
