#!/usr/bin/env bash
# Installs what the local cluster is made of. Every step is idempotent and answers at once when its result is there.
#
#   tools.sh packages [SET...]   Debian packages (need root): build check clients cluster; all when none is named
#   tools.sh kubernetes          API server, controller manager, scheduler, kubelet, kube-proxy, kubectl from Go modules
#   tools.sh etcd|coredns|helm   one Go program each
#   tools.sh kafka               the broker's jars from Maven
#   tools.sh cargo-deny          the dependency checker from crates.io
#   tools.sh interop             the MQTT clients of e2e/interop from PyPI and npm
#   tools.sh all                 all of the above
#
# Results: $TIDEMILL_CACHE/tools/<name>-<version>/ (default ${XDG_CACHE_HOME:-~/.cache}/tidemill). A build happens in a
# sibling folder and is renamed when it is whole, so an interrupted build leaves nothing that looks finished.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=versions.env
. "$here/versions.env"
CACHE=${TIDEMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidemill}
TOOLS=$CACHE/tools

# Debian 12 packages by purpose: compiling the workspace; checking it; MQTT clients and a broker to compare with;
# images and the local cluster.
PACKAGES_BUILD=(build-essential cmake pkg-config libcurl4-openssl-dev libssl-dev zlib1g-dev protobuf-compiler git)
PACKAGES_CHECK=(shellcheck)
PACKAGES_CLIENTS=(mosquitto mosquitto-clients)
PACKAGES_CLUSTER=(containerd runc containernetworking-plugins iptables iproute2 buildah busybox-static ca-certificates
  openssl kmod procps util-linux curl)

packages() {
  local missing=() wanted=() package set
  [ $# -gt 0 ] || set -- build check clients cluster
  for set in "$@"; do
    case $set in
      build) wanted+=("${PACKAGES_BUILD[@]}") ;;
      check) wanted+=("${PACKAGES_CHECK[@]}") ;;
      clients) wanted+=("${PACKAGES_CLIENTS[@]}") ;;
      cluster) wanted+=("${PACKAGES_CLUSTER[@]}") ;;
      *) echo "tools.sh: unknown set of packages '$set' (build, check, clients or cluster)" >&2; return 2 ;;
    esac
  done
  command -v dpkg-query >/dev/null || { echo "tools.sh: this is not a Debian system; install the like of: ${wanted[*]}" >&2; return 0; }
  for package in "${wanted[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "tools.sh: missing Debian packages, install them as root: apt-get install ${missing[*]}" >&2
    return 1
  fi
  echo "installing Debian packages: ${missing[*]}" >&2
  apt-get update -qq
  # Installing a service must not start it: the cluster runs its own containerd, the tests their own mosquitto.
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Builds the tool NAME of VERSION by calling `build_NAME DIR` unless its folder is there.
provide() {
  local name=$1 version=$2 target work
  target=$TOOLS/$name-$version
  [ -d "$target" ] && return 0
  mkdir -p "$TOOLS"
  # One build of a tool at a time.
  exec 9>"$TOOLS/.$name.lock"
  flock 9
  if [ ! -d "$target" ]; then
    echo "building $name $version (once, kept in $target)" >&2
    rm -rf "$TOOLS/.$name-"*.??????
    work=$(mktemp -d "$TOOLS/.$name-$version.XXXXXX")
    "build_$name" "$work"
    rm -rf "$work/src"
    chmod 755 "$work"
    mv -T "$work" "$target"
  fi
  exec 9>&-
}

# Kubernetes publishes its staging modules under versions of their own; the replacements say which belong to this one.
build_kubernetes() {
  local out=$1 module command commands=() mains=() version
  local staging="api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap
    code-generator component-base component-helpers controller-manager cri-api cri-client csi-translation-lib
    dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy
    kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver sample-cli-plugin
    sample-controller"
  mkdir -p "$out/src"
  cd "$out/src"
  printf 'module tidemill.local/kubernetes\n\ngo 1.24.0\n' > go.mod
  for module in $staging; do go mod edit -replace "k8s.io/$module=k8s.io/$module@$KUBERNETES_MODULES"; done
  for command in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    commands+=("k8s.io/kubernetes/cmd/$command@v$KUBERNETES_VERSION")
    mains+=("k8s.io/kubernetes/cmd/$command")
  done
  go get -tool "${commands[@]}"
  version="-X k8s.io/component-base/version.gitVersion=v$KUBERNETES_VERSION"
  version+=" -X k8s.io/client-go/pkg/version.gitVersion=v$KUBERNETES_VERSION"
  CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $version" -o "$out/bin/" "${mains[@]}"
}

go_program() {
  local out=$1 name=$2 package=$3 version=$4
  mkdir -p "$out/src"
  cd "$out/src"
  printf 'module tidemill.local/%s\n\ngo 1.25.0\n' "$name" > go.mod
  go get -tool "$package@$version"
  CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$out/bin/$name" "$package"
}
build_etcd() { go_program "$1" etcd go.etcd.io/etcd/server/v3 "$ETCD_VERSION"; }
build_coredns() { go_program "$1" coredns github.com/coredns/coredns "$COREDNS_VERSION"; }
build_helm() { go_program "$1" helm helm.sh/helm/v3/cmd/helm "$HELM_VERSION"; }

build_kafka() {
  mkdir -p "$1/src"
  cd "$1/src"
  cat > pom.xml <<XML
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidemill.local</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$KAFKA_VERSION</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$KAFKA_VERSION</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>$SLF4J_VERSION</version></dependency>
</dependencies></project>
XML
  mvn -q -B dependency:copy-dependencies -DoutputDirectory="$1/jars"
}

# Its build folder is thrown away: only the program is kept.
build_cargo-deny() {
  cargo install cargo-deny --locked --quiet --version "$CARGO_DENY_VERSION" --root "$1" --target-dir "$1/src"
}

# Exactly what the lock files name, with their checksums; nothing of it is run.
build_interop() {
  local sources=$here/../../e2e/interop
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile \
    --require-hashes --only-binary :all: --target "$1/python" -r "$sources/requirements.txt"
  cp "$sources/package.json" "$sources/package-lock.json" "$1/"
  npm ci --prefix "$1" --silent --ignore-scripts --no-audit --no-fund
}

step() {
  case $1 in
    packages) packages ;;
    kubernetes) provide kubernetes "$KUBERNETES_VERSION" ;;
    etcd) provide etcd "$ETCD_VERSION" ;;
    coredns) provide coredns "$COREDNS_VERSION" ;;
    helm) provide helm "$HELM_VERSION" ;;
    kafka) provide kafka "$KAFKA_VERSION-$SLF4J_VERSION" ;;
    cargo-deny) provide cargo-deny "$CARGO_DENY_VERSION" ;;
    interop) provide interop "$INTEROP_VERSION" ;;
    all) for each in packages kafka etcd helm cargo-deny interop coredns kubernetes; do (step "$each"); done ;;
    *) echo "tools.sh: unknown step '$1' (packages, kubernetes, etcd, coredns, helm, kafka, cargo-deny, interop or all)" >&2; return 2 ;;
  esac
}

if [ "${1:-}" = packages ]; then
  shift
  packages "$@"
else
  for each in "${@:-all}"; do step "$each"; done
fi
