#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# service_unit.sh: checks that the systemd unit of the server keeps its hardening, on machines without systemd too.
# tests/package.sh rates the unit with systemd-analyze.
set -euo pipefail
unit=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../packaging/brim-serve@.service
failed=0
while read -r line; do
  grep -qxF -- "$line" "$unit" || { echo "service_unit.sh: $unit lacks the line: $line" >&2; failed=1; }
done <<'END'
UMask=0077
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources @setuid @keyring
SystemCallErrorNumber=EPERM
NoNewPrivileges=yes
ProtectSystem=strict
CapabilityBoundingSet=
DynamicUser=yes
END
exit $failed
