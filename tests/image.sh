#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# image.sh DIST: builds packaging/Containerfile with buildah from the .deb of DIST and calls a server in the image. A minimal
# Debian root replaces the base image, so nothing is downloaded from an image registry. Exits with 77 without buildah or root
# rights.
set -euo pipefail
dist=$(readlink -f "$1") source=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
source "$source/tools/bare_root.sh"
source "$source/tests/serve_wait.sh"
command -v buildah >/dev/null || { echo "image.sh: Skipped: buildah is not installed"; exit 77; }
require_bare_root image.sh || exit 77
ls "$dist"/brim_*.deb >/dev/null || { echo "image.sh: Skipped: $dist has no .deb"; exit 77; }
work=$(mktemp -d) server= url=
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$work/policy.json"
buildah() { command buildah --root "$work/storage" --runroot "$work/run" "$@"; }
cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  buildah rm --all >/dev/null 2>&1 || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
fail() { echo "image.sh: $*" >&2; [ ! -e "$work/log" ] || tail -30 "$work/log" >&2; exit 1; }

base=$source/build/roots/image
if [ ! -e "$base/.complete" ]; then
  mkdir -p "$source/build/roots"
  make_bare_root bookworm "$base" bash && give_network "$base" && touch "$base/.complete" || fail "no base image"
fi
container=$(buildah from --signature-policy "$work/policy.json" scratch)
buildah copy "$container" "$base" / >/dev/null
buildah commit --signature-policy "$work/policy.json" --quiet --rm "$container" docker.io/library/debian:12-slim >/dev/null
buildah bud --signature-policy "$work/policy.json" --pull-never -f "$source/packaging/Containerfile" -t brim "$dist" >"$work/log" 2>&1 || fail "the image is not built"
config=$(buildah inspect --type image --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Cmd}} {{.OCIv1.Config.ExposedPorts}}' brim)
[[ "$config" == "65534:65534 [serve --listen 0.0.0.0:8080 "*"8080/tcp"* ]] || fail "configuration of the image: $config"

container=$(buildah from --signature-policy "$work/policy.json" --pull-never brim)
buildah run "$container" -- /usr/bin/brim score --help >/dev/null || fail "the program does not start"
: >"$work/log"
buildah run "$container" -- /usr/bin/brim serve --listen 127.0.0.1:0 >"$work/out" 2>"$work/log" &
server=$!
wait_for_url
curl -sS --max-time 60 "$url/predict" -H 'Content-Type: application/json' -d '{"inputs": "what a great day"}' >"$work/answer"
grep positive "$work/answer" >/dev/null || fail "answer of the server: $(cat "$work/answer")"
echo "image: built, $(du -sm --exclude=proc "$(buildah mount "$container")" | cut -f1) MiB with the base, a server answers"
