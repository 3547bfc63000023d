# Two commands do everything: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Simulated nodes are made of namespaces and mounts, which need root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo test lint build clean help

help:
	@echo "make demo   four simulated GPU nodes, a look, a reset, the result (needs root or sudo)"
	@echo "make test   all tests, on simulated nodes (needs root or sudo)"
	@echo "make lint   ruff, mypy, shellcheck, import contracts"
	@echo "make build  the wheel, in dist/"

demo: $(VENV)/.ready
	$(SUDO) sh tests/demo.sh $(BIN)

test: $(VENV)/.ready
	$(SUDO) $(BIN)/python -m pytest

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	shellcheck -s sh gpufleet/node/*.sh tests/*.sh
	shellcheck .ci/run

build: $(VENV)/.ready
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/.ready: pyproject.toml tests/provision.sh
	sh tests/provision.sh $(PYTHON) $(VENV)
	touch $@
