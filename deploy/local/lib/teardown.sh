# shellcheck shell=bash
# Removing everything the local cluster has made, whatever state it is in. Sourced by cluster.sh.
#
# Nothing is stopped gently: no data survives anyway, and one way that works after a crash is better than two.

teardown() {
  kill_marked
  # Network and cgroups have fixed names: they are this cluster's unless another one runs.
  if [ "$ROOTED" = yes ] && [ -z "$(other_cluster)" ]; then
    cgroups_remove
    restore_sysctls
    network_down
    # Mountpoints that node.sh may have made; others' content keeps them.
    rmdir /run/containerd /var/lib/kubelet /var/log/containers 2>/dev/null || true
  fi
  # Mounts were in the nodes' namespaces and are gone with their last process; never cross one that is not.
  rm -rf --one-file-system "$RUN"
}

kill_marked() {
  local try file pid found
  for ((try = 0; try < 100; try++)); do
    found=no
    # A killed kubelet or shim may have started a process just before, so look until none is left.
    for file in $(grep -lszxF "$MARK=$RUN" /proc/[0-9]*/environ || true); do
      pid=${file#/proc/}
      pid=${pid%/environ}
      found=yes
      kill -KILL "$pid" 2>/dev/null || true
    done
    [ "$found" = yes ] || return 0
    sleep 0.05
  done
  die "processes of the local cluster do not end (stuck in the kernel?)"
}

# Containers' processes do not carry the mark; they are in the nodes' cgroups.
cgroups_remove() {
  local n folder try pids
  for ((n = 1; n <= 9; n++)); do
    for folder in $(cgroup_folders "tidemill-node$n"); do
      [ -d "$folder" ] || continue
      for ((try = 0; try < 100; try++)); do
        pids=$(find "$folder" -name cgroup.procs -exec cat {} + 2>/dev/null || true)
        # shellcheck disable=SC2086  # a list of numbers
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
        find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.05
      done
      [ ! -d "$folder" ] || die "the cgroup $folder cannot be removed"
    done
  done
}

restore_sysctls() {
  local name value
  [ -r "$RUN/sysctls" ] || return 0
  while read -r name value; do
    [ "$(cat "/proc/sys/$name")" = "$value" ] || echo "$value" > "/proc/sys/$name"
  done < "$RUN/sysctls"
}
