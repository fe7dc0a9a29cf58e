# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts that test Brim in a minimal root directory of a Debian release. Requires root and debootstrap.

# require_bare_root NAME: explains why roots cannot be created here, with NAME as the prefix, and fails.
require_bare_root() {
  [ "$(id -u)" -eq 0 ] || { echo "$1: requires root (debootstrap and chroot)" >&2; return 1; }
  command -v debootstrap >/dev/null || { echo "$1: debootstrap is missing, install it" >&2; return 1; }
}

# make_bare_root SUITE DIR PACKAGES: recreates DIR, which must not exist or be an earlier root. The log is DIR.log. Uses the
# Debian 12 mirror of this machine's package sources unless DEBIAN_MIRROR is set.
make_bare_root() {
  local suite=$1 dir=$2 packages=$3 mirror
  if [ -e "$dir" ] && [ ! -e "$dir/.brim-bare" ]; then
    echo "$dir exists and is not a root of an earlier test; use another directory" >&2
    return 1
  fi
  mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "bookworm" && $2 == "main" && !found++ {print $3}')}
  [ -n "$mirror" ] || { echo "this machine's package sources have no Debian 12 (bookworm main); set DEBIAN_MIRROR" >&2; return 1; }
  rm -rf --one-file-system "$dir"
  mkdir -p "$dir"
  touch "$dir/.brim-bare"
  debootstrap --variant=minbase --include="$packages" "$suite" "$dir" "$mirror" >"$dir.log" 2>&1 || {
    tail -20 "$dir.log" >&2
    return 1
  }
}

# give_network DIR: copies this machine's name servers, package sources, proxy settings and local CA certificates, which the
# package ca-certificates installs. The sources include security updates.
give_network() {
  local setting
  cp /etc/resolv.conf "$1/etc/resolv.conf"
  for setting in $(grep -ls '^Acquire' /etc/apt/apt.conf.d/* || true); do
    cp "$setting" "$1/etc/apt/apt.conf.d/"
  done
  cp -r /etc/apt/sources.list* "$1/etc/apt/"
  mkdir -p "$1/usr/local/share/ca-certificates"
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$1/usr/local/share/ca-certificates/" ';'
}

# inside_root DIR COMMAND: runs a bash command in the root. Mounts in a private namespace, so that they disappear with the
# process.
inside_root() {
  unshare --mount bash -c 'mount -t proc proc "$0/proc" && mount -t tmpfs tmp "$0/dev/shm" && mount -t devpts -o ptmxmode=0666 devpts "$0/dev/pts"
    exec chroot "$0" /bin/bash -c "$1"' "$1" "$2"
}

# inside_copy DIR CHANGES COMMAND [SHARED]: like inside_root, but writes to the new directory CHANGES instead of DIR, and can
# read the directory SHARED of this machine.
inside_copy() {
  mkdir -p "$2/upper${4:-}" "$2/work" "$2/root"
  unshare --mount bash -c 'mount -t overlay overlay -o "lowerdir=$0,upperdir=$1/upper,workdir=$1/work" "$1/root" && root=$1/root &&
    mount -t proc proc "$root/proc" && mount -t tmpfs tmp "$root/dev/shm" && mount -t devpts -o ptmxmode=0666 devpts "$root/dev/pts"
    [ -z "$3" ] || mount --bind -o ro "$3" "$root$3"
    exec chroot "$root" /bin/bash -c "$2"' "$1" "$2" "$3" "${4:-}"
}
