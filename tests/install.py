#!/usr/bin/env python3
"""Installing the library, as a user's Neovim does it. `make test` runs it.

    install.py --library LIB [--nvim NVIM]...

Packs LIB as `make dist` does, serves it over loopback HTTP, and runs lua/gangway/build.lua in copies of the plugin:
what works must leave a library that loads, what cannot work must say one clear thing and leave nothing behind. Where
lazy.nvim is to be had (GANGWAY_LAZY names a clone of it), it installs the plugin from an empty home as well.
"""

import argparse
import functools
import glob
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import dist  # noqa: E402

LIMIT = 120  # seconds for one Neovim
NAME = "libgangway." + ("dylib" if sys.platform == "darwin" else "so")
FAKE_CARGO = """#!/bin/sh
echo "   Compiling gangway v0.0.0" >&2
while [ $# -gt 0 ]; do [ "$1" = --target-dir ] && target=$2; shift; done
mkdir -p "$target/release"
{body}
"""
INSTALL = """
vim.opt.runtimepath:prepend(vim.env.PLUGIN)
if vim.env.URL ~= '' then vim.g.gangway_download_url = vim.env.URL end
if vim.env.SUPPLIED then vim.g.gangway_library = vim.env.SUPPLIED end
local real, busy = vim.uv.os_uname, vim.env.MACHINE
if busy then vim.uv.os_uname = function() return { sysname = 'Plan9', machine = busy } end end
local ok, err = pcall(dofile, vim.env.PLUGIN .. '/build.lua')
vim.uv.os_uname = real
print(ok and 'INSTALLED' or 'FAILED ' .. tostring(err))
if ok then
  vim.g.gangway_library = vim.env.SUPPLIED
  local native, problem = require('gangway.native').load()
  print(native and 'LOADED ' .. native.path or problem)
end
"""


