#!/usr/bin/env bash
# Builds container images as OCI archives, without a registry and without a container engine.
#
#   build.sh broker | operator | all     compiles (release) and packs      (root: images hold files of other owners)
#   build.sh pause                       the sandbox image of the local cluster, with a shell for looking around
#
# Results: $TIDEMILL_CACHE/images/tidemill-<name>.tar, to be imported by `deploy/local/cluster.sh load`, `ctr images import`,
# `podman load` or `skopeo copy`. docs/decisions/0004-images-and-local-cluster.md says why it is done this way.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$here/../.." && pwd)
CACHE=${TIDEMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidemill}
IMAGES=$CACHE/images

die() { echo "build.sh: $*" >&2; exit 1; }

version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$repo/Cargo.toml"; }

# The folder where cargo puts release binaries.
release_folder() { echo "${CARGO_TARGET_DIR:-$repo/target}/release"; }

# pack NAME TAG CONTEXT: runs NAME.Containerfile on CONTEXT and writes the archive.
pack() {
  local name=$1 tag=$2 context=$3 image=localhost/tidemill-$1:$2 store=$work/store archive=$IMAGES/tidemill-$1.tar
  # Nothing of the store is wanted afterwards; vfs needs nothing of the kernel. All times are the commit's, so that equal
  # content gives equal layers.
  local buildah=(buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs)
  "${buildah[@]}" build --quiet --isolation chroot --layers --timestamp "$(commit_time)" --file "$here/$name.Containerfile" \
    --build-arg "VERSION=$tag" --build-arg "REVISION=$(revision)" --tag "$image" "$context" >/dev/null
  rm -f "$archive.new"
  "${buildah[@]}" push --quiet "$image" "oci-archive:$archive.new:$image"
  mv "$archive.new" "$archive"
  printf '%s  %s compressed  %s\n' "$image" "$(size_of "$archive")" "$archive"
}

commit_time() { git -C "$repo" log -1 --format=%ct 2>/dev/null || echo 0; }
revision() { git -C "$repo" describe --always --abbrev=40 --dirty --exclude '*' 2>/dev/null || echo unknown; }
size_of() { du -h --apparent-size "$1" | cut -f1; }

build_pause() {
  local context=$work/pause
  mkdir -p "$context/bin"
  cp /bin/busybox "$context/bin/"
  for applet in sh cat echo grep ls nc nslookup ping sleep timeout wget; do ln -s busybox "$context/bin/$applet"; done
  pack pause 1 "$context"
}

# build_program NAME: the compiled tidemill-NAME on the base.
build_program() {
  local name=$1 binary context=$work/$1 base
  mkdir "$context"
  binary=$(release_folder)/tidemill-$name
  base=$("$here/base.sh" "$binary")
  # An archive, because only that keeps owners.
  tar -C "$base" --sort=name --numeric-owner -cf "$context/base.tar" .
  cp "$binary" "$context/"
  pack "$name" "$(version)" "$context"
  printf '    binary %s, base %s (%s)\n' "$(size_of "$binary")" "$(du -sh --apparent-size "$base" | cut -f1)" "$(tr '\n' ' ' < "$base/../packages")"
}

[ $# -eq 1 ] || die "takes one of: broker, operator, pause, all"
case $1 in
  broker | operator | pause) names=("$1") ;;
  all) names=(broker operator) ;;
  *) die "takes one of: broker, operator, pause, all" ;;
esac
[ "$(id -u)" -eq 0 ] || die "packing images needs root: they hold files of other owners"
command -v buildah >/dev/null || die "buildah is missing; install it with deploy/local/tools.sh packages"
umask 022
mkdir -p "$IMAGES"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$1" != pause ]; then
  # One by one, as `make run` does: together they would have other features and be compiled once more.
  for name in "${names[@]}"; do (cd "$repo" && cargo build --release --locked "--package=tidemill-$name"); done
fi
for name in "${names[@]}"; do
  if [ "$name" = pause ]; then build_pause; else build_program "$name"; fi
done
