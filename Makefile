# The commands of the project; docs/install.md explains them.
#   make quickstart   set up this machine and run the first example
#   make test         set up and run every test but the long ones
# Variables: PYTHON=<a Python>, TF=1.15|2.15|2.21, VENV=<folder>, EPL_TF=auto|cpu|gpu|system, ARGS=<more words for pytest
# or a program>, PORT=<of docs-serve>.

TF ?=
# As tools/set_up/environment.py has it.
VENV ?= .venv$(addprefix -,$(filter-out 1.15,$(TF)))
VENV_PYTHON := $(abspath $(VENV))/bin/python
BOOT_PYTHON := $(shell command -v python3 || command -v python3.7 || command -v python3.12 || command -v python)
# What this make was told is for this make: programs that call make themselves start afresh.
RUN := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u ARGS -u TF
CPP_FILES = $(shell find csrc -name build -prune -o \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print)
JOBS ?= 2
PORT ?= 8000

.PHONY: help setup quickstart test test-long coverage gpu-check lint bench papers docs docs-links docs-serve build package clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo "also: make test-long coverage gpu-check lint bench papers docs docs-links docs-serve build package clean"

setup:
	@$(RUN) PYTHON="$(PYTHON)" TF="$(TF)" VENV="$(VENV)" $(BOOT_PYTHON) tools/set_up

quickstart: setup
	@$(RUN) $(VENV_PYTHON) examples/quickstart/run.py $(ARGS)

test: setup
	@$(RUN) $(VENV_PYTHON) -m pytest -n $(JOBS) -m "not long" $(ARGS)

test-long: setup
	@$(RUN) EPL_VERIFY=1 $(VENV_PYTHON) -m pytest -n $(JOBS) -m long $(ARGS)

coverage: setup
	@$(RUN) $(VENV_PYTHON) -m pytest -n $(JOBS) -m "not long" --cov=epl --cov-report=term $(ARGS)

gpu-check: setup
	@$(RUN) GPU_CHECK=$(or $(GPU_CHECK),gpu) GPU_CHECK_REPORT=$(abspath $(or $(REPORT),gpu-report.md)) \
	  $(VENV_PYTHON) -m pytest tests/gpu -n 0 -v $(ARGS); code=$$?; cat $(or $(REPORT),gpu-report.md); exit $$code

lint: setup
	@$(VENV_PYTHON) -m ruff --version >/dev/null 2>&1 || \
	  { echo "make lint: ruff needs Python 3.7; make another environment: VENV=.venv37 PYTHON=python3.7 make lint"; exit 1; }
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy
	$(abspath $(VENV))/bin/clang-format --dry-run -Werror $(CPP_FILES)
	$(abspath $(VENV))/bin/hadolint docker/Dockerfile.*

bench: setup
	@$(RUN) $(VENV_PYTHON) benchmarks/run.py $(ARGS)

papers: setup
	@$(RUN) $(VENV_PYTHON) benchmarks/papers/run.py $(ARGS)

docs: setup
	$(VENV_PYTHON) tools/gen_config_docs.py
	$(VENV_PYTHON) tools/gen_composition_docs.py
	@$(RUN) $(VENV_PYTHON) tools/build_docs.py html $(ARGS)

docs-links: setup
	@$(RUN) $(VENV_PYTHON) tools/build_docs.py linkcheck $(ARGS)

docs-serve: docs
	@echo "The site is at http://localhost:$(PORT); Ctrl-C ends it."
	@$(RUN) $(VENV_PYTHON) -m http.server --bind 127.0.0.1 --directory build/site $(PORT)

build: setup
	$(MAKE) -C csrc PYTHON=$(VENV_PYTHON)

package: setup
	@$(RUN) $(VENV_PYTHON) tools/package $(ARGS)

clean:
	rm -rf build dist epl.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	rm -rf csrc/build epl/lib
	find . -name '.venv*' -prune -o -name __pycache__ -type d -print | xargs rm -rf
