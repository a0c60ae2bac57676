#!/usr/bin/env bash
# What `exp advise` forecasts, against what is measured, in the places of places.sh and under
# every leader of each, in virtual time.
#
# usage: benchmarks/advice.sh [OUT]
#
# Each case is a run of fig6-open, and the advice from its files: the forecast mean of each
# strategy beside the measured one, and who should lead. The leader that is best by
# measurement is that of the least mean of any strategy among the runs of the same place,
# popularity and share of reads. Advice is right if it names that leader; leaders whose
# measured means are within 1% of each other are called equal. Results go to OUT (default
# results/advice): advice.md, and its lines as means.csv and leaders.csv.
#
# LEASEHOLD names the binary (default target/release/leasehold), REQUESTS how many a client
# makes, of which half warm up (default 10000), STRATEGIES what is run, PLACES where (default
# "paper three seven"), THETAS and READS the workloads, JOBS how many runs at a time
# (default 2).
set -euo pipefail

leasehold=${LEASEHOLD:-${CARGO_TARGET_DIR:-target}/release/leasehold}
out=${1:-results/advice}
requests=${REQUESTS:-10000}
strategies=${STRATEGIES:-leader,all,quorum,cost}
here=$(dirname "$0")
[ -x "$leasehold" ] || { echo "no binary at $leasehold: build it, or set LEASEHOLD" >&2; exit 1; }
command -v jq >/dev/null || { echo "jq is needed: apt-get install jq" >&2; exit 1; }
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'echo interrupted >&2; exit 130' INT TERM

leaders() { # place
    case $1 in
        paper) echo CA OR VA JP IRL ;;
        *) sed -n 's/^sites *= *\[\(.*\)\].*/\1/p' "$here/places/$1.toml" | tr -d '",' ;;
    esac
}

one() { # place theta reads leader
    local place=$1 theta=$2 reads=$3 leader=$4 run=$work/$1-$2-$3-$4 topology=()
    [ "$place" = paper ] || topology=(--set "topology=$here/places/$place.toml")
    "$leasehold" exp run fig6-open --on sim --out "$run" "${topology[@]}" \
        --set "leader=$leader" --set "workload.theta=$theta" --set "reads=$reads" \
        --set "requests=$requests" --set "warmup=$((requests / 2))" \
        --set "strategies=$strategies" >"$run.log" 2>&1 || { cat "$run.log" >&2; return 1; }
    "$leasehold" exp advise "$run" --json >"$run.json"
    rm -rf "$run"
    local head="$place,$theta,$reads,$leader"
    jq -r --arg head "$head" '.runs[] | select(.forecast) |
        "\($head),\(.strategy),\(.forecast.mean_ms),\(.measured.mean_ms),\(.error * 100)"' "$run.json" >"$run.means"
    # Of the strategies that were run alone: the others have nothing to be compared with.
    jq -r --arg head "$head" '([.runs[].strategy] | unique) as $run |
        [.forecasts[] | select(.strategy | IN($run[]))] | min_by(.mean_ms) |
        "\($head),\(.leader),\(.strategy)"' "$run.json" >"$run.best"
    echo "$head: done" >&2
}
export -f one
export leasehold requests strategies here work

for place in ${PLACES:-paper three seven}; do
    for theta in ${THETAS:-0.8 0.99 1.2}; do
        for reads in ${READS:-0.5 0.9}; do
            for leader in $(leaders "$place"); do echo "$place $theta $reads $leader"; done
        done
    done
done >"$work/cases"
xargs -P "${JOBS:-2}" -L 1 bash -c 'set -euo pipefail; one "$@"' one <"$work/cases"

while read -r place theta reads leader; do
    cat "$work/$place-$theta-$reads-$leader.means" >&3
    cat "$work/$place-$theta-$reads-$leader.best" >&4
done <"$work/cases" 3>"$work/means" 4>"$work/best"
{ echo "place,theta,reads,leader,strategy,forecast_ms,measured_ms,error_percent"; cat "$work/means"; } >"$out/means.csv"
{ echo "place,theta,reads,leader,advised_leader,advised_strategy"; cat "$work/best"; } >"$out/leaders.csv"
{
    echo "# Advice against measurement"
    echo
    echo "Mean latency by operation in ms, in virtual time. Made by"
    echo "\`REQUESTS=$requests benchmarks/advice.sh\` with $("$leasehold" --version)."
    echo
    awk -F, '
        NR == FNR {
            line[++n] = $0; place = $1 "," $2 "," $3
            if (!((place, $4) in mean) || $7 < mean[place, $4]) mean[place, $4] = $7 + 0
            if (!(place in least) || $7 + 0 < least[place]) { least[place] = $7 + 0; best[place] = $4 }
            off = $8 < 0 ? -$8 : $8 + 0
            over += off > 5; if (off > worst) { worst = off; where = $1 ", theta " $2 ", reads " $3 ", led by " $4 ", " $5 }
            next
        }
        { case_[++m] = $0 }
        END {
            print "## Means\n\n| place | theta | reads | leader | strategy | forecast | measured | error |"
            print "|---|---:|---:|---|---|---:|---:|---:|"
            for (i = 1; i <= n; i++) {
                split(line[i], f, ",")
                printf "| %s | %s | %s | %s | %s | %.1f | %.1f | %+.1f%% |\n", f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8]
            }
            print "\n## Who should lead\n\n| place | theta | reads | led by | advised | best measured | its mean | that of the advised | advice is |"
            print "|---|---:|---:|---|---|---|---:|---:|---|"
            for (i = 1; i <= m; i++) {
                split(case_[i], f, ","); place = f[1] "," f[2] "," f[3]
                its = mean[place, f[5]]
                is = f[5] == best[place] ? "right" : (its <= least[place] * 1.01 ? "equal" : "wrong")
                count[is]++
                printf "| %s | %s | %s | %s | %s, %s | %s | %.1f | %.1f | %s |\n", f[1], f[2], f[3], f[4], f[5], f[6], best[place], least[place], its, is
            }
            printf "\nThe worst error is %.1f%% (%s); %d of %d means are off by more than 5%%. The best leader is named in %d of %d cases, one within 1%% of the best in %d, and a wrong one in %d.\n", worst, where, over, n, count["right"], m, count["equal"], count["wrong"]
        }' "$work/means" "$work/best"
} >"$out/advice.md"
tail -1 "$out/advice.md"
