#!/usr/bin/env bash
# Every static check, all of them run even if one fails.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
# cython-lint runs pycodestyle by name.
export PATH="$PWD/$bin:$PATH"
failed=()
check() { echo "== $*"; "$@" || failed+=("$1"); }
check $bin/ruff check .
check $bin/ruff format --check .
check $bin/cython-lint genie/_core tests
check $bin/mypy
modules=$(cd genie/_core && ls ./*.pyi | sed 's|^\./|genie._core.|; s|\.pyi$||')
check $bin/stubtest --mypy-config-file pyproject.toml --ignore-missing-stub $modules
check $bin/lint-imports
if [ ${#failed[@]} -gt 0 ]; then echo "lint: failed: ${failed[*]}"; exit 1; fi
echo "lint: all clean"
