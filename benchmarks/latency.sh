#!/usr/bin/env bash
# Compares the latency of small writes of two programs, on one site, with values of 64 bytes.
#
# usage: benchmarks/latency.sh BEFORE AFTER [OUT]
#
# BEFORE and AFTER are two `leasehold` binaries. Each runs a cluster, both at the same time, and clients load
# one cluster at a time. A pair is a short run on each, and pairs alternate in which is first. OUT (default
# results/latency) gets runs.csv with a row for each run, and summary.txt with medians, and the median and
# the range of the pairs' ratios. The load generator is that of AFTER. A run fails if an open loop misses
# its target.
#
# LOOPS         connections of the closed loops ("1 50 160")
# TARGETS       writes a second of the open loops, each over 160 connections (half of the writes a
#               second of BEFORE in closed loops with 160 connections)
# PAIRS         number of pairs of each loop (10)
# SECONDS_EACH  length of a run (3)
# DURABILITY    how replicas write (sync)
#
# REPLICAS, STRATEGY, ACCEPT_REPLIES and PORT mean what lib/site.sh says.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
before=$(realpath "$1") after=$(realpath "$2") out=${3:-results/latency}
mkdir -p "$out"
rm -f "$out/summary.txt"
out=$(realpath "$out")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
LEASEHOLD=$after
source benchmarks/lib/site.sh
source benchmarks/lib/ratios.sh

pairs=${PAIRS:-10}
seconds=${SECONDS_EACH:-3}
declare -A ports=([before]=$first_port [after]=$((first_port + 200)))
for site in before after; do
    leasehold=${!site}
    start_site "$site" "${ports[$site]}" "${DURABILITY:-sync}"
done
leasehold=$after

# Says why a run gave no figures.
fail() { # load program
    echo "the run $1 with the program $2 gave no figures:" >&2
    tail -n 5 "$work/log" "$work/report.txt" >&2
    exit 1
}

# Runs all pairs of one load.
measure_load() { # name properties...
    local name=$1 pair order site
    shift
    for ((pair = 1; pair <= pairs; pair++)); do
        order=(before after)
        ((pair % 2)) || order=(after before)
        for site in "${order[@]}"; do
            read -ra found < <(measure_site "$site" "${ports[$site]}" "$work/report" "$seconds" \
                "${writes[@]}" -p fieldlength=64 "$@") || fail "$name" "$site"
            echo "$name,$pair,$site,${found[0]},${found[1]},${found[2]},${found[3]}" | tee -a "$out/runs.csv"
        done
    done
}

echo "load,pair,program,puts_per_s,p50_us,p99_us,cpu_us_per_put" | tee "$out/runs.csv"
for connections in ${LOOPS-1 50 160}; do
    measure_load "closed-$connections"
done
connections=160
if [ -z "${TARGETS+set}" ]; then
    most=$(awk -F, '$1 == "closed-160" && $3 == "before" { print $4 }' "$out/runs.csv" | median)
    TARGETS=$(awk -v most="$most" 'BEGIN { if (most > 0) printf "%d", most / 2 }')
fi
for target in $TARGETS; do
    measure_load "open-$target" -p target="$target" -p measurement.interval=intended
done

{
    echo "$replicas replicas, 64-byte values, $pairs pairs of runs of ${seconds} s"
    echo "$(uname -sr), $(nproc) processors"
    print_ratio_names before after
    for load in $(cut -d, -f1 "$out/runs.csv" | tail -n +2 | uniq); do
        print_ratios "$out/runs.csv" "$load" before after
        awk -F, -v load="$load" '$1 == load && $3 == "after" { print $6 / $5 }' "$out/runs.csv" | median |
            xargs printf '%-12s p99 of after is %.2f times its p50 (median)\n' "$load"
    done
} | tee "$out/summary.txt"
