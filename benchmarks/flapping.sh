#!/usr/bin/env bash
# A preferred leader that flaps: three replica processes on this machine, 1 ms apart. The
# preferred one stands still for 1.5 s (SIGSTOP) in every 3.5 s, 30 times; then it is cut off
# for 1.8 s in every 4.5 s, 30 times. Counts the changes of leadership, and measures the puts of
# clients of another replica meanwhile.
#
# usage: benchmarks/flapping.sh [OUT]
#
# Results go to OUT (default results/flapping): flapping.md.
#
# LEASEHOLD names the binary (default target/release/leasehold). BEFORE may name another one to
# compare with, of an earlier revision. TIMES says how often each fault comes (30), PORT the first
# port (7401).
set -euo pipefail

leasehold=${LEASEHOLD:-${CARGO_TARGET_DIR:-target}/release/leasehold}
before=${BEFORE:-}
out=${1:-results/flapping}
times=${TIMES:-30}
port=${PORT:-7401}
[ -x "$leasehold" ] || { echo "no binary at $leasehold: build it, or set LEASEHOLD" >&2; exit 1; }
mkdir -p "$out"
work=$(mktemp -d)
up=
load=
down() {
    [ -z "$up" ] || "$up" cluster down --dir "$work/data" >>"$work/log" 2>&1 || true
    up=
}
trap '[ -z "$load" ] || kill "$load" 2>/dev/null || true; down; rm -rf "$work"' EXIT
trap 'echo interrupted >&2; exit 130' INT TERM
cat >"$work/near.toml" <<'TOML'
sites = ["A", "B", "C"]
local_rtt_ms = 0.1

[rtt_ms]
A = { B = 1, C = 1 }
B = { C = 1 }
TOML

leaderships() { cat "$work"/data/*.events.jsonl | grep -c '"event":"leading"' || true; }

# The value of a line of the load generator's report: section, name.
value() { awk -F', ' -v section="[$1]" -v name="$2" '$1 == section && $2 == name { print $3 }' "$work/ycsb"; }

ms() { awk -v us="$1" 'BEGIN { printf "%.1f", us / 1000 }'; }

measure() { # revision binary fault lasts_s period_s
    local revision=$1 binary=$2 fault=$3 lasts=$4 period=$5 began counted next
    rm -rf "$work/data"
    "$binary" cluster up --dir "$work/data" --insecure --client-port "$port" --set leader=A \
        --set "topology=$work/near.toml" >>"$work/log" 2>&1
    up=$binary
    "$binary" ycsb load --address "127.0.0.1:$((port + 1))" -threads 10 -p recordcount=1000 >>"$work/log" 2>&1
    sleep 3
    counted=$(leaderships)
    # Clients of B: the replica that they ask is always well.
    "$binary" ycsb run -P workloada --address "127.0.0.1:$((port + 1))" -threads 100 -target 200 \
        -p recordcount=1000 -p operationcount=1000000000 -p hdrhistogram.percentiles=50,90,99 \
        -p "maxexecutiontime=$(awk -v n="$times" -v p="$period" 'BEGIN { printf "%d", n * p }')" \
        >"$work/ycsb" 2>>"$work/log" &
    load=$!
    began=$(date +%s%N)
    for ((i = 0; i < times; i++)); do
        next=$(awk -v began="$began" -v i="$i" -v p="$period" 'BEGIN { printf "%.3f", began / 1e9 + i * p }')
        sleep "$(awk -v next_s="$next" -v now="$(date +%s.%N)" 'BEGIN { d = next_s - now; printf "%.3f", (d > 0 ? d : 0) }')"
        case $fault in
            pause) "$binary" cluster pause A --for "$lasts" --dir "$work/data" >>"$work/log" 2>&1 ;;
            cut) "$binary" fault partition A --for "$lasts" --dir "$work/data" >>"$work/log" 2>&1 ;;
        esac
    done
    wait "$load" || true
    load=
    echo "| $revision | $fault | $(($(leaderships) - counted)) | $(value UPDATE Operations) |" \
        "$(ms "$(value UPDATE '50thPercentileLatency(us)')") |" \
        "$(ms "$(value UPDATE '90thPercentileLatency(us)')") |" \
        "$(ms "$(value UPDATE '99thPercentileLatency(us)')") |" \
        "$(ms "$(value UPDATE 'MaxLatency(us)')") |" | tee -a "$work/rows"
    down
}

all() { # revision binary
    measure "$1" "$2" pause 1.5 3.5
    measure "$1" "$2" cut 1.8 4.5
}

[ -z "$before" ] || all before "$before"
all "this" "$leasehold"

{
    echo "# A preferred leader that flaps"
    echo
    echo "Three replicas on one machine, 1 ms apart. A is the preferred leader. It stands still for 1.5 s in"
    echo "every 3.5 s (pause), or is cut off for 1.8 s in every 4.5 s (cut), $times times. Clients of B read and"
    echo "write, 200 operations a second together. Made by \`benchmarks/flapping.sh\` with $("$leasehold" --version)"
    echo "(\"this\")$([ -z "$before" ] || echo " and $("$before" --version) (\"before\")")."
    echo
    echo "| revision | fault | changes of leadership | puts | p50 ms | p90 ms | p99 ms | longest ms |"
    echo "|---|---|---:|---:|---:|---:|---:|---:|"
    cat "$work/rows"
} >"$out/flapping.md"
echo "$out/flapping.md"
