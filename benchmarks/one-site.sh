#!/usr/bin/env bash
# Throughput, latency and server CPU of a cluster on one site, without a WAN.
#
# usage: benchmarks/one-site.sh [OUT]
#
# Five replica processes on loopback, 50 closed-loop connections to one of them,
# values of 100 bytes; reads, then writes, then merges of one field into records
# that come to have ten, with synced and unsynced logs. Server
# CPU is user + system time of all five replicas together, from /proc, divided by
# the operations. Results go to OUT (default results/one-site): the load
# generator's reports and histograms, and summary.txt.
#
# SECONDS_EACH says how long each measurement lasts (default 15), DURABILITIES with
# which ("sync async none"). With TLS=1 the replicas have certificates, and clients
# talk TLS to them. The variables that lib/site.sh names count, too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/site.sh"

out=${1:-results/one-site}
seconds=${SECONDS_EACH:-15}
tls=${TLS:+tls}
mkdir -p "$out"
summary=$out/summary.txt
{
    echo "$replicas replicas, $connections closed-loop connections to the leader, 100-byte values, ${seconds} s each${tls:+, TLS}"
    echo "$(uname -sr), $(nproc) processors, $("$leasehold" --version)"
    printf '%-10s %-8s %12s %10s %10s %14s\n' durability work ops/s p50_us p99_us server_us/op
} >"$summary"

for durability in ${DURABILITIES:-sync async none}; do
    start_site "$durability" "$first_port" "$durability" $tls
    for label in reads writes merges; do
        declare -n properties=$label
        found=$(measure_site "$durability" "$first_port" "$out/$durability-$label" "$seconds" "${properties[@]}")
        # shellcheck disable=SC2086
        printf '%-10s %-8s %12.0f %10s %10s %14.1f\n' "$durability" "$label" $found | tee -a "$summary"
    done
    stop_sites
done
