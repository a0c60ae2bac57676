#!/usr/bin/env bash
# Measures transactions: their latency over a WAN beside that of a compare-and-swap, and their processor time
# beside that of transactions of etcd.
#
# usage: benchmarks/txn.sh [OUT]
#
# The latency is measured in virtual time, at the sites of `fig6`: OUT/latency.md (default results/txn).
#
# The processor time is measured on one site. A transaction puts 1, 4 or 16 keys, with values of 100 bytes, and
# has no comparisons. The clusters of both programs run at the same time, and clients load one of them at a time,
# at its leader. A pair is a short run on each, and pairs alternate in which is first. The processor time is that
# of all members together. OUT gets runs.csv with a row for each run, and summary.txt with medians, and with the
# median and the range of the pairs' ratios.
#
# This needs etcd and etcdctl, and protoc to build the load generator (benchmarks/etcd/). On Debian:
# apt-get install etcd-server etcd-client protobuf-compiler libprotobuf-dev.
#
# OPERATIONS    numbers of puts of a transaction ("1 4 16")
# PAIRS         number of pairs of each (8)
# SECONDS_EACH  length of a run (5)
#
# The variables that lib/site.sh names count, too.
set -euo pipefail
out=${1:-results/txn}
mkdir -p "$out"
rm -f "$out/summary.txt"
out=$(realpath "$out")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for tool in etcd etcdctl; do
    command -v $tool >/dev/null || { echo "$tool is missing: see the beginning of $0" >&2; exit 1; }
done
cargo run --release --locked --quiet -p leasehold-sim --example txns >"$out/latency.md"
cargo build --release --locked --quiet --manifest-path benchmarks/etcd/Cargo.toml --target-dir "${ETCD_TARGET_DIR:-target/etcd}"
txns=$(realpath "${ETCD_TARGET_DIR:-target/etcd}/release/txns")
source benchmarks/lib/site.sh
source benchmarks/lib/ratios.sh
source benchmarks/lib/etcd.sh

pairs=${PAIRS:-8}
seconds=${SECONDS_EACH:-5}
start_site leasehold "$first_port" "${DURABILITY:-sync}"
start_etcd

# Loads one program with transactions of some puts. Prints transactions a second, p50 and p99 in us, and the
# members' us of processor time for each transaction.
run() { # program operations
    local address=127.0.0.1:$first_port before after found
    [ "$1" = leasehold ] || address=$etcd_leader
    before=$(site_ticks "$1")
    read -ra found < <("$txns" "$1" "$address" "$connections" "$seconds" "$2" 100)
    after=$(site_ticks "$1")
    awk -v ticks=$((after - before)) -v hertz="$hertz" -v txns="${found[0]}" \
        -v rest="${found[1]} ${found[2]} ${found[3]}" \
        'BEGIN { printf "%s %.1f\n", rest, ticks / hertz * 1e6 / txns }'
}

run etcd 1 >/dev/null
echo "operations,pair,program,txns_per_s,p50_us,p99_us,cpu_us" | tee "$out/runs.csv"
for operations in ${OPERATIONS:-1 4 16}; do
    for ((pair = 1; pair <= pairs; pair++)); do
        order=(etcd leasehold)
        ((pair % 2)) || order=(leasehold etcd)
        for program in "${order[@]}"; do
            read -ra found < <(run "$program" "$operations")
            echo "$operations,$pair,$program,${found[0]},${found[1]},${found[2]},${found[3]}" | tee -a "$out/runs.csv"
        done
    done
done

{
    echo "$replicas members, $connections connections, puts of 100-byte values, $pairs pairs of runs of ${seconds} s, $(etcd --version | head -n 1)"
    echo "$(uname -sr), $(nproc) processors"
    print_ratio_names etcd leasehold
    for operations in $(cut -d, -f1 "$out/runs.csv" | tail -n +2 | uniq); do
        print_ratios "$out/runs.csv" "$operations" etcd leasehold
    done
} | tee "$out/summary.txt"
