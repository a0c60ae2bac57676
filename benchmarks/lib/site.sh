# Clusters on one site, for the scripts that source this: replica processes on loopback, a load
# generator beside them, and the processor time that the replicas take.
#
# These variables count: LEASEHOLD names the binary (default target/release/leasehold), REPLICAS says
# how many there are (5), CONNECTIONS how many clients (50), STRATEGY who holds leases (leader),
# ACCEPT_REPLIES who hears votes (origin), PORT the first port (7301).
# shellcheck shell=bash

leasehold=${LEASEHOLD:-${CARGO_TARGET_DIR:-target}/release/leasehold}
connections=${CONNECTIONS:-50}
replicas=${REPLICAS:-5}
strategy=${STRATEGY:-leader}
replies=${ACCEPT_REPLIES:-origin}
first_port=${PORT:-7301}
[ -x "$leasehold" ] || { echo "no binary at $leasehold: build it, or set LEASEHOLD" >&2; exit 1; }
leasehold=$(realpath "$leasehold")
hertz=$(getconf CLK_TCK)
work=$(mktemp -d)
pids=()
unset LEASEHOLD_CA

stop_sites() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    pids=()
}
trap 'stop_sites; rm -rf "$work"' EXIT
trap 'echo interrupted >&2; exit 130' INT TERM

site_config() { # port durability
    echo "cluster = \"one-site\""
    echo "leader = \"r0\""
    echo "durability = \"$2\""
    echo "data = \"data\""
    echo "accept_replies = \"$replies\""
    echo "[lease]"
    echo "strategy = \"$strategy\""
    for ((i = 0; i < replicas; i++)); do
        printf '[[node]]\nname = "r%d"\nclient = "127.0.0.1:%d"\npeer = "127.0.0.1:%d"\n' \
            "$i" $(($1 + i)) $(($1 + 100 + i))
    done
}

# Starts the replicas of a site whose configuration is written. Sets site_pids_SITE.
start_replicas() { # site
    local i started=()
    for ((i = 0; i < replicas; i++)); do
        "$leasehold" serve --config "$work/$1/cluster.toml" --node "r$i" >>"$work/$1/r$i.log" 2>&1 &
        started+=($!)
        pids+=($!)
    done
    declare -ga "site_pids_$1=(${started[*]})"
}

# Starts a cluster named SITE, whose leader clients reach at PORT, and loads 10,000 records. With
# certificates if the last word is `tls`. Sets site_pids_SITE.
start_site() { # site port durability [tls]
    local site=$1 port=$2 durability=$3 tls=${4:-} dir=$work/$1
    mkdir -p "$dir"
    site_config "$port" "$durability" >"$dir/cluster.toml"
    if [ -n "$tls" ]; then
        "$leasehold" cert "$dir/certificates" --config "$dir/cluster.toml" >"$work/log"
        printf '[security]\ncertificates = "certificates"\n' >>"$dir/cluster.toml"
    fi
    start_replicas "$site"
    for _ in $(seq 100); do
        client "$site" kv --address "127.0.0.1:$port" --timeout 1 put ready yes >"$work/log" 2>&1 && break
        sleep 0.2
    done
    sleep 3
    client "$site" ycsb load --address "127.0.0.1:$port" -threads "$connections" \
        -p recordcount=10000 -p fieldcount=1 -p fieldlength=100 >"$dir/load" 2>&1
}

# Runs a client's command against a site, with what it has to trust.
client() { # site arguments...
    local ca=$work/$1/certificates/ca.pem
    shift
    if [ -e "$ca" ]; then LEASEHOLD_CA=$ca "$leasehold" "$@"; else "$leasehold" "$@"; fi
}

# Processor time of a site's replicas so far, in clock ticks: user and system time, of /proc.
site_ticks() { # site
    local -n of_site=site_pids_$1
    local sum=0 pid stat
    for pid in "${of_site[@]}"; do
        stat=$(cat "/proc/$pid/stat"); stat=${stat##*) }
        # shellcheck disable=SC2086
        set -- $stat
        sum=$((sum + ${12} + ${13}))
    done
    echo "$sum"
}

# Loads a site's leader for some seconds. Prints operations/s, p50 and p99 in us, and the replicas' us
# of processor time for each operation. The generator's files begin with REPORT.
measure_site() { # site port report seconds properties...
    local site=$1 port=$2 report=$3 seconds=$4 before after
    shift 4
    before=$(site_ticks "$site")
    client "$site" ycsb run --address "127.0.0.1:$port" -threads "$connections" \
        -p recordcount=10000 -p fieldcount=1 -p fieldlength=100 -p operationcount=100000000 \
        -p requestdistribution=uniform -p maxexecutiontime="$seconds" \
        -p hdrhistogram.fileoutput=true -p hdrhistogram.output.path="$report." \
        -p hdrhistogram.percentiles=50,99 "$@" >"$report.txt" 2>"$work/log"
    after=$(site_ticks "$site")
    awk -F', ' -v ticks=$((after - before)) -v hertz="$hertz" '
        $1 == "[OVERALL]" && $2 ~ /^Throughput/ { rate = $3 }
        $1 ~ /^\[(READ|UPDATE)\]$/ && $2 == "Operations" { ops = $3 }
        $1 ~ /^\[(READ|UPDATE)\]$/ && $2 ~ /^50th|^50.0/ { p50 = $3 }
        $1 ~ /^\[(READ|UPDATE)\]$/ && $2 ~ /^99th|^99.0/ { p99 = $3 }
        END { printf "%.0f %s %s %.2f\n", rate, p50, p99, ticks / hertz * 1e6 / ops }
    ' "$report.txt"
}

reads=(-p readproportion=1 -p updateproportion=0)
writes=(-p readproportion=0 -p updateproportion=1 -p writeallfields=true)
# Of one field into records that come to have ten.
merges=(-p readproportion=0 -p updateproportion=1 -p fieldcount=10)

# measure_pairs FIRST SECOND PAIRS SECONDS: pairs of short runs by turns on two sites, whose first ports are
# in `ports`; reads come first, then writes. Pairs alternate in which site is first. Prints each pair's CPU
# for each operation, its ratio, and the median of the ratios.
measure_pairs() {
    local first=$1 second=$2 pairs=$3 seconds=$4 label pair site order found
    local -A costs
    printf '%-8s %4s %12s %12s %7s\n' work pair "${first}_us/op" "${second}_us/op" ratio
    for label in reads writes; do
        local -n properties=$label
        for ((pair = 1; pair <= pairs; pair++)); do
            order=("$first" "$second")
            ((pair % 2)) || order=("$second" "$first")
            for site in "${order[@]}"; do
                read -ra found < <(measure_site "$site" "${ports[$site]}" "$work/report" "$seconds" "${properties[@]}")
                costs[$site]=${found[3]}
            done
            awk -v work="$label" -v pair="$pair" -v first="${costs[$first]}" -v second="${costs[$second]}" \
                'BEGIN { printf "%-8s %4d %12.2f %12.2f %7.3f\n", work, pair, first, second, second / first }'
        done | tee "$work/rows"
        sort -n -k5 "$work/rows" | awk -v work="$label" '{ r[NR] = $5 }
            END { printf "%-8s median ratio %.3f\n", work, NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2 }'
    done
}
