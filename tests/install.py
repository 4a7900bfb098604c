#!/usr/bin/env python3
"""Installing the library, as a user's Neovim does it. `make test` runs it.

    install.py --library LIB [--nvim NVIM]...

Packs LIB as `make dist` does, serves it over loopback HTTP, and runs lua/gangway/build.lua in copies of the plugin:
what works must leave a library that loads, what cannot work must say one clear thing and leave nothing behind. Then from
empty homes by plugin managers: none, Neovim's own, and lazy.nvim, of which GANGWAY_LAZY names a clone; without that a
stand-in does to the plugin what lazy.nvim does.
"""

import argparse
import functools
import glob
import http.server
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import dist  # noqa: E402
import elf  # noqa: E402
import terminal  # noqa: E402

LIMIT = 120  # seconds for one Neovim
NAME = "libgangway." + ("dylib" if sys.platform == "darwin" else "so")
BEYOND = "99.0.0-dev"
# Between releases the version tested is none that a plugin manager takes for one.
RELEASE = "-" not in dist.version()
NO_GIT_CONFIG = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
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
local failure
vim.notify = function(text, level)
  print(text)
  if level == vim.log.levels.ERROR then failure = text end
end
dofile(vim.env.PLUGIN .. '/build.lua')
vim.uv.os_uname = real
print(failure and 'FAILED' or 'INSTALLED')
if not failure then
  vim.g.gangway_library = vim.env.SUPPLIED
  local native, problem = require('gangway.native').load()
  print(native and 'LOADED ' .. native.path or problem)
end
"""

# Starts the server by the command, and says which library does it.
STARTS = [
    "+IdeStart",
    "+lua vim.wait(5000, function() return require('gangway').status().port ~= nil end)",
    "+lua print(('\\nRUNNING %s PORT %s\\n'):format(require('gangway.native').load().path, require('gangway').status().port))",
    "+lua print('HELP ' .. table.concat(vim.fn.getcompletion('gangway-start', 'help')))",
    "+qa!",
]
# An update under a Neovim that has agents connected to it: new files, new version, and the old library goes on.
UPDATE = """
vim.opt.runtimepath:prepend(vim.env.PLUGIN)
vim.cmd.runtime('plugin/gangway.lua')
local gangway, build = require('gangway'), vim.env.PLUGIN .. '/build.lua'
local function up() return vim.wait(5000, function() return gangway.status().port ~= nil end) end
dofile(build)
gangway.start()
assert(up(), 'does not start')
local port = gangway.status().port
vim.g.gangway_download_url = vim.env.URL
dofile(build)
-- The plugin's files are the new version's from here on; what is loaded first now comes from them.
local version = vim.env.PLUGIN .. '/lua/gangway/version.lua'
vim.fn.writefile({ "return '99.0.0'" }, version)
assert(gangway.status().port == port, 'another port')
gangway.statusline()
gangway.terminal_env('claude')
require('gangway.health').collect()
vim.cmd.IdeReviews()
gangway.stop()
gangway.start()
assert(up(), 'does not start again')
os.remove(vim.env.PLUGIN .. '/lib/' .. require('gangway.native').file_name)
gangway.stop()
print('STILL WORKS')
"""
# Two updates while one Neovim runs, which has had no reason yet to load the library.
TWICE = """
vim.opt.runtimepath:prepend(vim.env.PLUGIN)
require('gangway.build').install()
vim.fn.writefile({ "return '99.0.0'" }, vim.env.PLUGIN .. '/lua/gangway/version.lua')
require('gangway.build').install()
"""
# lazy.nvim as a plugin meets it, without its window: it clones, runs build.lua in a coroutine, in which
# `lazy.async` tells what runs and yielding a text shows it, and calls setup() of the module named as the plugin with
# `opts`. The real one is tried where GANGWAY_LAZY names a clone of it.
LIKE_LAZY = """
vim.g.gangway_download_url = vim.env.URL
vim.fn.system({ 'git', 'clone', '-q', 'REPO', 'HOME' })
local co, asleep, beats
local function step()
  local ok, shown = coroutine.resume(co)
  if not ok then print('BUILD FAILED ' .. tostring(shown)) end
  if shown and ok then print('SHOWN ' .. tostring(shown)) end
