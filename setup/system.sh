#!/usr/bin/env bash
# System packages of the tests: EGL and OSMesa for Meta-World's pictures, Chromium for the browser tests, ffmpeg to
# listen to RTMP. Installs what is missing as root on Debian; elsewhere names it, with what will be skipped. Never fails: the tests that need a
# missing part are skipped, and `worldmodel doctor` says why.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

[ "$(uname -s)" = Linux ] || exit 0
libraries=$(ldconfig -p 2>/dev/null)
has_library() { case $libraries in *"$1"*) true ;; *) false ;; esac }

missing=()
has_library libEGL.so.1 || missing+=(libegl1)
has_library libGL.so.1 || missing+=(libgl1)
has_library libOSMesa.so. || missing+=(libosmesa6)
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
    missing+=(chromium)
command -v ffmpeg >/dev/null || missing+=(ffmpeg)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then
    echo "set-up: apt-get install ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    if apt-get update -qq </dev/null >/dev/null &&
        apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null; then
        exit 0
    fi
    echo "set-up: apt-get failed (the lines above say why)" >&2
fi
echo "set-up: missing system packages: ${missing[*]} (Debian: apt-get install ${missing[*]}); without chromium the" \
    "browser tests are skipped, without ffmpeg those of RTMP, without the others the rendering tests of Meta-World" >&2
