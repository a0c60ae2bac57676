#!/usr/bin/env bash
# Processor time that each kind of request takes of a replica, over its range of sizes, beside what it
# is charged.
#
# usage: benchmarks/charges.sh [OUT] [--only NAME,...] [--rounds N] [--seconds S] [--binary PATH] [--list] [--help]
#
# Builds the program, starts clusters of three replicas on loopback, and asks one replica for one kind of
# request after the other. OUT (default results/charges) gets charges.csv and report.md. The exit status is 0
# if the ratio of processor time to charge is for all within a factor of three of the median ratio, 1 if
# not, 2 if it could not be measured. Wants an idle machine, for a quarter of an hour. --help says more.
set -euo pipefail

cargo build --quiet --release --locked
# `exec`, and cargo that replaces itself with the program: Ctrl-C reaches it alone, and it ends its
# replicas.
exec cargo run --quiet --release --locked --example charges -- "$@"