end
package.loaded['lazy.async'] = {
  running = function() return coroutine.running() == co and co or nil end,
  sleep = function(ms)
    asleep = true
    vim.defer_fn(function() asleep = false end, ms)
    coroutine.yield()
  end,
}
co = coroutine.create(function() assert(loadfile('HOME/build.lua'))() end)
local timer = vim.uv.new_timer()
timer:start(20, 20, function() beats = true end)
while coroutine.status(co) ~= 'dead' do
  if not asleep then step() end
  vim.wait(5)
end
timer:close()
if beats then print('HEARTBEATS') end
vim.opt.runtimepath:append('HOME')
vim.cmd.helptags('HOME/doc')
require('gangway').setup({ log_level = 'warn' })
"""


def works(said, home):
    """The plugin in `home` runs with the library there, and has its help."""
    fine = f"RUNNING {home}/lib/{NAME} PORT " in said and "HELP gangway-start" in said
    return fine and not any(trouble in said for trouble in ("PORT nil", "E5108", "E5113", "stack traceback"))


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


class Silent:
    """A server that takes connections, and says nothing."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(terminal.PATIENCE)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self):
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(10)

    def is_left(self):
        """Whether the client goes away."""
        try:
            while self.connection.recv(65536):
                pass
        except (socket.timeout, ConnectionError) as e:
            return isinstance(e, ConnectionError)
        return True


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

    def update(self, url):
        """Installs, starts, installs again in the same Neovim, and goes on."""
        script = os.path.join(self.folder, "update.lua")
        with open(script, "w", encoding="utf-8") as f:
            f.write(f"vim.g.gangway_download_url = '{url}'\n" + UPDATE)
        return self.start("--clean", "--headless", "-l", script, URL=url)

    def versions(self, version):
        """The plugin's files say another version."""
        with open(os.path.join(self.plugin, "lua", "gangway", "version.lua"), "w", encoding="utf-8") as f:
            f.write(f"return '{version}'\n")
        return self

    def git(self, *argv, cwd=None):
        subprocess.run(["git", *argv], cwd=cwd, check=True, env=self.environment(PATH=os.environ["PATH"], **NO_GIT_CONFIG))

    def repository(self):
        """The plugin as its git repository is, with a release's tag."""
        repo = os.path.join(self.folder, "repo", "gangway.nvim")
        shutil.copytree(self.plugin, repo)
        self.git("init", "-q", "-b", "main", cwd=repo)
        self.commit(repo, "first")
        return repo

    def commit(self, repo, text, beyond=False):
        """A commit that is the release; or one beyond it, of a version that never is one."""
        with open(os.path.join(repo, "CHANGELOG.md"), "a", encoding="utf-8") as f:
            f.write(text + "\n")
        with open(os.path.join(repo, "lua", "gangway", "version.lua"), "w", encoding="utf-8") as f:
            f.write(f"return '{BEYOND if beyond else dist.version()}'\n")
        self.git("add", "-A", cwd=repo)
        self.git("-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", text, cwd=repo)
        if not beyond:
            self.git("tag", "-f", "v" + dist.version(), cwd=repo)

    def init(self, text):
        config = os.path.join(self.folder, "home", "config", "nvim")
        os.makedirs(config, exist_ok=True)
        with open(os.path.join(config, "init.lua"), "w", encoding="utf-8") as f:
            f.write(text + "\n")

    def start(self, *argv, **env):
        """A Neovim as the user has it, with what init() wrote; all that it said."""
        env = self.environment(PATH=os.environ["PATH"], **NO_GIT_CONFIG, **env)  # git's scripts need more than a few programs
        done = subprocess.run([self.nvim, *argv], env=env, cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, check=False)
        return done.stdout.decode("utf-8", "replace") + f"\nENDED {done.returncode}\n"

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

    left = [os.path.join(os.path.dirname(it.installed), name) for name in (".new-killed", ".new-at-work")]
    for folder_left in left:
        os.mkdir(folder_left)
    os.utime(left[0], (0, 0))
    said = it.run(URL=server.url)
    report.check("what a killed installation left is removed, what one is at work on is not",
                 "INSTALLED" in said and [os.path.exists(path) for path in left] == [False, True], said)

    two_libraries(report, case("two libraries"), server.url, library)

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
    refused("a wrong checksum", it, it.run(URL=wrong.url), "does not match its checksum", "Next:")
    if RELEASE:  # else cargo builds in the first place
        it = case("wrong checksum with cargo").cargo(f'cp "{library}" "$target/release/{NAME}"')
        refused("a wrong checksum where cargo could build", it, it.run(URL=wrong.url), "does not match its checksum", "Next:")
    it = case("between releases").versions(BEYOND)
    refused("between releases without cargo", it, it.run(), BEYOND, "between two releases", 'version = "*"')
    it = case("between releases with cargo").versions(BEYOND).cargo(f'cp "{library}" "$target/release/{NAME}"')
    refused("between releases cargo builds", it, it.run(), f"build: it is version {dist.version()}, the plugin is {BEYOND}")
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
    it = case("no page").versions("99.0.0").without("git")
    refused("no releases page is known", it, it.run(), "vim.g.gangway_download_url")

    it = case("in dotfiles").cargo("exit 1")
    shutil.copy(os.path.join(ROOT, "Cargo.toml"), it.plugin)
    it.git("init", "-q", cwd=it.folder)
    it.git("remote", "add", "origin", "https://github.com/somebody/dotfiles", cwd=it.folder)
    it.git("-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "--allow-empty", "-m", "mine", cwd=it.folder)
    good("a repository around the plugin is not taken for its own", it, it.run(URL=server.url))
    said = it.start("--clean", "--headless", "--cmd", f"set rtp^={it.plugin.replace(' ', chr(92) + ' ')}",
                    "+lua print(require('gangway.build').download_url())", "+qa!")
    report.check("and releases are looked for where Cargo.toml says",
                 dist.package("repository") + "/releases/download" in said, said)

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

    said = case("updated while it runs").update(server.url)
    report.check("an update under a running Neovim changes nothing in it",
                 "STILL WORKS" in said and "restart Neovim to use it" in said and "ENDED 0" in said, said)

    script = os.path.join(folder, "twice.lua")
    with open(script, "w", encoding="utf-8") as f:
        f.write(f"vim.g.gangway_download_url = '{server.url}'\n" + TWICE)
    said = case("twice").start("--clean", "--headless", "-l", script)
    report.check("a second update in one Neovim looks for its own version",
                 "the library is in" in said and "/v99.0.0/" in said, said)
    by_hand(report, case("by hand"), nowhere)
    silent(report, case("silent"), Silent())

    plain_package(report, case("plain package"), server.url, nowhere)
    like_lazy(report, case("like lazy"), server.url, nowhere)
    if supports(nvim, "vim.pack"):
        vim_pack(report, case("vim.pack"), server.url, nowhere)
    else:
        print("skip vim.pack (this Neovim has none)")
    lazy = os.environ.get("GANGWAY_LAZY")
    if lazy:
        real_lazy(report, case("lazy"), server.url, lazy)
    else:
        print("skip the real lazy.nvim (GANGWAY_LAZY names no clone of it)")


def two_libraries(report, it, url, library):
    """An installed library, and one of another version that cargo made later."""
    here = dist.version()
    other = here.translate(str.maketrans("0123456789", "9876543210"))
    with open(library, "rb") as f:
        data = f.read().replace(here.encode(), other.encode())
    cargos = os.path.join(it.plugin, "target", "release", NAME)
    os.makedirs(os.path.dirname(cargos))
    with open(cargos, "wb") as f:
        f.write(data)
    if sys.platform == "darwin":  # which runs nothing whose signature does not fit
        subprocess.run(["codesign", "--force", "--sign", "-", cargos], check=True)
    said = it.run(URL=url)
    report.check("what is installed now is newer than what cargo made before", f"LOADED {it.installed}" in said, said)
    os.utime(cargos)
    os.utime(it.installed, (0, 0))
    init = ["--clean", "--headless", "--cmd", f"set rtp^={it.plugin.replace(' ', chr(92) + ' ')}"]
    helptags = f"+helptags {it.plugin.replace(' ', chr(92) + ' ')}/doc"
    said = it.start(*init, helptags, *STARTS)
    report.check("of two libraries the one that fits the plugin is loaded",
                 works(said, it.plugin) and "ENDED 0" in said, said)
    os.remove(it.installed)
    said = it.start(*init, "+IdeStart", "+checkhealth gangway", "+%print", "+qa!")
    report.check("where none fits, that is said, with the next step",
                 said.count(f"the library is version {other}, the plugin is {here}") == 2  # the message, and :checkhealth
                 and "ENDED 0" in said and "Run :lua" in said, said)
    report.check("and :checkhealth's advice is one sentence that does not lead to :checkhealth",
                 f"cargo build --release in {it.plugin}, then restart Neovim." in said and "tells more" not in said, said)


def by_hand(report, it, nowhere):
    said = it.start("--clean", "--headless", "--cmd", f"set rtp^={it.plugin.replace(' ', chr(92) + ' ')}",
                    "--cmd", f"let g:gangway_download_url = '{nowhere}'",
                    "+lua require('gangway.build').install()", "+qa!")
    report.check("by hand, a failure is a message and no error of Lua's",
                 "Next:" in said and "E5108" not in said and "traceback" not in said, said)


def silent(report, it, server):
    """A server that says nothing, at a terminal of 80 columns, and CTRL-C."""
    nvim = terminal.Neovim([it.nvim, "--clean"], it.environment(URL=server.url), it.folder, 24, 80)
    nvim.lua("vim.opt.rtp:prepend(vim.env.PLUGIN) vim.g.gangway_download_url = vim.env.URL")
    nvim.call("nvim_input", ":lua require('gangway.build').install()<CR>")
    terminal.wait_for("the name of what is downloaded", lambda: "downloading gangway-v" in nvim.text()[-1])
    server.accept()
    nvim.call("nvim_input", "<C-c>")
    terminal.wait_for("a word about the interruption", lambda: any("interrupted; run it again" in x for x in nvim.text()))
    left = os.listdir(os.path.dirname(it.installed))
    report.check("a silent server: what is downloaded is on the screen, and CTRL-C ends it", not left and server.is_left(),
                 "\n".join([*nvim.text(), f"in lib/: {left}"]))
    nvim.quit()


# ------------------------------------------------------------------------------------------------ plugin managers


def supports(nvim, name):
    done = subprocess.run([nvim, "--clean", "--headless", f"+lua print({name} ~= nil)", "+qa!"], check=False,
                          env=dict(os.environ, NVIM_LOG_FILE=os.devnull),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
    return b"true" in done.stdout


def readme(language, what):
    """The block of README.md that has `what` in it."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        blocks = [block.split("```")[0] for block in f.read().split(f"```{language}\n")[1:]]
    return next(block for block in blocks if what in block)


def plain_package(report, it, url, nowhere):
    """No plugin manager: README's lines in a shell, in an empty home."""
    repo = it.repository()
    it.commit(repo, "next", beyond=RELEASE)
    user = os.path.join(it.folder, "home")
    env = {"XDG_CONFIG_HOME": os.path.join(user, ".config"), "XDG_DATA_HOME": os.path.join(user, ".local", "share")}
    lines = readme("sh", "git clone").replace(dist.package("repository"), f"file://{repo}")
    lines = lines.replace("nvim -l", f"\"$PROGRAM\" --cmd \"let g:gangway_download_url = '{url}'\" -l")
    done = subprocess.run(["sh", "-euc", lines], env=it.environment(PATH=os.environ["PATH"], PROGRAM=it.nvim, **NO_GIT_CONFIG, **env),
                          cwd=it.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=LIMIT, check=False)
    home = os.path.join(env["XDG_DATA_HOME"], "nvim", "site", "pack", "agents", "start", "gangway.nvim")
    said = done.stdout.decode("utf-8", "replace") + it.start("--headless", *STARTS, **env)
    report.check("README's lines for a shell install the newest release in an empty home", works(said, home), said)
    build = os.path.join(home, "build.lua")
    said = it.start("--cmd", f"let g:gangway_download_url = '{nowhere}'", "-l", build, **env)
    report.check("nvim -l build.lua says what is wrong", "ENDED 1" in said and "traceback" not in said and "Next:" in said, said)
    said = it.start("--cmd", f"let g:gangway_download_url = '{url}'", "-l", build, **env)
    report.check("nvim -l build.lua fetches the library", "the library is in" in said and "ENDED 0" in said, said)


def like_lazy(report, it, url, nowhere):
    """What lazy.nvim does to a plugin, where lazy.nvim itself is not to be had: see LIKE_LAZY."""
    home = os.path.join(it.folder, "home", "data", "nvim", "lazy", "gangway.nvim")
    it.init(LIKE_LAZY.replace("REPO", it.repository()).replace("HOME", home))
    said = it.start("--headless", *STARTS, URL=url)
    report.check("lazy.nvim's way of building shows progress and gives a library",
                 works(said, home) and "SHOWN downloading" in said and "HEARTBEATS" in said, said)
    shutil.rmtree(home)
    said = it.start("--headless", "+qa!", URL=nowhere)
    report.check("and a failure is one error of that task", said.count("BUILD FAILED") == 1 and "rustup.rs" in said, said)


def vim_pack(report, it, url, nowhere):
    """Neovim's own manager, with the hook that README shows."""
    repo = it.repository()
    it.commit(repo, "next", beyond=RELEASE)
    config = readme("lua", "PackChanged").replace(dist.package("repository"), f"file://{repo}")
    config = config.replace("\n})\nrequire", "\n}, { confirm = false })\nrequire")
    if not RELEASE:
        config = config.replace(', version = vim.version.range("*")', "")
    it.init(f"vim.g.gangway_download_url = vim.g.gangway_download_url or '{url}'\n{config}")
    home = os.path.join(it.folder, "home", "data", "nvim", "site", "pack", "core", "opt", "gangway.nvim")
    said = it.start("--headless", "--cmd", f"let g:gangway_download_url = '{nowhere}'", "+qa!")
    report.check("what vim.pack's hook cannot install is a message, and no error of the hook",
                 "Next:" in said and "Lua callback" not in said and "ENDED 0" in said, said)
    shutil.rmtree(os.path.dirname(home))
    said = it.start("--headless", *STARTS)
    report.check("vim.pack installs from an empty home, with README's lines", works(said, home), said)
    before = os.stat(os.path.join(home, "lib", NAME)).st_ino
    it.commit(repo, "more")
    said = it.start("--headless", "+lua vim.pack.update(nil, { force = true })", *STARTS)
    report.check("and updates", works(said, home) and os.stat(os.path.join(home, "lib", NAME)).st_ino != before, said)


def real_lazy(report, it, url, lazy):
    """README's way: an empty home, lazy.nvim, and a git repository of the plugin."""
    home = os.path.join(it.folder, "home", "data", "nvim", "lazy", "gangway.nvim")
    repo, name = it.repository(), "/".join(dist.package("repository").split("/")[-2:])
    it.commit(repo, "next", beyond=RELEASE)

    def spec(more):
        more += ", version = '*'" if RELEASE else ""
        it.init(f"vim.opt.rtp:prepend('{lazy}')\nvim.g.gangway_download_url = '{url}'\n"
                f"require('lazy').setup({{ {{ '{name}', url = 'file://{repo}', {more} }} }}, "
                "{ rocks = { enabled = false }, change_detection = { enabled = false } })")

    spec("opts = {}")
    said = it.start("--headless", *STARTS)
    report.check("lazy.nvim installs from an empty home", works(said, home), said)
    spec("cmd = 'IdeStart', opts = { log_level = 'warn' }")
    said = it.start("--headless", "+lua print('EARLY ' .. tostring(package.loaded.gangway))", *STARTS)
    report.check("lazy.nvim loads it by a command, with its options", works(said, home) and "EARLY nil" in said, said)
    before = os.stat(os.path.join(home, "lib", NAME)).st_ino
    it.commit(repo, "more")
    said = it.start("--headless", "+Lazy! update", *STARTS)
    report.check("lazy.nvim updates it", works(said, home) and os.stat(os.path.join(home, "lib", NAME)).st_ino != before, said)


def main():
    parser = argparse.ArgumentParser(description="Tests how the library is installed.")
    parser.add_argument("--library", required=True)
    parser.add_argument("--nvim", action="append", help="a Neovim; may be given again")
    args = parser.parse_args()
    report = Report()
    if elf.read(args.library):
        argv = [sys.executable, os.path.join(ROOT, "scripts", "dist.py"), "--library", args.library, "--glibc", "2.1"]
        with tempfile.TemporaryDirectory(prefix="gangway-install-") as folder:
            done = subprocess.run([*argv, "--out", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            report.check("a library that asks for a newer glibc than it may is not packed",
                         done.returncode == 1 and b"zigbuild" in done.stdout and not os.listdir(folder), done.stdout.decode())
    for nvim in args.nvim or [shutil.which("nvim")]:
        print(f"installing in {nvim}", flush=True)
        with tempfile.TemporaryDirectory(prefix="gangway-install-") as folder:
            cases(report, os.path.realpath(folder), nvim, os.path.abspath(args.library))
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
