#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ RUST_BACKTRACE=1 NO_COLOR=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
chmod 1777 /tmp
# Runs a test program.
run() {
    echo "guest: running $*"
    "$@" --test-threads=2 || echo "guest: FAILED $1"
}
cd /
echo "guest: kernel $(uname -r)"
. /script
echo 'guest: end'
poweroff -f
