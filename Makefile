# `make demo` and `make test` install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help screenshots install test lint types layers pytest demo docs bench interop lock clean spec soak mutants

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(STAMP)  ## create .venv with all dependencies

# The stamp records that the lock and the project are installed, so a second call installs nothing. The lock names
# every package; with its resolver, pip would ask for an unpinned "coverage[toml]" once a newer version is out.
$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}; try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@echo "installing dependencies into $(VENV); this takes a few minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

test: install lint types layers pytest  ## all checks, as CI runs them

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks tools examples

layers: install
	$(BIN)/lint-imports --no-cache

pytest: install
	$(BIN)/python -m pytest -n 3  # many tests wait, so three workers keep two cores busy

spec: install  ## run the tests of the behaviour checklist and print the table
	$(BIN)/python -m tools.spec_table

MINUTES ?= 10
soak: install  ## long checks: simulations, kills, faults, fuzzers, memory, streams: make soak MINUTES=60
	$(BIN)/python -m tools.soak --minutes $(MINUTES)

MUTANT_OPTIONS ?=
mutants: install  ## which small mistakes do the tests not notice? make mutants MUTANT_OPTIONS="--only store"
	$(BIN)/python -m tools.mutants $(MUTANT_OPTIONS)

screenshots: install  ## write the pictures of the console into docs (needs Chromium)
	$(BIN)/python -m tools.console_screenshots

demo: install  ## run the demonstration end to end
	$(BIN)/penstock demo

docs: install  ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.installed
BENCH_OPTIONS ?=

$(PEERS_STAMP): requirements/peers.lock requirements/peers-cpp.lock | $(STAMP)
	$(BIN)/python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/peers.lock
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
	  --upgrade --target $(PEERS)/cpp -r requirements/peers-cpp.lock || echo "the C++ client has no wheel for this machine"
	@touch $(PEERS_STAMP)

bench: install $(PEERS_STAMP)  ## measure Penstock and its peers and write a report: make bench BENCH_OPTIONS=--tiny
	$(BIN)/python -m benchmarks.peers $(BENCH_OPTIONS)

interop: install  ## all clients with both brokers, stores exchanged (needs a JDK and Maven, or Go, or Node)
	$(BIN)/python -m tests.interop.run

lock: install  ## resolve requirements/dev.lock again (needs uv in .venv: .venv/bin/pip install uv)
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	  --output-file requirements/dev.lock

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
