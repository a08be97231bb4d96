# The two commands of a fresh machine: `make demo` and `make test`. Both make the environment in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 2

.PHONY: demo test test-slow soak lint bench bench-generate bench-kernels bench-stack nano clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/ready  ## repair a bundled example with the embedded model, on a copy
	$(BIN)/python examples/demo.py

test: $(VENV)/ready
	$(BIN)/python -m pytest -q -m 'not gpu and not weights and not slow'

test-slow: $(VENV)/ready  ## what takes minutes: long texts against transformers
	$(BIN)/python -m pytest -q -m slow

soak: $(VENV)/ready  ## 1,000 requests to one server, its memory measured (minutes)
	$(BIN)/python -m pytest -q -s -m slow tests/end_to_end/test_soak.py

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

bench: $(VENV)/ready  ## the agent on the examples and on held-out bugs (hours)
	$(BIN)/python -m benchmarks.examples
	$(BIN)/python -m benchmarks.heldout

bench-generate: $(VENV)/ready  ## the engine beside transformers' generate, with nano (minutes)
	$(BIN)/python -m benchmarks.generate

bench-kernels: $(VENV)/ready  ## the kernels, on a GPU
	$(BIN)/python -m benchmarks.kernels

bench-stack: $(VENV)/ready  ## a few layers at M3's true widths, on a GPU (minutes)
	$(BIN)/python -m benchmarks.stack

nano: ## train the embedded model anew (on a GPU machine)
	training/run.sh

clean:
	rm -rf $(VENV) dist build
