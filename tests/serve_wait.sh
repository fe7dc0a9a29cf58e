# SPDX-License-Identifier: Apache-2.0
# Sourced by the server's tests, which have `fail`, $work and $server: waits until the server has written to $work/said
# where it listens, and sets url.
wait_for_url() {
  for _ in $(seq 600); do
    url=  # the file is made by the server's own shell, perhaps after the first look
    [ ! -e "$work/said" ] || url=$(sed -n 's/^listening on //p' "$work/said")
    [ -z "$url" ] || return 0
    kill -0 "$server" 2>/dev/null || fail "it ended"
    sleep 0.1
  done
  fail "it does not listen"
}
