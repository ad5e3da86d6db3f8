#!/usr/bin/env bash
# Make .venv with GENIE built in place. Usage: tools/bootstrap.sh [EXTRA ...] (test, lint, docs)
# Installs missing Debian/Ubuntu packages (compiler, Python headers, venv, libibverbs headers) as
# root or through sudo; Python packages go into .venv only.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else echo "bootstrap: need root or sudo to run: $*" >&2; return 1
  fi
}

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
"$PYTHON" - <<'EOF' 2>/dev/null || missing+=(python3-dev)
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists())
EOF
echo '#include <infiniband/verbs.h>' | { cc -fsyntax-only -xc - 2>/dev/null || exit 1; } ||
  missing+=(libibverbs-dev)
if [ ${#missing[@]} -gt 0 ]; then
  echo "bootstrap: installing ${missing[*]}" >&2
  if command -v apt-get >/dev/null; then
    if as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null &&
      as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
        --no-install-recommends "${missing[@]}" >/dev/null; then :
    else
      echo "bootstrap: could not install ${missing[*]}; going on without (verbs may be left out)" >&2
    fi
  else
    echo "bootstrap: no apt-get here; please install: ${missing[*]}" >&2
  fi
fi

"$PYTHON" - <<'EOF'
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    print(f"bootstrap: Python 3.10 to 3.13 is supported, this is {sys.version.split()[0]}; "
          "choose one with PYTHON=python3.12 make ...", file=sys.stderr)
    sys.exit(1)
EOF

[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check -q "$@"; }
extras=$(IFS=,; echo "$*")

# An editable install builds the extensions in place; later calls rebuild what changed.
stamp=.venv/.genie-${extras//,/-}
if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
  echo "bootstrap: installing Python packages into .venv and building (minutes, the first time)" >&2
  pip install 'setuptools>=77' wheel 'Cython>=3.1,<4'
  pip install --no-build-isolation -e ".${extras:+[$extras]}"
  touch "$stamp"
  # Where the editable install did not leave them in place, they are built here.
  built='import genie._core.engine, genie._core.events, genie._core.scanner, genie._core.tcp'
  .venv/bin/python -c "$built" 2>/dev/null || .venv/bin/python setup.py -q build_ext --inplace
else
  .venv/bin/python setup.py -q build_ext --inplace
fi
