# shellcheck shell=sh
# What one sample reads in /proc, all under one limit: gf_quick in observe.sh runs this in a shell of
# its own, from a variable, since each `timeout` costs as much as the tool it watches. When the limit
# strikes, nothing here counts and each tool is asked again under a limit of its own, so that the one
# that hangs is known. Sections as frame.sh makes them; a tool may be missing in none.
# In: GF_TOKEN, GF_SAMPLE (name of the sample), GF_FILE (nvidia-smi's last words lie in its .out and
# .err), GF_FUSER (not empty: ask fuser as well). Runs in /proc.

gf_mark() { printf '\n@@%s %s\n' "$GF_TOKEN" "$*" 2>/dev/null || exit 141; }
gf_begin() { gf_mark begin "$GF_SAMPLE/$1"; }
gf_end() { gf_mark end "$GF_SAMPLE/$1" "$2"; }

gf_begin procs
grep -aHs '' "$GF_FILE.out" "$GF_FILE.err" [0-9]*/stat [0-9]*/cmdline [0-9]*/cgroup
gf_end procs "$?"

# A process's folder belongs to its effective user, whatever the files in it show. Names of users
# cost a search each, and nearly all is root's.
gf_begin links
find self/ns/pid [0-9]* [0-9]*/exe [0-9]*/fd -maxdepth 1 \
  ! -path '*/*' -prune \( -uid 0 -printf '%p 0 root \0' -o -printf '%p %U %u \0' \) -o \
  \( -name exe -o -name pid -o -lname '/dev/shm/*' -o -lname '*/dev/nvidia*' -xtype c \) \
  -printf '%p - - %l\0'
gf_end links "$?"

gf_begin maps
{
  grep -aHos -e '[^ ]*/dev/nvidia[^ ]*' -e '/dev/shm/[^ ]*' [0-9]*/maps
  printf 'status %s\n' "$?"
} | sort -u
gf_end maps 0

if [ -n "$GF_FUSER" ]; then
  gf_begin fuser
  fuser /dev/nvidia*
  gf_end fuser "$?"
fi
