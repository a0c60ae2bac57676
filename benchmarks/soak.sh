#!/usr/bin/env bash
# What a cluster on one site takes over time: puts of 100 bytes over KEYS keys, for MINUTES.
#
# usage: benchmarks/soak.sh [OUT]
#
# Every ten seconds, a row goes to OUT/soak.csv (default OUT: results/soak): the puts so far, the size of all
# data directories on disk, the resident memory of all replicas, and how fast the machine is. At the end,
# OUT/summary.txt compares the last third of the time with an earlier part, in which everything is warm, and
# OUT/soak.svg draws all columns.
#
# Two columns say how fast the machine is, because virtual processors change: `loop_us` is the processor time
# of a fixed loop that runs beside the load, and `stolen` counts clock ticks that other virtual machines took.
#
# MINUTES says how long (default 60, at least 3), KEYS how many keys (100000), DURABILITY how replicas write (sync). The
# variables that lib/site.sh names count, too. The binary must be built.
set -euo pipefail
out=${1:-results/soak}
mkdir -p "$out"
out=$(realpath "$out")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source benchmarks/lib/site.sh

minutes=${MINUTES:-60}
keys=${KEYS:-100000}
if ! [ "$minutes" -ge 3 ]; then
    echo "MINUTES=$minutes: use 3 or more, because the summary compares parts of the time" >&2
    exit 2
fi
start_site soak "$first_port" "${DURABILITY:-sync}"

# The leader's count of executed commands is not needed: the load generator reports what was answered.
client soak ycsb load --address "127.0.0.1:$first_port" -threads "$connections" \
    -p recordcount="$keys" -p fieldcount=1 -p fieldlength=100 >"$work/load" 2>&1
client soak ycsb run --address "127.0.0.1:$first_port" -threads "$connections" -s \
    -p recordcount="$keys" -p fieldcount=1 -p fieldlength=100 -p operationcount=1000000000 \
    -p requestdistribution=uniform -p maxexecutiontime=$((minutes * 60)) -p status.interval=10 \
    "${writes[@]}" >"$out/ycsb.txt" 2>"$work/status" &
generator=$!
pids+=("$generator")

resident_kb() {
    local pid sum=0
    for pid in "${site_pids_soak[@]}"; do
        sum=$((sum + $(awk '$1 == "VmRSS:" { print $2 }' "/proc/$pid/status")))
    done
    echo "$sum"
}

# Processor time of a loop of always the same length, in us.
loop_us() {
    local TIMEFORMAT=%U
    { time awk 'BEGIN { for (i = 0; i < 1000000; i++) sum += i * i }'; } 2>&1 | awk '{ print $1 * 1e6 }'
}

echo "seconds,operations,disk_kb,resident_kb,loop_us,stolen" >"$out/soak.csv"
began=$(date +%s)
while kill -0 "$generator" 2>/dev/null; do
    sleep 10
    # "... 1200 sec: 3456789 operations; ..."
    operations=$(sed -n 's/.* \([0-9]*\) operations;.*/\1/p' "$work/status" | tail -n 1)
    disk=$(du -sk "$work/soak/data" | cut -f1)
    stolen=$(awk '$1 == "cpu" { print $9 }' /proc/stat)
    echo "$(($(date +%s) - began)),${operations:-0},$disk,$(resident_kb),$(loop_us),$stolen" >>"$out/soak.csv"
done

{
    echo "$replicas replicas, $connections closed-loop connections to the leader, $keys keys, 100-byte values, $minutes minutes"
    echo "$(uname -sr), $(nproc) processors"
    awk -F, -v whole=$((minutes * 60)) -v ticks=$(($(nproc) * hertz)) '
        NR == 1 { next }
        {
            since = $1 - seconds
            rate = since > 0 ? ($2 - count) / since : 0
            speed = since > 0 && NR > 2 ? (1 - ($6 - stolen) / since / ticks) / $5 : 0
            seconds = $1; count = $2; stolen = $6
        }
        $1 > whole / 6 && $1 <= whole / 2 { disk0 = max(disk0, $3); resident0 = max(resident0, $4) }
        $1 > whole * 2 / 3 { disk1 = max(disk1, $3); resident1 = max(resident1, $4) }
        $1 > whole / 12 && $1 <= whole / 4 { early += rate; fast += speed; earlies++ }
        $1 > whole * 5 / 6 && $1 <= whole { late += rate; slow += speed; lates++ }
        function max(a, b) { return a > b ? a : b }
        END {
            printf "largest size on disk, MiB: %.0f from 1/6 to 1/2 of the time, %.0f in the last third, ratio %.3f\n", disk0 / 1024, disk1 / 1024, disk1 / disk0
            printf "largest resident size, MiB: %.0f and %.0f, ratio %.3f\n", resident0 / 1024, resident1 / 1024, resident1 / resident0
            printf "puts/s: %.0f from 1/12 to 1/4 of the time, %.0f in the last sixth, ratio %.3f\n", early / earlies, late / lates, late / lates / (early / earlies)
            printf "speed of the machine beside it: ratio %.3f\n", slow / lates / (fast / earlies)
        }
    ' "$out/soak.csv"
} | tee "$out/summary.txt"

# Rows of the first seconds have no rate yet, and the last row may be cut short.
awk -F, '
    NR == 1 { print "minutes,puts/s,MiB on disk,MiB resident,us of processor time for a fixed loop"; next }
    NR > 3 && $1 - seconds > 5 { printf "%.2f,%.0f,%.0f,%.0f,%d\n", $1 / 60, ($2 - count) / ($1 - seconds), $3 / 1024, $4 / 1024, $5 }
    { seconds = $1; count = $2 }
' "$out/soak.csv" | awk -f benchmarks/lib/panels.awk >"$out/soak.svg"
