# N Soft-RoCE devices in one guest that really send packets; source it, then `devices N [MTU]`.
#
# rxe$i sits on veth a$i (10.88.0.$((i+1))/24), whose other end b$i is a port of bridge br0, so that
# every packet leaves a$i, crosses the bridge and comes in at its receiver: tc on b$j shapes or breaks
# the way to device j, a capture on br0 sees all of it. All of it stays in the first network
# namespace: kernel 6.1's rxe has its UDP sockets only there.

mods() { # mods NAME...: load modules that the image keeps for later
    local name module
    for name in "$@"; do
        for module in $(sed -n "s/^$name //p" /run/m/deps); do
            insmod "/run/m/$module" 2>/dev/null || true
        done
    done
}

devices() { # devices N [MTU]
    local n=$1 mtu=${2:-4200} i j
    mods veth bridge af_packet
    # veth hands packets to the receiver's backlog; 1000 is fewer than one worker has in flight.
    sysctl -qw net.core.netdev_max_backlog=100000
    sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
        net.ipv4.conf.all.accept_local=1 net.ipv4.conf.default.accept_local=1 \
        net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 \
        net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
    # `ip -batch`: one process for all links, one for all neighbours (forks are dear when emulated).
    {
        echo "link add br0 mtu $mtu type bridge"
        echo "link set br0 up"
        for ((i = 0; i < n; i++)); do
            printf 'link add a%d mtu %d txqueuelen 10000 address 02:88:00:00:00:%02x type veth peer name b%d mtu %d\n' \
                $i $mtu $((i + 1)) $i $mtu
            echo "link set b$i master br0 txqueuelen 10000 up"
            echo "link set a$i up"
            echo "addr add 10.88.0.$((i + 1))/24 dev a$i"
        done
        for ((i = 0; i < n; i++)); do
            for ((j = 0; j < n; j++)); do
                [ $i = $j ] || printf 'neigh replace 10.88.0.%d lladdr 02:88:00:00:00:%02x dev a%d nud permanent\n' \
                    $((j + 1)) $((j + 1)) $i
            done
        done
    } > /tmp/devices.batch
    ip -batch /tmp/devices.batch
    for ((i = 0; i < n; i++)); do rdma link add rxe$i type rxe netdev a$i; done
}

wait_port() { # wait_port TCP_PORT: until somebody listens there (no sleeps that depend on host speed)
    local hex
    hex=$(printf '%04X' "$1")
    for _ in $(seq 2000); do
        grep -q ":$hex 0\+:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null && return 0
        sleep 0.01
    done
    echo "nobody listens on port $1" >&2
    return 1
}

counters() { # counters DEVICE: its non-zero hardware counters, on one line (one process)
    awk -v ORS=' ' -v d="$1" 'BEGIN { print d }
        FNR == 1 && $1 != 0 && FILENAME !~ /lifespan/ { n = split(FILENAME, p, "/"); print p[n] "=" $1 }
        END { printf "\n" }' /sys/class/infiniband/"$1"/ports/1/hw_counters/*
}
