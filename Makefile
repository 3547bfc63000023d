# Two commands do everything: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Simulated nodes are made of namespaces and mounts, which need root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: man demo test test-systemd test-gpu chaos lint build clean help bench

help:
	@echo "make demo   four simulated GPU nodes, a look, a reset, the result (needs root or sudo)"
	@echo "make test   all tests, on simulated nodes (needs root or sudo)"
	@echo "make test-systemd   tests on a node with a real systemd (builds it once, a minute and a half)"
	@echo "make test-gpu       resets of this machine's real NVIDIA GPUs, which must be idle"
	@echo "make chaos N=1000   random scenes and faults, with an oracle that knows the truth"
	@echo "make bench          measurements beside pdsh, clush, pssh, Ansible and others (BENCH=reset --runs 3)"
	@echo "make lint   ruff, mypy, shellcheck, import contracts"
	@echo "make man    docs/gpufleet.1 from the commands' help"
	@echo "make build  the wheel, in dist/"

demo: $(VENV)/.ready
	$(SUDO) sh tests/demo.sh $(BIN)

test: $(VENV)/.ready
	$(SUDO) $(BIN)/python -m pytest -m "not gpu" -n 4 --dist loadfile

# The root file system is built once, into the user's cache folder; `make test` then runs these as well.
test-systemd: $(VENV)/.ready
	command -v systemd-nspawn >/dev/null && PATH=$$PATH:/usr/sbin command -v debootstrap >/dev/null || \
	  $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  debootstrap systemd-container
	$(SUDO) $(BIN)/python -m tests.systemd
	$(SUDO) $(BIN)/python -m pytest tests/systemd

test-gpu: $(VENV)/.ready
	$(SUDO) $(BIN)/python -m pytest tests/gpu -m gpu

N := 1000
SEED :=
chaos: $(VENV)/.ready
	$(SUDO) $(BIN)/python -m tests.chaos --resets $(N) --nodes 6 $(if $(SEED),--seed $(SEED))

# The peers are installed first: Debian's pdsh and pssh, the others into .bench-venv.
BENCH :=
bench: $(VENV)/.ready
	sh bench/setup.sh $(PYTHON) .bench-venv
	$(SUDO) .bench-venv/bin/python -m bench $(BENCH)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	shellcheck -s sh gpufleet/node/*.sh tests/*.sh bench/*.sh
	shellcheck .ci/run tests/systemd/keeper.sh

man: $(VENV)/.ready
	$(BIN)/python -m tests.manpage

build: $(VENV)/.ready
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) .bench-venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/.ready: pyproject.toml tests/provision.sh
	sh tests/provision.sh $(PYTHON) $(VENV)
	touch $@
