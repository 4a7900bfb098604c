# `make` lists what there is. The commands a contributor needs are few on purpose: everything that
# CI runs is `make test`.

PYTHON ?= python3
CARGO ?= cargo
# What `make bench` and `make soak` run in: a Neovim on PATH, or the one that is fetched.
NVIM ?= $(shell $(PYTHON) tests/nvim/fetch.py --one | cut -f2)
TARGET = $(or $(CARGO_TARGET_DIR),target)
LIBRARY = libgangway.$(if $(filter Darwin,$(shell uname -s)),dylib,so)

.DEFAULT_GOAL := help
.PHONY: help build demo try test lint bench soak fuzz test-agents dist docs picture

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the release library
	$(CARGO) build --release --locked --lib

demo: ## See a review from proposal to saved file, as text, in a minute
	$(CARGO) build --locked --lib --example agent
	$(PYTHON) tests/demo.py --library $(TARGET)/debug/$(LIBRARY) --agent $(TARGET)/debug/examples/agent

try: ## Open a Neovim with an agent that keeps proposing edits: press the keys yourself
	$(CARGO) build --locked --lib --example agent
	$(PYTHON) tests/demo.py --try --library $(TARGET)/debug/$(LIBRARY) --agent $(TARGET)/debug/examples/agent

test: ## Everything CI runs: lints, unit tests, end-to-end tests in three Neovims (ONLY=review)
	$(PYTHON) tests/run.py $(ONLY)

lint: ## Format, lints, Lua, the documentation against the code
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(PYTHON) tests/lint_lua.py
	$(PYTHON) tests/docs.py
	$(PYTHON) tests/rules.py

bench: ## Measure against Neovim's own floor; reports, never fails
	-GANGWAY_NVIM="$(NVIM)" $(CARGO) bench --locked --bench nvim

soak: ## What takes long, half an hour (NVIM=path ONLY=busy_day SECONDS=600 SEED=n)
	$(if $(SECONDS),GANGWAY_SECONDS=$(SECONDS) )$(if $(SEED),GANGWAY_SEED=$(SEED) )GANGWAY_NVIM="$(NVIM)" \
	  $(CARGO) test --release --locked --test nvim -- $(ONLY) --ignored --show-output --test-threads=1

fuzz: ## Ten minutes of mutated input for each parser (ONLY=uri SECONDS=600 SEED=n)
	FUZZ_SECONDS=$(or $(SECONDS),600) $(if $(SEED),FUZZ_SEED=$(SEED) )GANGWAY_NVIM="$(NVIM)" \
	  $(CARGO) test --release --locked --lib --test server --test nvim -- fuzz_$(ONLY) --show-output

test-agents: ## The shipped agents (ONLY="gemini pi"), offline; 1.8 GB of npm packages, ten minutes
	$(CARGO) build --locked --lib
	$(PYTHON) tests/agents/run.py --library $(TARGET)/debug/$(LIBRARY) $(ONLY)

dist: build ## This machine's release archive and its checksum, in dist/
	$(PYTHON) scripts/dist.py --library $(TARGET)/release/$(LIBRARY)

picture: ## Draw doc/review.svg anew, from a real Neovim
	$(CARGO) build --locked --lib
	$(PYTHON) tests/picture.py --library $(TARGET)/debug/$(LIBRARY)

docs: ## The crate's documentation, and the tags of :help gangway
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items
	@test ! -d doc || "$(NVIM)" --clean --headless "+helptags doc" +qa!
