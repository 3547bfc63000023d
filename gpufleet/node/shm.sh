# shellcheck shell=sh
# Shared memory that killed workload left behind is removed, each file only if at this very moment
# nobody has it open or mapped, by the text of links and by fuser, and no process named in its name
# lives. In: GF_SHM (names in /dev/shm, one a line), GF_LOCK, GF_TOOL_S.

# gf_creator NAME: is a number in it the pid of a living process? GF_PID says which. pid 1 and kernel
# threads create none. cuda.shm.UID.PID.N has it in hexadecimal.
gf_creator() {
  gf_words=$(printf '%s' "$1" | tr -c '0-9A-Za-z' ' ')
  case $1 in
    cuda.shm.*)
      gf_hex=${1#cuda.shm.*.}
      gf_hex=${gf_hex%%.*}
      case $gf_hex in '' | *[!0-9a-f]*) ;; *) gf_words="$gf_words $((0x$gf_hex))" ;; esac
      ;;
  esac
  for GF_PID in $gf_words; do
    case $GF_PID in *[!0-9]* | 0* | 1 | ????????*) continue ;; esac
    ! [ -e "/proc/$GF_PID/exe" ] || return 0
  done
  return 1
}

# gf_used FILE: does anybody have it open or mapped, whatever it is called where they are?
gf_used() {
  timeout -k 2 "$GF_TOOL_S" fuser -s "$1" >/dev/null 2>&1
  case $? in
    0) return 0 ;;
    1) ;;
    *) return 0 ;; # nobody knows
  esac
  gf_who=$(timeout -k 2 "$GF_TOOL_S" find /proc/[0-9]*/fd /proc/[0-9]*/map_files -maxdepth 1 \
    -lname "$1*" -printf x -quit 2>/dev/null)
  [ -n "$gf_who" ]
}

gf_clean_shm() {
  gf_number=0
  while read -r gf_name; do
    gf_number=$((gf_number + 1))
    gf_file=/dev/shm/$gf_name
    gf_beat "$gf_file"
    if [ -L "$gf_file" ] || [ ! -f "$gf_file" ]; then
      gf_done='no regular file any more'
    elif ! command -v fuser >/dev/null 2>&1; then
      gf_done='fuser is missing on the node'
    elif gf_creator "$gf_name"; then
      gf_done="pid $GF_PID in its name lives"
    elif gf_used "$gf_file"; then
      gf_done='in use'
    elif rm -f -- "$gf_file" 2>/dev/null && [ ! -e "$gf_file" ]; then
      gf_done=yes
    else
      gf_done='could not be removed'
    fi
    gf_text "shm.$gf_number" "$gf_done"
  done <<EOT
$GF_SHM
EOT
}

gf_shm() {
  gf_workdir
  gf_lock || return 0
  gf_clean_shm 9>&-
}

gf_mark start
gf_shm </dev/null
gf_mark finish
