# Clusters of etcd on one site, for the scripts that source this after lib/site.sh. Their ports follow those of
# the cluster of Leasehold.
# shellcheck shell=bash

export ETCDCTL_API=3
endpoint() { echo "http://127.0.0.1:$((first_port + 300 + $1))"; }
peer() { echo "http://127.0.0.1:$((first_port + 400 + $1))"; }

# Starts a cluster of etcd. Sets etcd_leader, the address at which clients reach its leader, and site_pids_etcd.
start_etcd() {
    local i members endpoints started=()
    members=$(for ((i = 0; i < replicas; i++)); do echo "e$i=$(peer "$i")"; done | paste -sd,)
    endpoints=$(for ((i = 0; i < replicas; i++)); do endpoint "$i"; done | paste -sd,)
    for ((i = 0; i < replicas; i++)); do
        etcd --name "e$i" --data-dir "$work/e$i" --initial-cluster "$members" --initial-cluster-state new \
            --listen-peer-urls "$(peer "$i")" --initial-advertise-peer-urls "$(peer "$i")" \
            --listen-client-urls "$(endpoint "$i")" --advertise-client-urls "$(endpoint "$i")" >"$work/e$i.log" 2>&1 &
        started+=($!)
        pids+=($!)
    done
    declare -ga "site_pids_etcd=(${started[*]})"
    etcd_leader=
    for _ in $(seq 50); do
        # "ENDPOINT, ID, version, size, is leader, ..."
        etcd_leader=$(etcdctl --endpoints "$endpoints" endpoint status 2>/dev/null | awk -F', ' '$5 == "true" { print $1 }' || true)
        [ -n "$etcd_leader" ] && break
        sleep 0.2
    done
    [ -n "$etcd_leader" ] || { echo "etcd has no leader:" >&2; tail -n 3 "$work"/e*.log >&2; exit 1; }
}
