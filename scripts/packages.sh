#!/usr/bin/env bash
# Installs the programs that the tests need: Redis, PostgreSQL, nginx, gettext, Chromium, a C compiler and fonts. Debian and Ubuntu.
set -euo pipefail

missing=()
need() { "${@:2}" >/dev/null 2>&1 || missing+=("$1"); }
need redis-server command -v redis-server
need postgresql bash -c 'ls /usr/lib/postgresql/*/bin/initdb'
need gettext command -v xgettext
need nginx bash -c 'command -v nginx || test -x /usr/sbin/nginx'
if [ "$(. /etc/os-release 2>/dev/null && echo "$ID")" = debian ]; then
  need chromium-headless-shell command -v chromium-headless-shell  # the tests take less time than with a whole browser
else
  need chromium bash -c 'command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome'
fi
need gcc command -v cc
need libc6-dev test -e /usr/include/stdio.h
need fonts-dejavu-core bash -c 'ls /usr/share/fonts/truetype/*/*.ttf'
need fonts-noto-cjk bash -c 'ls /usr/share/fonts/opentype/noto/NotoSansCJK-*'
[ ${#missing[@]} -eq 0 ] && exit 0

install=(apt-get install -y -q --no-install-recommends "${missing[@]}")
if ! command -v apt-get >/dev/null; then
  echo "The tests need: ${missing[*]} (names of Debian packages)." >&2
  exit 1
fi
root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! sudo -n true 2>/dev/null; then
    echo "The tests need: sudo ${install[*]}" >&2
    exit 1
  fi
  root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${root[@]}" apt-get update -q
"${root[@]}" "${install[@]}"
