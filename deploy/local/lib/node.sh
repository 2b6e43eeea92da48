# shellcheck shell=bash
# Nodes: each has its own containerd, kubelet, mount namespace, cgroup, address and zone. They share the network namespace.
# Sourced by cluster.sh.

PAUSE_ARCHIVE=$CACHE/images/tidemill-pause.tar
PAUSE_IMAGE=localhost/tidemill-pause:1

node_folder() { echo "$RUN/node$1"; }
node_address() { echo "10.88.0.$((10 + $1))"; }

# What containerd and the kubelet do to folders outside of ours happens in a mount namespace that ends with its processes:
# a crash leaves no mount behind, and a containerd or kubelet that the machine has otherwise is not touched.
node_start() {
  local n=$1 dir
  dir=$(node_folder "$n")
  mkdir -p "$dir"/{cni,run,kubelet,device-plugins,pod-logs,container-logs} /run/containerd /var/lib/kubelet /var/log/containers
  [ ${#dir} -le 70 ] || die "the path $dir is too long for the sockets in it; set TIDEMILL_CACHE to a shorter one"
  # shellcheck disable=SC2016  # the inner shell expands these
  service "node$n" unshare --mount --propagation private bash -euc '
    mount --bind "$0/run" /run/containerd
    mount --bind "$0/kubelet" /var/lib/kubelet
    mount --bind "$0/container-logs" /var/log/containers
    touch "$0/mounted"
    exec sleep infinity' "$dir"
  await 10 "node$n" test -e "$dir/mounted"
  containerd_start "$n" "$dir"
  kubelet_start "$n" "$dir"
}

# in_node N COMMAND...: a service command line that enters the namespaces of node N when it starts.
in_node() {
  local n=$1
  shift
  # shellcheck disable=SC2016
  IN_NODE=(bash -c 'exec nsenter "--net=$0" "--mount=/proc/$(cat "$1")/ns/mnt" "${@:2}"' "/run/netns/$NETNS" "$RUN/pids/node$n" "$@")
}

containerd_start() {
  local n=$1 dir=$2 snapshotter=overlayfs first last
  first=10.88.$((n * 10)).2
  last=10.88.$((n * 10 + 9)).250
  # An overlay cannot lie on an overlay (a cache inside of a container).
  [ "$(stat -f -c %T "$dir")" != overlayfs ] || snapshotter=native
  cat > "$dir/cni/10-pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods$n", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": false, "ipMasq": false, "hairpinMode": true, "ipam": {
    "type": "host-local", "dataDir": "$dir/addresses", "routes": [{"dst": "0.0.0.0/0"}],
    "ranges": [[{"subnet": "$PODS", "rangeStart": "$first", "rangeEnd": "$last", "gateway": "10.88.0.1"}]]}}]}
JSON
  cat > "$dir/containerd.toml" <<TOML
version = 2
root = "$dir/containerd"
state = "$dir/state"
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
TOML
  in_node "$n" containerd -c "$dir/containerd.toml"
  service "containerd$n" "${IN_NODE[@]}"
  containerd_await "$n"
  pause_archive
  node_ctr "$n" images import "$PAUSE_ARCHIVE" >/dev/null
}

pause_archive() {
  local images=$here/../images
  [ "$PAUSE_ARCHIVE" -nt "$images/build.sh" ] && [ "$PAUSE_ARCHIVE" -nt "$images/pause.Containerfile" ] && return 0
  "$images/build.sh" pause >/dev/null
}

