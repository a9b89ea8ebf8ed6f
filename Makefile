# Every command of the project. `make demo` and `make test` are the two a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := install.py exporters app alerts benchmarks dashboards docs examples tests
LOCKS := requirements.lock requirements-dev.lock
FAST := -m 'not slow and not proof and not real'
PYTEST := -m pytest -q -n auto --dist loadgroup --no-loadscope-reorder --durations=20
# Programs that tests start read what the first of them compiled; without it each compiles pandas and streamlit anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test check types tests fast proofs lowest latest lock firstpage generate bench soak live outages real truth capture engines pictures clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.demo: install.py pyproject.toml requirements.lock
	@$(PYTHON) install.py requirements.lock
	@touch $@

$(VENV)/.develop: install.py pyproject.toml $(LOCKS)
	@$(PYTHON) install.py $(LOCKS)
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## install what is needed, then show an emulated v1 and v2 deployment in the console
	$(BIN)/servescope demo $(OPTIONS)

test: $(VENV)/.develop  ## install what the tests need, then run them all
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	@$(MAKE) --no-print-directory -j2 types tests

check: $(VENV)/.develop  ## the fast inner loop: format, lint, types, unit tests
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	@$(MAKE) --no-print-directory -j2 types fast

# Beside each other: mypy uses one core, and tests that wait leave theirs.
types:
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

tests:
	$(BIN)/python -m tests.tools
	$(BIN)/python $(PYTEST)

fast:
	$(BIN)/python $(PYTEST) $(FAST)

lowest:  ## run the fast tests on the lowest versions that pyproject.toml declares
	$(PYTHON) install.py --environment .cache/venvs/lowest --resolution lowest-direct
	.cache/venvs/lowest/bin/python $(PYTEST) $(FAST)

latest:  ## run the fast tests on the newest versions there are, instead of the locked ones
	$(PYTHON) install.py --environment .cache/venvs/latest --resolution highest
	.cache/venvs/latest/bin/python $(PYTEST) $(FAST)

lock:  ## lock the newest versions there are, for `make demo`, `make test` and the image
	$(PYTHON) install.py --lock

firstpage: $(VENV)/.develop  ## time `make demo` in a fresh clone, until the first figures are live
	$(BIN)/python -m tests.tools
	$(BIN)/python -m tests.first_page

generate: $(VENV)/.develop  ## write the files that are compiled from the catalog
	$(BIN)/python -m alerts
	$(BIN)/python -m dashboards
	$(BIN)/python -m docs.generate
	$(BIN)/python -m tests.pages

proofs: $(VENV)/.develop  ## run the repeats over seeds and the whole hours that `make test` leaves out
	$(BIN)/python -m tests.tools
	$(BIN)/python $(PYTEST) -m 'proof or hypothesis' --hypothesis-profile every

bench: $(VENV)/.develop  ## compare ours with its peers, as ratios from one run
	$(BIN)/python -m benchmarks

soak: $(VENV)/.develop  ## run a collector on churning targets for an hour; nothing in it may grow
	$(BIN)/python -m tests.soak --minutes 60 --write

live: $(VENV)/.develop  ## cause every alert in a running stack, twenty times as fast, and record which receiver got it
	$(BIN)/python -m tests.tools
	$(BIN)/python -m tests.proofs.live --write

outages: $(VENV)/.develop  ## kill every part of the systems past one machine while they scrape many targets, in 75 minutes
	$(BIN)/python -m tests.tools
	$(BIN)/python -m tests.proofs.outages --write

real: $(VENV)/.develop  ## run real engines, routers, gateways and a load generator on loopback and check the contract against the clients' counts
	$(BIN)/python -m tests.proofs.real
	$(BIN)/python -m tests.proofs.real.programs
	$(BIN)/python -m tests.proofs.real.load

truth: $(VENV)/.develop  ## send the same prompts through a real Dynamo router and ours, and compare the figures
	$(BIN)/python -m tests.proofs.truth --report docs/emulator.md

capture: $(VENV)/.develop  ## save the /metrics of the real engines in .cache/captures, and small pages of routers and gateways in tests/pages
	$(BIN)/python -m tests.proofs.real --capture .cache/captures
	$(BIN)/python -m tests.proofs.real.programs --capture .cache/captures --pages tests/pages

engines: $(VENV)/.develop  ## run every panel's queries on every captured engine, and write docs/engines.md
	$(BIN)/python -m tests.tools
	$(BIN)/python -m tests.proofs.engines --write

pictures: $(VENV)/.develop  ## take a picture of every page of the console and of every dashboard, light and dark, to docs/pictures
	$(BIN)/python -m tests.pictures
	$(BIN)/python -m tests.dashboards.pictures

clean:  ## remove what the other commands made
	rm -rf $(VENV) .cache build dist
