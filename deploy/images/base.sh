#!/usr/bin/env bash
# Assembles the base of an image for BINARY: the files of exactly the Debian packages that it loads, as installed here, and
# the certificate authorities. Prints the folder. It is kept, keyed by the packages' versions.
#
#   base.sh BINARY
#
# Taking the installed files instead of an archive's means that a binary runs on the very libraries it was linked with, and
# that no network is needed. `dpkg --verify` makes sure that they are the packages' own.
set -euo pipefail
binary=${1:?base.sh takes a binary}
CACHE=${TIDEMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidemill}

die() { echo "base.sh: $*" >&2; exit 1; }
command -v dpkg-query >/dev/null || die "the base is made of Debian packages; this is not a Debian system"

# The packages that own the libraries of the binary. The loader names merged paths (/lib is /usr/lib), dpkg either of them.
packages() {
  local library
  ldd "$binary" | awk '$2 == "=>" {print $3} $1 ~ /^\// {print $1}' | while read -r library; do
    dpkg-query -S "$library" 2>/dev/null || dpkg-query -S "/usr$library" 2>/dev/null ||
      die "no Debian package owns $library, which $binary loads"
  done | sed 's/:.*//'
  echo ca-certificates
}

list=$(packages | sort -u)
# shellcheck disable=SC2086  # a list of names
versions=$(dpkg-query -W -f='${Package}=${Version}\n' $list)
key=$( (echo "$versions"; cat "${BASH_SOURCE[0]}") | sha256sum | cut -c1-16)
target=$CACHE/images/base-$key
if [ ! -d "$target" ]; then
  # shellcheck disable=SC2086
  changed=$(dpkg --verify $list | grep -v -e '^missing' -e ' c /' || true)
  [ -z "$changed" ] || die "files differ from their Debian packages: $changed"
  mkdir -p "$CACHE/images"
  work=$(mktemp -d "$CACHE/images/.base.XXXXXX")
  root=$work/root
  mkdir -p "$root"/{etc/ssl/certs,usr/lib,usr/lib64,proc,sys,dev,tmp,var/lib/dpkg/status.d,var/lib/tidemill}
  ln -s usr/lib "$root/lib"
  ln -s usr/lib64 "$root/lib64"
  for package in $list; do
    # Libraries, configuration and licences; not the tools, manuals, and character set conversions.
    dpkg-query -L "$package" | grep -v -E '/(s?bin|man|lintian|gconv|locale|share/doc/.*/(NEWS|README|changelog|examples).*)(/|$)' |
      while read -r file; do
        if [ -f "$file" ] || [ -L "$file" ]; then printf '%s\n' "${file#/}"; fi
      done | tar -C / -cf - --no-recursion -T - | tar -C "$root" -xf - --keep-directory-symlink
    # Scanners for known weaknesses read this.
    dpkg-query -s "$package" > "$root/var/lib/dpkg/status.d/$package"
  done
  cat /usr/share/ca-certificates/mozilla/*.crt > "$root/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$root/usr/share/ca-certificates"
  cp -L /etc/os-release "$root/etc/os-release"
  printf 'root:x:0:0:root:/:/sbin/nologin\ntidemill:x:65532:65532:Tidemill:/var/lib/tidemill:/sbin/nologin\n' > "$root/etc/passwd"
  printf 'root:x:0:\ntidemill:x:65532:\n' > "$root/etc/group"
  printf 'passwd: files\ngroup: files\nhosts: files dns\n' > "$root/etc/nsswitch.conf"
  chmod 1777 "$root/tmp"
  chown 65532:65532 "$root/var/lib/tidemill"
  chmod 755 "$work" "$root"
  echo "$versions" > "$work/packages"
  mv -T "$work" "$target" 2>/dev/null || rm -rf "$work"
fi
echo "$target/root"
