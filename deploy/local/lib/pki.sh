# shellcheck shell=bash
# Certificates and kubeconfigs of the local cluster. Sourced by cluster.sh.

PKI=$RUN/pki
API_PORT=6443
[ "$ROOTED" = yes ] || API_PORT=26443
NEW_KEY=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365)

pki_up() {
  [ ! -e "$PKI/whole" ] || return 0
  printf '[req]\ndistinguished_name=dn\n[dn]\n' > "$PKI/openssl.cnf"
  openssl req -x509 "${NEW_KEY[@]}" -keyout "$PKI/ca.key" -out "$PKI/ca.crt" -subj /CN=tidemill-local-ca \
    -config "$PKI/openssl.cnf" -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign 2>/dev/null
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$PKI/service-accounts.key" 2>/dev/null
  openssl pkey -in "$PKI/service-accounts.key" -pubout -out "$PKI/service-accounts.pub"
  certificate apiserver /CN=kube-apiserver \
    "IP:127.0.0.1,IP:10.88.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  certificate admin /O=system:masters/CN=admin DNS:admin
  certificate controller-manager /CN=system:kube-controller-manager DNS:controller-manager
  certificate scheduler /CN=system:kube-scheduler DNS:scheduler
  certificate proxy /CN=system:kube-proxy DNS:proxy
  certificate coredns /CN=coredns DNS:coredns
  local user
  for user in controller-manager scheduler proxy coredns; do kubeconfig "$user" > "$RUN/$user.kubeconfig"; done
  kubeconfig admin > "$ADMIN_KUBECONFIG"
  touch "$PKI/whole"
}

# certificate NAME SUBJECT ALTERNATIVE_NAMES
certificate() {
  openssl req -x509 -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" "${NEW_KEY[@]}" -keyout "$PKI/$1.key" -out "$PKI/$1.crt" \
    -subj "$2" -config "$PKI/openssl.cnf" -addext basicConstraints=critical,CA:FALSE -addext "subjectAltName=$3" \
    -addext extendedKeyUsage=serverAuth,clientAuth 2>/dev/null
}

# kubeconfig USER: everything inline, so that the file may be copied.
kubeconfig() {
  cat <<YAML
apiVersion: v1
kind: Config
current-context: tidemill-local
contexts: [{name: tidemill-local, context: {cluster: tidemill-local, user: $1}}]
clusters:
- name: tidemill-local
  cluster: {server: "https://$ADDRESS:$API_PORT", certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")}
users:
- name: $1
  user: {client-certificate-data: $(base64 -w0 "$PKI/$1.crt"), client-key-data: $(base64 -w0 "$PKI/$1.key")}
YAML
}
