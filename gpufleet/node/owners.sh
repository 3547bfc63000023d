# shellcheck shell=sh
# What owners say of themselves: asked where their policy is to be shown, or where they are to be
# stopped. Changes nothing. In: GF_SERVICES, GF_USER_UNITS ("UID:NAME ..."), GF_CONTAINERS
# ("docker:ID ..."), GF_PODS (uids), GF_SUPERVISOR (not empty: ask it for its programs).

gf_ask_owners() {
  set -f # a unit's name may hold a pattern
  gf_properties=Id,LoadState,UnitFileState,ActiveState,SubState,Restart,NRestarts,MainPID,TriggeredBy
  # shellcheck disable=SC2086  # words wanted: unit names
  [ -z "$GF_SERVICES" ] || gf_tool units systemctl show --property="$gf_properties" -- $GF_SERVICES
  for gf_unit in $GF_USER_UNITS; do # only the user himself is let in
    gf_tool "user-unit.$gf_unit" setpriv --reuid="${gf_unit%%:*}" --regid="${gf_unit%%:*}" --clear-groups \
      env XDG_RUNTIME_DIR="/run/user/${gf_unit%%:*}" systemctl --user show --property="$gf_properties" -- "${gf_unit#*:}"
  done
  gf_now
  gf_until=$((GF_NOW + 2000))
  for gf_target in $GF_CONTAINERS; do
    gf_now
    [ "$GF_NOW" -lt "$gf_until" ] || break # a daemon that hangs does so for each
    gf_tool "container.${gf_target#*:}" "${gf_target%%:*}" inspect --type container \
      --format '{{.State.Status}} {{.State.Pid}} {{.HostConfig.RestartPolicy.Name}} {{.Name}} {{.Config.Image}}' \
      "${gf_target#*:}"
  done
  # kubelet names a pod's folder of logs NAMESPACE_NAME_UID.
  for gf_target in $GF_PODS; do
    gf_tool "podname.$gf_target" find /var/log/pods -maxdepth 1 -name "*_$gf_target" -printf '%f\n'
  done
  [ -z "$GF_SUPERVISOR" ] || gf_tool supervisor supervisorctl status
  gf_text node "$(uname -n)"
}

gf_mark start
gf_ask_owners </dev/null
gf_mark finish
