"""Where an agent meets Neovim: a home and a project of their own, the user's Neovim, and a terminal for the agent.

The terminal is a second Neovim's: its buffer is what the agent shows, and keys go in as a terminal sends them.
"""

import glob
import json
import os
import shlex
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))

import terminal  # noqa: E402

ROWS, COLUMNS = 44, 140
terminal.PATIENCE = 60

BEFORE = "def greet(name):\n    return 'hello ' + name\n\n\ndef bye():\n    return 'bye'\n"
AFTER = BEFORE.replace("'hello ' + name", "f'hello, {name}!'")
# The user has selected these two lines of it when they ask.
SELECTED = (5, 6)
# What they make of the proposal when they edit it: another last line.
EDITED = AFTER.replace("'bye'", "'so long'")


class Stage:
    def __init__(self, folder, library, nvim, node):
        self.folder, self.nvim_path = folder, nvim
        self.home, self.project = os.path.join(folder, "home"), os.path.join(folder, "project")
        self.file = self.open = os.path.join(self.project, "greet.py")
        tmp = os.path.join(folder, "tmp")
        for path in (self.home, self.project, tmp):
            os.mkdir(path)
        self.before, self.after, self.edited = BEFORE, AFTER, EDITED
        self.write(self.file, self.before)
        # Nothing of the caller's environment: no key, no proxy, no editor that waits elsewhere.
        self.env = {"HOME": self.home, "TMPDIR": tmp, "TERM": "xterm-256color", "LANG": "C.UTF-8", "SHELL": "/bin/sh",
                    "PATH": os.pathsep.join([os.path.dirname(node), "/usr/local/bin", "/usr/bin", "/bin"])}
        self.library = os.path.abspath(library)
        self.terminals = 0

    def write(self, path, content):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write(content if isinstance(content, str) else json.dumps(content))

    def settings(self, name, content):
        self.write(os.path.join(self.home, name), content)

    def crlf(self):
        """The file, and what is to become of it, with carriage returns."""
        self.before, self.after, self.edited = (
            text.replace("\n", "\r\n") for text in (self.before, self.after, self.edited))
        self.write(self.file, self.before)

    def new_file(self, with_folder):
        """The agent is to make a file, and the folder for it."""
        self.file, self.before = os.path.join(self.project, "new folder" if with_folder else "", "new file.py"), None

    def read(self, path):
        with open(path, encoding="utf-8", newline="") as f:
            return f.read()

    def content(self):
        """None while there is no file."""
        return self.read(self.file) if os.path.exists(self.file) else None

    # ---- the user's Neovim

    def open_editor(self):
        init = os.path.join(self.folder, "init.lua")
        self.write(init, f"vim.opt.runtimepath:prepend({json.dumps(ROOT)})\nrequire('gangway').setup({{ log_level = 'debug' }})\n")
        terminal.LOGS[:] = [("the plugin's log", os.path.join(self.home, ".local/state/nvim/gangway.log"))]
        self.nvim = terminal.Neovim([self.nvim_path, "--clean", "-u", init, self.open],
                                {**self.env, "GANGWAY_LIBRARY": self.library}, self.project, ROWS, COLUMNS)
        terminal.wait_for("gangway to listen", lambda: self.status().get("port"))

    def status(self):
        return self.nvim.lua("return require('gangway').status()")

    def type(self, keys):
        self.nvim.call("nvim_input", keys)

    def select(self):
        first, last = SELECTED
        self.type(f"<Esc>{first}GV{last}G")
        terminal.wait_for("the selection", lambda: self.nvim.lua("return vim.fn.mode() == 'V' and vim.fn.line('.')") == last)

    def connected(self, name):
        terminal.wait_for(f"{name} to connect", lambda: [c for c in self.status()["clients"] if c["name"] == name])

    def review(self):
        """Waits until a proposal is before the user, in the current window, and takes keys."""
        terminal.wait_for("the proposal in view", lambda: self.nvim.lua(
            "return vim.wo.diff and vim.bo.buftype == 'acwrite' and vim.fn.mode() == 'n'"))
        terminal.wait_for("the proposal to take keys", lambda: self.nvim.lua(
            "local review = require('gangway').status().reviews[1]\n"
            "return review ~= nil and (vim.bo.modifiable or not review.editable)"))
        time.sleep(0.5)  # one that cannot be edited does not show when it takes keys

    def edit(self):
        self.type("G0fbciwso long<Esc>")
        terminal.wait_for("the edit", lambda: "so long" in "".join(
            self.nvim.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)")))

    def recovered(self):
        """What gangway has kept of edits that their agent did not take."""
        names = glob.glob(os.path.join(self.home, ".local/state/nvim/gangway/recovered/*"))
        return [self.read(name) for name in names]

    def reviews_are_over(self):
        terminal.wait_for("the panes to close", lambda: self.nvim.lua(
            "return #require('gangway').status().reviews == 0 and not vim.wo.diff"))

    # ---- the agent's terminal

    def agent_inside(self, argv, env):
        """Runs it by :IdeAgent. Its screen is the transcript when something fails."""
        self.nvim.lua("for name, value in pairs((...)) do vim.env[name] = value end", env)
        self.nvim.lua("vim.cmd.IdeAgent((...))", shlex.join(argv))

    def terminal(self, argv, env):
        return Terminal(self, argv, env)


class Terminal:
    def __init__(self, stage, argv, env):
        stage.terminals += 1
        self.transcript = os.path.join(stage.folder, f"terminal-{stage.terminals}.txt")
        terminal.LOGS.append(("the agent's terminal", self.transcript))
        self.nvim = terminal.Neovim([stage.nvim_path, "--clean"], stage.env, stage.project, ROWS, COLUMNS)
        self.job = self.nvim.lua(
            "local argv, env, cwd = ...\n"
            "vim.o.laststatus, vim.o.cmdheight = 0, 1\n"
            "local options = { env = env, clear_env = true, cwd = cwd }\n"
            "if vim.fn.has('nvim-0.11') == 0 then return vim.fn.termopen(argv, options) end\n"
            "options.term = true\n"
            "return vim.fn.jobstart(argv, options)",
            argv, {**stage.env, **env}, stage.project)

    def screen(self):
        text = "\n".join(self.nvim.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)")).rstrip()
        with open(self.transcript, "w", encoding="utf-8") as f:
            f.write(text)
        return text

    def wait(self, *texts):
        """Waits until one of the texts is on the screen."""
        return terminal.wait_for(" or ".join(repr(text) for text in texts) + " in the agent's terminal",
                             lambda: any(text in self.screen() for text in texts))

    def send(self, keys):
        self.nvim.call("nvim_chan_send", self.job, keys)

    def say(self, text, heard):
        """Types a line and Enter, which is no Enter to some right behind a text or while they start: until `heard`."""
        self.send(text)
        terminal.wait_for("the prompt to show what was typed", lambda: text in self.screen())

        def enter():
            time.sleep(1)
            if heard():
                return True
            self.send("\r")
            return False

        terminal.wait_for("the agent to ask its model", enter)

    def close(self):
        """Ends the agent, and waits until it is gone."""
        if not self.nvim.ended:
            self.screen()
            self.nvim.lua("vim.fn.jobstop(...) vim.fn.jobwait({ ... }, 5000)", self.job)
