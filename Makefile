# `make` lists what it can do. It needs Python >= 3.11 and Node >= 20, and writes only into this folder,
# the caches of pip and npm, and ~/.ape.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# scripts/_bin before npm's wrapper of forge, which hides that forge failed.
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/scripts/_bin:$(CURDIR)/node_modules/.bin:$(PATH)
# Hundreds of Python processes start in the tests: each would compile all that it imports, and pytest all tests.
unexport PYTHONDONTWRITEBYTECODE
# Where Ape looks for its compiler.
export SOLCX_BINARY_PATH := $(CURDIR)/scripts/_solc

# More arguments for the test runners, such as ARGS='-k settle'.
ARGS ?=
# Of the Python tests. The tests of running processes wait half of their time, so one more than two cores.
WORKERS ?= 3
# Ape's pytest plugin costs three seconds a start: only the contract tests, which `ape test` runs, load it.
PYTEST := pytest -p no:ape_test
# forge keeps a cache of signatures in its home.
FORGE := HOME="$(CURDIR)/.build/home" forge

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{ printf "make %-16s %s\n", $$1, $$2 }'

setup: .venv/.stamp node_modules/.stamp ## install what the locks name into .venv and node_modules

.venv/.stamp: requirements.lock requirements-models.lock pyproject.toml scripts/_setup.sh
	@echo '── Python'
	@scripts/_setup.sh python

node_modules/.stamp: package.json package-lock.json .npmrc scripts/_setup.sh
	@echo '── Node'
	@scripts/_setup.sh node

.build/%/.stamp: requirements-%.lock .venv/.stamp
	@scripts/_setup.sh $*

up: setup ## run everything on a local chain, until Ctrl-C
	@python scripts/_up.py $(ARGS)

demo: setup ## run everything, send requests through it, check what came of them, stop
	@python scripts/_up.py --demo $(ARGS)

# forge compiles for minutes on one core and then takes what there is, so it goes beside all others, and after them when
# they want the cores: those that wait for blocks and models leave nearly half of the time.
test: setup ## run every test
	@mkdir -p .build; nice -n 15 $(MAKE) test-forge > .build/forge.log 2>&1 & forge=$$!; \
	    $(MAKE) test-contracts; contracts=$$?; $(MAKE) test-python; python=$$?; \
	    wait $$forge; forge=$$?; cat .build/forge.log; \
	    [ $$contracts -eq 0 ] && [ $$python -eq 0 ] && [ $$forge -eq 0 ]

# Ape keeps a contract's old code when only a library changed, or when compiling failed; so compile, and stop on errors.
test-contracts: setup ## the contract tests, by Ape on anvil
	@echo '── contract tests (ape)'
	@if [ -n "$$(find tests/contracts -name 'test_*.py' 2>/dev/null | head -1)" ]; then \
	    mkdir -p .build; ape compile --force > .build/compile.log 2>&1 || { cat .build/compile.log; exit 1; }; \
	    ape test tests/contracts -n 2 --dist loadfile $(ARGS); else echo 'none yet'; fi

test-forge: setup ## the fuzz and invariant tests, by forge (FOUNDRY_PROFILE=deep for more of it)
	@echo '── fuzz and invariant tests (forge)'
	@if [ -n "$$(find tests/forge -name '*.t.sol' 2>/dev/null | head -1)" ]; then \
	    FOUNDRY_PROFILE=$${FOUNDRY_PROFILE:-tests} $(FORGE) test; else echo 'none yet'; fi

# One seed's story: ARGS='--verbose' SEEDS=1 SEED=7.
soak-sim: setup ## many whole worlds with all faults, each from a seed (SEEDS=10000 SEED=0)
	@python -m tests.simulation --seed $${SEED:-0} --seeds $${SEEDS:-10000} $(ARGS)

# Compiled with fewer optimisations, or the lines of the code could not be told apart.
coverage-contracts: setup ## which branches of the contracts tests/forge takes; fails below 95 %
	@echo '── branches of the contracts (forge coverage)'
	@mkdir -p .build/coverage
	@$(FORGE) coverage --ir-minimum --no-match-contract InvariantsTest --report lcov \
	    --report-file .build/coverage/lcov.info > .build/coverage/log 2>&1 \
	    || { cat .build/coverage/log; exit 1; }
	@python scripts/_coverage.py .build/coverage/lcov.info 95

test-python: setup ## the tests of the Python package
	@echo '── Python tests (pytest)'
	@$(PYTEST) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(ARGS)

test-fast: setup ## the pure core only, in seconds
	@$(PYTEST) -q tests/core $(ARGS)

