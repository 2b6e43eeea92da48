# shellcheck shell=bash
# The network of the local cluster: a namespace of its own, so that its ports, bridge and packet-filter rules cannot meet
# those of the machine, and so that removing the namespace removes all of them. Sourced by cluster.sh.
#
#   host  tidemill0 198.18.88.1/30 ---- uplink0 198.18.88.2/30  [namespace tidemill]  pods0 10.88.0.1/16 ---- pods
#         routes 10.88.0.0/16 (pods, Kafka, API server, nodes) and 10.96.0.0/16 (Services) through it

HOST_LINK=tidemill0
PODS=10.88.0.0/16
SERVICES=10.96.0.0/16

network_up() {
  [ "$ROOTED" = yes ] || return 0
  [ ! -e "/run/netns/$NETNS" ] || return 0
  need_commands ip nsenter iptables
  refuse_taken_ranges
  modprobe -q br_netfilter 2>/dev/null || true
  ip netns add "$NETNS"
  ip link add "$HOST_LINK" type veth peer name uplink0 netns "$NETNS"
  ip addr add 198.18.88.1/30 dev "$HOST_LINK"
  ip link set "$HOST_LINK" up
  "${NET[@]}" bash -euo pipefail -s <<'INSIDE'
ip link set lo up
ip addr add 198.18.88.2/30 dev uplink0
ip link set uplink0 up
ip route add default via 198.18.88.1
ip link add pods0 type bridge
ip addr add 10.88.0.1/16 dev pods0
ip link set pods0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
# Tests put their DROP rules here; flushing the chain heals everything.
iptables -N TIDEMILL-FAULTS
iptables -I INPUT -j TIDEMILL-FAULTS
iptables -I FORWARD -j TIDEMILL-FAULTS
INSIDE
  # Frames between two pods stay on the bridge; only with this do they pass Services' address translation and fault rules.
  "${NET[@]}" bash -c 'echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables' 2>/dev/null ||
    die "the kernel module br_netfilter is missing"
  ip route add "$PODS" via 198.18.88.2
  ip route add "$SERVICES" via 198.18.88.2
}

refuse_taken_ranges() {
  local range taken
  for range in "$PODS" "$SERVICES" 198.18.88.0/30; do
    taken=$(ip -4 route show root "$range")
    [ -z "$taken" ] || die "the address range $range is in use here ($taken); the local cluster needs it"
  done
}

network_down() {
  [ "$ROOTED" = yes ] || return 0
  # The kernel frees a namespace some time later; without the link, its routes are gone at once.
  ip link del "$HOST_LINK" 2>/dev/null || true
  if [ -e "/run/netns/$NETNS" ]; then ip netns del "$NETNS"; fi
}
