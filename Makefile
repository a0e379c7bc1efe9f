# The only entry: CI calls the same targets. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint types check wheel bench format clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): a few minutes the first time"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)  ## install, then train a two-stage pipeline on real images
	$(BIN)/freewheel train examples/quickstart.toml

test: $(STAMP)  ## install, then run every test
	$(BIN)/python -m pytest

lint: $(STAMP)  ## ruff (format and lint) and the directions of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(STAMP)  ## mypy, strict, over src/
	$(BIN)/mypy

check: lint types test  ## lint, types and test: what CI runs

wheel: $(STAMP)  ## build the wheel into dist/
	$(BIN)/python -m build --wheel --outdir dist .

bench: $(STAMP)  ## run one benchmark: make bench NAME=transport ARGS=--tiny
	@test -n "$(NAME)" || { echo "which one? make bench NAME=...; see benchmarks/"; exit 2; }
	$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

format: $(STAMP)  ## rewrite the code in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what was built (not the runs)
	rm -rf $(VENV) dist build
