#!/usr/bin/env python3
"""A review from proposal to saved file, as a person would see it. `make demo` and `make try` run it.

    demo.py --library LIB --agent AGENT          shows one review as text, accepts it, shows what became of the file
    demo.py --library LIB --agent AGENT --try    opens a Neovim here and lets the agent propose again and again

Starts a real Neovim with the plugin and attaches to it as a UI, so the pictures are what Neovim draws. The agent is
examples/agent.rs: it finds the lock file, connects as Pi, proposes an edit, waits for the verdict, and writes the file
itself, as agents do. Home, settings and project are in a temporary folder. Python's standard library only.
"""

import argparse
import difflib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.splitext(os.path.basename(sys.argv[0]))[0]
PATIENCE = 30  # seconds for anything to happen
ROWS, COLUMNS = 26, 100

BEFORE = '''\
"""Prices, as the shop shows them."""


def total(prices, discount):
    sum = 0
    for price in prices:
        sum += price
    return sum - sum * discount


def label(amount):
    return "EUR " + str(amount)
'''
AFTER = '''\
"""Prices, as the shop shows them."""


def total(prices, discount=0.0):
    """The sum of all prices, less a discount between 0 and 1."""
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"no such discount: {discount}")
    return sum(prices) * (1.0 - discount)


def label(amount):
    return f"EUR {amount:.2f}"
'''


# ------------------------------------------------------------------------------------- msgpack, as far as Neovim needs it


def pack(value):
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value)
    if isinstance(value, str):
        data = value.encode()
        return struct.pack(">BI", 0xDB, len(data)) + data
    if isinstance(value, (list, tuple)):
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(pack(x) for x in value)
    if isinstance(value, dict):
        return struct.pack(">BI", 0xDF, len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())
    raise TypeError(type(value))


class Unpacker:
    """Reads one value after another from a stream."""

    def __init__(self, stream):
        self.stream = stream

    def take(self, n):
        data = self.stream.read(n) if n else b""
        if len(data) != n:
            raise EOFError
        return data

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def items(self, n):
        return [self.value() for _ in range(n)]

    def pairs(self, n):
        return {self.value(): self.value() for _ in range(n)}

    def text(self, n):
        return self.take(n).decode("utf-8", "replace")

    def extension(self, n):  # handles of buffers, windows, tab pages
        self.number("b")
        return self.take(n)

    def value(self):
        tag = self.number("B")
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self.pairs(tag & 0x0F)
        if tag < 0xA0:
            return self.items(tag & 0x0F)
        if tag < 0xC0:
            return self.text(tag & 0x1F)
        simple = {0xC0: None, 0xC2: False, 0xC3: True}
        if tag in simple:
            return simple[tag]
        numbers = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q",
                   0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
        if tag in numbers:
            return self.number(numbers[tag])
        if 0xD4 <= tag <= 0xD8:
            return self.extension(1 << (tag - 0xD4))
        sized = {0xC4: ("B", self.text), 0xC5: ("H", self.text), 0xC6: ("I", self.text),
                 0xC7: ("B", self.extension), 0xC8: ("H", self.extension), 0xC9: ("I", self.extension),
                 0xD9: ("B", self.text), 0xDA: ("H", self.text), 0xDB: ("I", self.text),
                 0xDC: ("H", self.items), 0xDD: ("I", self.items), 0xDE: ("H", self.pairs), 0xDF: ("I", self.pairs)}
        form, read = sized[tag]
        return read(self.number(form))


# ------------------------------------------------------------------------------------------------- Neovim, with a UI


