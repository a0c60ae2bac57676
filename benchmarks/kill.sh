#!/usr/bin/env bash
# How long a cluster on one site is away after `kill -9` of all its replicas under full load.
#
# usage: benchmarks/kill.sh [OUT]
#
# In each round, clients write for LOAD_SECONDS. Then all replicas are killed at the same moment, and started
# again at once. Two clients try every few milliseconds: one to write, and one to read locally, under a
# lease. OUT/kill.txt (default OUT: results/kill) gets the times from the kill to the first success of each, and
# the size of the data directories.
#
# ROUNDS says how many rounds there are (5), LOAD_SECONDS how long each loads the cluster (10), STRATEGY who
# holds leases (all). The other variables that lib/site.sh names count, too. The binary must be built.
set -euo pipefail
out=${1:-results/kill}
mkdir -p "$out"
out=$(realpath "$out")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
STRATEGY=${STRATEGY:-all}
source benchmarks/lib/site.sh

rounds=${ROUNDS:-5}
load_seconds=${LOAD_SECONDS:-10}
addresses=$(seq -s, -f '127.0.0.1:%.0f' "$first_port" $((first_port + replicas - 1)))
start_site killed "$first_port" "${DURABILITY:-sync}"
client killed kv --address "$addresses" put read-me yes >/dev/null 2>&1

# Repeats a command until it succeeds. Prints the ms since START.
first_success() { # start_ns command...
    local start=$1
    shift
    until "$@" >/dev/null 2>&1; do sleep 0.005; done
    echo $((($(date +%s%N) - start) / 1000000))
}
write_once() { client killed kv --address "$addresses" --timeout 1 put written yes; }
# Fails if the read was served in another way than under a lease of the replica that was asked.
read_locally() { client killed kv --verbose --address "$addresses" --timeout 1 get read-me 2>&1 | grep -q locally; }

say() { echo "$@" | tee -a "$out/kill.txt"; }

: >"$out/kill.txt"
say "$replicas replicas on one site, strategy $STRATEGY, $connections closed-loop connections, 100-byte values"
say "$(uname -sr), $(nproc) processors"
say "round first_write_ms first_local_read_ms data_mib"
for ((round = 1; round <= rounds; round++)); do
    # Not by `client`, so that the number is that of the generator itself.
    "$leasehold" ycsb run --address "127.0.0.1:$first_port" -threads "$connections" \
        -p recordcount=10000 -p fieldcount=1 -p fieldlength=100 -p operationcount=100000000 \
        -p requestdistribution=uniform -p maxexecutiontime=$((load_seconds + 30)) \
        "${writes[@]}" >"$work/load" 2>&1 &
    generator=$!
    pids+=("$generator")
    sleep "$load_seconds"
    began=$(date +%s%N)
    kill -9 "${site_pids_killed[@]}" "$generator"
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    pids=() # The system may give their numbers to other processes.
    size=$(du -sm "$work/killed/data" | cut -f1)
    start_replicas killed
    first_success "$began" read_locally >"$work/read" &
    reader=$!
    pids+=("$reader")
    written=$(first_success "$began" write_once)
    wait "$reader"
    say "$round $written $(cat "$work/read") $size"
    sleep 3
done
