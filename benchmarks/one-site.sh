#!/usr/bin/env bash
# Throughput, latency and server CPU of a cluster on one site, without a WAN.
#
# usage: benchmarks/one-site.sh [OUT]
#
# Five replica processes on loopback, 50 closed-loop connections to one of them,
# values of 100 bytes; reads, then writes, then merges of one field into records
# that come to have ten, with synced and unsynced logs. Server
# CPU is user + system time of all five replicas together, from /proc, divided by
# the operations. Results go to OUT (default results/one-site): the load
# generator's reports and histograms, and summary.txt.
#
# LEASEHOLD names the binary (default target/release/leasehold), SECONDS_EACH how
# long each measurement lasts (default 15), CONNECTIONS how many (default 50),
# REPLICAS how many (default 5). DURABILITIES says with which ("sync async none"),
# STRATEGY who holds leases (leader), ACCEPT_REPLIES who hears votes (origin). With TLS=1 the replicas
# have certificates, and clients talk TLS to them.
set -euo pipefail

leasehold=${LEASEHOLD:-${CARGO_TARGET_DIR:-target}/release/leasehold}
out=${1:-results/one-site}
seconds=${SECONDS_EACH:-15}
connections=${CONNECTIONS:-50}
replicas=${REPLICAS:-5}
durabilities=${DURABILITIES:-sync async none}
strategy=${STRATEGY:-leader}
replies=${ACCEPT_REPLIES:-origin}
port=${PORT:-7301}
tls=${TLS:-}
[ -x "$leasehold" ] || { echo "no binary at $leasehold: build it, or set LEASEHOLD" >&2; exit 1; }
leasehold=$(realpath "$leasehold")
mkdir -p "$out"
work=$(mktemp -d)
pids=()
stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    pids=()
}
trap 'stop; rm -rf "$work"' EXIT
trap 'echo interrupted >&2; exit 130' INT TERM

config() { # durability strategy
    echo "cluster = \"one-site\""
    echo "leader = \"r0\""
    echo "durability = \"$1\""
    echo "data = \"data-$1-$2\""
    echo "accept_replies = \"$replies\""
    echo "[lease]"
    echo "strategy = \"$2\""
    for ((i = 0; i < replicas; i++)); do
        printf '[[node]]\nname = "r%d"\nclient = "127.0.0.1:%d"\npeer = "127.0.0.1:%d"\n' \
            "$i" $((port + i)) $((port + 100 + i))
    done
    if [ -n "$tls" ]; then printf '[security]\ncertificates = "certificates"\n'; fi
}

if [ -n "$tls" ]; then
    config none leader >"$work/cluster.toml"
    "$leasehold" cert "$work/certificates" --config "$work/cluster.toml" >"$work/log"
    export LEASEHOLD_CA=$work/certificates/ca.pem
else
    unset LEASEHOLD_CA
fi

# CPU of all replicas so far, in clock ticks.
ticks() {
    local sum=0 pid stat
    for pid in "${pids[@]}"; do
        stat=$(cat "/proc/$pid/stat"); stat=${stat##*) }
        # shellcheck disable=SC2086
        set -- $stat
        sum=$((sum + ${12} + ${13}))
    done
    echo "$sum"
}

hertz=$(getconf CLK_TCK)
address=127.0.0.1:$port
summary=$out/summary.txt
{
    echo "$replicas replicas, $connections closed-loop connections to the leader, 100-byte values, ${seconds} s each${tls:+, TLS}"
    echo "$(uname -sr), $(nproc) processors, $("$leasehold" --version)"
    printf '%-10s %-8s %12s %10s %10s %14s\n' durability work ops/s p50_us p99_us server_us/op
} >"$summary"

measure() { # durability label properties...
    local durability=$1 label=$2 before after report
    shift 2
    report=$out/$durability-$label
    before=$(ticks)
    "$leasehold" ycsb run --address "$address" -threads "$connections" \
        -p recordcount=10000 -p fieldcount=1 -p fieldlength=100 -p operationcount=100000000 \
        -p requestdistribution=uniform -p maxexecutiontime="$seconds" \
        -p hdrhistogram.fileoutput=true -p hdrhistogram.output.path="$report." \
        -p hdrhistogram.percentiles=50,99 "$@" >"$report.txt" 2>"$work/log"
    after=$(ticks)
    awk -F', ' -v durability="$durability" -v label="$label" -v ticks=$((after - before)) -v hertz="$hertz" '
        $1 == "[OVERALL]" && $2 ~ /^Throughput/ { rate = $3 }
        $1 ~ /^\[(READ|UPDATE)\]$/ && $2 == "Operations" { ops = $3 }
        $1 ~ /^\[(READ|UPDATE)\]$/ && $2 ~ /^50th|^50.0/ { p50 = $3 }
        $1 ~ /^\[(READ|UPDATE)\]$/ && $2 ~ /^99th|^99.0/ { p99 = $3 }
        END { printf "%-10s %-8s %12.0f %10s %10s %14.1f\n", durability, label, rate, p50, p99, ticks / hertz * 1e6 / ops }
    ' "$report.txt" | tee -a "$summary"
}

for durability in $durabilities; do
    config "$durability" "$strategy" >"$work/cluster.toml"
    for ((i = 0; i < replicas; i++)); do
        "$leasehold" serve --config "$work/cluster.toml" --node "r$i" >"$work/r$i.log" 2>&1 &
        pids+=($!)
    done
    for _ in $(seq 100); do
        "$leasehold" kv --address "$address" --timeout 1 put ready yes 2>/dev/null && break
        sleep 0.2
    done
    sleep 3
    "$leasehold" ycsb load --address "$address" -threads "$connections" \
        -p recordcount=10000 -p fieldcount=1 -p fieldlength=100 >"$work/load" 2>&1
    measure "$durability" reads -p readproportion=1 -p updateproportion=0
    measure "$durability" writes -p readproportion=0 -p updateproportion=1 -p writeallfields=true
    measure "$durability" merges -p readproportion=0 -p updateproportion=1 -p fieldcount=10
    stop
done
