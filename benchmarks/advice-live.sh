#!/usr/bin/env bash
# What `lease advise` forecasts on running clusters, against what is measured right after.
#
# usage: benchmarks/advice-live.sh [OUT]
#
# For each strategy: a cluster of real processes behind the emulated WAN of `cluster up`, with
# CA as leader, loaded and started again, so that the load is not counted as demand. Clients of
# every site then ask at the same fixed rate, whatever is answered; popular keys differ from
# site to site, and all strategies get the same operations. While that goes on, the advice is
# asked for at the end of the warm-up. The figures that are compared are means over all operations
# of all sites: the forecast for the strategy in force, and the time from when each operation
# was due, in the interval after the advice. Results go to OUT (default results/advice-live):
# advice-live.md, its lines as means.csv, and for each strategy the advice (STRATEGY.json)
# and the load generator's report (STRATEGY.txt).
#
# LEASEHOLD names the binary (default target/release/leasehold), STRATEGIES what is compared
# (default "cost quorum all leader"), WARMUP and SECONDS_EACH how long each warms up and is
# measured (default 60 and 60 s), RATE the operations a second of all five sites together
# (default 1000), KEYS, THETA and READS the workload (default 10000, 0.99 and 0.5), PORT the
# first of the ports for clients (default 7001). It needs jq and an idle machine.
set -Eeuo pipefail

leasehold=${LEASEHOLD:-${CARGO_TARGET_DIR:-target}/release/leasehold}
out=${1:-results/advice-live}
warmup=${WARMUP:-60}
seconds=${SECONDS_EACH:-60}
rate=${RATE:-1000}
keys=${KEYS:-10000}
theta=${THETA:-0.99}
reads=${READS:-0.5}
port=${PORT:-7001}
strategies=${STRATEGIES:-cost quorum all leader}
[ -x "$leasehold" ] || { echo "no binary at $leasehold: build it, or set LEASEHOLD" >&2; exit 1; }
command -v jq >/dev/null || { echo "jq is needed: apt-get install jq" >&2; exit 1; }
mkdir -p "$out"
work=$(mktemp -d)
cluster=
generator=
stop() {
    [ -z "$generator" ] || kill "$generator" 2>/dev/null || true
    [ -z "$cluster" ] || "$leasehold" cluster down --dir "$cluster" >>"$work/log" 2>&1 || true
    generator= cluster=
}
trap 'stop; rm -rf "$work"' EXIT
trap 'echo interrupted >&2; exit 130' INT TERM
trap 'cat "$work/log" >&2' ERR

addresses=127.0.0.1:$port
for i in 1 2 3 4; do addresses=$addresses,127.0.0.1:$((port + i)); done
# Enough threads that an operation is sent when it is due, also if many wait for a second.
threads=$((rate < 250 ? 250 : rate))
workload=(--address "$addresses" -threads "$threads" -p leasehold.connections=25 -p recordcount="$keys"
    -p fieldcount=1 -p fieldlength=100 -p writeallfields=true)
# The certificate of the cluster's authority.
authority() { echo "$cluster/certificates/ca.pem"; }

up() {
    "$leasehold" cluster up --dir "$cluster" --strategy none --client-port "$port" --set leader=CA >"$work/log" 2>&1
}

measure() { # strategy
    local strategy=$1 status=0
    cluster=$work/$strategy
    up
    "$leasehold" ycsb load "${workload[@]}" --ca "$(authority)" >"$work/log" 2>&1
    "$leasehold" cluster down --dir "$cluster" >"$work/log" 2>&1
    up
    "$leasehold" lease set "$strategy" --dir "$cluster" >"$work/log" 2>&1
    "$leasehold" ycsb run "${workload[@]}" --ca "$(authority)" -target "$rate" \
        -p readproportion="$reads" -p updateproportion="$(jq -n "1 - $reads")" \
        -p requestdistribution=zipfian_exact -p zipfian.constant="$theta" -p permutation=site \
        -p operationcount=1000000000 -p warmuptime="$warmup" -p maxexecutiontime=$((warmup + seconds)) \
        >"$out/$strategy.txt" 2>"$work/generator.log" &
    generator=$!
    sleep "$warmup"
    "$leasehold" lease advise --json --leader CA --dir "$cluster" >"$out/$strategy.json" 2>"$work/log"
    jq -e '.leader == "CA"' "$out/$strategy.json" >/dev/null || { echo "CA no longer leads: the run counts for nothing" >&2; exit 1; }
    wait "$generator" || status=$?
    generator=
    [ "$status" = 0 ] || { echo "the load generator ended with status $status:" >&2; cat "$work/generator.log" >&2; exit 1; }
    stop
    rm -rf "${work:?}/$strategy"
}

