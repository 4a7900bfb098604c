#!/usr/bin/env python3
"""Draws doc/review.svg: a review as Neovim really shows it. `make picture` runs it.

    picture.py --library LIB [--out doc/review.svg]
    picture.py --library LIB --screens FOLDER      :IdeStatus, :IdeReviews, :IdeLog and :checkhealth too, to look at

The stage is that of demo.py. The agent is a few lines here, so that nothing but the library has to be built: it finds the
lock file, connects as Pi, and proposes. Python's standard library only.
"""

import argparse
import base64
import glob
import json
import os
import socket
import struct
import sys
import tempfile
import time

import demo
import terminal

ROWS, COLUMNS = 16, 126
LABEL = "A review in Neovim: on the left the file on disk, on the right the proposal"
LOOK = """
-- No ruler and no message: what changes from run to run stays out of the picture; and only what is the plugin's.
vim.o.ruler, vim.o.showcmd, vim.o.laststatus, vim.o.showtabline = false, false, 0, 0
vim.o.foldcolumn, vim.o.signcolumn, vim.g.maplocalleader = '0', 'no', ','
vim.opt.fillchars = { diff = '╱' }
"""

BEFORE = '''\
"""Prices, as the shop shows them."""

CURRENCY = "EUR"


def total(prices, discount):
    return sum(prices) * (1 - discount)


def label(amount):
    return CURRENCY + " " + str(amount)
'''
AFTER = '''\
"""Prices, as the shop shows them."""

CURRENCY = "EUR"


def total(prices, discount=0.0):
    """The sum, less a discount of 0 to 1."""
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"discount: {discount}")
    return sum(prices) * (1.0 - discount)


def label(amount):
    return f"{CURRENCY} {amount:.2f}"
'''


class Agent:
    """As much of Pi as it takes to propose a change."""

    def __init__(self, home):
        name = terminal.wait_for("a lock file", lambda: glob.glob(os.path.join(home, ".pi", "ide", "*.lock")))[0]
        with open(name, encoding="utf-8") as f:
            token = json.load(f)["authToken"]
        port = int(os.path.basename(name).split(".")[0])
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=terminal.PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
                             f"x-pi-ide-authorization: {token}\r\n\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            terminal.fail(f"Neovim refused the agent: {head[:60]!r}")

    def say(self, number, method, params):
        text = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(text))
        self.socket.sendall(struct.pack(">BBH", 0x81, 0x80 | 126, len(text)) + mask + masked)

    def propose(self, path, text):
        self.say("1", "initialize", {"protocolVersion": "2024-11-05", "capabilities": {},
                                     "clientInfo": {"name": "pi-ide", "version": "0.2.1"}})
        self.say("2", "tools/call", {"name": "openDiff", "arguments": {
            "old_file_path": path, "new_file_path": path, "new_file_contents": text, "tab_name": "pi-edit:1"}})


def save(nvim, path, label):
    picture = terminal.svg(nvim, label)
    with open(path, "w", encoding="utf-8") as f:
        f.write(picture)
    print("\n".join(nvim.text()) + f"\n{path}: {len(picture)} bytes")


def open_review(args, folder, rows):
    """A Neovim with a review in view; (it, its agent)."""
    _, nvim_path = terminal.neovim()
    demo.BEFORE, demo.AFTER = BEFORE, AFTER
    env, init, project, target, _ = demo.stage(folder, args.library)
    with open(init, "a", encoding="utf-8") as f:
        f.write(LOOK)
    nvim = terminal.Neovim([nvim_path, "--clean", "-u", init, target], env, project, rows, COLUMNS)
    agent = Agent(env["HOME"])
    agent.propose(target, AFTER)
    terminal.wait_for("the two panes", lambda: nvim.lua("return vim.wo.diff"))
    time.sleep(1.5)  # until it takes keys
    nvim.call("nvim_input", "]c<C-l>")  # to the second change; without the message
    time.sleep(1)
    return nvim, agent


def screens(args, folder):
    """What else there is to look at, each as it comes."""
    nvim, _ = open_review(args, folder, 40)
    for name, keys in (("review", ""), ("status", ":IdeStatus<CR>"), ("reviews", ":IdeReviews<CR>"), ("log", ":IdeLog<CR>"),
                       ("checkhealth", ":checkhealth gangway<CR>")):
        nvim.call("nvim_input", keys)
        time.sleep(2.5)
        save(nvim, os.path.join(args.screens, name + ".svg"), name)
        nvim.call("nvim_input", "<Esc><C-l>")
        time.sleep(0.5)
    nvim.quit()


def main():
    parser = argparse.ArgumentParser(description="Draws the picture of a review.")
    parser.add_argument("--library", required=True, help="the built library")
    parser.add_argument("--out", default=os.path.join(terminal.ROOT, "doc", "review.svg"))
    parser.add_argument("--screens", help="a folder for pictures of everything that the plugin shows")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gangway-picture-") as folder:
        folder = os.path.realpath(folder)
        try:
            if args.screens:
                os.makedirs(args.screens, exist_ok=True)
                screens(args, folder)
            else:
                nvim, _ = open_review(args, folder, ROWS)
                save(nvim, args.out, LABEL)
                nvim.quit()
        finally:
            terminal.end_children()
    return 0


if __name__ == "__main__":
    sys.exit(main())
