#!/usr/bin/env python3
"""Draws doc/review.svg: a review as Neovim really shows it. `make picture` runs it.

    picture.py --library LIB [--out doc/review.svg]

The stage and the Neovim, whose UI we are, are those of demo.py. The agent is a few lines here, so that nothing but the
library has to be built: it finds the lock file, connects as Pi, and proposes. Python's standard library only.
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
from xml.sax.saxutils import escape

import demo

ROWS, COLUMNS = 20, 126
WIDTH, HEIGHT, BASE = 8.0, 18, 13.3  # a cell, and the font's size, in pixels
PAD, BAR = 12, 30

demo.ROWS, demo.COLUMNS = ROWS, COLUMNS

BEFORE = '''\
"""Prices, as the shop shows them."""

CURRENCY = "EUR"


def total(prices, discount):
    sum = 0
    for price in prices:
        sum += price
    return sum - sum * discount


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
        name = demo.wait_for("a lock file", lambda: glob.glob(os.path.join(home, ".pi", "ide", "*.lock")))[0]
        with open(name, encoding="utf-8") as f:
            token = json.load(f)["authToken"]
        port = int(os.path.basename(name).split(".")[0])
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=demo.PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
                             f"x-pi-ide-authorization: {token}\r\n\r\n").encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            demo.fail(f"Neovim refused the agent: {head[:60]!r}")

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


def svg(grid, highlights):
    """The grid as a picture of a terminal window."""
    default = highlights.get(None, {})
    width, height = COLUMNS * WIDTH + 2 * PAD, ROWS * HEIGHT + BAR + PAD

    def colours(number):
        look = highlights.get(number, {})
        fore = look.get("foreground", default.get("foreground", 0xFFFFFF))
        back = look.get("background", default.get("background", 0))
        return (back, fore) if look.get("reverse") else (fore, back)

    paper = default.get("background", 0)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
           f'aria-label="A review in Neovim: on the left the file on disk, on the right the proposal">',
           f'<rect width="{width:g}" height="{height:g}" rx="9" fill="#{paper:06x}"/>']
    out += [f'<circle cx="{20 + 18 * i}" cy="16" r="5.5" fill="{c}"/>' for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))]
    out.append(f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" '
               f'font-size="{BASE}" xml:space="preserve">')
    texts = []
    for row, cells in enumerate(grid):
        column = 0
        while column < COLUMNS:
            number, begin = cells[column][1], column
            while column < COLUMNS and cells[column][1] == number:
                column += 1
            fore, back = colours(number)
            look = highlights.get(number, {})
            x, y = PAD + begin * WIDTH, BAR + row * HEIGHT
            if back != paper:
                out.append(f'<rect x="{x:g}" y="{y}" width="{(column - begin) * WIDTH:g}" height="{HEIGHT}" fill="#{back:06x}"/>')
            text = "".join(cell[0] for cell in cells[begin:column])
            lead = len(text) - len(text.lstrip())
            text = text.strip()
            if not text:
                continue
            style = ' font-weight="bold"' if look.get("bold") else ""
            style += ' font-style="italic"' if look.get("italic") else ""
            style += ' text-decoration="underline"' if look.get("underline") else ""
            texts.append(f'<text x="{x + lead * WIDTH:g}" y="{y + 13}" textLength="{len(text) * WIDTH:g}" '
                         f'lengthAdjust="spacingAndGlyphs" fill="#{fore:06x}"{style}>{escape(text)}</text>')
    return "\n".join(out + texts + ["</g>", "</svg>", ""])


def draw(args, folder):
    _, nvim_path = demo.neovim()
    demo.BEFORE, demo.AFTER = BEFORE, AFTER
    env, init, project, target, _ = demo.stage(folder, args.library)
    with open(init, "a", encoding="utf-8") as f:
        # No ruler and no message: what changes from run to run stays out of the picture.
        f.write("vim.o.ruler = false\nvim.o.showcmd = false\nvim.o.laststatus = 2\n"
                "vim.g.maplocalleader = ','\nvim.o.foldcolumn = '0'\nvim.o.signcolumn = 'no'\n"
                "vim.o.statusline = ' %f %=%{%v:lua.require\"gangway\".statusline()%} '\n")
    nvim = demo.Neovim([nvim_path, "--clean", "-u", init, target], env, project)
    agent = Agent(env["HOME"])
    agent.propose(target, AFTER)
    demo.wait_for("the two panes", lambda: nvim.lua("return vim.wo.diff"))
    time.sleep(1.5)  # until it takes keys
    nvim.call("nvim_input", "]c<C-l>")  # to the second change; without the message
    time.sleep(1)
    with nvim.changed:
        grid, highlights = [row[:] for row in nvim.grid], dict(nvim.highlights)
    picture = svg(grid, highlights)
    with open(args.out, "w", encoding="utf-8") as f:
        f.write(picture)
    print("\n".join("".join(cell[0] for cell in row).rstrip() for row in grid))
    print(f"{args.out}: {len(picture)} bytes")
    with nvim.lock:
        nvim.process.stdin.write(demo.pack([2, "nvim_command", ["qa!"]]))
        nvim.process.stdin.flush()
    nvim.process.wait(demo.PATIENCE)
    return 0


def main():
    parser = argparse.ArgumentParser(description="Draws the picture of a review.")
    parser.add_argument("--library", required=True, help="the built library")
    parser.add_argument("--out", default=os.path.join(demo.ROOT, "doc", "review.svg"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gangway-picture-") as folder:
        try:
            return draw(args, os.path.realpath(folder))
        finally:
            for child in demo.CHILDREN:
                if child.poll() is None:
                    child.kill()
                child.wait()


if __name__ == "__main__":
    sys.exit(main())
