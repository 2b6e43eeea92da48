#!/usr/bin/env bash
# Installs both Helm charts, with the images that deploy/images/build.sh made, on the local cluster. Running it again
# brings the operator up to date.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
IMAGES=${TIDEMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidemill}/images
operators=(--namespace tidemill-system --selector app.kubernetes.io/instance=tidemill)

"$here/cluster.sh" load "$IMAGES/tidemill-broker.tar" "$IMAGES/tidemill-operator.tar"
eval "$("$here/cluster.sh" env)"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$repo/Cargo.toml")
known=no
if helm status tidemill --namespace tidemill-system >/dev/null 2>&1; then known=yes; fi
helm upgrade --install tidemill-crds "$repo/charts/tidemill-crds" --wait --timeout 1m >/dev/null
helm upgrade --install tidemill "$repo/charts/tidemill" --namespace tidemill-system --create-namespace \
  --set image.repository=localhost/tidemill-operator --set "image.tag=$version" \
  --set "brokerImage=localhost/tidemill-broker:$version" >/dev/null
# The tag is the same for every build of a version: pods that may run an older build are made anew.
[ "$known" = no ] || kubectl rollout restart deployment "${operators[@]}" >/dev/null
if ! kubectl rollout status deployment "${operators[@]}" --timeout 2m; then
  kubectl describe pods "${operators[@]}" | tail -n 25 >&2
  kubectl logs "${operators[@]}" --tail 30 >&2 || true
  echo "install.sh: the operator does not become ready" >&2
  exit 1
fi
