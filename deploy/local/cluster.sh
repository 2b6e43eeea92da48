#!/usr/bin/env bash
# A real Kubernetes and a real Kafka on this machine, without Docker.
#
#   cluster.sh up [NODES]      Kubernetes with NODES nodes (default 1); more nodes may be added later   (root)
#   cluster.sh api             only etcd and the API server: for processes that use Leases; no pods
#   cluster.sh kafka [N]       N Kafka brokers (default 1)
#   cluster.sh load FILE...    imports image archives (OCI or Docker) into every node                   (root)
#   cluster.sh start NAME      starts a part again that was stopped or killed: etcd, apiserver, kafka1, kubelet1, ...
#   cluster.sh stop NAME       kills a part (SIGKILL), for fault tests
#   cluster.sh status          the parts and the nodes
#   cluster.sh env             `export` lines: how to reach what runs
#   cluster.sh down            stops everything and removes all its state; the built tools stay
#
# docs/local-cluster.md tells how it works, what needs root, and how to cut pods from each other.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=versions.env
. "$here/versions.env"
# shellcheck source=lib/common.sh
. "$here/lib/common.sh"
# shellcheck source=lib/network.sh
. "$here/lib/network.sh"
# shellcheck source=lib/pki.sh
. "$here/lib/pki.sh"
# shellcheck source=lib/control-plane.sh
. "$here/lib/control-plane.sh"
# shellcheck source=lib/node.sh
. "$here/lib/node.sh"
# shellcheck source=lib/kafka.sh
. "$here/lib/kafka.sh"
# shellcheck source=lib/teardown.sh
. "$here/lib/teardown.sh"

usage() { sed -n '4,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

cmd_up() {
  local nodes=${1:-1} n
  [[ $nodes =~ ^[1-9]$ ]] || die "up takes a number of nodes from 1 to 9, not '$nodes'"
  gives_way && return 0
  need_root "'up' makes a network namespace, mounts, and cgroups"
  need_tools kubernetes etcd coredns
  need_commands containerd ctr runc iptables ip nsenter unshare openssl curl
  begin
  network_up
  pki_up
  api_up
  controllers_up
  for ((n = 1; n <= nodes; n++)); do node_start "$n"; done
  for ((n = 1; n <= nodes; n++)); do node_await "$n"; done
  dns_await
  # Pods of the namespace default are refused before this exists.
  await 30 controller-manager kube get serviceaccount default
  finish
  say "Kubernetes runs: export KUBECONFIG=$ADMIN_KUBECONFIG"
}

cmd_api() {
  gives_way && return 0
  need_tools kubernetes etcd
  need_commands openssl curl
  begin
  network_up
  pki_up
  api_up
  finish
  say "the API server runs: export KUBECONFIG=$ADMIN_KUBECONFIG"
}

cmd_kafka() {
  local brokers=${1:-1}
  [[ $brokers =~ ^[1-9]$ ]] || die "kafka takes a number of brokers from 1 to 9, not '$brokers'"
  need_tools kafka
  need_commands java
  begin
  network_up
  kafka_up "$brokers"
  finish
  say "Kafka runs: $(kafka_bootstrap)"
}

cmd_load() {
  [ $# -gt 0 ] || die "load takes image archives"
  if foreign_cluster; then
    die "KUBECONFIG names another cluster; load the images there by its own means (a registry, 'kind load', 'k3s ctr images import')"
  fi
  need_root "'load' talks to containerd"
  lock
  nodes_load "$@"
}

cmd_start() {
  local name=${1:?start takes the name of a part, see status}
  [ -x "$RUN/services/$name" ] || die "there is no part '$name' here; see 'cluster.sh status'"
  lock
  launch "$name"
  case $name in
    apiserver) api_await ;;
    kafka*) kafka_await "${name#kafka}" ;;
    containerd*) containerd_await "${name#containerd}" ;;
    kubelet*) node_await "${name#kubelet}" ;;
    *) ;;
  esac
}

cmd_stop() {
  local name=${1:?stop takes the name of a part, see status}
  [ -x "$RUN/services/$name" ] || die "there is no part '$name' here; see 'cluster.sh status'"
  lock
  kill_service "$name"
}

cmd_status() {
  local file name
  [ -d "$RUN/services" ] || { say "nothing runs"; return 0; }
  for file in "$RUN"/services/*; do
    name=${file##*/}
    if runs "$name"; then echo "$name: running, pid $(cat "$RUN/pids/$name")"
    elif [ -e "$RUN/pids/$name" ]; then echo "$name: DEAD, log $RUN/logs/$name.log"
    else echo "$name: stopped"; fi
  done
  if runs apiserver; then kube get nodes -o wide 2>/dev/null || true; fi
}

cmd_env() {
  local kubeconfig=''
  if foreign_cluster; then kubeconfig=$KUBECONFIG; elif runs apiserver; then kubeconfig=$ADMIN_KUBECONFIG; fi
  [ -z "$kubeconfig" ] || echo "export KUBECONFIG='$kubeconfig' TIDEMILL_E2E_KUBECONFIG='$kubeconfig'"
  if runs kafka1; then echo "export TIDEMILL_E2E_KAFKA='$(kafka_bootstrap)'"; fi
  [ ! -d "$RUN" ] || echo "export TIDEMILL_E2E_RUN='$RUN'"
  if [ "$ROOTED" = yes ] && [ -e "/run/netns/$NETNS" ]; then echo "export TIDEMILL_E2E_NETNS='$NETNS'"; fi
  echo "export PATH='$TOOLS/kubernetes-$KUBERNETES_VERSION/bin:$TOOLS/helm-$HELM_VERSION/bin:'\"\$PATH\""
}

cmd_down() {
  lock
  teardown
  say "stopped; all state is removed"
}

[ $# -gt 0 ] || usage
command=$1
shift
case $command in
  up | api | kafka | load | start | stop | status | env | down) "cmd_$command" "$@" ;;
  *) usage ;;
esac
