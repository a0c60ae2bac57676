# Two commands are all a newcomer needs: `make demo` and `make test`.
#
# One profile (--release) for everything, so that RocksDB is compiled once.

.DEFAULT_GOAL := help
.PHONY: help demo test build lint deny model model-lock mutants campaign chaos abuse power fuzz setup

export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

help: ## Shows this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

# Most of a first build is the store's C++. Until it is compiled, the program without it shows the same
# three strategies in virtual time.
# `exec`, and cargo that replaces itself with the program: Ctrl-C reaches the demo alone,
# which takes its replicas down.
COMPILED := $(or $(CARGO_TARGET_DIR),target)/release
demo: setup ## Compares three lease strategies on five replicas behind an emulated WAN
	@if ! ls $(COMPILED)/deps/librocksdb-*.rlib >/dev/null 2>&1; then \
		echo "1 of 2: three strategies in virtual time, by a program without the store. It compiles in some four minutes on two cores."; \
		cargo build --release --locked --no-default-features --bin leasehold && \
		$(COMPILED)/leasehold exp run demo --on sim --out results/demo-sim || exit; \
		echo; \
		echo "2 of 2: the same on five real processes. Their store is RocksDB, 350 files of C++: it compiles once, in some"; \
		echo "twelve minutes on two cores. The report so far: results/demo-sim/report.html"; \
	fi
	@exec cargo run --release --locked -- demo

test: setup ## Runs every test
	cargo test --release --locked --workspace

build: setup ## Builds the program: target/release/leasehold
	cargo build --release --locked

lint: setup ## Checks formatting and lints
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings

deny: setup ## Checks the packages that we are built from: licences, sources, versions, known vulnerabilities
	@.ci/deny

model: setup ## Visits every state of small clusters, for hours; MODEL_STRATEGY=quorum for one strategy, MODEL_SCOPE=crash for some scopes
	cargo test --release --locked -p leasehold-sim --test model -- --ignored --nocapture

model-lock: setup ## Visits every state of small groups with exclusive leases, for minutes
	cargo test --release --locked -p leasehold-lock-sim --test model -- --ignored --nocapture

# Both parts are built with a feature that no program which serves can have.
mutants: setup ## Switches off one safety rule after another: who notices, after how many seeds
	cargo test --release --locked -p leasehold-leases -p leasehold-log -p leasehold-replica -p leasehold-sim --features leasehold-leases/mutants,leasehold-sim/mutants --lib --test hazards --test model mutants
	cargo test --release --locked -p leasehold-lock-core -p leasehold-lock-sim --features leasehold-lock-sim/mutants
	@mkdir -p results/safety
	cargo run --release --locked -p leasehold-sim --features mutants --example mutants -- --out results/safety/mutants.md

# Ends cleanly at Ctrl-C; the same command goes on from there.
HOURS ?= 5000
campaign: setup ## Simulates HOURS=5000 cluster-hours in which everything goes wrong that may
	@exec cargo run --release --locked -- sim --hours $(HOURS) --out results/safety/campaign

# Ends cleanly at Ctrl-C, like the demo. SEED repeats the faults of a run, STRATEGY chooses one or several.
MINUTES ?= 10
SEED ?= 1
chaos: setup ## Breaks real replica processes at random for MINUTES=10, and judges what clients saw (SEED=1, STRATEGY=)
	@exec cargo run --release --locked -- chaos --minutes $(MINUTES) --seed $(SEED) $(if $(STRATEGY),--strategy $(STRATEGY))

# The same for another program: BINARY names it, LABEL is its column in the report.
LABEL ?= after
abuse: build ## Attacks real replica processes, and judges what others notice (BINARY=, LABEL=after, ONLY=)
	@exec cargo run --release --locked --example abuse -- --label $(LABEL) $(if $(BINARY),--binary $(BINARY)) $(if $(ONLY),--only $(ONLY))

# Ends cleanly at Ctrl-C. TMPDIR on a file system in memory makes it faster.
CUTS ?= 50
NODES ?= 3
power: build ## Makes CUTS=50 power failures of real replica processes under load, and judges what is left (NODES=3, SEED=1)
	@exec cargo run --release --locked --example power -- --cuts $(CUTS) --nodes $(NODES) --seed $(SEED)

fuzz: setup ## Searches for input that breaks a decoder, FUZZ_SECONDS=60 for each (needs cargo-fuzz)
	@bash fuzz/run

setup: ## Installs what the build needs and this machine lacks
	@bash .ci/setup
