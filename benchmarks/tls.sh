#!/usr/bin/env bash
# What TLS costs: server CPU for each operation on one site, without and with it, by turns.
#
# usage: benchmarks/tls.sh [OUT]
#
# Two clusters run side by side: one has certificates. Clients load one of them at a time. A pair is a
# short run on each, and pairs alternate in which is first. So both of a pair see the same machine: where
# others share it, its speed changes from minute to minute. Reads come first, then writes. OUT (default results/tls) gets summary.txt, with each pair's CPU for each operation, its ratio,
# and the median of the ratios.
#
# PAIRS says how many there are (default 21), SECONDS_EACH how long a run lasts (3), REPLICAS how many a
# cluster has (3), DURABILITY how they write (async). The variables that lib/site.sh names count, too.
set -euo pipefail
REPLICAS=${REPLICAS:-3}
source "$(dirname "${BASH_SOURCE[0]}")/lib/site.sh"

out=${1:-results/tls}
pairs=${PAIRS:-21}
seconds=${SECONDS_EACH:-3}
durability=${DURABILITY:-async}
mkdir -p "$out"
declare -A ports=([plain]=$first_port [tls]=$((first_port + 200))) costs=()

one() { # site properties...
    local site=$1 found
    shift
    read -ra found < <(measure_site "$site" "${ports[$site]}" "$work/report" "$seconds" "$@")
    costs[$site]=${found[3]}
}

start_site plain "${ports[plain]}" "$durability"
start_site tls "${ports[tls]}" "$durability" tls
{
    echo "$replicas replicas, $connections closed-loop connections to the leader, 100-byte values, ${seconds} s each"
    echo "$(uname -sr), $(nproc) processors, $("$leasehold" --version)"
    printf '%-8s %4s %12s %12s %7s\n' work pair plain_us/op tls_us/op ratio
    for label in reads writes; do
        declare -n properties=$label
        for ((pair = 1; pair <= pairs; pair++)); do
            order=(plain tls)
            ((pair % 2)) || order=(tls plain)
            for site in "${order[@]}"; do one "$site" "${properties[@]}"; done
            awk -v work="$label" -v pair="$pair" -v plain="${costs[plain]}" -v tls="${costs[tls]}" \
                'BEGIN { printf "%-8s %4d %12.2f %12.2f %7.3f\n", work, pair, plain, tls, tls / plain }'
        done | tee "$work/rows"
        sort -n -k5 "$work/rows" | awk -v work="$label" '{ r[NR] = $5 }
            END { printf "%-8s median ratio %.3f\n", work, NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2 }'
    done
} | tee "$out/summary.txt"
