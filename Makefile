# Two commands set everything up from a fresh clone: `make up` (the product, training its demo) and `make test`.
# Both need Python 3.11 or newer with venv, and make. TORCH_INDEX chooses another source of torch, like
# https://download.pytorch.org/whl/cpu, which is a tenth of the size of the one with CUDA.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TRAINERS := .venv-trainers
TORCH := torch==2.13.0
PIP := -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2
TEST_PATHS ?= tests

# Where it is set, each of the hundreds of processes that the tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up test test-sqlite test-postgres test-browser test-trainers bench lint types style fix packages clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

up: .stamps/demo .stamps/server  ## the whole product on http://127.0.0.1:8460, training its demo
	$(BIN)/rolloutdeck up --demo

test: packages .stamps/demo .stamps/dev lint test-sqlite test-postgres test-browser  ## every check and test but the trainers'

test-sqlite: .stamps/dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not browser and not trainers" $(TEST_PATHS)

test-postgres: .stamps/dev  ## what asks the data base, on a throw-away PostgreSQL cluster
	scripts/with_postgres.sh $(BIN)/python -m pytest -n $(WORKERS) -m "not browser and not trainers and not slow" $(TEST_PATHS)

test-browser: .stamps/dev  ## the tests that drive a real Chromium
	if [ -d tests/browser ]; then $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m browser $(TEST_PATHS); fi

test-trainers: .stamps/dev  ## real trainers write, our formats read; needs network for its own environment
	scripts/trainers.sh $(TRAINERS) $(PYTHON) $(TORCH)
	if [ -x $(TRAINERS)/bin/python ]; then TRAINERS_PYTHON=$(abspath $(TRAINERS))/bin/python $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m trainers $(TEST_PATHS); fi

bench: .stamps/dev  ## the performance budgets, measured on this machine
	$(BIN)/python -m scripts.bench

lint: .stamps/dev  ## style, types, import contracts, migrations, templates
	@$(MAKE) --no-print-directory -j 2 types style

types: .stamps/dev
	$(BIN)/mypy

style: .stamps/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	ROLLOUTDECK_DATA=$$(mktemp -d) $(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/djlint --quiet --lint templates

fix: .stamps/dev  ## put style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

packages:
	scripts/packages.sh

clean:
	rm -rf $(VENV) $(TRAINERS) .stamps dist build

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Rolloutdeck needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python cannot make environments here: apt-get install python3-venv"; exit 1; }
	-$(BIN)/python $(PIP) 'pip>=25'  # the one of Python 3.11 takes half a minute more to choose what to install
	mkdir -p .stamps

# First, so that nothing else decides which torch it is. Without torch everything but the demo works. Of its thousands
# of modules few are ever imported, so that they are compiled when they are.
.stamps/demo: | $(BIN)/python
	if $(BIN)/python $(PIP) --no-compile $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH); then touch $@; else echo "$(TORCH) cannot be installed here; going on without the demo."; fi

.stamps/server: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[server]'
	touch $@

.stamps/dev: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[server,dev]'
	touch $@ .stamps/server
