# shellcheck shell=bash
# etcd, API server, controller manager, scheduler, kube-proxy, CoreDNS. Sourced by cluster.sh.

ETCD_CLIENTS=http://127.0.0.1:22379
ETCD_PEERS=http://127.0.0.1:22380
DNS_PORT=10053

# etcd and the API server.
api_up() {
  local kubernetes endpoints=lease
  kubernetes=$(tool kubernetes)/bin
  # Endpoints must not be loopback addresses; without pods nobody needs them.
  [ "$ROOTED" = yes ] || endpoints=none
  # No fsync: this state lives as long as the cluster does.
  service etcd "${NET[@]}" "$(tool etcd)/bin/etcd" --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls $ETCD_CLIENTS --advertise-client-urls $ETCD_CLIENTS --listen-peer-urls $ETCD_PEERS \
    --initial-advertise-peer-urls $ETCD_PEERS --initial-cluster "default=$ETCD_PEERS"
  service apiserver "${NET[@]}" "$kubernetes/kube-apiserver" --etcd-servers=$ETCD_CLIENTS \
    --bind-address="$ADDRESS" --advertise-address="$ADDRESS" --secure-port="$API_PORT" --endpoint-reconciler-type=$endpoints \
    --service-cluster-ip-range="$SERVICES" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --service-account-key-file="$PKI/service-accounts.pub" \
    --service-account-signing-key-file="$PKI/service-accounts.key" \
    --service-account-issuer=https://kubernetes.default.svc \
    --kubelet-client-certificate="$PKI/admin.crt" --kubelet-client-key="$PKI/admin.key" \
    --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-preferred-address-types=InternalIP --allow-privileged=true
  api_await
}

api_await() { await 60 apiserver kube get --raw /readyz; }

# What turns objects into pods, Services and names.
controllers_up() {
  local kubernetes
  kubernetes=$(tool kubernetes)/bin
  dns_objects | kube apply -f - >/dev/null
  service controller-manager "${NET[@]}" "$kubernetes/kube-controller-manager" \
    --kubeconfig="$RUN/controller-manager.kubeconfig" --leader-elect=false --use-service-account-credentials \
    --service-account-private-key-file="$PKI/service-accounts.key" --root-ca-file="$PKI/ca.crt"
  service scheduler "${NET[@]}" "$kubernetes/kube-scheduler" --kubeconfig="$RUN/scheduler.kubeconfig" --leader-elect=false
  # All nodes share one network namespace, so one kube-proxy serves them; connection tracking limits belong to the machine.
  service proxy "${NET[@]}" "$kubernetes/kube-proxy" --kubeconfig="$RUN/proxy.kubeconfig" --hostname-override=node1 \
    --proxy-mode=iptables --cluster-cidr="$PODS" --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
    --conntrack-tcp-timeout-close-wait=0
  cat > "$RUN/Corefile" <<COREFILE
cluster.local:$DNS_PORT in-addr.arpa:$DNS_PORT {
  bind $ADDRESS
  errors
  ready $ADDRESS:8181
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $RUN/coredns.kubeconfig
    ttl 5
  }
}
.:$DNS_PORT {
  bind $ADDRESS
  errors
  template ANY ANY {
    rcode NXDOMAIN
  }
}
COREFILE
  service coredns "${NET[@]}" "$(tool coredns)/bin/coredns" -conf "$RUN/Corefile"
}

dns_await() { await 30 coredns curl -fsS --max-time 2 "http://$ADDRESS:8181/ready"; }

# The Service that pods ask for names, with CoreDNS outside of any pod behind it, and what CoreDNS may read.
dns_objects() {
  cat <<YAML
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: $DNS_PORT, protocol: UDP}, {name: dns-tcp, port: $DNS_PORT, protocol: TCP}]
endpoints: [{addresses: [$ADDRESS], conditions: {ready: true}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: local-coredns}
rules:
- {apiGroups: [""], resources: [services, namespaces, pods], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: local-coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: local-coredns}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: coredns}]
YAML
}
