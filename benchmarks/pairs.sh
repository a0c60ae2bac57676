#!/usr/bin/env bash
# What a change costs: server CPU for each operation on one site, of two programs by turns.
#
# usage: benchmarks/pairs.sh BEFORE AFTER [OUT]
#
# BEFORE and AFTER are two `leasehold` binaries. A cluster of each runs beside the other, and clients load
# one of them at a time. A pair is a short run on each, and pairs alternate in which is first. So both of a
# pair see the same machine: where others share it, its speed changes from minute to minute. Reads come
# first, then writes. OUT (default results/pairs) gets summary.txt, with each pair's CPU for each
# operation, its ratio, and the median of the ratios.
#
# PAIRS says how many there are (default 10), SECONDS_EACH how long a run lasts (3), REPLICAS how many a
# cluster has (3), DURABILITY how they write (async). The variables that lib/site.sh names count, too.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
before=$(realpath "$1") after=$(realpath "$2") out=${3:-results/pairs}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
REPLICAS=${REPLICAS:-3}
LEASEHOLD=$after
source benchmarks/lib/site.sh

pairs=${PAIRS:-10}
seconds=${SECONDS_EACH:-3}
durability=${DURABILITY:-async}
mkdir -p "$out"
declare -A ports=([before]=$first_port [after]=$((first_port + 200)))

leasehold=$before
start_site before "${ports[before]}" "$durability"
leasehold=$after
start_site after "${ports[after]}" "$durability"
{
    echo "$replicas replicas, $connections closed-loop connections to the leader, 100-byte values, ${seconds} s each"
    echo "$(uname -sr), $(nproc) processors"
    measure_pairs before after "$pairs" "$seconds"
} | tee "$out/summary.txt"
