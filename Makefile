# Tierwall. `make run` shows it, `make test` proves it; both install what they need into .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(or $(shell command -v uv 2>/dev/null),$(BIN)/uv)
# Locked files only: every file has a hash in the lock, and nothing is built from source, because building would fetch
# build backends that no lock names.
LOCKED := $(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-build --compile-bytecode
COMPILE := $(UV) pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11

# For fuzz and soak: how many times as much as in `make test`, and which tests.
TIMES ?= 10
TESTS ?= tests
SBOM  ?= dist/tierwall.cdx.json

# Commands and tests start hundreds of processes; where this is set, each of them would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install dev run tour-shop test fuzz soak check bench docs lock sbom krew image audit-dependencies clean kernel-tools cluster-tools node-tools browser-tools conformance tool-conformance mcp-suite

help: ## say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("tierwall needs Python 3.11 or later, found " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(BIN)/uv: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements/uv.txt

$(VENV)/.installed: pyproject.toml requirements/run.txt requirements/build.txt | $(BIN)/python $(if $(filter $(BIN)/uv,$(UV)),$(BIN)/uv)
	$(LOCKED) -r requirements/run.txt -r requirements/build.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.installed
	$(LOCKED) -r requirements/dev.txt
	@touch $@

install: $(VENV)/.installed ## put the command at .venv/bin/tierwall, dependencies locked

dev: $(VENV)/.dev ## install what developing and testing needs, too

run: dev ## two agents, an Envoy, policies: see who may call what, then play with it (ARGS=--once ends after the tour)
	@examples/agents/tour $(ARGS)

tour-shop: install ## check and test an example folder and show the report
	@examples/shop/tour

test: dev kernel-tools cluster-tools node-tools browser-tools mcp-suite ## everything: style, types, layers, tests
	$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest $(if $(filter true,$(CI)),--durations=20)

fuzz: dev ## the random tests with a fresh seed and TIMES=10 times the examples; prints how to replay
	@seed=$${SEED:-$$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}; \
	echo "seed $$seed; to replay: make fuzz SEED=$$seed TIMES=$(TIMES) TESTS='$(TESTS)'"; \
	TIERWALL_FUZZ=$(TIMES) TIERWALL_SEED=$$seed $(BIN)/python -m pytest --timeout=0 -m hypothesis --hypothesis-seed=$$seed $(TESTS) || \
	{ echo "failed with seed $$seed; to replay: make fuzz SEED=$$seed TIMES=$(TIMES) TESTS='FILE::TEST'"; exit 1; }

soak: dev kernel-tools cluster-tools node-tools ## storms of changes, kills and calls, TIMES=10 times as long as in `make test`
	TIERWALL_SOAK=$(TIMES) $(BIN)/python -m pytest --timeout=0 -m storm $(TESTS)

kernel-tools: ## install nft and ip, which tests of the kernel need; says so where it cannot
	@PATH="$$PATH:/usr/sbin:/sbin"; if command -v nft >/dev/null && command -v ip >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  install() { apt-get install -y -qq --no-install-recommends nftables iproute2 >/dev/null; }; \
	  install 2>/dev/null || { apt-get update -qq && install; } && exit 0; fi; \
	echo "nft and ip are missing and cannot be installed here (root and apt are needed): tests of the kernel will be skipped"

cluster-tools: ## build the kube-apiserver, kubectl, etcd and helm that the cluster tests run, once; says so where Go is absent
	@deploy/cluster-tools/build

node-tools: ## build or fetch the kubelet, containerd and so on that tests with real pods run, once; says so where it cannot
	@deploy/cluster-tools/nodes/build

browser-tools: ## install the chromium in which the explorer is tested; says so where it cannot
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  install() { apt-get install -y -qq --no-install-recommends chromium >/dev/null; }; \
	  install 2>/dev/null || { apt-get update -qq && install; } && exit 0; fi; \
	echo "chromium is missing and cannot be installed here (root and apt are needed): tests in a browser will be skipped"

mcp-suite: $(BIN)/uv ## install the official conformance suite of MCP and SDKs, once; says so where it cannot
	@deploy/mcp-suite/install

conformance: dev cluster-tools node-tools ## run upstream's suites on real nodes with the chart, SUITES="…" for some; reports go to dist/conformance
	@deploy/cluster-tools/conformance/build $(SUITES)
	$(BIN)/python -m tests.upstream_suites $(SUITES)

tool-conformance: dev ## ask an Envoy what kube-agentic-networking's suite asks; the report goes to dist/conformance
	@$(BIN)/python -m tests.tool_conformance

check: dev ## style, types, layers and plain words only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.plain_words

bench: dev ## measure; results belong in docs/performance.md
	$(BIN)/python -m bench

docs: install ## build the documentation site into site/
	$(LOCKED) -r requirements/docs.txt
	$(BIN)/mkdocs build --strict

lock: $(BIN)/uv ## compile the hash-pinned requirement files anew
	$(COMPILE) requirements/uv.in -o requirements/uv.txt
	$(COMPILE) pyproject.toml --all-extras -o requirements/run.txt
	$(COMPILE) pyproject.toml -c requirements/run.txt -o requirements/plain.txt
	$(COMPILE) pyproject.toml --extra cluster -c requirements/run.txt -o requirements/cluster.txt
	$(COMPILE) pyproject.toml --extra cluster --extra serve -c requirements/run.txt -o requirements/image.txt
	$(COMPILE) pyproject.toml --extra cluster --extra serve --extra envoy -c requirements/run.txt -o requirements/image-envoy.txt
	$(COMPILE) requirements/build.in -c requirements/run.txt -o requirements/build.txt
	$(COMPILE) pyproject.toml --all-extras requirements/dev.in -c requirements/run.txt -c requirements/build.txt -o requirements/dev.txt
	$(COMPILE) requirements/docs.in -o requirements/docs.txt
	$(COMPILE) deploy/mcp-suite/python.in -o deploy/mcp-suite/python.txt

sbom: dev ## write the software bill of materials (CycloneDX) to SBOM=dist/tierwall.cdx.json
	@$(BIN)/python -m supply sbom --output $(SBOM)

krew: dev ## build the kubectl plugin for krew into dist/krew; URI=https://… is where its archives will be
	@$(BIN)/python -m supply krew --output dist/krew --uri "$(URI)"

image: dev ## build both container images into dist/, each twice: the digests must be equal
	@mkdir -p dist; for kind in "" -envoy; do \
	  for time in first second; do deploy/image/build $${kind:+-$$kind} --out dist/tierwall$$kind.$$time.tar || exit 1; done; \
	  cmp dist/tierwall$$kind.first.tar dist/tierwall$$kind.second.tar || exit 1; \
	  rm dist/tierwall$$kind.second.tar; mv dist/tierwall$$kind.first.tar dist/tierwall$$kind.tar; done

audit-dependencies: dev ## check the locked versions against OSV="FILE..." (ACCEPT="ID..." do not count)
	@$(BIN)/python -m supply audit $(OSV) $(addprefix --accept ,$(ACCEPT))

clean: ## remove everything that was built
	rm -rf $(VENV) site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
