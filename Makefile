# Two commands for a newcomer: `make serve` and `make test`. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
CARGO ?= cargo
PYTHON ?= python3
VENV := target/clients
APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get
# Cargo's target folder may lie elsewhere; the binary is where cargo says.
BIN = $(shell $(CARGO) metadata --format-version 1 --no-deps | $(PYTHON) -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')

.PHONY: help serve test test-core test-clients test-smb lint deny bench bench-smb fuzz clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

serve: ## Build and run on the embedded default: data in ./lazuli-data, ports 10000 to 10003, SMB on 10445
	$(CARGO) run --release --bin lazuli -- serve

test: test-core test-clients test-smb ## Install what the tests need, then lint and test everything

test-core: fuse ## Format, lints, and all Rust tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace --no-fail-fast

test-clients: $(VENV)/installed ## Unmodified client libraries and tools against a real server
	$(CARGO) build --bin lazuli
	LAZULI=$(BIN)/debug/lazuli RCLONE=$(abspath $(VENV))/bin/rclone NODE_MODULES=$(abspath $(VENV))/node_modules \
	  AZCOPY=$(abspath $(VENV))/azcopy $(VENV)/bin/python -m pytest -q tests/clients

test-smb: $(VENV)/installed ## The tests of Samba's smbtorture that must not be lost
	$(CARGO) build --bin lazuli
	$(PYTHON) tests/smb/torture.py --lazuli $(BIN)/debug/lazuli --passing

lint: ## Format, clippy with warnings denied, and cargo-deny if it is installed
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(MAKE) deny; else echo "cargo-deny is not installed: cargo install --locked cargo-deny"; fi

deny: ## Licences, duplicates and sources of dependencies
	$(CARGO) deny check bans licenses sources

bench: ## Measure beside the raw disk, Azurite, nginx and smbd; writes bench-results/index.html
	$(CARGO) build --release --bin lazuli
	$(BIN)/release/lazuli bench compare --out bench-results
	$(MAKE) bench-smb

bench-smb: ## SMB beside a local smbd, the same client; writes bench-results/smb.txt
	command -v smbd >/dev/null && command -v smbclient >/dev/null || { $(APT) update -qq && $(APT) install -y -qq --no-install-recommends samba smbclient; }
	$(CARGO) build --release --bin lazuli
	$(PYTHON) tests/smb/bench.py --lazuli $(BIN)/release/lazuli --out bench-results/smb.txt

fuzz: ## Fuzz every parser that sees the network, a minute each (needs nightly and cargo-fuzz)
	./fuzz/run $${SECONDS_EACH:-60}

clean: ## Remove what was built
	$(CARGO) clean

# The power-loss tests mount a file system of their own. Root mounts it directly; others need fusermount3.
.PHONY: fuse
fuse:
	@if [ "$$(id -u)" != 0 ] && ! command -v fusermount3 >/dev/null; then \
	  if command -v apt-get >/dev/null && command -v sudo >/dev/null; then sudo apt-get update -qq && sudo apt-get install -y -qq fuse3; \
	  else echo "fusermount3 (package fuse3) is missing: the power-loss tests will say that they were skipped"; fi; fi

$(VENV)/installed: tests/clients/requirements.txt tests/clients/js/package-lock.json
	$(PYTHON) -m venv $(VENV) || { $(APT) update -qq && $(APT) install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	$(VENV)/bin/pip install -q -r tests/clients/requirements.txt
	command -v npm >/dev/null || { $(APT) update -qq && $(APT) install -y -qq nodejs npm; }
	ldconfig -p | grep -q libsecret-1.so.0 || { $(APT) update -qq && $(APT) install -y -qq libsecret-1-0; }
	command -v smbtorture >/dev/null && command -v smbclient >/dev/null || { $(APT) update -qq && $(APT) install -y -qq --no-install-recommends smbclient samba-testsuite; }
	cp tests/clients/js/package.json tests/clients/js/package-lock.json $(VENV)/
	cd $(VENV) && npm ci --silent --no-audit --no-fund
	install -m 755 $(VENV)/node_modules/@azure-tools/azcopy-linux/dist/bin/azcopy_linux_$$(dpkg --print-architecture 2>/dev/null || echo amd64) $(VENV)/azcopy
	touch $@
