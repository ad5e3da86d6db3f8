#!/bin/sh
# Make this machine able to boot Soft-RoCE guests: packages by apt (as root), then the image.
#
#   sh tests/rig/setup.sh        idempotent; under a second when everything is there
#
# The kernel comes from Debian's own linux-image package, downloaded and unpacked into the
# cache, never installed (no initrd is built, nothing of the running system changes). The
# "cloud" flavour would not do: it has neither rdma_rxe nor 9p.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${GENIE_RIG_CACHE:-${XDG_CACHE_HOME:-$here/../../.cache}/rig}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

missing=""
need() { # need COMMAND PACKAGE: remember the package whose command is not there
    command -v "$1" >/dev/null 2>&1 || [ -e "/usr/sbin/$1" ] || missing="$missing $2"
}
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need rdma iproute2
need ibv_devinfo ibverbs-utils
need ib_write_bw perftest
need tcpdump tcpdump
need valgrind valgrind
need depmod kmod
need cc gcc
ls /usr/lib/*/libibverbs/librxe-rdmav*.so /usr/lib64/libibverbs/librxe-rdmav*.so \
    >/dev/null 2>&1 || missing="$missing ibverbs-providers"
[ -e /usr/include/infiniband/verbs.h ] || missing="$missing libibverbs-dev"
[ -e /usr/lib/python3/dist-packages/pyverbs ] || missing="$missing python3-pyverbs"

apt() { # one apt at a time, without questions
    if command -v flock >/dev/null 2>&1; then
        flock "${GENIE_APT_LOCK:-/tmp/genie-apt.lock}" apt-get "$@"
    else
        apt-get "$@"
    fi
}

if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "rig: missing:$missing (Debian packages; install them, or run this as root)" >&2
        exit 77
    fi
    apt update -q >/dev/null || echo "rig: apt-get update failed; trying with the old lists" >&2
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt install -y -q --no-install-recommends $missing >/dev/null
fi

if [ ! -s "$cache/vmlinux" ] || [ ! -s "$cache/initramfs" ] ||
    [ "$here/image.py" -nt "$cache/initramfs" ]; then
    work=$(mktemp -d "$cache/unpack.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    if [ ! -s "$cache/linux-image.deb" ]; then
        name=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
        if [ -z "$name" ]; then
            apt update -q >/dev/null || true
            name=$(apt-cache depends linux-image-amd64 |
                awk '/Depends: linux-image-/ {print $2; exit}')
        fi
        [ -n "$name" ] || { echo "rig: apt knows no linux-image-amd64" >&2; exit 77; }
        (cd "$work" && apt download "$name" >/dev/null 2>&1) ||
            { echo "rig: cannot download $name" >&2; exit 77; }
        mv "$work"/linux-image-*.deb "$cache/linux-image.deb"
    fi
    dpkg -x "$cache/linux-image.deb" "$work/root"
    python3 "$here/image.py" "$work/root" "$cache"
fi
echo "rig: ready in $cache" >&2
