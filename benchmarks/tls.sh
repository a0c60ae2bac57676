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
declare -A ports=([plain]=$first_port [tls]=$((first_port + 200)))

start_site plain "${ports[plain]}" "$durability"
start_site tls "${ports[tls]}" "$durability" tls
{
    echo "$replicas replicas, $connections closed-loop connections to the leader, 100-byte values, ${seconds} s each"
    echo "$(uname -sr), $(nproc) processors, $("$leasehold" --version)"
    measure_pairs plain tls "$pairs" "$seconds"
} | tee "$out/summary.txt"
