# Two commands matter: `make demo` and `make test`. Both need Python 3.11 or newer with pip and venv, and nothing else.
# `make help` lists the rest.

PYTHON ?= python3
BACKEND ?=
OTHERS ?=
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := proxy migrations benchmarks tests

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-vllm check lint format docs bench profile lock clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null || grep '## ' Makefile

demo: .venv/.demo ## a real vLLM, the gateway before it, a conversation to watch; BACKEND=http://… uses that one instead
	$(BIN)/rejoinder demo $(if $(BACKEND),--backend $(BACKEND))

test: .venv/.dev ## the whole suite, on SQLite and on a PostgreSQL that it brings up and takes down
	$(BIN)/python -m pytest

test-vllm: .venv/.dev ## the live suite against a real vLLM on the CPU (installed at the first run: about 4 GB)
	$(BIN)/python -m pytest $(LIVE) tests/live

# The first test waits for the installation, which has limits of its own; the tests themselves keep theirs.
LIVE := --override-ini addopts="--strict-markers --strict-config -ra" --override-ini timeout_func_only=true

check: lint test ## format, lint, types, import contracts, then the whole suite

lint: .venv/.dev ## format, lint, types and import contracts alone
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev ## rewrite the sources as the formatter likes them
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: .venv/.dev ## write the generated pages anew
	$(BIN)/rejoinder reference > docs/configuration.md
	$(BIN)/python -m tests.docs.errors > docs/errors.md

bench: .venv/.dev ## measure direct, ours and OTHERS="name=http://…" in one run; ARGS="--quick …": benchmarks/README.md
	$(BIN)/python -m benchmarks.turns $(ARGS) $(OTHERS)

profile: .venv/.dev ## a flame graph of the gateway under load; ARGS="json --unstored …": benchmarks/README.md
	$(BIN)/python -m benchmarks.profile $(ARGS)

venv: .venv/.dev ## the virtual environment of the developers, from the lock file

lock: .venv/.python ## pin every dependency anew
	$(PIP) install --quiet pip-tools
	$(BIN)/pip-compile $(LOCKING) --extra dev --extra demo --output-file requirements-dev.lock pyproject.toml
	$(BIN)/pip-compile $(LOCKING) --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml
	sed -i '1i # Made by `make lock`, for Python 3.11 and newer.' requirements-dev.lock requirements.lock

LOCKING := --quiet --upgrade --strip-extras --no-annotate --no-header --no-emit-options \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

clean: ## remove the virtual environment, caches and the demo's vLLM
	rm -rf .venv .demo build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Each file below says, by being there, that a step was finished; an interrupted step is done again.

.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Python 3.11 or newer is needed; name one: make PYTHON=python3.12 …' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo 'This Python cannot make virtual environments: apt-get install python3-venv' >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	touch $@

.venv/.dev: .venv/.python requirements-dev.lock pyproject.toml
	@echo 'installing the packages of requirements-dev.lock'
	$(PIP) install --quiet --requirement requirements-dev.lock
	$(PIP) install --quiet --no-deps --editable .
	touch $@

.venv/.demo: .venv/.python requirements-dev.lock pyproject.toml
	@echo 'installing the gateway and the OpenAI SDK'
	$(PIP) install --quiet --constraint requirements-dev.lock --editable '.[demo]'
	touch $@