class Server:
    """Serves a folder; `cut` sends half of each archive."""

    def __init__(self, folder):
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def copyfile(self, source, outputfile):
                data = source.read()
                outer.requests.append(self.path)
                outputfile.write(data[: len(data) // 2] if outer.cut and self.path.endswith(".gz") else data)

        self.cut, self.requests = False, []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Case:
    """One copy of the plugin, one home, one PATH."""

    def __init__(self, folder, nvim, name):
        self.nvim, self.folder = nvim, os.path.join(folder, name.replace(" ", "-"))
        self.plugin, self.bin = os.path.join(self.folder, "plug in", "gangway.nvim"), os.path.join(self.folder, "bin")
        os.makedirs(self.bin)
        for part in ("lua", "plugin", "doc"):
            shutil.copytree(os.path.join(ROOT, part), os.path.join(self.plugin, part))
        shutil.copy(os.path.join(ROOT, "build.lua"), self.plugin)
        for program in ("sh", "tar", "gzip", "mkdir", "cp", "dirname", "readlink", "curl", "git"):
            if shutil.which(program):
                os.symlink(shutil.which(program), os.path.join(self.bin, program))

    def without(self, program):
        os.remove(os.path.join(self.bin, program))
        return self

    def cargo(self, body):
        path = os.path.join(self.bin, "cargo")
        with open(path, "w", encoding="utf-8") as f:
            f.write(FAKE_CARGO.replace("{body}", body))
        os.chmod(path, 0o755)
        return self

    def environment(self, **more):
        home = os.path.join(self.folder, "home")
        env = {"PATH": self.bin, "HOME": home, "PLUGIN": self.plugin, "URL": "", "LANG": "C.UTF-8", "no_proxy": "*"}
        env.update({f"XDG_{kind}_HOME": os.path.join(home, kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")})
        env.update(more)
        return env

    def run(self, **env):
        script = os.path.join(self.folder, "install.lua")
        with open(script, "w", encoding="utf-8") as f:
            f.write(INSTALL)
        done = subprocess.run([self.nvim, "--clean", "--headless", "-l", script], env=self.environment(**env),
                              cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=LIMIT, check=False)
        return done.stdout.decode("utf-8", "replace")

    @property
    def installed(self):
        return os.path.join(self.plugin, "lib", NAME)


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, name, good, said):
        if good:
            self.passed += 1
        else:
            self.failed += 1
        print(f"{'ok  ' if good else 'FAIL'} {name}", flush=True)
        if not good:
            print("     " + said[-3000:].strip().replace("\n", "\n     "), flush=True)


def cases(report, folder, nvim, library):
    site = os.path.join(folder, "site")
    archive = dist.pack(library, dist.host(), os.path.join(site, "v" + dist.version()))
    bad = os.path.join(folder, "bad")
    shutil.copytree(site, bad)
    with open(glob.glob(os.path.join(bad, "*", "*.gz"))[0], "r+b") as f:
        f.seek(1000)
        f.write(b"other")
    junk = os.path.join(folder, "junk")
    other = os.path.join(folder, NAME)
    with open(other, "wb") as f:
        f.write(b"not a library")
    dist.pack(other, dist.host(), os.path.join(junk, "v" + dist.version()))
    server, wrong, broken = Server(site), Server(bad), Server(junk)
    nowhere = "http://127.0.0.1:1"

    def case(name):
        return Case(folder, nvim, name)

    def good(name, it, said, *texts):
        fine = "INSTALLED" in said and f"LOADED {it.installed}" in said and all(text in said for text in texts)
        left = os.listdir(os.path.dirname(it.installed)) if os.path.isdir(os.path.dirname(it.installed)) else []
        report.check(name, fine and left == [NAME], f"{said}\nin lib/: {left}")

    def refused(name, it, said, *texts):
        lib = os.path.join(it.plugin, "lib")
        left = os.listdir(lib) if os.path.isdir(lib) else []
        fine = "FAILED" in said and "stack traceback" not in said and all(text in said for text in texts)
        report.check(name, fine and not left, f"{said}\nin lib/: {left}")

    it = case("a release")
    good("a release is downloaded, checked and loads", it, it.run(URL=server.url), os.path.basename(archive))
    before = os.stat(it.installed).st_ino
    good("installing again puts a new file in its place", it, it.run(URL=server.url))
    report.check("and never writes to the one that may be in use", os.stat(it.installed).st_ino != before, "same inode")

    it = case("built").cargo(f'cp "{library}" "$target/release/{NAME}"')
    good("where there is no release, cargo builds", it, it.run(URL=server.url + "/none"), "building with cargo")
    it = case("offline").cargo(f'cp "{library}" "$target/release/{NAME}"')
    good("offline, cargo builds", it, it.run(URL=nowhere), "building with cargo")

    it = case("offline, no cargo")
    refused("offline without cargo", it, it.run(URL=nowhere), "curl", "cargo is not installed", "rustup.rs")
    it = case("no curl").without("curl")
    refused("no curl and no cargo", it, it.run(URL=server.url), "curl is not installed", "cargo is not installed")
    it = case("no tar").without("tar")
    refused("no tar", it, it.run(URL=server.url), "tar is not installed")
    it = case("no such release")
    refused("a release that is not there", it, it.run(URL=server.url + "/none"), "404")
    it = case("wrong checksum")
    refused("a wrong checksum", it, it.run(URL=wrong.url), "does not match its checksum")
    server.cut = True
    it = case("half a download")
    refused("half a download", it, it.run(URL=server.url), "curl: (18)")
    server.cut = False
    it = case("not a library")
    refused("an archive of something else", it, it.run(URL=broken.url), "cannot be loaded here")
    it = case("cargo fails").cargo("echo 'error: no space left' >&2; exit 101")
    refused("a build that fails shows cargo's last words", it, it.run(URL=nowhere), "no space left")
    it = case("cargo lies").cargo("exit 0")
    refused("a build that leaves no library", it, it.run(URL=nowhere), "cargo built no library")
    it = case("strange machine")
    refused("a machine without releases", it, it.run(URL=server.url, MACHINE="mips"), "Plan9 mips")
    it = case("no page").without("git")
    refused("no releases page is known", it, it.run(), "vim.g.gangway_download_url")

    it = case("read-only")
    with open(os.path.join(it.plugin, "lib"), "w", encoding="utf-8"):
        pass  # also root cannot make a folder here
    said = it.run(URL=server.url)
    report.check("a folder that cannot be written", "FAILED" in said and "cannot be written" in said, said)

    asked = len(server.requests)
    it = case("supplied")
    said = it.run(URL=server.url, SUPPLIED=library)
    report.check("a library named by path is used without any network",
                 f"LOADED {library}" in said and len(server.requests) == asked, said)
    it = case("supplied and missing")
    refused("a library named by path that is not there", it, it.run(URL=server.url, SUPPLIED="/no/such.so"),
            "/no/such.so: not found")

    lazy = os.environ.get("GANGWAY_LAZY")
    if lazy:
        lazy_installs(report, case("lazy"), server.url, lazy)
    else:
        print("skip lazy.nvim from an empty home (GANGWAY_LAZY names no clone of it)")


def lazy_installs(report, it, url, lazy):
    """The README's way: an empty home, lazy.nvim, and a git repository of the plugin."""
    repo = os.path.join(it.folder, "repo", "gangway.nvim")
    shutil.copytree(it.plugin, repo)
    for argv in (["init", "-q"], ["add", "-A"],
                 ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", "x"],
                 ["tag", "v" + dist.version()]):
        subprocess.run(["git", *argv], cwd=repo, check=True)
    config = os.path.join(it.folder, "home", "config", "nvim")
    os.makedirs(config)
    with open(os.path.join(config, "init.lua"), "w", encoding="utf-8") as f:
        f.write(f"vim.opt.rtp:prepend('{lazy}')\nvim.g.gangway_download_url = '{url}'\n"
                f"require('lazy').setup({{ {{ 'gangway-nvim/gangway.nvim', url = 'file://{repo}', opts = {{}} }} }}, "
                "{ rocks = { enabled = false }, change_detection = { enabled = false } })\n")
    argv = [it.nvim, "--headless", "+lua local n, p = require('gangway.native').load() "
            "print(n and '\\nLOADED ' .. n.path or p)", "+helptags ALL", "+help gangway", "+qa!"]
    # git's own scripts need more than a few programs.
    env = it.environment(GIT_CONFIG_GLOBAL="/dev/null", PATH=os.environ["PATH"])
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=LIMIT, check=False)
    said = done.stdout.decode("utf-8", "replace")
    report.check("lazy.nvim installs from an empty home", "LOADED" in said and "data/nvim/lazy" in said and "E149" not in said,
                 said)


def main():
    parser = argparse.ArgumentParser(description="Tests how the library is installed.")
    parser.add_argument("--library", required=True)
    parser.add_argument("--nvim", action="append", help="a Neovim; may be given again")
    args = parser.parse_args()
    report = Report()
    for nvim in args.nvim or [shutil.which("nvim")]:
        print(f"installing in {nvim}", flush=True)
        with tempfile.TemporaryDirectory(prefix="gangway-install-") as folder:
            cases(report, os.path.realpath(folder), nvim, os.path.abspath(args.library))
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
