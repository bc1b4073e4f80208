# make run    an estimate for Llama-2-7B on 8 GPUs
# make serve  the web page, on this machine
# make site   the page and the documents as plain files, which need no server, in build/site
# make test   everything that has to hold; installs what it needs; 12 minutes on two cores
# make proof  whole corpora and long fuzzing; before a release, more than an hour on two cores
# make mutants  small faults in the formulas, one at a time: the tests must notice 90 %; half an hour
# make lint   style, types and the direction of imports
# make release  the source, wheels, their components and sums in dist/, built, checked and installed
# make bench  how fast it is, as ratios measured in one run
# make compare-traces N=500   estimates against traces of random runs; about 3 s a run
# make drift  what changed in the frameworks since their source was read; writes nothing
# make drift-update TABLES=vllm  writes the lock files of arguments: what each release has
# make gptlite-bench          the worked example, predicted and, where there is a GPU, measured

PYTHON ?= python3
unexport PYTHONDONTWRITEBYTECODE # programs that tests start should find compiled modules
VENV := .venv
BIN := $(VENV)/bin
# modules are compiled when first imported: most of what is installed never is
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: run serve site test proof mutants programs lint bench compare-traces drift drift-update gptlite-bench release clean

run: $(VENV)/base
	@$(BIN)/gpu-mem-calc quick 7 --gpus 8 --engine deepspeed

serve: $(VENV)/web
	$(BIN)/gpu-mem-calc serve

SITE ?= build/site
site: $(VENV)/dev
	$(BIN)/python -m maintenance.site $(SITE) --packages $(VENV)/pyodide --documents documents
	$(BIN)/python -m maintenance.documents $(SITE)/documents

# lint needs one core and installing torch little more than the network, so they share the time
test: $(VENV)/dev
	$(MAKE) -j 2 lint programs
	rm -rf .lines
	LINES_REACHED=.lines $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m tests.architecture.coverage_floor .lines

proof: programs
	command -v valgrind || { apt-get update -qq && apt-get install -qq -y valgrind; } \
	  || echo "no valgrind could be installed: the instructions of standard questions are not counted"
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m proof
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -n auto tests/properties tests/web/test_fuzz.py
	$(BIN)/python -m tests.random_runs --runs $(N) --seed $(SEED)

mutants: $(VENV)/reference
	$(BIN)/python -m maintenance.mutants

programs: $(VENV)/reference $(VENV)/browser $(VENV)/sandbox $(VENV)/helm $(VENV)/pyodide/fetched

lint: $(VENV)/dev
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

release: $(VENV)/release
	rm -rf dist
	$(BIN)/python deploy/release.py dist

bench: $(VENV)/browser
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.estimates
	$(BIN)/python -m benchmarks.releases
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/stream.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python -m benchmarks.snapshot
	$(BIN)/python -m benchmarks.agents
	$(BIN)/python -m benchmarks.web
	$(BIN)/python -m benchmarks.visitors
	$(BIN)/python -m benchmarks.page

N ?= 500
SEED ?= 0
compare-traces: $(VENV)/reference
	$(BIN)/python -m tests.random_runs --runs $(N) --seed $(SEED)

drift: $(VENV)/base
	$(BIN)/python -m maintenance.drift

TABLES ?=
drift-update: $(VENV)/base
	$(BIN)/python -m maintenance.releases $(TABLES)

gptlite-bench: $(VENV)/reference
	cd examples/gptlite && ../../$(BIN)/python bench.py predict ../../docs/gptlite
	cd examples/gptlite && ../../$(BIN)/python bench.py measure ../../docs/gptlite
	cd examples/gptlite && ../../$(BIN)/python bench.py records ../../docs/gptlite
	$(BIN)/python docs/gptlite_page.py

clean:
	rm -rf $(VENV)

# a newer pip reads an index in half the time; where none can be had, Python's own does
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	-$(PIP) --upgrade pip

# an install compiles the replay in C, where there is a compiler
INSTALLED := pyproject.toml constraints.txt native/replay.c native/replay.h

$(VENV)/base: $(BIN)/python $(INSTALLED)
	$(PIP) -e .
	@touch $@

$(VENV)/web: $(BIN)/python $(INSTALLED)
	$(PIP) -e ".[web]"
	@touch $@

$(VENV)/dev: $(BIN)/python $(INSTALLED)
	$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/release: $(VENV)/dev
	$(PIP) -e ".[release]"
	@touch $@

# torch, transformers and DeepSpeed without a GPU: what traces run, and what every family's shapes
# are compared with
$(VENV)/reference: $(VENV)/dev
	$(PIP) torch
	$(PIP) transformers peft deepspeed
	@touch $@

# a browser for the page's tests: the system's own, where it can be without windows, else one that
# Playwright brings
$(VENV)/browser: $(VENV)/dev
	command -v chromium-headless-shell \
	  || { apt-get update -qq && apt-get install -qq -y chromium-headless-shell; } \
	  || command -v chromium || $(BIN)/playwright install chromium \
	  || echo "no browser could be installed: the tests of the page are skipped"
	@touch $@

# what runs pods as a cluster would; without it they run with less around them
$(VENV)/sandbox: $(VENV)/dev | $(VENV)/browser
	command -v bwrap || { apt-get update -qq && apt-get install -qq -y bubblewrap; } \
	  || echo "no sandbox could be installed: pods run without one"
	@touch $@

# Helm itself, which the chart's tests ask beside gotpl, where it can be had and runs
$(VENV)/helm: $(VENV)/dev
	$(BIN)/python -m tests.deploy.fetch_helm $(BIN)/helm
	@touch $@

# Python for the browser: what the page without a server is built and tested with
$(VENV)/pyodide/fetched: maintenance/site/packages.py | $(VENV)/dev
	$(BIN)/python -m maintenance.site.packages $(VENV)/pyodide
	@touch $@
