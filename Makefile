# Two commands work in a fresh clone: `make up` (server and demo training) and `make test`. Both need Python 3.11 or
# newer with venv, and make. TORCH_INDEX selects another package index for torch, for example
# https://download.pytorch.org/whl/cpu, whose build has a tenth of the size of the CUDA build.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TRAINERS := .venv-trainers
TORCH := torch==2.13.0
# torch has a stamp for each version, so that another one is installed.
DEMO := .stamps/demo-$(shell echo "$(TORCH)" | tr -c "A-Za-z0-9.\n" -)
# With a data folder of its own, and never with the database or bucket of a server that a person uses for real.
MANAGE := ROLLOUTDECK_DATA=$$(mktemp -d) DATABASE_URL= ROLLOUTDECK_STORAGE= DJANGO_READ_DOT_ENV_FILE=off $(BIN)/python manage.py
PIP := -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2
PORT ?= 8460
# Tests that wait for a server or a database leave much of a processor to others.
MORE_WORKERS ?= $(shell expr $(WORKERS) + 1)
TEST_PATHS ?= tests
# All tests of a browser, and of real trainers, are in these folders, so the others need not be collected.
BROWSER_PATHS := $(patsubst tests,tests/browser,$(TEST_PATHS))
TRAINER_PATHS := $(patsubst tests,tests/trainers,$(TEST_PATHS))

# If it is set, each of the hundreds of processes that the tests start compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up commands-page test test-sqlite test-postgres test-s3 test-browser test-trainers bench chaos scale-out soak audit lint types style fix messages packages clean

help:  ## list of commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

up: $(DEMO) .stamps/server  ## server on http://127.0.0.1:8460 (or another PORT), with a demo training
	$(BIN)/rolloutdeck up --demo --port $(PORT)

test: packages $(DEMO) .stamps/dev lint test-sqlite test-postgres test-browser  ## all checks and tests, except test-s3, test-trainers and audit

test-sqlite: .stamps/dev  ## tests without a browser and without real trainers; TEST_PATHS selects some
	$(BIN)/python -m pytest -n $(MORE_WORKERS) --dist loadgroup -m "not browser and not trainers" $(TEST_PATHS)

test-postgres: .stamps/dev  ## database tests on a temporary PostgreSQL
	scripts/with_postgres.sh $(BIN)/python -m pytest -n $(MORE_WORKERS) -m "not browser and not trainers and not slow" $(TEST_PATHS)

test-s3: .stamps/dev  ## the tests with their files in a bucket of an S3-compatible server, which they start
	TEST_STORAGE=s3 $(BIN)/python -m pytest -n $(WORKERS) -m "not browser and not trainers" $(TEST_PATHS)

test-browser: .stamps/dev  ## tests in Chromium
	if [ -d tests/browser ]; then $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m browser $(BROWSER_PATHS); fi

test-trainers: .stamps/dev  ## tests with real trainers; installs them into .venv-trainers, which needs the network
	scripts/trainers.sh $(TRAINERS) $(PYTHON) $(TORCH)
	if [ -x $(TRAINERS)/bin/python ]; then TRAINERS_PYTHON=$(abspath $(TRAINERS))/bin/python $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m trainers $(TRAINER_PATHS); fi

bench: .stamps/dev  ## measures the performance budgets on this machine. BENCH="--check" fails if one is missed
	$(BIN)/python -m scripts.bench $(BENCH)

chaos: .stamps/dev  ## ten minutes of random faults; CHAOS has options, such as "--postgres --seed 1"
	$(BIN)/python -m tests.chaos $(CHAOS)

scale-out: .stamps/dev  ## ten minutes of kills in a server of several processes behind nginx, with a bucket
	SCALE_OUT_SECONDS=600 $(BIN)/python -m pytest -n 0 -s tests/test_several_processes.py

soak: .stamps/dev  ## one hour of use without faults; fails if memory or open files grow. SOAK="--minutes 10"
	$(BIN)/python -m tests.chaos.soak $(SOAK)

audit: .stamps/dev  ## known vulnerabilities of the server's packages; secrets in tracked files
	$(BIN)/python -m scripts.audit

lint: .stamps/dev  ## style, types, import contracts, migrations, templates
	@$(MAKE) --no-print-directory -j 2 types style

types: .stamps/dev  ## mypy
	$(BIN)/mypy

style: .stamps/dev  ## ruff, import contracts, migrations, templates
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(MANAGE) makemigrations --check --dry-run
	$(BIN)/djlint --quiet --lint templates

fix: .stamps/dev  ## format the code
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

messages: .stamps/dev  ## collect the texts to translate, and compile their translations
	$(MANAGE) makemessages
	$(MANAGE) compilemessages --ignore '.*'

commands-page: .stamps/dev  ## write docs/commands.md from the help of the commands
	$(BIN)/python -m scripts.commands_page

packages:  ## install the programs that the tests need, on Debian or Ubuntu
	scripts/packages.sh

clean:  ## remove the virtual environments and built files
	rm -rf $(VENV) $(TRAINERS) $(TRAINERS).older .stamps dist build

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Rolloutdeck needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python cannot create virtual environments here: apt-get install python3-venv"; exit 1; }
	-$(BIN)/python $(PIP) 'pip>=25'  # the pip of Python 3.11 resolves dependencies half a minute slower
	mkdir -p .stamps

# First, so that no other package selects the version of torch. Without torch everything except the demo works. Few of
# its thousands of modules are imported, so they are compiled at import.
$(DEMO): | $(BIN)/python
	@echo 'Installs $(TORCH). pip prints nothing while it downloads; the CUDA build has several GB.'
	if $(BIN)/python $(PIP) --no-compile $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH); then rm -f .stamps/demo* && touch $@; else echo "$(TORCH) cannot be installed here. The demo will not work."; fi

.stamps/server: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[server]'
	touch $@

.stamps/dev: pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP) -e '.[server,dev]'
	touch $@ .stamps/server
