# SPDX-License-Identifier: Apache-2.0
# Sourced by the server tests, which define `fail`, $work and $server: waits until the server has logged its address to
# $work/log, and sets url.
wait_for_url() {
  for _ in $(seq 600); do
    url=  # the file may not exist yet: the server's shell creates it
    [ ! -e "$work/log" ] || url=$(sed -n 's/^listening on //p' "$work/log")
    [ -z "$url" ] || return 0
    kill -0 "$server" 2>/dev/null || fail "the server exited"
    sleep 0.1
  done
  fail "the server does not listen"
}
