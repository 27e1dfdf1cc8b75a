#!/bin/busybox sh
# First program of the virtual machine: modules, then the host's root below a tmpfs, then guest_system.sh from the desk.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "$module"; done </modules/order
share=trans=virtio,version=9p2000.L,msize=1048576
mount -t 9p -o $share,ro,cache=loose system /below
mount -t tmpfs -o size=80% above /above
mkdir /above/changes /above/work
mount -t overlay -o lowerdir=/below,upperdir=/above/changes,workdir=/above/work overlay /system
mkdir -p /system/desk
# Not cached: the host reads here while we run.
mount -t 9p -o $share,cache=none desk /system/desk
for folder in proc sys dev; do mount --move /$folder /system/$folder; done
exec switch_root /system /desk/guest_system.sh
