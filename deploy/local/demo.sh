#!/usr/bin/env bash
# From nothing to a three-broker MqttCluster on this machine, and how to use it. `make demo` calls this; running it again
# brings the same cluster up to date. `make down` removes everything.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
cluster=$here/cluster.sh
export TIDEMILL_CACHE=${TIDEMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidemill}
namespace=default
name=demo

say() { printf '\n== %s\n' "$*"; }
die() { echo "demo: $*" >&2; exit 1; }

explain() {
  set +e
  say "it did not work; this is how things stand"
  "$here/explain.sh"
  echo "the cluster still runs, to be looked into: eval \"\$($cluster env)\"; 'make down' removes it"
}

setup() {
  say "tools (the first time about 15 minutes)"
  "$here/tools.sh" all
  say "images"
  "$repo/deploy/images/build.sh" all
  say "Kubernetes and Kafka"
  "$cluster" up 1
  "$cluster" kafka 1
  say "the operator, from its Helm chart"
  "$here/install.sh"
}

apply() {
  local applied known=no
  say "three brokers"
  cat "$repo/deploy/samples/demo.yaml"
  if kubectl get mqttcluster "$name" --namespace "$namespace" >/dev/null 2>&1; then known=yes; fi
  applied=$SECONDS
  kubectl apply --namespace "$namespace" -f "$repo/deploy/samples/demo.yaml"
  [ "$known" = no ] || kubectl rollout restart statefulset --namespace "$namespace" --selector "tidemill.dev/cluster=$name"
  kubectl wait --namespace "$namespace" --for=condition=Ready "mqttcluster/$name" --timeout=180s
  echo "ready after $((SECONDS - applied)) s"
}

usage() {
  local addresses service
  mapfile -t addresses < <(kubectl get pods --namespace "$namespace" --selector "tidemill.dev/cluster=$name" \
    -o jsonpath='{range .items[*]}{.status.podIP}{"\n"}{end}')
  service=$(kubectl get service "$name-mqtt" --namespace "$namespace" -o jsonpath='{.spec.clusterIP}')
  say "ready to use"
  kubectl get mqttcluster "$name" --namespace "$namespace"
  kubectl get pods --namespace "$namespace" --selector "tidemill.dev/cluster=$name" -o wide
  cat <<TEXT

Receive on one broker what is sent to another (in two terminals):
  mosquitto_sub -h ${addresses[0]} -t 'demo/#' -v
  mosquitto_pub -h ${addresses[1]} -t demo/hello -m hi

A subscriber that was away gets its message, although the broker that took it is gone:
  mosquitto_sub -h ${addresses[0]} -i keeper -c -q 1 -t 'keep/#' -E
  mosquitto_pub -h ${addresses[1]} -q 1 -t keep/this -m 'still here'
  kubectl delete pod $(kubectl get pods --namespace "$namespace" --field-selector "status.podIP=${addresses[1]}" -o name | cut -d/ -f2) --grace-period=0 --force
  mosquitto_sub -h ${addresses[2]} -i keeper -c -q 1 -t 'keep/#' -C 1 -v

Any broker, through the Service $name-mqtt:
  mosquitto_sub -h $service -t 'demo/#' -v

kubectl and helm of this cluster:
  eval "\$($cluster env)"

Stop and remove everything:
  make down
TEXT
}

[ "$(id -u)" -eq 0 ] || die "the local Kubernetes needs root (namespaces, mounts, cgroups): run 'sudo make demo', or 'make run' for one broker without"
if [ -n "${KUBECONFIG:-}" ] && [ "$KUBECONFIG" != "$TIDEMILL_CACHE/run/local/admin.kubeconfig" ]; then
  die "KUBECONFIG is set. The demo brings its own cluster: unset it. To install on yours, see docs/local-cluster.md"
fi
setup
eval "$("$cluster" env)"
trap explain ERR
set -E
apply
trap - ERR
usage
