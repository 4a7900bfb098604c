#!/usr/bin/env python3
"""Packs a built library for a release: dist/gangway-v<version>-<target>.tar.gz and the same with .sha256.

    dist.py --library target/release/libgangway.so [--target x86_64-unknown-linux-gnu] [--out dist] [--glibc 2.17]

Without --target it is this machine's, as rustc names it. Says which glibc the library asks for; with --glibc, one that
asks for a newer one is refused. lua/gangway/build.lua installs from what this makes, and
tests/install.py shows that it does.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile

import elf

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def package(field):
    """A field of the package in Cargo.toml."""
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as f:
        return re.search(rf'^{field} = "(.*)"', f.read(), re.M).group(1)


def version():
    return package("version")


def host():
    said = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, check=True).stdout.decode()
    return re.search(r"^host: (\S+)", said, re.M).group(1)


def pack(library, target, out):
    """Makes archive and checksum; the archive's path."""
    os.makedirs(out, exist_ok=True)
    archive = os.path.join(out, f"gangway-v{version()}-{target}.tar.gz")
    name = "libgangway." + ("dylib" if "apple" in target else "so")

    def plain(info):  # nothing of the machine it was packed on
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.name == name else 0o644
        return info

    with tarfile.open(archive, "w:gz", format=tarfile.USTAR_FORMAT) as tar:
        tar.add(library, name, filter=plain)
        tar.add(os.path.join(ROOT, "LICENSE"), "LICENSE", filter=plain)
    with open(archive, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    with open(archive + ".sha256", "w", encoding="utf-8") as f:
        f.write(f"{digest}  {os.path.basename(archive)}\n")
    return archive


def main():
    parser = argparse.ArgumentParser(description="Packs a built library for a release.")
    parser.add_argument("--library", required=True)
    parser.add_argument("--target", help="target triple; default: this machine's")
    parser.add_argument("--out", default=os.path.join(ROOT, "dist"))
    parser.add_argument("--glibc", help="the oldest glibc that must do, for example 2.17")
    args = parser.parse_args()
    library = elf.read(args.library)
    floor = library and library.glibc()
    if floor:
        print(f"{args.library} needs glibc {'.'.join(map(str, floor))}")
    if args.glibc and (not floor or floor > tuple(int(part) for part in args.glibc.split("."))):
        print(f"dist: that is not glibc {args.glibc} or older: build it with cargo zigbuild --target TRIPLE.{args.glibc}",
              file=sys.stderr)
        return 1
    archive = pack(args.library, args.target or host(), args.out)
    print(f"{archive}: {os.path.getsize(archive)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
