# Everything a newcomer needs: `make demo` shows the whole job, `make test` checks it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo demo-small test test-long lint format bench clean

demo: $(VENV)/.runtime
	$(BIN)/oodml demo

demo-small: $(VENV)/.runtime
	$(BIN)/oodml demo --small --out demo/small

test: $(VENV)/.dev
	$(BIN)/python -m pytest

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -m long

lint: $(VENV)/.dev
	$(BIN)/ruff check --no-cache src tests benchmarks examples tools
	$(BIN)/ruff format --no-cache --check src tests benchmarks examples tools
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/python docs/build_tables.py
	$(BIN)/python docs/build_stubs.py
	$(BIN)/ruff check --fix src tests benchmarks examples tools
	$(BIN)/ruff format src tests benchmarks examples tools

bench: $(VENV)/.dev
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing oodml and its pinned dependencies into $(VENV) (about a minute)"
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "Installing what the tests need (under a minute)"
	$(PIP) -e '.[dev]'
	@touch $@