# Of the report of the load generator: operations, those without success, and their mean in ms.
measured() { # strategy
    awk -F', ' '
        $1 == "[OVERALL]" && $2 == "Operations" { all = $3 }
        $1 == "[OVERALL]" && $2 == "Succeeded" { succeeded = $3 }
        $1 ~ /^\[Intended-(READ|UPDATE)\]$/ && $2 == "Operations" { n = $3; counted += n }
        $1 ~ /^\[Intended-(READ|UPDATE)\]$/ && $2 == "AverageLatency(us)" { sum += n * $3 }
        END { printf "%d,%d,%.3f\n", all, all - succeeded, sum / counted / 1000 }
    ' "$out/$1.txt"
}

for strategy in $strategies; do
    measure "$strategy"
    forecast=$(jq '.forecasts[] | select(.present) | .mean_ms' "$out/$strategy.json")
    echo "$strategy,$forecast,$(measured "$strategy")" | tee -a "$work/means" >&2
done

{ echo "strategy,forecast_ms,operations,without_success,measured_ms"; cat "$work/means"; } >"$out/means.csv"
for strategy in $strategies; do
    jq -r --arg now "$strategy" '.forecasts[] | select(.leader == "CA") | "\($now),\(.strategy),\(.mean_ms)"' "$out/$strategy.json"
done >"$work/all"
{
    echo "# Advice on running clusters against measurement"
    echo
    echo "Mean latency by operation in ms, over all operations of all sites. Five processes behind"
    echo "the emulated WAN, led by CA; $rate operations a second in all, as many at each site,"
    echo "$(jq -n "$reads * 100")% of them reads, on $keys keys, theta $theta; ${warmup} s of warm-up, then the advice, then"
    echo "${seconds} s that are measured. Made by \`benchmarks/advice-live.sh\` with $("$leasehold" --version),"
    echo "on $(nproc) processors."
    echo
    awk -F, '
        function error(forecast, measured) { return (forecast / measured - 1) * 100 }
        NR == FNR { name[++n] = $1; forecast[$1] = $2; operations[$1] = $3; failed[$1] = $4; measured[$1] = $5; next }
        { of[$1, $2] = $3 }
        END {
            print "| strategy in force | forecast | measured | error | operations | without success |\n|---|---:|---:|---:|---:|---:|"
            for (i = 1; i <= n; i++) {
                s = name[i]; e = error(forecast[s], measured[s]); off = e < 0 ? -e : e
                if (i == 1 || off > worst) { worst = off; where = s }
                within += off <= 5
                printf "| %s | %.1f | %.1f | %+.1f%% | %d | %d |\n", s, forecast[s], measured[s], e, operations[s], failed[s]
            }
            print "\nWhat the advice said of strategies that were not in force, against what each gave when it was:\n"
            printf "| in force |"; for (j = 1; j <= n; j++) printf " %s |", name[j]
            printf "\n|---|"; for (j = 1; j <= n; j++) printf "---:|"
            print ""
            for (i = 1; i <= n; i++) {
                printf "| %s |", name[i]
                for (j = 1; j <= n; j++) {
                    e = error(of[name[i], name[j]], measured[name[j]]); off = e < 0 ? -e : e
                    if (i != j && off > other) { other = off; whence = name[j] " while " name[i] " was in force" }
                    printf " %.1f (%+.1f%%) |", of[name[i], name[j]], e
                }
                print ""
            }
            if (n > 1) printf "\nThe worst error for a strategy that was not in force is %.1f%% (%s).\n", other, whence
            printf "\nThe worst error for the strategy in force is %.1f%% (%s); %d of %d are within 5%%.\n", worst, where, within, n
        }' "$work/means" "$work/all"
} >"$out/advice-live.md"
tail -1 "$out/advice-live.md"
