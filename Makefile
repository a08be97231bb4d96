# The two commands of a fresh machine: `make demo` and `make test`. Both make the environment in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 2

M3_FUZZ_S ?= 600

.PHONY: demo test test-slow nightly soak lint bench bench-tools bench-generate bench-forks bench-realbugs bench-kernels bench-stack bench-terminal pictures \
	kills nano clean

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

nightly: $(VENV)/ready  ## 100,000 edits, then fuzzing, M3_FUZZ_S seconds for each target; commit what tests/fuzz/corpus gains
	M3_TEST_CASES=100000 $(BIN)/python -m pytest -q -s --timeout=0 tests/tools/test_untouched_bytes.py
	M3_FUZZ_S=$(M3_FUZZ_S) $(BIN)/python -m pytest -q -s --timeout=0 tests/fuzz

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

bench-tools: $(VENV)/ready  ## grep and glob beside ripgrep, outlines, a read of 1 GB (minutes)
	$(BIN)/python -m benchmarks.tools

bench-forks: $(VENV)/ready  ## what 50 candidates on one prompt cost, with nano (a minute)
	$(BIN)/python -m benchmarks.forks

bench-realbugs: $(VENV)/ready  ## m3 fix on small bugs in real packages from PyPI; goes on where it stopped (hours)
	$(BIN)/python -m benchmarks.realbugs

bench-terminal: $(VENV)/ready  ## the chat's screen beside printing plain text (minutes)
	$(BIN)/python -m benchmarks.terminal

pictures: $(VENV)/ready  ## the pictures in the docs
	$(BIN)/python docs/make_pictures.py

kills: $(VENV)/ready  ## 200 chats that are killed at random moments (minutes)
	$(BIN)/python -m pytest -q -s -m slow tests/agent/chat/test_kills.py

bench-kernels: $(VENV)/ready  ## the kernels, on a GPU
	$(BIN)/python -m benchmarks.kernels

bench-stack: $(VENV)/ready  ## a few layers at M3's true widths, on a GPU (minutes)
	$(BIN)/python -m benchmarks.stack

nano: ## train the embedded model anew (on a GPU machine)
	training/run.sh

clean:
	rm -rf $(VENV) dist build
