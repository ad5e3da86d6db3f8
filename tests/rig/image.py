#!/usr/bin/env python3
"""Make the guest's two files, `vmlinux` and `initramfs`, from an unpacked linux-image package.

    image.py SYSROOT OUT

`vmlinux` is the plain ELF kernel: qemu starts it through PVH, which skips the slow
decompressor under emulation. `initramfs` holds busybox, the modules (virtio, 9p,
rdma_rxe, veth, bridge, queueing disciplines) and an init that mounts the host's root over 9p.
"""

from __future__ import annotations

import io
import lzma
import shutil
import stat
import struct
import subprocess
import sys
import zlib
from pathlib import Path

# Loaded before the root is mounted, and right after it; the rest on demand (`mods` in guest.sh).
EARLY = ("virtio_pci", "9pnet_virtio", "9p")
# rdma_rxe asks the crypto layer for "crc32" when a link is added; no modprobe would find it there.
# The carry-less multiplication one halves the instructions of a large message.
LATE = ("virtio_net", "crc32_generic", "crc32_pclmul", "rdma_rxe")
ON_DEMAND = (
    "veth", "bridge", "dummy", "af_packet", "sch_tbf", "sch_netem", "sch_htb", "sch_red",
    "sch_fq_codel", "sch_prio", "sch_ingress", "cls_u32", "cls_matchall", "act_mirred", "ifb",
    "rdma_ucm",
)  # fmt: skip

INIT = """#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
$bb mount -t devtmpfs dev /dev
for m in $($bb cat /m/early); do $bb insmod /m/$m; done
share=trans=virtio,version=9p2000.L,msize=524288
$bb mount -t 9p -o $share,ro,cache=loose root /new || exec $bb sh
$bb mount -t proc proc /new/proc
$bb mount -t sysfs sys /new/sys
$bb mount --move /dev /new/dev
$bb mkdir -p /new/dev/shm /new/dev/pts
$bb mount -t tmpfs tmpfs /new/dev/shm
$bb mount -t devpts devpts /new/dev/pts
for d in tmp run var/tmp mnt; do $bb mount -t tmpfs tmpfs /new/$d; done
$bb mkdir -p /new/run/rig /new/run/lock /new/run/m
$bb mount -t 9p -o $share,rw,cache=none control /new/run/rig
while read tag mode cache path; do
  [ -n "$tag" ] || continue
  [ -d "/new$path" ] || $bb mkdir -p "/new$path"
  $bb mount -t 9p -o $share,$mode,cache=$cache $tag "/new$path" || echo "cannot mount $path"
done < /new/run/rig/shares
for m in $($bb cat /m/late); do $bb insmod /m/$m; done
$bb mount --bind /m /new/run/m
$bb ip link set lo up
exec $bb chroot /new /bin/sh /run/rig/start
"""


def elf_kernel(vmlinuz: bytes) -> bytes:
    """The ELF image inside a bzImage (x86 boot protocol 2.08: payload offset and length)."""
    offset, length = struct.unpack_from("<II", vmlinuz, 0x248)
    setup_sectors = vmlinuz[0x1F1] or 4
    payload = vmlinuz[(setup_sectors + 1) * 512 + offset :][:length]
    if payload[:6] == b"\xfd7zXZ\0":
        elf = lzma.LZMADecompressor().decompress(payload)
    elif payload[:2] == b"\x1f\x8b":
        elf = zlib.decompressobj(31).decompress(payload)
    elif payload[:4] == b"\x28\xb5\x2f\xfd":
        elf = subprocess.run(["zstd", "-dc"], input=payload, capture_output=True).stdout
    else:
        raise SystemExit(f"rig: unknown kernel compression {payload[:6]!r}")
    if elf[:4] != b"\x7fELF":
        raise SystemExit("rig: the kernel payload is no ELF file")
    return elf


def module_name(path: str) -> str:
    return path.rsplit("/", 1)[-1].split(".", maxsplit=1)[0].replace("-", "_")


class Modules:
    """The modules of one kernel and their dependencies, from depmod."""

    def __init__(self, sysroot: Path, version: str) -> None:
        self.root = sysroot / "lib/modules" / version
        depmod = shutil.which("depmod") or "/usr/sbin/depmod"
        subprocess.run([depmod, "-b", str(sysroot), version], check=True)
        self.needs: dict[str, tuple[str, list[str]]] = {}
        for line in (self.root / "modules.dep").read_text().splitlines():
            path, _, needs = line.partition(":")
            self.needs[module_name(path)] = (path, needs.split())

    def order(self, names: tuple[str, ...]) -> list[str]:
        """The paths to load for `names`, each after what it needs; built-in ones are left out."""
        found: list[str] = []

        def add(name: str) -> None:
            path, needs = self.needs[name]
            if path not in found:
                for need in needs:
                    add(module_name(need))
                found.append(path)

        for name in names:
            if name in self.needs:
                add(name)
        return found

    def read(self, path: str) -> bytes:
        data = (self.root / path).read_bytes()
        return lzma.decompress(data) if path.endswith(".xz") else data


class Cpio:
    """A `newc` archive, the format of an initramfs."""

    def __init__(self) -> None:
        self.out = io.BytesIO()
        self.inode = 0

    def add(
        self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        self.inode += 1
        raw = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0)
        self.out.write(b"070701" + b"".join(b"%08X" % field for field in fields) + raw)
        self._pad()
        self.out.write(data)
        self._pad()

    def close(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return self.out.getvalue()

    def _pad(self) -> None:
        self.out.write(b"\0" * (-self.out.tell() % 4))


def main(sysroot: Path, out: Path) -> None:
    """Write `out/vmlinux` and `out/initramfs`."""
    versions = [p.name for p in (sysroot / "lib/modules").iterdir()]
    versions = [v for v in versions if (sysroot / f"boot/vmlinuz-{v}").exists()]
    if len(versions) != 1:
        raise SystemExit(f"rig: expected one kernel under {sysroot}, found {versions}")
    version = versions[0]
    modules = Modules(sysroot, version)
    if "rdma_rxe" not in modules.needs:
        raise SystemExit(f"rig: kernel {version} has no rdma_rxe")
    early = modules.order(EARLY)
    late = [path for path in modules.order(LATE) if path not in early]
    rest = [path for path in modules.order(ON_DEMAND) if path not in early + late]

    archive = Cpio()
    for folder in ("bin", "proc", "sys", "dev", "new", "m"):
        archive.add(folder, stat.S_IFDIR | 0o755)
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    busybox = shutil.which("busybox") or "/bin/busybox"
    program = stat.S_IFREG | 0o755
    archive.add("bin/busybox", program, Path(busybox).read_bytes())
    archive.add("init", program, INIT.encode())

    def file_names(paths: list[str]) -> str:
        return " ".join(module_name(path) + ".ko" for path in paths)

    for path in early + late + rest:
        archive.add(f"m/{module_name(path)}.ko", program, modules.read(path))
    archive.add("m/early", program, file_names(early).encode())
    archive.add("m/late", program, file_names(late).encode())
    deps = {module_name(p): file_names(modules.order((module_name(p),))) for p in rest}
    archive.add("m/deps", program, "".join(f"{k} {v}\n" for k, v in deps.items()).encode())

    (out / "vmlinux").write_bytes(elf_kernel((sysroot / f"boot/vmlinuz-{version}").read_bytes()))
    (out / "initramfs").write_bytes(archive.close())
    (out / "version").write_text(version + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
