# Two commands are all a newcomer needs: `make demo` and `make test`.
#
# One profile (--release) for everything, so that RocksDB is compiled once.

.DEFAULT_GOAL := help
.PHONY: help demo test build lint setup

export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

help: ## Shows this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

# `exec`, and cargo that replaces itself with the program: Ctrl-C reaches the demo alone,
# which takes its replicas down.
demo: setup ## Compares three lease strategies on five replicas behind an emulated WAN
	@exec cargo run --release --locked -- demo

test: setup ## Runs every test
	cargo test --release --locked --workspace

build: setup ## Builds the program: target/release/leasehold
	cargo build --release --locked

lint: setup ## Checks formatting and lints
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings

setup: ## Installs what the build needs and this machine lacks
	@bash .ci/setup
