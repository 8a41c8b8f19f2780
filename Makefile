# Everything a newcomer or a CI machine needs. `make` alone lists it.

.DEFAULT_GOAL := help
# `make test SETUP=no` runs the tests with what is installed already; those that need more are reported as skipped.
SETUP_TESTS := $(if $(filter no,$(SETUP)),true,scripts/setup)
# The tests are built meanwhile, since much of the setup waits for the network. What does not build is told by scripts/test.
SET_UP_AND_BUILD = $(SETUP_TESTS) & setup=$$!; cargo xtask test --no-run; wait $$setup
# The tests run `make run` with what they have built anyway.
BUILD ?= cargo build --package weir --package xtask
.PHONY: help run test test-full check fmt docs setup fuzz compare results pictures release dist package reproduce

help: ## Lists these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

run: ## Builds weir, starts it before a demo backend, and sends a first request through it (ONCE=yes: and stops)
	@echo 'Building weir: some 350 crates, about 6 minutes of processor time at the first run, seconds later.'
	@$(BUILD)
	@$${CARGO_TARGET_DIR:-target}/debug/xtask demo $(if $(ONCE),--once)

test: ## Installs what the tests need (SETUP=no: does not), checks the sources, and runs all tests
	@$(SET_UP_AND_BUILD)
	@scripts/test

test-full: ## The same with full counts: millions of requests, gigabytes, many minutes
	@WEIR_TEST_FULL=1 $(SET_UP_AND_BUILD)
	@scripts/wasm-filter || true
	@WEIR_TEST_FULL=1 scripts/test

check: ## The static part alone: format, lints, layering, generated docs, dependencies
	@cargo xtask check

fmt: ## Formats the sources
	@cargo fmt --all

docs: ## Writes the generated pages under docs/reference, checks the links of all pages, and builds the site, target/site
	@cargo xtask docs
	@scripts/mdbook
	@cargo xtask site

setup: ## Installs what the tests need, and nothing that is there already
	@scripts/setup

fuzz: ## Fuzzes every parser for FUZZ_SECONDS (default 600) each; needs a nightly toolchain and cargo-fuzz
	@scripts/fuzz

compare: release ## Compares weir with the gateways this machine has: `weir bench run compare --quick`
	@target/release/weir bench run compare --quick

results: docs ## Writes the pages of docs/reference/results from the stored results in bench/results, as `make docs` does

pictures: release ## Draws docs/pictures: a stored report of the lab, as Chromium shows it at three widths
	@scripts/report-pictures

release: ## Builds the optimised binary, target/release/weir, in minutes, with debug symbols in weir.debug beside it
	@scripts/release release

dist: ## Builds the binary that is shipped and measured, target/dist/weir: one unit, a little faster, slow to build
	@scripts/release dist

package: ## Packages of target/dist/weir, in target/packages: .deb, .rpm, OCI image, tarball, SBOM and checksums
	@cargo xtask package

reproduce: ## Builds and packages this commit twice, in two folders, and compares the bytes; takes half an hour and more
	@scripts/reproduce
