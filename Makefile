# Every target works by itself on a machine with Python 3.11 or later, a C++20 compiler, make and pip.
# Stamp files in the environment make a second run cheap; a changed pyproject.toml renews them.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# An import may rebuild the engine: CMake and Ninja of the environment must be found first.
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python
STAMP := $(VENV)/stamp
CPP_DIRS := $(wildcard csrc cuda tests/cuda)
CPP_FILES = $(shell find $(CPP_DIRS) -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh')
# Without the package installed, lint does not depend on other contents of an environment.
LINT_VENV := $(VENV)-lint
SANITIZE_VENV := $(VENV)-sanitize

# Kernels report lines, a machine without a GPU fails, and few random cases run, because they are slow.
# racecheck finds races in shared memory, which the tests of kernels cover.
CUDA ?= cuda12
COMPUTE_SANITIZER ?= compute-sanitizer
SANITIZED_CUDA = PATH="$(CURDIR)/$(BIN):$$PATH" CAVS_LINE_INFO=1 CAVS_TEST_GPU=1 CAVS_TEST_UNPOOLED=1 CAVS_TEST_PATIENCE=20 \
	HYPOTHESIS_PROFILE=quick $(COMPUTE_SANITIZER) --error-exitcode 1
RACE_TESTS := tests/cuda/kernels tests/codegen tests/cuda/executor/test_persistent.py
MEMORY_TESTS := $(RACE_TESTS) $(addprefix tests/cuda/executor/,test_operators.py test_models.py test_launch_ahead.py \
	test_engine.py)

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench wheel sanitize sanitize-cuda build clean
.PHONY: test-packages named-data checks ruff ruff-format clang-format mypy layers rewrite sanitized-engine

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) JOBS=$(JOBS)"

demo: build  ## train a Tree-LSTM on real trees, a few minutes
	$(RUN) -m cavs.cli demo

test: build test-packages  ## run the whole test suite
	$(RUN) -m pytest -n $(JOBS)

test-packages: $(STAMP)-test

lint:  ## style, types and layers; changes nothing
	@$(MAKE) --no-print-directory --keep-going VENV=$(LINT_VENV) checks

format:  ## rewrite Python and C++ files in the project's style
	@$(MAKE) --no-print-directory VENV=$(LINT_VENV) rewrite

bench: named-data build $(STAMP)-bench  ## measure quickly against the rivals; writes benchmarks/results/latest
	$(RUN) -m benchmarks

# Fail before the environment with PyTorch is created.
named-data:
	@test -n "$$CAVS_DATA" || { echo "no data named: make bench CAVS_DATA=DIR (DIR holds sst/ and wikitext2/)," \
		"or CAVS_DATA=random for drawn samples" >&2; exit 2; }

wheel: $(STAMP)-requirements $(STAMP)-wheel  ## build a wheel for other machines into dist, and try it
	rm -rf $(VENV)/wheels
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(VENV)/wheels .
	PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --wheel-dir dist $(VENV)/wheels/cavs-*.whl
	$(BIN)/python tests/try_wheel.py dist

sanitize:  ## run the tests on an engine built with ASan and UBSan, then look for leaks
	@$(MAKE) --no-print-directory VENV=$(SANITIZE_VENV) sanitized-engine

sanitize-cuda: build $(STAMP)-test $(STAMP)-$(CUDA)  ## look for wrong accesses and races of the kernels on a GPU
	$(SANITIZED_CUDA) --tool memcheck $(BIN)/python -m pytest -m cuda $(MEMORY_TESTS)
	$(SANITIZED_CUDA) --tool racecheck $(BIN)/python -m pytest -m cuda $(RACE_TESTS)

build: $(STAMP)-build  ## create the environment and build the engine
	@$(RUN) -c "import cavs._engine"

clean:  ## remove environments, builds and caches
	rm -rf $(VENV) $(LINT_VENV) $(SANITIZE_VENV) build dist *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP)-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "cavs needs Python 3.11 or later; $(PYTHON) is: $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'
	@touch $@

# The build backend lists its missing requirements: CMake and Ninja, where they are absent or old.
$(STAMP)-requirements: pyproject.toml $(STAMP)-python
	$(PIP) 'scikit-build-core>=1.0' 'pybind11>=3.0'
	$(BIN)/python -c "import scikit_build_core.build as b; print(*b.get_requires_for_build_editable({}), sep='\n')" > $@.txt
	$(PIP) --requirement $@.txt
	@touch $@

# The engine is built inside the environment, so that two environments never share a build. The
# installed package rebuilds it on import when a source is newer.
$(STAMP)-build: csrc/CMakeLists.txt $(STAMP)-requirements
	$(PIP) --no-build-isolation -Ceditable.rebuild=true -Cbuild-dir=$(VENV)/engine --editable .
	@touch $@

$(STAMP)-test $(STAMP)-lint $(STAMP)-bench $(STAMP)-wheel: $(STAMP)-%: pyproject.toml $(STAMP)-python
	$(PIP) --group $*
	@touch $@

# Both install packages that the other needs: not at the same time.
$(STAMP)-test $(STAMP)-wheel: | $(STAMP)-requirements

# A GPU needs an extra of the package in addition to the build.
$(STAMP)-$(CUDA): pyproject.toml $(STAMP)-python
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(CUDA)'], sep='\n')" > $@.txt
	$(PIP) --requirement $@.txt
	@touch $@

checks: ruff ruff-format clang-format mypy layers
ruff: $(STAMP)-lint
	$(BIN)/ruff check .
ruff-format: $(STAMP)-lint
	$(BIN)/ruff format --check .
clang-format: $(STAMP)-lint
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
mypy: $(STAMP)-lint
	$(BIN)/mypy
layers: $(STAMP)-lint
	$(BIN)/lint-imports --no-logo

rewrite: $(STAMP)-lint
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_FILES)

# ASan must be loaded before Python, and libstdc++ before ASan looks for __cxa_throw. Preloading into
# the compiler would be slow, so this engine is not rebuilt on import. PYTHONMALLOC shows ASan every
# array.
$(STAMP)-sanitized: $(CPP_FILES) csrc/CMakeLists.txt $(STAMP)-requirements
	CXX=$(CXX) $(PIP) --no-build-isolation -Cbuild-dir=$(VENV)/engine -Cinstall.strip=false \
	  -Ccmake.build-type=Debug -Ccmake.define.CAVS_SANITIZE=ON -Ccmake.define.CAVS_WERROR=ON --editable .
	@touch $@

# Output is captured inside Python only, so that messages of a sanitizer on standard error are shown.
# Leaks are checked separately, in one process that runs the engine and starts no programs:
# other programs (a shell, git) leak, and would fail every test that starts one.
# Sanitized programs are slow, so tests wait longer for them.
SANITIZED = LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc \
	CAVS_TEST_PATIENCE=10 ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=
LEAK_TESTS := tests/data tests/exec tests/runtime tests/train/test_engine.py

sanitized-engine: $(STAMP)-sanitized $(STAMP)-test
	$(SANITIZED)0 $(BIN)/python -m pytest -n $(JOBS) --capture=sys
	$(SANITIZED)1 LSAN_OPTIONS=suppressions=csrc/leaks.supp HYPOTHESIS_PROFILE=quick \
	  $(BIN)/python -m pytest --capture=sys $(LEAK_TESTS)
