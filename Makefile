# Everything runs from here; `make` alone lists the targets. PYTHON=... chooses the interpreter.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: setup run test test-fast test-all soak check fmt bench bench-claims bench-browser bench-dashboard bench-profiles bench-service bench-bridges peers screenshots docs lock clean help servers browser bench-setup

PYTHON ?= python3
export PYTHON
BIN := .venv/bin
CODE := $(wildcard src tests bench tools examples)
# More arguments for pytest: make test PYTEST_ARGS="tests/unit -k leases"
PYTEST_ARGS ?=
PYTEST := $(BIN)/pytest -n auto --dist load --maxschedchunk 1
# How long `make soak` searches.
MINUTES ?= 10

setup: ## create .venv with the locked requirements (again only when they changed)
	@tools/setup.sh .venv requirements/dev.txt

run: browser ## see it work: a fleet, a local shop, real browsers; then the dashboard, until Ctrl-C
	@$(BIN)/leasekeeper demo --dashboard

test: servers check ## everything that a change must hold: check, then the tests
	@$(PYTEST) $(PYTEST_ARGS)

test-fast: browser ## while writing code: unit, conformance on SQLite, command line; starts no server and no browser
	@$(PYTEST) tests/unit tests/conformance tests/cli --embedded $(PYTEST_ARGS)

test-all: servers check ## before a release: the whole matrix, longer histories
	@$(PYTEST) -m "release or not release" $(PYTEST_ARGS)

soak: servers ## random histories and chaos for MINUTES=10; SEED=… repeats a run
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

check: setup ## lint, format, types, layers
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(CODE)
	@$(BIN)/lint-imports

fmt: setup ## format, and fix what can be fixed safely
	@$(BIN)/ruff check --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

bench: bench-claims bench-browser bench-dashboard bench-profiles bench-service bench-bridges ## all benchmarks

bench-claims: bench-setup ## claim rates beside peers and the machine's limit
	@.venv-bench/bin/python -m bench.claims

bench-browser: bench-setup ## what a browser job costs beside the bare script
	@.venv-bench/bin/python -m bench.browser

bench-dashboard: browser ## how quick the pages are with 10,000 profiles and 100,000 jobs
	@$(BIN)/python -m bench.dashboard

bench-profiles: browser ## what it costs that profiles travel, beside those that stay at home
	@$(BIN)/python -m bench.profiles

bench-service: bench-setup ## what the server costs: remote workers, idle ones, readers of events, its start and memory
	@.venv-bench/bin/python -m bench.service

bench-bridges: bench-setup ## how many messages one bridge takes from a Redis list into PostgreSQL
	@.venv-bench/bin/python -m bench.bridges

peers: bench-setup ## which promise breaks under which fault: the SET NX recipe, procrastinate, our stores; one table
	@.venv-bench/bin/python -m bench.promises

screenshots: ## photograph every page of the dashboard, from the demo's data, into docs/images
	@tools/setup.sh .venv requirements/dev.txt chromium pngquant
	@$(BIN)/python -m tools.screenshots

docs: setup ## write the generated pages again
	@$(BIN)/python -m tools.docs

lock: ## resolve requirements/*.in to hashed requirements/*.txt
	@$(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip --quiet install uv
	@for name in dev bench; do \
		.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
			--no-emit-package django --no-emit-package sqlparse \
			--upgrade pyproject.toml --all-extras requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done
	@.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-package django --no-emit-package sqlparse --upgrade \
		pyproject.toml --extra mcp --extra server --extra http --extra sessions requirements/mcp.in -o requirements/mcp.txt
	@.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-package django --no-emit-package sqlparse --upgrade \
		pyproject.toml --extra sessions requirements/dropins.in -o requirements/dropins.txt
	@.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-package django --no-emit-package sqlparse --upgrade \
		pyproject.toml --extra sessions requirements/browser-use.in -o requirements/browser-use.txt

clean: ## remove everything that make created
	@rm -rf .venv .venv-bench .venv-lock .venv-mcp .venv-dropins .venv-browser-use .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
		bench/out dist
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

servers:
	@tools/setup.sh .venv requirements/dev.txt postgres redis rabbitmq node proxies jq chromium
	@tools/setup.sh .venv-mcp requirements/mcp.txt
	@tools/setup.sh .venv-dropins requirements/dropins.txt

browser:
	@tools/setup.sh .venv requirements/dev.txt chromium

bench-setup:
	@tools/setup.sh .venv-bench requirements/bench.txt postgres redis chromium
