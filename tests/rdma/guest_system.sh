#!/bin/bash
# Second program of the virtual machine (its process 1): the network with its RDMA devices, then the job, then the end.
# Every device has a cable of its own: nicN, with the address 10.55.0.(N+1), and at its other end swN, a port of one switch. `ip link set swN down` pulls it.
for word in $(</proc/cmdline); do
    case $word in mc_nics=*) nics=${word#*=} ;; mc_mtu=*) mtu=${word#*=} ;; esac
done
export HOME=/root LC_ALL=C.UTF-8 TMPDIR=/tmp

mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs run /run
ln -sf /proc/self/fd /dev/fd
ln -sf fd/0 /dev/stdin
ln -sf fd/1 /dev/stdout
ln -sf fd/2 /dev/stderr
echo rdma-vm >/proc/sys/kernel/hostname
printf '127.0.0.1 localhost rdma-vm\n' >/etc/hosts

for port in /sys/class/virtio-ports/*; do
    [ "$(<"$port/name")" != out ] || out=/dev/${port##*/}
done
exec >"$out" 2>&1 </dev/null

last=$((nics - 1))
# All addresses are one machine's: a packet from one of them that comes in by a cable must be taken.
for where in all default; do
    echo 1 >/proc/sys/net/ipv4/conf/$where/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$where/rp_filter
done
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/default/router_solicitations
# For one `ip`, because starting a program is slow when the processor is emulated.
network() {
    local i j
    echo "link set lo up"
    echo "link add switch type bridge stp_state 0 mcast_snooping 0 forward_delay 0"
    echo "link set switch mtu $mtu up"
    for ((i = 0; i <= last; i++)); do
        echo "link add nic$i mtu $mtu address 02:00:00:00:55:0$((i + 1)) type veth peer name sw$i mtu $mtu"
        echo "link set sw$i master switch up"
        echo "addr add 10.55.0.$((i + 1))/24 dev nic$i"
        echo "link set nic$i up"
    done
    # Nobody answers who has an address that is the asker's own: told beforehand. It survives a pulled cable (permanent).
    for ((i = 0; i <= last; i++)); do
        for ((j = 0; j <= last; j++)); do
            [ $i = $j ] || echo "neigh replace 10.55.0.$((j + 1)) lladdr 02:00:00:00:55:0$((j + 1)) dev nic$i nud permanent"
            [ $i = $j ] || echo "neigh replace fe80::ff:fe00:550$((j + 1)) lladdr 02:00:00:00:55:0$((j + 1)) dev nic$i nud permanent"
        done
    done
}
ip -batch - < <(network)
for ((i = 0; i <= last; i++)); do rdma link add "rxe$i" type rxe netdev "nic$i"; done
ready() {
    local i state gid
    for ((i = 0; i <= last; i++)); do
        state=$(</sys/class/infiniband/rxe$i/ports/1/state) gid=$(</sys/class/infiniband/rxe$i/ports/1/gids/1)
        [[ $state = *ACTIVE && $gid = *:0a37:* ]] || return 1
    done
}
for ((tries = 0; tries < 100; tries++)); do
    ! ready 2>/dev/null || break
    sleep 0.1
done
ulimit -l unlimited
ulimit -n 65536
ulimit -c 0
cut -d ' ' -f 1 /proc/uptime >/desk/up.part
mv /desk/up.part /desk/up

setsid bash /desk/job
echo $? >/desk/status.part
mv /desk/status.part /desk/status
exec busybox reboot -f