class Neovim:
    """A Neovim whose UI we are."""

    def __init__(self, argv, env, cwd):
        # In front of the file's name: behind it, Neovim takes its standard input for a text to edit.
        self.process = start([argv[0], "--embed", *argv[1:]], env=env, cwd=cwd, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.lock, self.changed = threading.Lock(), threading.Condition()
        self.answers, self.next = {}, 0
        self.grid = [[(" ", 0)] * COLUMNS for _ in range(ROWS)]
        self.cursor, self.highlights, self.ended = (0, 0), {}, False
        threading.Thread(target=self._read, daemon=True).start()
        self.call("nvim_ui_attach", COLUMNS, ROWS, {"ext_linegrid": True, "rgb": True})

    def call(self, method, *args):
        with self.lock:
            self.next += 1
            number = self.next
            self.process.stdin.write(pack([0, number, method, list(args)]))
            self.process.stdin.flush()
        with self.changed:
            self.changed.wait_for(lambda: number in self.answers or self.ended, PATIENCE)
            if number not in self.answers:
                fail(f"Neovim does not answer {method}" + (" (it has ended)" if self.ended else ""))
            error, result = self.answers.pop(number)
        if error:
            fail(f"{method}: {error[1] if isinstance(error, list) else error}")
        return result

    def lua(self, code, *args):
        return self.call("nvim_exec_lua", code, list(args))

    def _read(self):
        unpacker = Unpacker(self.process.stdout)
        try:
            while True:
                message = unpacker.value()
                with self.changed:
                    if message[0] == 1:
                        self.answers[message[1]] = message[2:]
                    elif message[0] == 2 and message[1] == "redraw":
                        for event in message[2]:
                            for args in event[1:]:
                                self._draw(event[0], args)
                    self.changed.notify_all()
        except (EOFError, OSError, ValueError):
            with self.changed:
                self.ended = True
                self.changed.notify_all()

    def _draw(self, event, args):
        if event == "grid_line":
            _, row, column, cells = args[:4]
            highlight = 0
            for cell in cells:
                if len(cell) > 1:
                    highlight = cell[1]
                for _ in range(cell[2] if len(cell) > 2 else 1):
                    self.grid[row][column] = (cell[0], highlight)
                    column += 1
        elif event == "grid_scroll":
            _, top, bottom, left, right, rows, _ = args
            order = range(top, bottom - rows) if rows > 0 else range(bottom - 1, top - rows - 1, -1)
            for row in order:
                self.grid[row][left:right] = self.grid[row + rows][left:right]
        elif event == "grid_clear":
            self.grid = [[(" ", 0)] * COLUMNS for _ in range(ROWS)]
        elif event == "grid_cursor_goto":
            self.cursor = (args[1], args[2])
        elif event == "hl_attr_define":
            self.highlights[args[0]] = args[1]
        elif event == "default_colors_set":
            self.highlights[None] = {"foreground": args[0], "background": args[1]}

    def picture(self, colours):
        """The screen in a frame; with colours as Neovim has them if the terminal can show them."""
        with self.changed:
            grid, default = [row[:] for row in self.grid], self.highlights.get(None, {})
        lines = ["┌" + "─" * COLUMNS + "┐"]
        for row in grid:
            line, last = "", None
            for text, highlight in row:
                if colours and highlight != last:
                    line += self._escape(highlight, default)
                    last = highlight
                line += text
            lines.append("│" + line + ("\x1b[0m" if colours else "") + "│")
        return "\n".join(lines + ["└" + "─" * COLUMNS + "┘"])

    def _escape(self, highlight, default):
        look = self.highlights.get(highlight, {})
        fore = look.get("foreground", default.get("foreground", 0xFFFFFF))
        back = look.get("background", default.get("background", 0))
        if look.get("reverse"):
            fore, back = back, fore

        def rgb(colour):
            return f"{colour >> 16 & 255};{colour >> 8 & 255};{colour & 255}"

        return f"\x1b[0;{'1;' if look.get('bold') else ''}38;2;{rgb(fore)};48;2;{rgb(back)}m"


# ------------------------------------------------------------------------------------------------------- the play


def fail(text):
    print(f"\n{PROGRAM}: {text}", file=sys.stderr, flush=True)
    for what, name in LOGS:
        try:
            with open(name, encoding="utf-8", errors="replace") as f:
                tail = f.read().splitlines()[-20:]
        except OSError:
            continue
        print(f"--- {what}\n" + "\n".join(tail), file=sys.stderr, flush=True)
    raise SystemExit(1)


LOGS = []  # what to show when something fails: (what it is, its path)
CHILDREN = []


def start(argv, **options):
    child = subprocess.Popen(argv, **options)
    CHILDREN.append(child)
    return child


def wait_for(what, probe):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = probe()
        if found:
            return found
        time.sleep(0.05)
    return fail(f"waited {PATIENCE} seconds in vain: {what}")


def neovim():
    """A Neovim >= 0.10: on PATH, or fetched."""
    fetch = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "nvim", "fetch.py"), "--one"],
                           stdout=subprocess.PIPE, check=False)
    if fetch.returncode != 0:
        fail("there is no Neovim, and none could be fetched")
    return fetch.stdout.decode().strip().split("\t")


