#!/bin/sh
# The peers of the benchmark: from Debian where they are packages, else into a virtual environment
# of their own. One that can't be installed is named in the tables. Usage: setup.sh PYTHON VENV
set -u
python=$1
venv=$2
if [ "$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi
for package in pdsh pssh; do
  dpkg -s "$package" >/dev/null 2>&1 ||
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" \
      >/dev/null || echo "bench: $package cannot be installed" >&2
done
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || exit 1
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dask]' || exit 1
for package in ansible-core parallel-ssh asyncssh; do
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" ||
    echo "bench: $package cannot be installed" >&2
done
# gpufleet itself as a user installs it; what an older tree left in build/ would come along.
[ -x "$venv/gpufleet/bin/python" ] || "$python" -m venv "$venv/gpufleet" || exit 1
rm -rf build
"$venv/gpufleet/bin/python" -m pip install --quiet --disable-pip-version-check . || exit 1
"$venv/bin/python" -m compileall -q gpufleet
