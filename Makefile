# `make quickstart` shows the whole thing, `make test` is what CI runs. Both make their own environment in $(VENV).
# PYTHON chooses the interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
# Files of tests take turns in so many processes, each with its own fixtures; each takes about 1 GB of memory.
TEST_PROCESSES ?= 2

.PHONY: quickstart test lint format clean

quickstart: $(STAMP)
	$(BIN)/edgespec quickstart

test: lint
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy optimum_register/register_edgespec.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The stamp is younger than the files that decide what is installed, so a second `make` installs nothing.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[export,dev]' -c constraints.txt
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
