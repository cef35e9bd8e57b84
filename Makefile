# Every target does its own set-up in .venv; the second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Data sets beside the repository are used if they are there; ordinary users download them.
ifneq ($(wildcard ../shared/data/README.md),)
export KASURI_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo test test-thorough test-oldest test-newest lint format docs tables check-tables
.PHONY: bench bench-peers race clean

demo: $(VENV)/.demo  ## plain, mean-field and k-tied networks on bundled data: table and report
	$(BIN)/kasuri run demo/digits --threads 1 --force --results build/demo --runs build/demo/runs
	$(BIN)/kasuri report build/demo --output build/demo/report.html --title "kasuri demo"

test: $(VENV)/.dev  ## everything, on all cores
	$(BIN)/python -m pytest -n auto --dist worksteal

test-thorough: $(VENV)/.dev  ## what takes long and is tested in another form by `make test`
	$(BIN)/python -m pytest -n auto --dist worksteal -m thorough

# the tests of the core on other versions of torch, each in an environment of its own
test-oldest:  ## torch 2.6, the oldest that is supported
	$(MAKE) core-tests TORCH='torch==2.6.0 numpy<2.3' ON=oldest
test-newest:  ## the newest torch there is
	$(MAKE) core-tests TORCH='torch' ON=newest
core-tests:
	$(PYTHON) -m venv $(VENV)-$(ON)
	$(VENV)-$(ON)/bin/pip --disable-pip-version-check install --quiet --upgrade $(foreach one,$(TORCH),'$(one)') \
	  pytest scipy safetensors scikit-learn
	$(VENV)-$(ON)/bin/python -m pytest tests/network tests/laws tests/numerics/test_torch_internals.py

lint: $(VENV)/.dev  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev  ## the documentation site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

tables: $(VENV)/.demo  ## tables and pictures of README and docs from result files
	$(BIN)/python -m tools.tables

check-tables: tables  ## fails if a table or picture is not that of the result files
	git diff --exit-code --stat -- README.md docs

bench: $(VENV)/.demo  ## speed against the plain network, into results/bench/ and docs/benchmarks.md
	$(BIN)/python -m benchmarks.run --threads 1
	$(BIN)/python -m benchmarks.run --threads 2
	$(BIN)/python -m benchmarks.table

# other libraries without their dependencies, in an environment of their own
bench-peers: $(VENV)-peers/.done
	$(VENV)-peers/bin/python -m benchmarks.run --threads 1
	$(VENV)-peers/bin/python -m benchmarks.run --threads 2
	$(VENV)-peers/bin/python -m benchmarks.table

race: $(VENV)-peers/.done  ## seconds to a given ELBO, into results/race/ and docs/images/race.svg
	$(VENV)-peers/bin/python -m benchmarks.race

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(PIP) --editable .[demo]
	touch $@

$(VENV)/.dev: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(PIP) --editable .[dev]
	touch $@ $(VENV)/.demo

$(VENV)-peers/.done: pyproject.toml constraints.txt benchmarks/peers-requirements.txt
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable .[demo]
	$(VENV)-peers/bin/pip --disable-pip-version-check install --quiet --no-deps --requirement benchmarks/peers-requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-peers $(VENV)-oldest $(VENV)-newest site .mypy_cache .pytest_cache .ruff_cache
