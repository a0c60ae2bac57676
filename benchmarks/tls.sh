#!/usr/bin/env bash
# What TLS costs: server CPU for each operation on one site, without and with it, by turns.
#
# usage: benchmarks/tls.sh [OUT]
#
# Each pair is a run of one-site.sh without TLS and one with it, each first every other time; its environment
# counts here, too. Results go to OUT (default results/tls): the reports, and summary.txt with each pair's CPU
# for each operation, its ratio, and the median of the ratios.
#
# PAIRS says how many (default 5).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-results/tls}
pairs=${PAIRS:-5}
export DURABILITIES=${DURABILITIES:-async}
mkdir -p "$out"

one() { # pair tls
    TLS=${2#0} "$here/one-site.sh" "$out/$1-$([ "$2" = 1 ] && echo tls || echo plain)" >/dev/null
}

# The last column of a row of a summary.
cost() { # pair kind work
    awk -v work="$3" '$2 == work { print $NF }' "$out/$1-$2/summary.txt"
}

for ((pair = 1; pair <= pairs; pair++)); do
    first=$((pair % 2))
    one "$pair" "$first"
    one "$pair" $((1 - first))
done
{
    sed 's/, TLS//' "$out/1-tls/summary.txt" | head -2
    printf '%-8s %4s %12s %12s %7s\n' work pair plain_us/op tls_us/op ratio
    for work in reads writes; do
        for ((pair = 1; pair <= pairs; pair++)); do
            awk -v work="$work" -v pair="$pair" -v a="$(cost "$pair" plain "$work")" -v b="$(cost "$pair" tls "$work")" \
                'BEGIN { printf "%-8s %4d %12.1f %12.1f %7.3f\n", work, pair, a, b, b / a }'
        done | tee "$out/$work.rows"
        sort -n -k5 "$out/$work.rows" | awk -v work="$work" '{ r[NR] = $5 }
            END { printf "%-8s median ratio %.3f\n", work, NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2 }'
        rm "$out/$work.rows"
    done
} | tee "$out/summary.txt"
