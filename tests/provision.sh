#!/bin/sh
# Set-up of a development machine: Debian packages where they are missing, the virtual environment,
# and the project in it. Usage: provision.sh PYTHON VENV
set -eu
python=$1
venv=$2

missing=
# need COMMAND PACKAGE: notes the package of a command that isn't there. sbin isn't on a user's PATH.
need() {
  PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || missing="$missing $2"
}
need sshd openssh-server
need ssh openssh-client
need fuser psmisc
need ps procps
need unshare util-linux
need perl perl-base
need cron cron
# Login shells that nodes may have.
need zsh zsh
need fish fish
need tcsh tcsh
need shellcheck shellcheck
need tmux tmux
need "$python" python3
# Debian splits the module that makes virtual environments off.
"$python" -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"

if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi
  if ! command -v apt-get >/dev/null || { [ -n "$sudo" ] && ! command -v sudo >/dev/null; }; then
    echo "Please install first:$missing" >&2
    exit 1
  fi
  echo "Installing$missing" >&2
  $sudo apt-get update -qq
  # shellcheck disable=SC2086  # words wanted
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
  echo "Python 3.10 or newer is needed; $python is $("$python" -V)" >&2
  exit 1
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
# pip compiles what it copies, not an editable project; a start without costs 0.2 s more.
"$venv/bin/python" -m compileall -q gpufleet