def stage(folder, library):
    """Home and project; (environment, init file, project, file, proposal)."""
    home, project = os.path.join(folder, "home"), os.path.join(folder, "shop")
    os.mkdir(home)
    os.mkdir(project)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PI_", "CLAUDE", "NVIM", "VIM", "XDG_"))}
    env.update(HOME=home, GANGWAY_LIBRARY=os.path.abspath(library))
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        env[f"XDG_{kind}_HOME"] = os.path.join(home, kind.lower())
    init = os.path.join(folder, "init.lua")
    with open(init, "w", encoding="utf-8") as f:
        f.write(f"vim.opt.runtimepath:prepend({json.dumps(ROOT)})\n"
                "vim.o.number = true\n"
                "vim.o.termguicolors = true\n"
                "require('gangway').setup()\n")
    target, proposal = os.path.join(project, "prices.py"), os.path.join(folder, "proposal.py")
    for path, text in ((target, BEFORE), (proposal, AFTER)):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    LOGS.append(("the plugin's log", os.path.join(home, "state", "nvim", "gangway.log")))
    return env, init, project, target, proposal


def lock_file(home):
    folder = os.path.join(home, ".pi", "ide")
    try:
        return [name for name in os.listdir(folder) if name.endswith(".lock")]
    except OSError:
        return []


