#!/usr/bin/env bash
# Compares puts of 64 bytes with those of etcd, on one site and with the same number of members.
#
# usage: benchmarks/etcd.sh [OUT]
#
# Both clusters run at the same time, and clients load one of them at a time, at its leader. A pair is a short
# run on each, and pairs alternate in which is first. OUT (default results/etcd) gets runs.csv with a row for
# each run, and summary.txt with medians, the median and the range of the pairs' ratios, and each program's
# ratio of p99 to p50.
#
# This needs etcd and etcdctl, and protoc to build the load generator for etcd (benchmarks/etcd/). On Debian:
# apt-get install etcd-server etcd-client protobuf-compiler libprotobuf-dev.
#
# LOOPS         connections of the closed loops ("1 50 160")
# TARGETS       rates of the open loops in puts a second, each over 160 connections (half the rate of etcd in
#               the closed loop with 160 connections; none without that loop)
# PAIRS         number of pairs of each loop (8)
# SECONDS_EACH  length of a run (3)
#
# The variables that lib/site.sh names count, too.
set -euo pipefail
out=${1:-results/etcd}
mkdir -p "$out"
rm -f "$out/summary.txt"
out=$(realpath "$out")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for tool in etcd etcdctl; do
    command -v $tool >/dev/null || { echo "$tool is missing: see the beginning of $0" >&2; exit 1; }
done
cargo build --release --locked --quiet --manifest-path benchmarks/etcd/Cargo.toml --target-dir "${ETCD_TARGET_DIR:-target/etcd}"
puts=$(realpath "${ETCD_TARGET_DIR:-target/etcd}/release/etcd-puts")
source benchmarks/lib/site.sh
source benchmarks/lib/ratios.sh
source benchmarks/lib/etcd.sh

pairs=${PAIRS:-8}
seconds=${SECONDS_EACH:-3}
start_site leasehold "$first_port" "${DURABILITY:-sync}"

start_etcd

# Loads one program. Prints puts a second, and p50 and p99 in us. With a rate, the loop is open.
run() { # program connections [rate]
    local open=()
    if [ "$1" = etcd ]; then
        "$puts" "$etcd_leader" "$2" "$seconds" 64 ${3:+"$3"}
    else
        connections=$2
        [ -z "${3:-}" ] || open=(-p target="$3" -p measurement.interval=intended)
        measure_site leasehold "$first_port" "$work/report" "$seconds" "${writes[@]}" -p fieldlength=64 "${open[@]}" |
            cut -d' ' -f1-3
    fi
}

# Runs all pairs of one load.
measure_load() { # name connections [rate]
    local pair order program found
    for ((pair = 1; pair <= pairs; pair++)); do
        order=(etcd leasehold)
        ((pair % 2)) || order=(leasehold etcd)
        for program in "${order[@]}"; do
            read -ra found < <(run "$program" "${@:2}")
            echo "$1,$pair,$program,${found[0]},${found[1]},${found[2]}" | tee -a "$out/runs.csv"
        done
    done
}

run etcd 50 >/dev/null
echo "load,pair,program,puts_per_s,p50_us,p99_us" | tee "$out/runs.csv"
for connections_of_loop in ${LOOPS-1 50 160}; do
    measure_load "closed-$connections_of_loop" "$connections_of_loop"
done
if [ -z "${TARGETS+set}" ]; then
    most=$(awk -F, '$1 == "closed-160" && $3 == "etcd" { print $4 }' "$out/runs.csv" | median)
    TARGETS=$(awk -v most="$most" 'BEGIN { if (most > 0) printf "%d", most / 2 }')
fi
for target in $TARGETS; do
    measure_load "open-$target" 160 "$target"
done

{
    echo "$replicas members, 64-byte values, $pairs pairs of runs of ${seconds} s, $(etcd --version | head -n 1)"
    echo "$(uname -sr), $(nproc) processors"
    print_ratio_names etcd leasehold
    for load in $(cut -d, -f1 "$out/runs.csv" | tail -n +2 | uniq); do
        print_ratios "$out/runs.csv" "$load" etcd leasehold
        for program in etcd leasehold; do
            awk -F, -v load="$load" -v program="$program" '$1 == load && $3 == program { print $6 / $5 }' "$out/runs.csv" |
                median | xargs printf '%-12s p99 of %s is %.2f times its p50 (median)\n' "$load" "$program"
        done
    done
} | tee "$out/summary.txt"
