#!/usr/bin/env bash
# Shows that the local cluster is what docs/local-cluster.md says, also after everything was killed. Leaves it running.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cluster=$here/cluster.sh

die() { echo "selftest: $*" >&2; exit 1; }
# expect WHAT COMMAND...: COMMAND succeeds within a few seconds (rules of a Service are written a moment after it).
expect() {
  local what=$1 try
  shift
  for ((try = 0; try < 40; try++)); do
    if "$@" >/dev/null 2>&1; then echo "  ok: $what"; return 0; fi
    sleep 0.25
  done
  die "not true: $what ($*)"
}
fails() { ! "$@"; }

in_pod() { kubectl exec selftest-guest -- timeout 3 sh -c "$1"; }
from_host() { timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2 && cat <&3"; }
fault() { ip netns exec "$TIDEMILL_E2E_NETNS" iptables "$@"; }

probe() {
  local service one two
  eval "$("$cluster" env)"
  kubectl apply -f - >/dev/null <<'YAML'
apiVersion: v1
kind: Service
metadata: {name: selftest-greeter}
spec: {selector: {app: greeter}, ports: [{port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: selftest-greeter, labels: {app: greeter}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: greeter, image: "localhost/tidemill-pause:1", command: [nc, -ll, -p, "8000", -e, echo, hello]}
---
apiVersion: v1
kind: Pod
metadata: {name: selftest-guest}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: guest
    image: localhost/tidemill-pause:1
    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
YAML
  kubectl wait --for=condition=Ready pod/selftest-greeter pod/selftest-guest --timeout=60s >/dev/null
  service=$(kubectl get service selftest-greeter -o jsonpath='{.spec.clusterIP}')
  one=$(kubectl get pod selftest-guest -o jsonpath='{.status.podIP}')
  two=$(kubectl get pod selftest-greeter -o jsonpath='{.status.podIP}')
  expect "a pod resolves kubernetes.default.svc" in_pod 'nslookup kubernetes.default.svc.cluster.local'
  expect "a pod reaches the API server by its Service" in_pod 'nc -w 2 kubernetes.default.svc 443 </dev/null'
  expect "a pod reaches another by its Service's name" in_pod 'nc -w 2 selftest-greeter 80 </dev/null | grep hello'
  expect "a pod reaches Kafka" in_pod 'nc -w 2 10.88.0.1 9092 </dev/null'
  expect "a process of the host reaches a pod" from_host "$two" 8000
  expect "a process of the host reaches a Service" from_host "$service" 80
  fault -A TIDEMILL-FAULTS -s "$one" -d "$two" -j DROP
  expect "a fault rule cuts one pod from another" fails in_pod "nc -w 1 $two 8000 </dev/null | grep hello"
  fault -A TIDEMILL-FAULTS -s "$one" -d 10.88.0.1 -p tcp --dport 6443 -j DROP
  expect "a fault rule cuts a pod from the API server" fails in_pod 'nc -w 1 kubernetes.default.svc 443 </dev/null'
  fault -F TIDEMILL-FAULTS
  expect "flushing the rules heals one" in_pod "nc -w 1 $two 8000 </dev/null | grep hello"
  expect "and the other" in_pod 'nc -w 1 kubernetes.default.svc 443 </dev/null'
  kubectl delete pod/selftest-greeter pod/selftest-guest service/selftest-greeter --wait=false >/dev/null
}

echo "a fresh cluster"
"$cluster" up 1
"$cluster" kafka 1
probe
echo "everything killed, then started again"
for file in "$TIDEMILL_E2E_RUN"/pids/*; do kill -KILL "$(cat "$file")"; done
"$cluster" up 1
"$cluster" kafka 1
probe
