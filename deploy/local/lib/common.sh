# shellcheck shell=bash
# Paths, constants, and the verbs that every part of the local cluster uses. Sourced by cluster.sh.

CACHE=${TIDEMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidemill}
TOOLS=$CACHE/tools
# Everything that lives as long as the cluster: keys, data, logs, process ids, sockets.
RUN=$CACHE/run/local
ADMIN_KUBECONFIG=$RUN/admin.kubeconfig

# As root the cluster has a network namespace of its own; see network.sh. Otherwise it is on loopback, without pods.
NETNS=tidemill
if [ "$(id -u)" -eq 0 ]; then
  ROOTED=yes
  ADDRESS=10.88.0.1
  NET=(nsenter "--net=/run/netns/$NETNS")
  LOCK=/run/tidemill-local.lock
else
  ROOTED=no
  ADDRESS=127.0.0.1
  NET=()
  LOCK=$CACHE/run/local.lock
fi

# Marks every process of this cluster in its environment. A process id alone proves nothing: it may be used again.
MARK=TIDEMILL_LOCAL_CLUSTER

say() { echo "cluster.sh: $*" >&2; }
die() { say "$*"; exit 1; }

need_root() { [ "$ROOTED" = yes ] || die "$1; run it as root"; }

need_commands() {
  local command missing=()
  for command in "$@"; do command -v "$command" >/dev/null || missing+=("$command"); done
  [ ${#missing[@]} -eq 0 ] || die "missing commands: ${missing[*]}; install them with deploy/local/tools.sh packages (as root)"
}

tool_version() {
  case $1 in
    kubernetes) echo "$KUBERNETES_VERSION" ;;
    etcd) echo "$ETCD_VERSION" ;;
    coredns) echo "$COREDNS_VERSION" ;;
    kafka) echo "$KAFKA_VERSION-$SLF4J_VERSION" ;;
    *) die "no version is known for the tool '$1'" ;;
  esac
}

# The folder of a built tool.
tool() { echo "$TOOLS/$1-$(tool_version "$1")"; }

need_tools() {
  local name
  for name in "$@"; do
    [ -d "$(tool "$name")" ] || die "$name is not built yet: run deploy/local/tools.sh $name"
  done
}

# True when KUBECONFIG names a cluster that is not ours.
foreign_cluster() { [ -n "${KUBECONFIG:-}" ] && [ "$KUBECONFIG" != "$ADMIN_KUBECONFIG" ]; }

gives_way() {
  foreign_cluster || return 1
  say "KUBECONFIG=$KUBECONFIG is set: using that cluster, starting none (unset KUBECONFIG for a local one)"
}

# One command at a time. Services are started without this descriptor, or they would hold the lock.
lock() {
  mkdir -p "$(dirname "$LOCK")"
  exec 8>"$LOCK"
  flock -w 300 8 || die "another cluster.sh has been at work for five minutes (lock $LOCK)"
  [ ! -e "$RUN" ] || [ -O "$RUN" ] || die "$RUN belongs to another user; set TIDEMILL_CACHE to a folder of your own"
}

# A command that starts things removes `whole` and puts it back at its end; where it is missing, an earlier command was
# interrupted, and nothing of what it left can be trusted.
begin() {
  lock
  refuse_second_cluster
  if [ -d "$RUN" ] && { [ ! -e "$RUN/whole" ] || any_dead; }; then
    say "an earlier run was interrupted or killed: removing what it left"
    teardown
  elif [ ! -d "$RUN" ]; then
    # Processes and the namespace may outlive a deleted folder.
    teardown
  fi
  mkdir -p "$RUN"/{services,pids,logs,pki}
  chmod 700 "$RUN"
  rm -f "$RUN/whole"
  trap 'say "failed or interrupted: the next command clears up; logs are in $RUN/logs"' EXIT
}

finish() {
  trap - EXIT
  touch "$RUN/whole"
}

# There is one namespace and one address range, so there is one cluster on a machine, whoever started it.
refuse_second_cluster() {
  local other
  other=$(other_cluster)
  [ -z "$other" ] || die "another local cluster runs from $other; stop it first (its cluster.sh down)"
}

other_cluster() { marked_clusters | grep -vxF "$RUN" | head -n 1 || true; }

# The state folders of all clusters that have a process on this machine.
marked_clusters() {
  local file
  for file in /proc/[0-9]*/environ; do
    tr '\0' '\n' 2>/dev/null < "$file" | sed -n "s/^$MARK=//p"
  done 2>/dev/null | sort -u
}

is_ours() { grep -qzxF "$MARK=$RUN" "/proc/$1/environ" 2>/dev/null; }

runs() {
  local pid try
  pid=$(cat "$RUN/pids/$1" 2>/dev/null) && [ -n "$pid" ] || return 1
  # While a process becomes another program it has no environment for a moment.
  for ((try = 0; try < 10; try++)); do
    if is_ours "$pid"; then return 0; fi
    if [ -n "$(head -c 1 "/proc/$pid/environ" 2>/dev/null | tr '\0' x)" ]; then return 1; fi
    [ -d "/proc/$pid" ] || return 1
    sleep 0.01
  done
  return 1
}

any_dead() {
  local file
  for file in "$RUN"/pids/*; do
    [ -e "$file" ] || continue
    runs "${file##*/}" || return 0
  done
  return 1
}

# service NAME COMMAND...: starts NAME unless it runs. The command line is kept as a script, so that `start` can repeat it.
service() {
  local name=$1
  shift
  { echo '#!/usr/bin/env bash'; printf 'exec'; printf ' %q' "$@"; echo; } > "$RUN/services/$name"
  chmod +x "$RUN/services/$name"
  launch "$name"
}

launch() {
  local name=$1 try
  if runs "$name"; then return 0; fi
  echo "--- started $(date -u +%FT%TZ)" >> "$RUN/logs/$name.log"
  env "$MARK=$RUN" setsid "$RUN/services/$name" >> "$RUN/logs/$name.log" 2>&1 < /dev/null 8>&- &
  echo $! > "$RUN/pids/$name"
  # Until the new process has its own environment it would look dead.
  for ((try = 0; try < 200; try++)); do
    if runs "$name" || ! [ -d "/proc/$!" ]; then break; fi
    sleep 0.01
  done
  disown
}

kill_service() {
  local pid try
  if runs "$1"; then
    pid=$(cat "$RUN/pids/$1")
    kill -KILL "$pid"
    for ((try = 0; try < 500; try++)); do is_ours "$pid" || break; sleep 0.01; done
  fi
  rm -f "$RUN/pids/$1"
}

# await SECONDS SERVICE COMMAND...: repeats COMMAND until it succeeds; gives up early when SERVICE ends.
await() {
  local limit=$1 name=$2 deadline
  shift 2
  deadline=$((SECONDS + limit))
  until "$@" >/dev/null 2>&1; do
    runs "$name" || fail_with_log "$name" "$name ended while it was starting"
    ((SECONDS < deadline)) || fail_with_log "$name" "$name is not ready after $limit s (waited for: $*)"
    sleep 0.1
  done
}

fail_with_log() {
  say "the end of $RUN/logs/$1.log:"
  tail -n 25 "$RUN/logs/$1.log" | cut -c1-400 | sed 's/^/    /' >&2 || true
  die "$2"
}

kube() { "$(tool kubernetes)/bin/kubectl" --kubeconfig "$ADMIN_KUBECONFIG" "$@"; }
