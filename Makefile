# `make train`, `make test`, and `make docs` (the documentation, into site/): each creates .venv and installs into it what
# it needs.
# PYTHON is the interpreter to start from; PIP_ARGS is handed to pip. On a machine without a GPU the
# CPU build of torch is installed (constraints/cpu.txt); TORCH=any takes whatever the index has. `make test` also
# installs vLLM, DeepSpeed and Ray for the tests of the Ray backend (constraints/ray-cpu.txt).

PYTHON ?= python3
PIP_ARGS ?=
TORCH ?= auto
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test docs
.DEFAULT_GOAL := train

train: $(VENV)/.installed-run
	$(BIN)/rlctl train --preset gsm8k-grpo

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	sh scripts/test.sh $(BIN)/python

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

$(VENV)/.installed-run: pyproject.toml constraints/cpu.txt scripts/install.sh
	TORCH=$(TORCH) sh scripts/install.sh "$(PYTHON)" "$(VENV)" . $(PIP_ARGS)
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints/cpu.txt constraints/ray-cpu.txt scripts/install.sh
	TORCH=$(TORCH) RAY=yes sh scripts/install.sh "$(PYTHON)" "$(VENV)" '.[dev]' $(PIP_ARGS)
	touch $@ $(VENV)/.installed-run
