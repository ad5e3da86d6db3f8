#!/bin/sh
# Install what the tests run beside Python (as root, by apt): launchers, namespaces, a browser.
# Idempotent; under a second when everything is there. Without root the tests that need a missing
# program skip and say so.
set -eu
missing=""
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -e "/usr/sbin/$1" ] || missing="$missing $2"
}
need ip iproute2
need mpirun openmpi-bin
need sshd openssh-server
need ssh openssh-client
need slurmctld slurm-wlm
need munged munge
need nft nftables
need setpriv util-linux
need protoc protobuf-compiler
command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 ||
    missing="$missing chromium"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "tests: not installed here:$missing (Debian packages; tests that need them will skip)" >&2
    exit 77
fi
echo "tests: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null || echo "tests: apt-get update failed; trying with the old lists" >&2
# Services are not started: the tests start their own.
printf '#!/bin/sh\nexit 101\n' >/tmp/genie-policy.$$
if [ ! -e /usr/sbin/policy-rc.d ]; then
    install -m 755 /tmp/genie-policy.$$ /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
rm -f /tmp/genie-policy.$$
# shellcheck disable=SC2086
apt-get install -y -q --no-install-recommends $missing >/dev/null
