#!/usr/bin/env bash
# What a newcomer does: a fresh clone, an empty home, and the commands of README.md and of the demo's own output, word for
# word. Only caches are passed in. Leaves the demo's cluster running for whoever comes next.
#
#   newcomer.sh            both: `make run`, then `make demo`     (root)
#   newcomer.sh run | demo
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export TIDEMILL_CACHE=${TIDEMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidemill}
work=$(mktemp -d)
clone=$work/tidemill

die() { echo "newcomer: $*" >&2; exit 1; }

finish() {
  local status=$?
  # It may have ended meanwhile.
  broker_pid | xargs -r kill 2>/dev/null || true
  [ "$status" -eq 0 ] || tail -n 40 "$work"/*.log 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# In the clone, with an empty home. Toolchains and package caches are where they were.
as_newcomer() {
  (
    cd "$clone"
    exec env -u KUBECONFIG HOME="$work/home" \
      CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" \
      GOMODCACHE="$(go env GOMODCACHE)" GOCACHE="$(go env GOCACHE)" MAVEN_ARGS="-Dmaven.repo.local=$HOME/.m2/repository" \
      "$@"
  )
}

# command TEXT: TEXT, if README.md or the demo's output says exactly that to the reader.
said() {
  grep -qxF -- "\$ $1" "$clone/README.md" || grep -qxF -- "  $1" "$work/demo.log" 2>/dev/null || die "nobody says '$1'"
  printf '%s' "$1"
}

# until SECONDS COMMAND...: looks again and again.
until_ok() {
  local limit=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $limit ] || die "not in time: $*"
    sleep 0.2
  done
}

accepts() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
has_line() { grep -qsxF -- "$2" "$1"; }

# The broker that `make run` started in the clone, if it runs.
broker_pid() {
  local pid
  for pid in $(pgrep -x tidemill-broker); do
    if [ "$(readlink "/proc/$pid/cwd")" = "$clone" ]; then echo "$pid"; fi
  done
}

start_broker() {
  said "make run" >/dev/null
  as_newcomer make run > "$work/run.log" 2>&1 &
  running=$!
  until_ok 1800 accepts 127.0.0.1 1883
}

stop_broker() { # SIGNAL
  local pid
  pid=$(broker_pid)
  [ -n "$pid" ] || die "no broker to stop"
  kill "-$1" "$pid"
  wait "$running" || [ "$1" != TERM ] || die "make run ended with $?"
}

check_run() {
  local subscribe publish
  ! accepts 127.0.0.1 1883 || die "something listens on 127.0.0.1:1883 already"
  subscribe=$(said "mosquitto_sub -h 127.0.0.1 -t 'orders/#' -q 1 -i reader -c -v")
  publish=$(said "mosquitto_pub -h 127.0.0.1 -t orders/1 -q 1 -m hello")
  start_broker
  bash -c "exec stdbuf -oL $subscribe -d" > "$work/first.log" 2>&1 &
  local subscriber=$!
  until_ok 30 grep -qs '^Subscribed' "$work/first.log"
  bash -c "$publish"
  until_ok 30 has_line "$work/first.log" "orders/1 hello"
  # "Stop the subscriber, publish again, kill -9 the broker, start it and the subscriber again: the message is there."
  kill "$subscriber"
  wait "$subscriber" || true
  bash -c "$publish"
  stop_broker KILL
  start_broker
  bash -c "exec stdbuf -oL $subscribe" > "$work/second.log" 2>&1 &
  subscriber=$!
  until_ok 30 has_line "$work/second.log" "orders/1 hello"
  kill "$subscriber"
  wait "$subscriber" || true
  stop_broker TERM
  echo "newcomer: make run keeps its promise"
}

# printed PATTERN: the first command of the demo's output that matches.
printed() {
  local line
  line=$(grep -m1 -E -- "^  $1" "$work/demo.log") || die "the demo prints no command like '$1'"
  said "${line#  }"
}

check_demo() {
  said "make demo" >/dev/null
  as_newcomer make demo > "$work/demo.log" 2>&1
  bash -c "exec stdbuf -oL $(printed "mosquitto_sub .*'demo/#' -v") -d" > "$work/story1.log" 2>&1 &
  local subscriber=$!
  until_ok 30 grep -qs '^Subscribed' "$work/story1.log"
  bash -c "$(printed 'mosquitto_pub .*demo/hello')"
  until_ok 30 has_line "$work/story1.log" "demo/hello hi"
  kill "$subscriber"
  wait "$subscriber" || true
  bash -c "$(printed 'mosquitto_sub .*keeper.* -E')"
  bash -c "$(printed 'mosquitto_pub .*keep/this')"
  bash -c "$(printed 'eval .*env'); $(printed 'kubectl delete pod')"
  until_ok 60 timeout 20 bash -c "$(printed 'mosquitto_sub .*keeper.* -C 1 -v') > $work/story2.log"
  has_line "$work/story2.log" "keep/this still here" || die "the kept message did not come"
  echo "newcomer: make demo keeps its promises"
}

[ "$(id -u)" -eq 0 ] || die "the demo needs root"
mkdir "$work/home"
git clone --quiet --no-local "$repo" "$clone"
case ${1:-both} in
  run) check_run ;;
  demo) check_demo ;;
  both)
    check_run
    check_demo
    ;;
  *) die "takes run, demo, or nothing" ;;
esac
