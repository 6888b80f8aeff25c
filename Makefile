# Everything a contributor types. `make` alone lists the targets. Needs Python 3.11 or newer and nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
PEERS  := .venv-peers
PYTEST := $(BIN)/python -m pytest
# twice the cores: most tests wait half of their time
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(2 * (os.cpu_count() or 1))')
SEEDS  ?= 20000
EXAMPLES ?= 300
SWITCHES ?= 1
MINUTES ?= 30
SUPPLY := .venv-supply

# Tests start hundreds of interpreters: without .pyc files each of them compiles everything it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all shuffle check format bench peers sim pairs mutants faults chaos long fuzz fuzz-files hashes verify-deps sbom audit-deps clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install everything (again only when pyproject.toml or the constraints changed)

$(STAMP): pyproject.toml constraints.txt constraints-hashes.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python3 -m venv failed; on Debian install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check uv -c constraints.txt
	@# uv takes 10 s where pip takes 50; pip knows private indexes from its own configuration
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r constraints-hashes.txt || \
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r constraints-hashes.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e . || \
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps -e .
	@touch $@

# Once, by one process: otherwise every test process compiles all that the tests import.
$(COMPILED): $(STAMP)
	@$(PYTEST) --collect-only --quiet tests >$@ || { cat $@; rm $@; exit 1; }

demo: setup ## see it work: real documents, a worker killed in the middle, nothing lost
	@$(BIN)/perdure demo

test: setup $(COMPILED) ## run the tests that need Python alone: every behaviour on SQLite, the store on PostgreSQL, too
	$(PYTEST) -n $(JOBS) --maxprocesses=8 --dist=worksteal --suite quick tests

test-all: setup $(COMPILED) ## run what make test leaves out: PostgreSQL for all, RabbitMQ, Prometheus, kills (installs Debian packages as root)
	$(PYTEST) -n $(JOBS) --maxprocesses=8 --dist=worksteal --suite full tests

check: setup ## lint, format, types, layers, shape and language of the sources
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/house.py
	$(BIN)/python scripts/prose.py

format: setup ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## measure both stores beside the bare driver, and guarded calls beside tenacity and stamina
	@$(BIN)/perdure bench
	@$(BIN)/python benchmarks/calls.py

peers: $(PEERS)/.installed ## measure others (pgqueuer, huey, DBOS) on this machine, in an environment of their own
	@$(PEERS)/bin/python benchmarks/peers.py

$(PEERS)/.installed: benchmarks/peers-requirements.txt
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -r $<
	@touch $@

sim: setup ## the long simulation: SEEDS=n seeded worlds on the real SQL (20000 by default), and which features met in them
	SEEDS=$(SEEDS) $(PYTEST) -n $(JOBS) --maxprocesses=8 --timeout=3600 -q tests/sim

pairs: setup ## every two verbs beside each other on PostgreSQL, statement by statement: SWITCHES=n between them (1 by default)
	SWITCHES=$(SWITCHES) $(PYTEST) -n $(JOBS) --maxprocesses=8 --dist=worksteal -q -m long tests/pairs

mutants: setup ## plant single bugs in a copy of the sources: the tests must find 95 % of them
	$(BIN)/python -m tests.mutants --jobs $(JOBS)

faults: setup ## the long fault tests: real processes killed, frozen, cut off
	$(PYTEST) --timeout=1800 tests/faults

chaos: setup ## one chaos campaign on PostgreSQL with PgBouncer, forks and failovers: MINUTES=n (30 by default)
	CHAOS_MINUTES=$(MINUTES) $(PYTEST) -s --timeout=0 'tests/faults/test_campaign.py::test_campaign[chosen]'

shuffle: setup ## the tests of make test in random order; SEED=n repeats an order
	$(PYTEST) -n $(JOBS) --maxprocesses=8 --suite quick -p randomly $(if $(SEED),--randomly-seed=$(SEED)) tests

long: setup ## the tests that take minutes each; fuzz, sim, pairs, mutants and chaos have numbers of their own
	$(PYTEST) -n $(JOBS) --maxprocesses=8 --dist=worksteal --suite long --timeout=7200 tests

fuzz: setup ## the long fuzzing of the HTTP API on both stores: EXAMPLES=n per route and phase (300 by default: over 20,000 requests)
	EXAMPLES=$(EXAMPLES) $(PYTEST) -m long --timeout=7200 -s tests/api/test_proof_fuzz.py

fuzz-files: setup ## damaged files read by the real readers in cells: N=n files, or for MINUTES=n (30 by default); SEED=n and KIND=pdf repeat
	$(BIN)/python -m tests.fuzz $(if $(N),--count $(N),$(if $(KIND),$(if $(SEED),,--minutes $(MINUTES)),--minutes $(MINUTES))) \
	    $(if $(SEED),--seed $(SEED)) $(if $(KIND),--kind '$(KIND)')

hashes: setup ## write constraints-hashes.txt again after a change of constraints.txt
	scripts/hash-constraints $(BIN)/uv

verify-deps: setup ## compare the installed packages with constraints-hashes.txt, and their files with their records
	@$(BIN)/python scripts/verify-deps

sbom: setup $(SUPPLY)/.installed ## write build/sbom.json: the installed packages as CycloneDX
	@mkdir -p build
	@$(SUPPLY)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o build/sbom.json $(BIN)/python
	@echo build/sbom.json

audit-deps: $(SUPPLY)/.installed ## ask a vulnerability service about the versions of constraints.txt (needs the network)
	@$(SUPPLY)/bin/python scripts/audit-deps $(SUPPLY)/bin/pip-audit

$(SUPPLY)/.installed:
	@test -x $(SUPPLY)/bin/python || $(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check 'cyclonedx-bom>=7,<8' 'pip-audit>=2.7,<3'
	@touch $@

clean: ## remove .venv and what tools left behind
	rm -rf $(VENV) $(PEERS) $(SUPPLY) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
