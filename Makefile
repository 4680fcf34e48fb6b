# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-gpu lint docs bench bench-clusters verify-sweep clean

# Plans a small GPT over 4 virtual CPU devices, next to the plans that people copy. The flags make XLA
# compile faster; they change little else, because matrix products come from a library.
demo: $(STAMP)
	XLA_FLAGS="--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true" $(BIN)/cfp plan gpt --size small --layers 2 --hidden 128 --seq 32 --batch 8 --mesh 4 --platform cpu \
		--beside data_parallel,megatron,zero1,fsdp,alpa \
		--out plan.json

test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal -q

# Runs what needs a GPU, on a machine with one and JAX with CUDA. Elsewhere each test says why it is
# skipped.
test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu -q tests/gpu

# Builds the documentation into build/site; the tests build it, too, and refuse warnings.
docs: $(STAMP)
	$(BIN)/python -m mkdocs build

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Writes measurements to bench/results, with the command and the environment. It takes an hour or more.
bench: $(STAMP)
	$(BIN)/python -m bench.analysis_scaling
	$(BIN)/python -m bench.theorem
	$(BIN)/python -m bench.apply_overhead
	$(BIN)/python -m bench.jit_start
	$(BIN)/python -m bench.top_plans
	$(BIN)/python -m bench.profiling_cost
	$(BIN)/python -m bench.search_scaling
	$(BIN)/python -m bench.prediction
	$(BIN)/python -m bench.plan_quality
	$(BIN)/python -m bench.memory_limit
	$(BIN)/python -m bench.search_overhead
	$(BIN)/python -m bench.limit_planning

# Does the same on clusters made of network namespaces. It needs root and iproute2, and takes many hours.
# Plans are kept, so running a part of it (`python -m bench.throughput --models gpt`) loses nothing.
bench-clusters: $(STAMP)
	$(BIN)/python -m bench.throughput
	$(BIN)/python -m bench.communication
	$(BIN)/python -m bench.volume_vs_time
	$(BIN)/python -m bench.communication_model
	$(BIN)/python -m bench.case_study
	$(BIN)/python -m bench.limit_on_cluster
	$(BIN)/python -m bench.following
	$(BIN)/python -m bench.prediction --cluster slow_200mbit

# Compares hundreds of plans with the unsharded step: an hour on two cores. A run that was stopped goes
# on where it was.
verify-sweep: $(STAMP)
	$(BIN)/python -m bench.verify --jobs 2

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 14); sys.exit(0 if ok else "CFP needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
