#!/usr/bin/env bash
# What `make test` runs after the build: the rig's packages, then every test.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -x tests/rig/setup.sh ]; then
  if ! tests/rig/setup.sh; then
    echo "test: the Soft-RoCE rig could not be set up; its tests will be SKIPPED (see above)" >&2
    [ "${CI:-}" = "" ] || { echo "test: in CI that is a failure" >&2; exit 1; }
  fi
fi
exec .venv/bin/python -m pytest -m "not slow" -q --durations=15 "$@"
