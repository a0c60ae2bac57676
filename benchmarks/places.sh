#!/usr/bin/env bash
# Every strategy in other places than the paper's: other sites, leaders, popularities and
# shares of reads, in virtual time. `cost` runs with its defaults everywhere.
#
# usage: benchmarks/places.sh [OUT]
#
# Each line of the table is one run of fig6-open: all sites ask equally often, and the
# second half is measured. Results go to OUT (default results/places): places.md with
# the mean latency by operation of each strategy, and its lines as places.csv.
#
# LEASEHOLD names the binary (default target/release/leasehold), REQUESTS how many a
# client makes, of which half warm up (default 10000), STRATEGIES what is compared.
set -euo pipefail

leasehold=${LEASEHOLD:-${CARGO_TARGET_DIR:-target}/release/leasehold}
out=${1:-results/places}
requests=${REQUESTS:-10000}
strategies=${STRATEGIES:-leader,all,quorum,cost}
here=$(dirname "$0")
[ -x "$leasehold" ] || { echo "no binary at $leasehold: build it, or set LEASEHOLD" >&2; exit 1; }
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'echo interrupted >&2; exit 130' INT TERM
lines=$work/lines

measure() { # place leader theta reads
    local place=$1 leader=$2 theta=$3 reads=$4 topology=()
    [ "$place" = paper ] || topology=(--set "topology=$here/places/$place.toml")
    "$leasehold" exp run fig6-open --on sim --out "$work/run" "${topology[@]}" \
        --set "leader=$leader" --set "workload.theta=$theta" --set "reads=$reads" \
        --set "requests=$requests" --set "warmup=$((requests / 2))" \
        --set "strategies=$strategies" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    # Of the table of means: label, measured, ..., best holders by true rates.
    awk -F' *[|] *' -v head="$place,$leader,$theta,$reads" '
        /^## / { shown = ($0 == "## What true rates allow") }
        /^\*\*/ { if (shown) table++ }
        shown && table == 1 && NF == 8 && $3 + 0 > 0 { print head "," $2 "," $3 "," $6 }
    ' "$work/run/report.md" | tee -a "$lines"
}

for reads in 0.5 0.9; do
    for leader in CA VA JP; do measure paper "$leader" 0.99 "$reads"; done
    for leader in NYC FRA SIN; do measure three "$leader" 0.99 "$reads"; done
    for leader in IAD LHR SIN; do measure seven "$leader" 0.99 "$reads"; done
    for theta in 0.8 1.2; do
        measure paper CA "$theta" "$reads"
        measure three FRA "$theta" "$reads"
        measure seven IAD "$theta" "$reads"
    done
done

{ echo "place,leader,theta,reads,strategy,mean_ms,best_holders_ms"; cat "$lines"; } >"$out/places.csv"
{
    echo "# Strategies in other places"
    echo
    echo "Mean latency by operation in ms, in virtual time. All sites ask equally often:"
    echo "$requests requests of each of ten clients a site, of which the second half is measured."
    echo "\"Best holders\" is what the workload's true rates allow. Made by"
    echo "\`REQUESTS=$requests benchmarks/places.sh\` with $("$leasehold" --version)."
    echo
    awk -F, '
        { row = $1 "," $2 "," $3 "," $4; if (!(row in seen)) { seen[row] = 1; rows[++n] = row }
          if (!($5 in named)) { named[$5] = 1; names[++m] = $5 }
          ms[row, $5] = $6; best[row] = $7 }
        END {
            printf "| place | leader | theta | reads |"
            for (i = 1; i <= m; i++) printf " %s |", names[i]
            print " cost against the best other | best holders | cost above |"
            printf "|---|---|---:|---:|"
            for (i = 1; i <= m + 3; i++) printf "---:|"
            print ""
            for (r = 1; r <= n; r++) {
                row = rows[r]; split(row, part, ","); other = 0
                printf "| %s | %s | %s | %d%% |", part[1], part[2], part[3], part[4] * 100
                for (i = 1; i <= m; i++) {
                    printf " %s |", ms[row, names[i]]
                    if (names[i] != "cost" && (!other || ms[row, names[i]] < other)) other = ms[row, names[i]] + 0
                }
                if ((row, "cost") in ms) {
                    off = (ms[row, "cost"] / other - 1) * 100
                    printf " %+.1f%% | %s | %+.1f%% |\n", off, best[row], (ms[row, "cost"] / best[row] - 1) * 100
                    runs++; ahead += off < 0; behind += off > 2; if (runs == 1 || off > worst) worst = off
                } else printf " – | %s | – |\n", best[row]
            }
            if (runs) printf "\ncost is ahead of every other strategy in %d of %d places, and more than 2%% behind the best one in %d; at worst it is at %+.1f%%.\n", ahead, runs, behind, worst
        }' "$lines"
} >"$out/places.md"
tail -1 "$out/places.md"