def title(text):
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def demo(args, folder):
    version, nvim_path = neovim()
    env, init, project, target, proposal = stage(folder, args.library)
    colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    title(f"1. A Neovim {version} with gangway.nvim opens {os.path.basename(target)}")
    nvim = Neovim([nvim_path, "--clean", "-u", init, target], env, project)
    names = wait_for("the lock file by which agents find this Neovim", lambda: lock_file(env["HOME"]))
    print(f"~/.pi/ide/{names[0]} tells agents where it listens.")

    title("2. An agent finds it, connects, and proposes an edit")
    transcript = os.path.join(folder, "agent.txt")
    LOGS.append(("the agent's transcript", transcript))
    with open(transcript, "w", encoding="utf-8") as out:
        agent = start(
            [args.agent, "--as", "pi", "--workspace", project, "--lock-dir", os.path.join(env["HOME"], ".pi", "ide"),
             "--propose", target, "--replace-with", proposal],
            env=env, cwd=project, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    told = 0

    def tell():
        nonlocal told
        with open(transcript, encoding="utf-8", errors="replace") as f:
            text = f.read()
        new, told = text[told:], len(text)
        for line in new.splitlines():
            print("  agent │ " + line)
        sys.stdout.flush()

    panes = """
      local panes = {}
      for _, win in ipairs(vim.api.nvim_list_wins()) do
        if vim.wo[win].diff then panes[#panes + 1] = vim.bo[vim.api.nvim_win_get_buf(win)].buftype end
      end
      return vim.deep_equal(panes, { 'nofile', 'acwrite' }) and vim.wo.diff
    """

    def shown():
        if agent.poll() is not None:
            tell()
            fail(f"the agent ended with status {agent.returncode} before anything was shown")
        return nvim.lua(panes)

    wait_for("the two panes", shown)
    time.sleep(0.8)  # a pane that has just come into view takes no keys; and let it be drawn
    tell()

    title("3. You see the file on disk on the left and the proposal on the right; nothing is written yet")
    print(nvim.picture(colours))

    title("4. You accept: :w in the right pane")
    nvim.lua("""
      for _, win in ipairs(vim.api.nvim_list_wins()) do
        if vim.bo[vim.api.nvim_win_get_buf(win)].buftype == 'acwrite' then vim.api.nvim_set_current_win(win) end
      end
    """)
    time.sleep(0.5)
    nvim.call("nvim_input", ":w<CR>")
    try:
        status = agent.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        tell()
        fail("the agent got no verdict")
    tell()
    if status != 0:
        fail(f"the agent ended with status {status}")

    title("5. The agent has written the file")
    with open(target, encoding="utf-8") as f:
        after = f.read()
    for line in difflib.unified_diff(BEFORE.splitlines(), after.splitlines(), "before", "after", lineterm="", n=1):
        print("  " + line)
    if after != AFTER:
        fail("the file is not what was proposed")
    wait_for("the panes to close", lambda: not nvim.lua("return vim.wo.diff"))
    wait_for("the open buffer to show the new file",
             lambda: nvim.lua("return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\\n')") + "\n" == AFTER)
    time.sleep(0.3)

    title("6. And your window shows it")
    print(nvim.picture(colours))
    with nvim.lock:
        nvim.process.stdin.write(pack([2, "nvim_command", ["qa!"]]))
        nvim.process.stdin.flush()
    nvim.process.wait(PATIENCE)
    if lock_file(env["HOME"]):
        fail("the lock file is still there")
    print("\nNeovim has left, and its lock file is gone. `make try` lets you press the keys yourself.")
    return 0


def interactive(args, folder):
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("--try needs a terminal")
    _, nvim_path = neovim()
    env, init, project, target, proposal = stage(folder, args.library)
    transcript = os.path.join(folder, "agent.txt")

    def agent():
        while not lock_file(env["HOME"]):
            time.sleep(0.1)
        with open(transcript, "w", encoding="utf-8") as out:
            start(
                [args.agent, "--as", "pi", "--workspace", project, "--lock-dir", os.path.join(env["HOME"], ".pi", "ide"),
                 "--propose", target, "--replace-with", proposal, "--loop"],
                env=env, cwd=project, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    threading.Thread(target=agent, daemon=True).start()
    status = subprocess.run([nvim_path, "--clean", "-u", init, target], env=env, cwd=project, check=False).returncode
    if os.path.exists(transcript):
        print("What the agent was told:")
        with open(transcript, encoding="utf-8", errors="replace") as f:
            shutil.copyfileobj(f, sys.stdout)
    return status


def main():
    parser = argparse.ArgumentParser(description="A review from proposal to saved file, as a person would see it.")
    parser.add_argument("--library", required=True, help="the built library")
    parser.add_argument("--agent", required=True, help="the built example agent")
    parser.add_argument("--try", dest="interactive", action="store_true", help="open a Neovim in this terminal")
    args = parser.parse_args()
    args.agent = os.path.abspath(args.agent)
    for path in (args.library, args.agent):
        if not os.path.exists(path):
            fail(f"{path} is not there: run `make demo`, which builds it")
    with tempfile.TemporaryDirectory(prefix="gangway-demo-") as folder:
        try:
            return (interactive if args.interactive else demo)(args, os.path.realpath(folder))
        finally:
            for child in CHILDREN:
                if child.poll() is None:
                    child.kill()
                child.wait()


if __name__ == "__main__":
    sys.exit(main())
