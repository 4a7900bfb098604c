#!/usr/bin/env python3
"""Rules of ARCHITECTURE.md that can be read off the sources, and off the library.

    rules.py                  who may know whom
    rules.py --library LIB    also: what the library imports, and which libraries it needs
"""

import argparse
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import elf  # noqa: E402

# Libraries that are wherever Neovim is: the C library's and the compiler's own.
SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread)\.so\.\d+|libgcc_s\.so\.1|ld-linux[\w-]*\.so\.\d+|lib(c|c\.musl-\w+)\.so(\.1)?")
ROOMS = {"agents", "config", "context", "disk", "editor", "files", "log", "panic", "plugin", "review", "server", "sharing"}
# Which rooms a room may name beside itself.
MAY_KNOW = {
    "context": set(),
    "review": set(),
    "agents": {"context", "review", "files"},
    "server": {"agents", "files"},
    "editor": ROOMS - {"plugin", "server", "sharing"},
    "plugin": ROOMS,
    "disk": {"context", "files"},
    "files": set(),
    "log": set(),
    "panic": set(),
    "config": {"log"},
    "sharing": {"context", "files"},
}
# Which rooms may name a crate.
OF_CRATE = {
    "nvim_oxi": {"editor", "plugin", "lib"},
    "mlua": {"editor", "plugin", "lib"},
    "serde_json": {"agents", "server"},
    "tokio": {"agents", "server", "disk", "editor", "plugin"},
    "axum": {"server"},
}


def room_of(path):
    return os.path.relpath(path, os.path.join(ROOT, "src")).split(os.sep)[0].removesuffix(".rs")


def sources():
    problems = []
    for path in sorted(glob.glob(os.path.join(ROOT, "src", "**", "*.rs"), recursive=True)):
        with open(path, encoding="utf-8") as f:
            text = f.read().split("#[cfg(test)]")[0]
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
        room, name = room_of(path), os.path.relpath(path, ROOT)
        known = set(re.findall(r"\bcrate::(\w+)", code)) & ROOMS
        for other in sorted(known - {room} - MAY_KNOW.get(room, ROOMS)):
            problems.append(f"{name}: {room} may not know {other}")
        for crate, rooms in OF_CRATE.items():
            if room not in rooms and re.search(rf"\b{crate}(::|\b.*;)", code):
                problems.append(f"{name}: {crate} is not for {room}")
    return problems


def library(path):
    lib = elf.read(path)
    if lib is None:
        print("not an ELF library: what it asks for was not read")
        return []
    names = lib.imports()
    if not any(name.startswith("lua_") for name in names):
        return [f"{path} imports nothing of Lua: is it the library?"]
    wrong = [f"the library imports {name}: its layout differs between Neovims" for name in names if name.startswith("nvim_")]
    return wrong + [f"the library needs {name}, which not every machine has" for name in lib.needed() if not SYSTEM.fullmatch(name)]


def main():
    parser = argparse.ArgumentParser(description="Checks the rules of ARCHITECTURE.md.")
    parser.add_argument("--library", help="the built library")
    args = parser.parse_args()
    problems = sources() + (library(args.library) if args.library else [])
    for problem in problems:
        print(f"rules: {problem}")
    if not problems:
        print("the rules hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
