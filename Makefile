# `make` lists the targets. Every target sets itself up: a Python >= 3.11 and a package index is all it takes.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv/bin
# The wrapper around a wheel's Java, where that is needed, stays in the checkout.
export HOLDFAST_JAVA_DIR := $(CURDIR)/.java

.PHONY: help setup test check demo kills flips matrix mutants sim bench

help:
	@echo 'make <target>:'
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv: pinned packages, holdfast itself, a Java for Spark (again only when something changed)
	@python="$$(tools/find-python)" && "$$python" tools/setup.py

test: setup ## every test; some of the kills, not all of them (ARGS="-k name" for a few)
	$(VENV)/python -m pytest -q --durations=15 $(ARGS)

check: setup ## lint, format, types, import arrows
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports --no-logo

demo: setup ## kill a pipeline, flip bits in its checkpoints, recover, prove that no row was lost or doubled
	$(VENV)/holdfast demo

kills: setup ## SIGKILL before and after every step of the protocol; prints the table
	$(VENV)/python tests/crash/kill_table.py

flips: setup ## 300 single-bit flips over a store; prints which were found
	$(VENV)/python tests/crash/flip_table.py

matrix: setup ## every query on every kind of state, captured while it runs, restored, resumed; prints the table
	$(VENV)/python tests/spark/matrix.py $(if $(ONLY),--only "$(ONLY)")

mutants: setup ## seeded bugs, each caught by the test that is named for it (ARGS="--only fsync" for a few)
	$(VENV)/python tools/mutants.py $(ARGS)

sim: setup ## the protocol under a hostile scheduler, 200,000 seeds (ARGS="--seeds 1000" for fewer)
	$(VENV)/python tests/sim/test_protocol.py $(ARGS)

bench: setup ## what an epoch costs; every benchmark in turn
	@set -e; for file in bench/*.py; do echo "== $$file"; $(VENV)/python "$$file"; done
