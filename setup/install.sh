#!/usr/bin/env bash
# Makes .venv ready. `setup/install.sh base` installs what the package needs to run, `setup/install.sh all` every extra
# and the tools of the tests; both, the plug-in for lerobot. Does nothing if the last successful run saw the same files.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:?base or all}
uv_version=0.13.9
plugin=./policies/lerobot_plugin
case $kind in
    base) what=. ;;
    all) what='.[sim,gpu,face,cluster,dev]' ;;
    *) echo "setup/install.sh: base or all, not $kind" >&2; exit 2 ;;
esac

die() { echo "set-up: $1" >&2; exit 1; }

is_312() { "$1" -c 'import sys; raise SystemExit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.12 python3 python \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python "$(uv python find 3.12 2>/dev/null)"; do
        if [ -n "$candidate" ] && is_312 "$candidate"; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

stamp=$(printf '%s\n' "$PWD" | cat - pyproject.toml requirements.lock setup/install.sh $plugin/pyproject.toml | cksum)
if is_312 .venv/bin/python; then
    for done_kind in all "$kind"; do
        if [ "$(cat ".venv/.installed-$done_kind" 2>/dev/null)" = "$stamp" ]; then
            exit 0
        fi
    done
else
    python=$(find_python) || die "Python 3.12 is needed and was not found (pyenv install 3.12, uv python install 3.12, \
brew install python@3.12 or apt-get install python3.12-venv); or name one: PYTHON=/path/to/python3.12 make ..."
    "$python" -m venv --clear .venv || die "$python cannot make a virtual environment (Debian: apt-get install python3.12-venv)"
fi

echo "set-up: installing into .venv (3 GB of downloads the first time, 6 GB on disk; later starts skip this)" >&2
.venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
if [ "$(.venv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" = "$uv_version" ] ||
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version"; then
    .venv/bin/uv pip install --python .venv/bin/python --constraint requirements.lock --editable "$what" --editable $plugin
else
    echo "set-up: uv $uv_version could not be installed; pip does it, several times slower" >&2
    .venv/bin/python -m pip install --disable-pip-version-check --constraint requirements.lock --editable "$what" --editable $plugin
fi || die "the packages could not be installed (the lines above say why); run the same command again, it goes on"
echo "$stamp" >".venv/.installed-$kind"
