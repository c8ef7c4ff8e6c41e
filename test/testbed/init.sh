#!/bin/sh
# The emulated host's init, run by busybox from its initramfs. `share` and `modules` come from the kernel command line:
# the folder where the testbed keeps its files, and the folder that holds lib/modules, both as the real machine sees them.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev

while read -r module; do insmod "/modules/$module" || echo "init: cannot load $module"; done < /modules/order

# The real machine's / is read-only below a tmpfs, so the host can write anywhere and nothing outlives it.
options=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o "$options,cache=loose,ro" host /lower || echo 'init: cannot mount /'
mount -t tmpfs -o size=75% tmpfs /upper
mkdir /upper/data /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /new
mkdir -p "/new$share"
mount -t 9p -o "$options,cache=none,rw" share "/new$share" || echo 'init: cannot mount the share'
mkdir -p /new/lib/modules
mount -o bind "/new$modules" /new/lib/modules

mount -o move /proc /new/proc
mount -o move /sys /new/sys
mount -o move /dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs tmpfs /new/dev/shm
mount -t tmpfs tmpfs /new/run
ifconfig lo 127.0.0.1 up
# Not chroot: who is in one may make no user namespaces, which passt for one lives in.
exec switch_root /new /bin/sh -c 'sh "$0"; echo "init: the agent ended"; busybox poweroff -f' "$share/agent.sh"
