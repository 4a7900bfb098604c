#!/usr/bin/env python3
"""Lua: every file compiles in Neovim, and is formatted as .stylua.toml says. `make lint` runs it.

    lint_lua.py         check
    lint_lua.py --fix   format

StyLua is the one on PATH, else the one npm fetches into $XDG_CACHE_HOME (or ~/.cache) /gangway/stylua. Where there is
neither, formatting is not checked, and that is said.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STYLUA = "2.5.2"
# The chunks in src/ are pieces of Rust modules; what is formatted is what users read.
FORMATTED = ["build.lua", "lua", "plugin"]


def stylua():
    found = shutil.which("stylua")
    if found:
        return found
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "gangway", "stylua", STYLUA)
    program = os.path.join(folder, "node_modules", ".bin", "stylua")
    if os.path.exists(program):
        return program
    npm = shutil.which("npm")
    if not npm:
        return None
    os.makedirs(folder, exist_ok=True)
    argv = [npm, "install", "--no-audit", "--no-fund", "--prefix", folder, f"@johnnymorganz/stylua-bin@{STYLUA}"]
    fetched = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             check=False, timeout=120)
    return program if fetched.returncode == 0 and os.path.exists(program) else None


def neovim():
    fetch = [sys.executable, os.path.join(ROOT, "tests", "nvim", "fetch.py"), "--one"]
    answer = subprocess.run(fetch, stdout=subprocess.PIPE, check=False)
    return answer.stdout.decode().strip().split("\t")[1] if answer.returncode == 0 else None


def compiles(nvim):
    files = ["build.lua"]
    for folder in ("lua", "plugin", "src", "tests"):
        files += glob.glob(os.path.join(folder, "**", "*.lua"), root_dir=ROOT, recursive=True)
    code = ("local bad = false; for _, name in ipairs(_G.arg) do local chunk, err = loadfile(name); "
            "if not chunk then bad = true; io.stderr:write(err, '\\n') end end; os.exit(bad and 1 or 0)")
    with tempfile.NamedTemporaryFile("w", suffix=".lua", encoding="utf-8") as script:
        script.write(code)
        script.flush()
        env = dict(os.environ, NVIM_LOG_FILE=os.devnull)
        done = subprocess.run([nvim, "--clean", "--headless", "-l", script.name, *sorted(files)], cwd=ROOT, env=env,
                              stdin=subprocess.DEVNULL, check=False)
    print(f"{len(files)} Lua files " + ("compile" if done.returncode == 0 else "were compiled"))
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description="Checks the Lua files.")
    parser.add_argument("--fix", action="store_true", help="format instead of complaining")
    args = parser.parse_args()
    good = True
    nvim = neovim()
    if nvim:
        good = compiles(nvim)
    else:
        print("no Neovim could be had: Lua was not compiled")
        good = False
    program = stylua()
    if not program:
        print("stylua is not installed and npm cannot fetch it: formatting not checked")
        return 0 if good else 1
    done = subprocess.run([program, *([] if args.fix else ["--check"]), *FORMATTED], cwd=ROOT, check=False)
    if done.returncode != 0 and not args.fix:
        print("lint_lua.py --fix formats them")
    return 0 if good and done.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
