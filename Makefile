# `make demo` to see it, `make test` to trust it. Everything is installed into .venv, nothing elsewhere
# (but for Debian's Chromium, which the test of the page installs where it may).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
EXTRAS = lab,gem,sklearn,river,tune,ray,tensorboard

.PHONY: demo test torture lint bench docs reproduction wheel format clean help

help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab]'
	@touch $@

$(VENV)/.development: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS),development]'
	@touch $@

# The compiled kernels, where there is a C compiler; without them everything works, slower on some processors.
$(VENV)/.kernels: $(shell find kernels/src kernels/pyproject.toml) | $(VENV)/.development
	if command -v cc >/dev/null; then $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation ./kernels; else echo "no C compiler: rehearse-kernels is not installed"; fi
	@touch $@

demo: $(VENV)/.demo  ## compare plain replay with most-interfered replay on five tasks of real digits
	$(BIN)/rehearse run --out runs/demo

test: $(VENV)/.development $(VENV)/.kernels lint  ## everything that CI checks
	sh tests/lab/page/install-chromium
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup
	if [ -x "$$(command -v cc)" ]; then cd kernels && ../$(BIN)/python -m pytest -q -n 2 tests; fi

torture: $(VENV)/.development $(VENV)/.kernels  ## try for an hour to break a learner; writes docs/reliability.md
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --write docs/reliability.md

lint: $(VENV)/.development  ## style, types, and the direction of imports
	$(BIN)/ruff check src tests benchmarks pages kernels
	$(BIN)/ruff format --check src tests benchmarks pages kernels
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.development  ## how fast, as ratios within one run; writes docs/performance.md
	$(BIN)/python benchmarks/bench.py

docs: $(VENV)/.development  ## the site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reproduction: $(VENV)/.development  ## README.md and all pages with results, from results/
	$(BIN)/rehearse reproduce all --from-results results --write docs/reproduction.md \
		--fill docs/methods/ae.md
	$(BIN)/python -m pages

wheel: $(VENV)/.development  ## dist/*.whl
	$(BIN)/python -m build --wheel --quiet

format: $(VENV)/.development
	$(BIN)/ruff check --fix src tests benchmarks pages
	$(BIN)/ruff format src tests benchmarks pages

clean:
	rm -rf dist build site runs/demo
