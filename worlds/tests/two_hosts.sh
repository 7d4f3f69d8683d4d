#!/usr/bin/env bash
# Runs a torchrun job on two hosts that this machine plays by network namespaces: two_hosts.sh PROGRAM [ARGUMENTS...]
# (a Python module and its arguments, as torchrun's -m takes them). Needs the right to make namespaces, as root has.
set -euo pipefail
one=lockstep-one-$$ other=lockstep-other-$$
clean() {
    for name in "$one" "$other"; do
        ip netns pids "$name" 2>/dev/null | xargs -r kill 2>/dev/null || true
        ip netns del "$name" 2>/dev/null || true
    done
}
trap clean EXIT
ip netns add "$one"
ip netns add "$other"
ip link add "lsa$$" netns "$one" type veth peer name "lsb$$" netns "$other"
ip -n "$one" addr add 10.213.0.1/24 dev "lsa$$"
ip -n "$other" addr add 10.213.0.2/24 dev "lsb$$"
for end in "$one lsa$$" "$other lsb$$"; do
    read -r name link <<<"$end"
    ip -n "$name" link set lo up
    ip -n "$name" link set "$link" up
done
run() { # namespace, link, number of the node, arguments
    local name=$1 link=$2 node=$3
    shift 3
    timeout "${LIMIT:-60}" ip netns exec "$name" \
        env GLOO_SOCKET_IFNAME="$link" OMP_NUM_THREADS=1 \
        "${TORCHRUN:-torchrun}" --nnodes=2 --node-rank="$node" --nproc-per-node="${RANKS_PER_HOST:-1}" \
        --master-addr=10.213.0.1 --master-port=29400 -m "$@"
}
run "$other" "lsb$$" 1 "$@" &
second=$!
run "$one" "lsa$$" 0 "$@"
wait "$second"
