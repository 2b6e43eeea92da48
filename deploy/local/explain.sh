#!/usr/bin/env bash
# Prints how the operator and the brokers on the local cluster stand: what a reader needs when something did not come up.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
eval "$("$here/cluster.sh" env)"
show() { printf '\n--- %s\n' "$*"; "$@" 2>&1; }

show kubectl get nodes,mqttclusters,statefulsets,pods --all-namespaces -o wide
show kubectl get leases --namespace default
show kubectl describe mqttclusters --namespace default | tail -n 60
show kubectl logs --namespace tidemill-system --selector app.kubernetes.io/instance=tidemill --tail 40
show kubectl logs --namespace default --selector tidemill.dev/cluster --prefix --tail 25 --max-log-requests 20
show kubectl get events --namespace default --sort-by .lastTimestamp | tail -n 15
for log in "$TIDEMILL_E2E_RUN"/logs/kafka*.log; do [ ! -e "$log" ] || show tail -n 5 "$log"; done