kubelet_start() {
  local n=$1 dir=$2
  "${NET[@]}" ip addr replace "$(node_address "$n")/16" dev pods0
  if [ ! -e "$PKI/kubelet$n.crt" ]; then
    certificate "kubelet$n" "/O=system:nodes/CN=system:node:node$n" "DNS:node$n,IP:$(node_address "$n")"
    kubeconfig "kubelet$n" > "$dir/kubelet.kubeconfig"
  fi
  cgroup_make "tidemill-node$n"
  remember_sysctls
  : > "$dir/resolv.conf"
  cat > "$dir/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_address "$n")
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/kubelet$n.crt
tlsPrivateKeyFile: $PKI/kubelet$n.key
healthzBindAddress: $(node_address "$n")
readOnlyPort: 0
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: $dir/resolv.conf
containerRuntimeEndpoint: unix://$dir/containerd.sock
podLogsDir: $dir/pod-logs
# Without a cgroup of its own each kubelet would remove the pods of the others.
cgroupDriver: cgroupfs
cgroupRoot: /tidemill-node$n
failCgroupV1: false
enforceNodeAllocatable: []
failSwapOn: false
# The images cannot be pulled again, so they stay; and the machine's disk is not the cluster's to judge.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi}
YAML
  in_node "$n" "$(tool kubernetes)/bin/kubelet" --config="$dir/kubelet.yaml" --kubeconfig="$dir/kubelet.kubeconfig" \
    --hostname-override="node$n" --root-dir="$dir/kubelet" --cert-dir="$dir/kubelet-pki" \
    --node-ip="$(node_address "$n")" --node-labels="topology.kubernetes.io/zone=zone$n"
  service "kubelet$n" "${IN_NODE[@]}"
}

# After a restart the node's condition is the old one for a while, so the kubelet is asked too.
node_await() {
  await 30 "kubelet$1" curl -fsS --max-time 2 "http://$(node_address "$1"):10248/healthz"
  await 90 "kubelet$1" kube wait --for=condition=Ready "node/node$1" --timeout=2s
}
containerd_await() { await 20 "containerd$1" node_ctr "$1" version; }

node_ctr() {
  local n=$1
  shift
  ctr --address "$(node_folder "$n")/containerd.sock" --namespace k8s.io "$@"
}

nodes_load() {
  local file n found=no
  for file in "$@"; do [ -r "$file" ] || die "cannot read the image archive $file"; done
  for ((n = 1; n <= 9; n++)); do
    runs "containerd$n" || continue
    found=yes
    for file in "$@"; do
      node_ctr "$n" images import "$file" >/dev/null || fail_with_log "containerd$n" "node$n did not take $file"
    done
  done
  [ "$found" = yes ] || die "no node runs; start one with 'cluster.sh up'"
}

# The folders of cgroup NAME: one per hierarchy with version 1, one with version 2.
cgroup_folders() {
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    echo "/sys/fs/cgroup/$1"
  else
    awk -v name="$1" '$3 == "cgroup" || $3 == "cgroup2" {print $2 "/" name}' /proc/mounts
  fi
}

cgroup_make() {
  local folder controller knob
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    for controller in cpu cpuset io memory pids hugetlb; do
      grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers || continue
      grep -qw "$controller" /sys/fs/cgroup/cgroup.subtree_control && continue
      echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control ||
        die "the cgroup controller $controller cannot be handed down (in a container its processes must first move to a child cgroup)"
    done
  fi
  for folder in $(cgroup_folders "$1"); do
    mkdir -p "$folder"
    # Version 1 makes cpusets that allow nothing.
    for knob in cpuset.cpus cpuset.mems; do
      if [ -e "$folder/tasks" ] && [ -e "$folder/$knob" ]; then cat "${folder%/*}/$knob" > "$folder/$knob"; fi
    done
  done
}

# The kubelet sets these for the whole machine; `down` puts them back.
KUBELET_SYSCTLS="vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys
  kernel/keys/root_maxbytes"

remember_sysctls() {
  local name
  [ ! -e "$RUN/sysctls" ] || return 0
  for name in $KUBELET_SYSCTLS; do
    [ ! -r "/proc/sys/$name" ] || echo "$name $(cat "/proc/sys/$name")"
  done > "$RUN/sysctls"
}
