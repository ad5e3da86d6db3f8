#!/usr/bin/env bash
# What `make test` runs after the build: the rig's packages, then every test.
set -euo pipefail
cd "$(dirname "$0")/.."
set_up() { # set_up SCRIPT WHAT: run a set-up script; in CI its failure is ours
  if ! "$1"; then
    echo "test: $2 could not be set up; their tests will be SKIPPED (see above)" >&2
    [ -z "${CI:-}" ] || { echo "test: in CI that is a failure" >&2; exit 1; }
  fi
}
set_up tests/setup.sh "launchers, namespaces and the browser"
set_up tests/rig/setup.sh "the Soft-RoCE rig"
exec .venv/bin/python -m pytest -m "not slow" -q --durations=15 "$@"
