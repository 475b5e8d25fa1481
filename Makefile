# Two commands for a newcomer: `make serve` and `make test`. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
CARGO ?= cargo
PYTHON ?= python3
VENV := target/clients
DIST_TOOLS := target/dist-tools
STAGE := target/install/stage
JAVA := $(abspath target/clients-java)
# A first build gains nothing from incremental files, which take almost half of the target folder.
ifeq ($(wildcard target/debug),)
export CARGO_INCREMENTAL ?= 0
endif
APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get
# Cargo's target folder may be elsewhere, so ask cargo for it.
BIN = $(shell $(CARGO) metadata --format-version 1 --no-deps | $(PYTHON) -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')

.PHONY: help serve test test-long test-core test-build test-rust test-clients test-console test-console-page test-java test-go test-smb test-packages test-flips test-cancel static lint deny install dist bench bench-smb fuzz clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

serve: ## Build and run on the embedded default: data in ./lazuli-data, ports 10000 to 10003, SMB on 10445
	$(CARGO) run --release -p lazuli -- serve

# The parts of `make test`, in order, with their names in its summary.
PARTS := 'test-build=build, lint and docs' 'test-rust=Rust tests' 'test-clients=Python and Node clients' \
  'test-console=console' 'test-java=Java clients' 'test-go=Go clients' 'test-smb=smbtorture' 'test-packages=packages and README snippets'

test: ## Install what the tests need, then lint and test everything; prints the seconds of each part
	@$(PYTHON) tests/parts.py $(MAKE) $(PARTS)

test-core: test-build test-rust ## Format, lints, and all Rust tests

test-build: static ## The static checks, documentation, and a build of everything that the tests run
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --workspace --no-deps --document-private-items
	$(CARGO) test --workspace --no-run

test-rust: fuse ## All Rust tests
	$(CARGO) test --workspace --no-fail-fast

test-clients: $(VENV)/installed binary ## Unmodified client libraries, tools and the examples against a real server
	LAZULI=$(BIN)/debug/lazuli RCLONE=$(abspath $(VENV))/bin/rclone NODE_MODULES=$(abspath $(VENV))/node_modules \
	  AZCOPY=$(abspath $(VENV))/azcopy $(VENV)/bin/python -m pytest -q tests/clients

test-java: $(VENV)/installed binary ## Every operation by the Java clients, if a JDK of 17 or later and Maven are installed
	@if ! command -v javac >/dev/null; then echo "Left out the Java clients: no JDK is installed"; \
	elif ! command -v mvn >/dev/null; then echo "Left out the Java clients: Maven is not installed"; \
	elif ! javac --release 17 -version >/dev/null 2>&1; then echo "Left out the Java clients: the JDK is older than 17"; \
	else mvn -q -B -Dstyle.color=never -f tests/clients/java compile dependency:build-classpath -Dmdep.outputFile=$(JAVA)/classpath; \
	  LAZULI=$(BIN)/debug/lazuli $(VENV)/bin/python tests/clients/run_with_server.py \
	    java -cp "$(JAVA)/classes:$$(cat $(JAVA)/classpath)" lazuli.clients.Run; fi

test-go: $(VENV)/installed binary ## Every operation by the Go clients, if Go 1.25 or later is installed
	@if ! command -v go >/dev/null; then echo "Left out the Go clients: Go is not installed"; \
	elif [ "$$(printf 'go1.25\n%s\n' "$$(go env GOVERSION)" | sort -V | head -n 1)" != go1.25 ]; then \
	  echo "Left out the Go clients: $$(go env GOVERSION) is older than 1.25"; \
	else LAZULI=$(BIN)/debug/lazuli $(VENV)/bin/python tests/clients/run_with_server.py \
	    go test -C tests/clients/go -count=1 -v ./...; fi

CONSOLE := target/console
test-console: $(CONSOLE)/installed binary ## The console: its API, streams and security, with SDK clients at the same time
	LAZULI=$(BIN)/debug/lazuli CONSOLE_MODULES=$(abspath $(CONSOLE))/node_modules \
	  node --test --test-concurrency=1 tests/console/api.test.mjs tests/console/locales.test.mjs

test-console-page: $(CONSOLE)/installed binary ## The console's page in Debian's Chromium; not yet part of `make test`, because a conflict at the moment of a change of screens can be missed
	LAZULI=$(BIN)/debug/lazuli CONSOLE_MODULES=$(abspath $(CONSOLE))/node_modules node --test --test-concurrency=1 tests/console/

$(CONSOLE)/installed: tests/console/package-lock.json
	command -v npm >/dev/null || { $(APT) update -qq && $(APT) install -y -qq nodejs npm; }
	command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || { $(APT) update -qq && \
	  { $(APT) install -y -qq --no-install-recommends chromium-headless-shell || $(APT) install -y -qq --no-install-recommends chromium; }; }
	mkdir -p $(CONSOLE)
	cp tests/console/package.json tests/console/package-lock.json $(CONSOLE)/
	cd $(CONSOLE) && npm ci --silent --no-audit --no-fund
	touch $@

test-smb: $(VENV)/installed binary ## The tests of Samba's smbtorture that must not be lost
	$(PYTHON) tests/smb/torture.py --lazuli $(BIN)/debug/lazuli --passing

test-packages: $(VENV)/installed binary ## The packages, built from the debug binary and used as users would, and the snippets of the README
	LAZULI=$(BIN)/debug/lazuli RCLONE=$(abspath $(VENV))/bin/rclone NODE_MODULES=$(abspath $(VENV))/node_modules \
	  AZCOPY=$(abspath $(VENV))/azcopy $(VENV)/bin/python -m pytest -q tests/packages

test-long: ## The cluster engine: 20,000 simulated seeds, and that planted mistakes are found
	LAZULI_SECONDS=1000000 LAZULI_SEEDS=20000 $(CARGO) test -p lazuli-cluster --lib seeds_have -- --nocapture
	$(CARGO) test -p lazuli-cluster --lib -- --ignored --nocapture

test-flips: ## Flip every bit of a small data directory, one at a time: a quarter of an hour
	$(CARGO) test -p lazuli-torture --test flips -- --all

test-cancel: ## Drop every request at every point at which it waits: about a minute
	LAZULI_CANCEL_SECONDS=all $(CARGO) test -p lazuli-torture --test cancel -- --nocapture

# The debug binary, with the features that `cargo test --workspace` chooses (tests/features.py), so that one
# build serves all tests. `-p lazuli` would choose the features of a release build.
.PHONY: binary
binary:
	$(CARGO) build --bin lazuli

static: ## Format, module cycles, prose, links, features, and clippy with warnings denied
	$(CARGO) fmt --all --check
	$(PYTHON) tests/cycles.py
	$(PYTHON) tests/prose_test.py
	$(PYTHON) tests/prose.py
	$(PYTHON) tests/links.py
	$(PYTHON) tests/features.py
	$(CARGO) clippy --workspace --all-targets -- -D warnings

lint: static ## The static checks, and cargo-deny if it is installed
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(MAKE) deny; else echo "cargo-deny is not installed: cargo install --locked cargo-deny"; fi

deny: ## Check licenses, duplicates and sources of dependencies
	$(CARGO) deny check bans licenses sources

PREFIX ?= /usr/local
install: ## Build as `make serve` does, and install with man pages and completions; PREFIX is /usr/local
	$(CARGO) build --release --locked -p lazuli
	$(PYTHON) packaging/dist.py --binary $(BIN)/release/lazuli --out target/install stage
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	  $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 $(STAGE)/lazuli $(DESTDIR)$(PREFIX)/bin/lazuli
	install -m 644 $(STAGE)/man/* $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 $(STAGE)/completions/lazuli.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/lazuli
	install -m 644 $(STAGE)/completions/_lazuli $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_lazuli
	install -m 644 $(STAGE)/completions/lazuli.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/lazuli.fish

dist: $(DIST_TOOLS)/installed ## Build all packages into target/dist-packages: tar.gz, deb, rpm, npm, wheel, root file system of the image
	$(CARGO) deb --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deb
	$(CARGO) generate-rpm --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-generate-rpm
	$(DIST_TOOLS)/bin/python packaging/dist.py

bench: ## Compare with the raw disk, Azurite, nginx and smbd; writes bench-results/index.html
	$(CARGO) build --release -p lazuli
	$(BIN)/release/lazuli bench compare --out bench-results
	$(MAKE) bench-smb

bench-smb: ## Compare SMB with a local smbd, by the same client; writes bench-results/smb.txt
	command -v smbd >/dev/null && command -v smbclient >/dev/null || { $(APT) update -qq && $(APT) install -y -qq --no-install-recommends samba smbclient; }
	$(CARGO) build --release -p lazuli
	$(PYTHON) tests/smb/bench.py --lazuli $(BIN)/release/lazuli --out bench-results/smb.txt

fuzz: ## Fuzz every parser that reads the network, a minute each
	./fuzz/run $${SECONDS_EACH:-60}

clean: ## Remove what was built
	$(CARGO) clean

# The power-loss tests mount a file system of their own. Root mounts it directly; others need fusermount3.
.PHONY: fuse
fuse:
	@if [ "$$(id -u)" != 0 ] && ! command -v fusermount3 >/dev/null; then \
	  if command -v apt-get >/dev/null && command -v sudo >/dev/null; then sudo apt-get update -qq && sudo apt-get install -y -qq fuse3; \
	  else echo "fusermount3 (package fuse3) is missing: the power-loss tests will say that they were skipped"; fi; fi

$(DIST_TOOLS)/installed:
	$(PYTHON) -m venv $(DIST_TOOLS) || { $(APT) update -qq && $(APT) install -y -qq python3-venv && $(PYTHON) -m venv $(DIST_TOOLS); }
	$(DIST_TOOLS)/bin/pip install -q wheel==0.45.1
	command -v npm >/dev/null || { $(APT) update -qq && $(APT) install -y -qq nodejs npm; }
	touch $@

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
