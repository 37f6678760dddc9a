# One command each for what people do with a clone; `make` alone lists them.
# The environment lives in .venv and is made on first use. PYTHON chooses the interpreter it is made from.

PYTHON ?= python3
WORKERS ?= auto

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOG := $(VENV)/set-up.log
TYPED := $(wildcard covey.py privacy device_sdk server_kit tests benchmarks examples release)
PIP := $(BIN)/python -m pip install --no-input --disable-pip-version-check --no-deps
LOCKED := $(PIP) --require-hashes -r
RECENT := import sys; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help demo test check bench stress release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## the whole system on this machine: a server, 24 devices, cohorts, a report
	@$(BIN)/covey demo

test: check ## what a change must pass: check, then every test but the stress tests
	@tests/install_real_parts
	@$(BIN)/python -m pytest -n $(WORKERS)

check: $(READY) ## lint, format, types and spelling; changes nothing
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/codespell

bench: $(READY) ## measure the paths we promise to keep fast; run nothing else meanwhile
	@$(BIN)/python -m pytest benchmarks --benchmark-enable --benchmark-only -p no:randomly

stress: $(READY) ## the tests that take minutes: load, kills, fuzzing
	@$(BIN)/python -m pytest -m stress

release: $(READY) ## wheel, lists of components, checksums and signature in dist; KEY=an SSH key of release/signers
	@$(BIN)/python release/make_release.py --key '$(or $(KEY),$(error make release KEY=PATH: an SSH key of release/signers))'

clean: ## delete caches and build products; the environment stays (rm -r .venv)
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Pip's output goes to a log, whose end is shown only if pip fails. An environment that works is added to, not made anew.
# Every file that pip takes has one of the hashes in release/locks; torch without CUDA where pip finds it, else the index's.
$(READY): pyproject.toml $(wildcard release/locks/*.txt)
	@$(PYTHON) -c '$(RECENT)' 2>/dev/null || { \
	    echo "Covey needs Python 3.11 or newer, and '$(PYTHON)' is not; name one: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	}
	@$(BIN)/python -c 'import pip; $(RECENT)' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) || { \
	    echo "Could not make $(VENV), see above; on Debian and Ubuntu: apt install python3-venv" >&2; \
	    exit 1; \
	}
	@echo "Installing the development environment into $(VENV): about 2 GB, 2 to 10 minutes the first time ..."
	@{ { $(LOCKED) release/locks/torch_cpu.txt || $(LOCKED) release/locks/torch.txt; } \
	    && $(LOCKED) release/locks/development.txt \
	    && $(PIP) --no-build-isolation -e .; } >$(LOG) 2>&1 || { \
	    tail -n 40 $(LOG) >&2; \
	    echo "The installation failed, see above (all of it: $(LOG)); run make again once the cause is gone." >&2; \
	    exit 1; \
	}
	@touch $@
	@echo "$(VENV) is ready."
