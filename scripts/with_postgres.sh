#!/usr/bin/env bash
# Runs a command with DATABASE_URL on a throw-away PostgreSQL cluster: a unix socket in a private folder, no port.
#   scripts/with_postgres.sh pytest tests
# Tests, and scripts that start servers, use only TEST_DATABASE_URL: DATABASE_URL may be that of a real server.
set -euo pipefail

bin=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | sort -V | tail -1)")
if [ "$bin" = . ]; then
  bin=$(dirname "$(command -v initdb)") || { echo "PostgreSQL is missing: apt-get install postgresql" >&2; exit 1; }
fi
folder=$(mktemp -d /tmp/rd-pg.XXXXXX)
as=()
if [ "$(id -u)" -eq 0 ]; then # PostgreSQL refuses to run as root
  as=(runuser -u postgres --)
  chown postgres "$folder"
fi
cd_and() { (cd "$folder" && "$@"); }
stop() {
  cd_and "${as[@]}" "$bin/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap stop EXIT
cd_and "${as[@]}" "$bin/initdb" -D "$folder/data" -U rolloutdeck -A trust -E UTF8 --locale=C.UTF-8 --no-sync >/dev/null
cd_and "${as[@]}" "$bin/pg_ctl" -D "$folder/data" -w -l "$folder/log" start >/dev/null \
  -o "-c listen_addresses= -c unix_socket_directories=$folder -c fsync=off -c full_page_writes=off -c max_connections=200"
chmod 755 "$folder"
cd_and "${as[@]}" "$bin/createdb" -h "$folder" -U rolloutdeck rolloutdeck
export TEST_DATABASE_URL="postgres://rolloutdeck@/$folder/rolloutdeck"
DATABASE_URL=$TEST_DATABASE_URL "$@"