# solc and Slither keep one core busy, mypy the other.
check: setup ## formatting, lint, types, import rules, known faults, compiler warnings, contract sizes, Slither
	@mkdir -p .build; $(MAKE) check-contracts > .build/check.log 2>&1 & contracts=$$!; \
	    $(MAKE) check-python; python=$$?; $(MAKE) check-audit; audit=$$?; \
	    wait $$contracts; contracts=$$?; cat .build/check.log; \
	    [ $$python -eq 0 ] && [ $$audit -eq 0 ] && [ $$contracts -eq 0 ]

check-python: setup ## formatting, lint, types and import rules of the Python code
	@echo '── ruff'
	@ruff format --check
	@ruff check
	@echo '── mypy'
	@mypy
	@echo '── import-linter'
	@lint-imports --no-logo

check-contracts: setup ## formatting, compiler warnings, sizes and Slither
	@echo '── forge fmt'
	@$(FORGE) fmt --check
	@echo '── solc, warnings as errors'
	@$(FORGE) build --deny warnings --out .build/check --cache-path .build/check/cache contracts
	@echo '── contract sizes'
	@python scripts/_sizes.py
	@$(MAKE) slither

slither: setup .build/slither/.stamp ## static analysis of the contracts
	@echo '── Slither'
	@HOME="$(CURDIR)/.build/home" python scripts/_slither.py

halmos: setup .build/halmos/.stamp ## prove the arithmetic of fees and refunds for all amounts (tests/symbolic)
	@echo '── Halmos'
	@HOME="$(CURDIR)/.build/home" FOUNDRY_TEST=tests/symbolic FOUNDRY_OUT=.build/halmos/out \
	    FOUNDRY_CACHE_PATH=.build/halmos/cache .build/halmos/env/bin/halmos --forge-build-out .build/halmos/out \
	    --solver-timeout-assertion 10m $(ARGS)

mutants: setup .build/slither/.stamp ## change the contracts at random and see whether forge's tests notice (ARGS='--count N --seed S')
	@echo '── mutants of the contracts'
	@HOME="$(CURDIR)/.build/home" python scripts/_mutants.py $(ARGS)

audit: setup ## known faults of the dependencies; asks the advisory services of PyPI and npm
	@[ -x .build/audit/bin/pip-audit ] || { python -m venv .build/audit && .build/audit/bin/pip install --quiet pip-audit; }
	@python scripts/_audit.py

check-audit: setup ## the same within 20 seconds; only warns when a service cannot be asked
	@echo '── known faults of dependencies'
	@python scripts/_audit.py --if-reachable

format: setup ## rewrite Python and Solidity into the agreed format
	@ruff check --fix-only --quiet
	@ruff format
	@$(FORGE) fmt

contracts: setup ## compile the contracts
	@ape compile

bench-gas: setup ## measure the gas of the contracts' paths
	@ape run bench_gas $(ARGS)

bench-relayer: setup ## measure how fast a relayer indexes, schedules, settles and comes back (SEED=1)
	@python scripts/_bench_relayer.py

bench-scheduler: setup ## measure how fast and how well the scheduling engine decides (SEED=1)
	@python scripts/_bench_scheduler.py

soak: setup ## real processes, a fault every few seconds, one line at the end (REQUESTS=2000 SEED=1 PER_SECOND=20)
	@python scripts/_soak.py

lock: .venv/.stamp ## resolve the Python dependencies anew into requirements.lock
	@[ -x .build/lock/bin/uv ] || { python -m venv .build/lock && .build/lock/bin/pip install --quiet uv; }
	@UV_CUSTOM_COMPILE_COMMAND='make lock' .build/lock/bin/uv pip compile pyproject.toml --all-extras \
	    --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --quiet --output-file requirements.lock
	@for tool in slither-analyzer==0.11.6 halmos==0.3.3; do name=$${tool%%[-=]*}; \
	    echo "$$tool" | UV_CUSTOM_COMPILE_COMMAND='make lock' .build/lock/bin/uv pip compile - \
	    --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
	    --quiet --output-file "requirements-$$name.lock" || exit 1; done
	@git diff --stat -- 'requirements*.lock'

clean: ## remove everything that was installed or built
	rm -rf .venv node_modules .build out cache broadcast offchain/*.egg-info .coverage htmlcov
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find offchain scripts tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: help setup up demo test test-contracts test-forge test-python test-fast coverage-contracts check format contracts \
    check-python check-contracts slither halmos mutants audit bench-gas bench-relayer soak soak-sim lock clean
