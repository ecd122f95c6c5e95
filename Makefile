# Every target does its own set-up; a second start takes seconds. ARGS="..." is passed on.
PYTHON_ENV := .venv/bin/python
ARGS ?=
# Tests run in as many processes as there are cores, four at most: each takes a gigabyte or two.
PYTEST := $(PYTHON_ENV) -m pytest -n logical --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo robot-demo quickstart test test-slow lint types lock clean base all

help:
	@echo "make demo        drive a learned world in the browser (installs what it needs)"
	@echo "make robot-demo  break a robot in the browser and watch it correct itself"
	@echo "make quickstart  collect, train, roll out and evaluate a tiny world: under 5 minutes on a quiet machine"
	@echo "make test        lint, types and the default tests (installs everything)"
	@echo "make test-slow   the tests marked slow"
	@echo "make lint types  the static checks alone"
	@echo "make lock        resolve requirements.lock anew from pyproject.toml"
	@echo "make clean       remove .venv and caches (never runs/)"

demo: base
	@$(PYTHON_ENV) -m worldmodel demo $(ARGS)

robot-demo: all
	@$(PYTHON_ENV) -m worldmodel robot-demo demos/models/button_press \
		--encoder demos/models/button_press_context $(ARGS)

quickstart: base
	@$(PYTHON_ENV) demos/quickstart.py $(ARGS)

test: lint types
	@bash setup/system.sh
	-@$(PYTHON_ENV) -m worldmodel face fetch --what all >/dev/null # its tests are skipped without it
	$(PYTEST) $(ARGS)

test-slow: all
	@bash setup/system.sh
	$(PYTEST) -m slow --timeout 900 $(ARGS)

lint: all
	.venv/bin/ruff check
	.venv/bin/ruff format --check

types: all
	.venv/bin/basedpyright

lock: all
	.venv/bin/uv pip compile pyproject.toml --all-extras --universal --python-version 3.12 --upgrade --quiet \
	    --no-header --no-annotate --output-file requirements.lock

base all:
	@bash setup/install.sh $@

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
