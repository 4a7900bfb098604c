"""A real Neovim whose UI a script is: what it draws, as text and as a picture. For demo.py and picture.py.

Speaks msgpack-RPC with a Neovim started with --embed. Python's standard library only.
"""

import os
import struct
import subprocess
import sys
import threading
import time
from xml.sax.saxutils import escape

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATIENCE = 30  # seconds for anything to happen
LOGS = []  # what to show when something fails: (what it is, its path)
CHILDREN = []
WIDTH, HEIGHT, BASE = 8.0, 18, 13.3  # a cell, and the font's size, in pixels
PAD, BAR = 12, 30


def fail(text):
    print(f"\n{os.path.basename(sys.argv[0])}: {text}", file=sys.stderr, flush=True)
    for what, name in LOGS:
        try:
            with open(name, encoding="utf-8", errors="replace") as f:
                tail = f.read().splitlines()[-20:]
        except OSError:
            continue
        print(f"--- {what}\n" + "\n".join(tail), file=sys.stderr, flush=True)
    raise SystemExit(1)


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


def end_children():
    for child in CHILDREN:
        if child.poll() is None:
            child.kill()
        child.wait()


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
    """A Neovim whose UI we are, of the given size."""

    def __init__(self, argv, env, cwd, rows, columns):
        self.rows, self.columns = rows, columns
        # In front of the file's name: behind it, Neovim takes its standard input for a text to edit.
        self.process = start([argv[0], "--embed", *argv[1:]], env=env, cwd=cwd, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.lock, self.changed = threading.Lock(), threading.Condition()
        self.answers, self.next = {}, 0
        self.grid = self._blank()
        self.cursor, self.highlights, self.ended = (0, 0), {}, False
        threading.Thread(target=self._read, daemon=True).start()
        self.call("nvim_ui_attach", columns, rows, {"ext_linegrid": True, "rgb": True})

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

    def _blank(self):
        return [[(" ", 0)] * self.columns for _ in range(self.rows)]

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
            self.grid = self._blank()
        elif event == "grid_cursor_goto":
            self.cursor = (args[1], args[2])
        elif event == "hl_attr_define":
            self.highlights[args[0]] = args[1]
        elif event == "default_colors_set":
            self.highlights[None] = {"foreground": args[0], "background": args[1]}

    def quit(self):
        with self.lock:
            self.process.stdin.write(pack([2, "nvim_command", ["qa!"]]))
            self.process.stdin.flush()
        self.process.wait(PATIENCE)

    def text(self):
        """The screen's lines."""
        with self.changed:
            return ["".join(cell[0] for cell in row).rstrip() for row in self.grid]

    def picture(self, colours):
        """The screen in a frame; with colours as Neovim has them if the terminal can show them."""
        with self.changed:
            grid, default = [row[:] for row in self.grid], self.highlights.get(None, {})
        lines = ["┌" + "─" * self.columns + "┐"]
        for row in grid:
            line, last = "", None
            for text, highlight in row:
                if colours and highlight != last:
                    line += self._escape(highlight, default)
                    last = highlight
                line += text
            lines.append("│" + line + ("\x1b[0m" if colours else "") + "│")
        return "\n".join(lines + ["└" + "─" * self.columns + "┘"])

    def _escape(self, highlight, default):
        look = self.highlights.get(highlight, {})
        fore = look.get("foreground", default.get("foreground", 0xFFFFFF))
        back = look.get("background", default.get("background", 0))
        if look.get("reverse"):
            fore, back = back, fore

        def rgb(colour):
            return f"{colour >> 16 & 255};{colour >> 8 & 255};{colour & 255}"

        return f"\x1b[0;{'1;' if look.get('bold') else ''}38;2;{rgb(fore)};48;2;{rgb(back)}m"


# ------------------------------------------------------------------------------------------------- as a picture


def svg(nvim, label):
    """The screen as a picture of a terminal window; `label` says it to those who cannot see it."""
    with nvim.changed:
        grid, highlights = [row[:] for row in nvim.grid], dict(nvim.highlights)
    default = highlights.get(None, {})
    width, height = nvim.columns * WIDTH + 2 * PAD, nvim.rows * HEIGHT + BAR + PAD

    def colours(number):
        look = highlights.get(number, {})
        fore = look.get("foreground", default.get("foreground", 0xFFFFFF))
        back = look.get("background", default.get("background", 0))
        return (back, fore) if look.get("reverse") else (fore, back)

    paper = default.get("background", 0)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
           f'aria-label="{escape(label)}">',
           f'<rect width="{width:g}" height="{height:g}" rx="9" fill="#{paper:06x}"/>']
    out += [f'<circle cx="{20 + 18 * i}" cy="16" r="5.5" fill="{c}"/>' for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))]
    out.append(f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" '
               f'font-size="{BASE}" xml:space="preserve">')
    texts = []
    for row, cells in enumerate(grid):
        column = 0
        while column < nvim.columns:
            number, begin = cells[column][1], column
            while column < nvim.columns and cells[column][1] == number:
                column += 1
            fore, back = colours(number)
            look = highlights.get(number, {})
            x, y = PAD + begin * WIDTH, BAR + row * HEIGHT
            if back != paper:
                out.append(f'<rect x="{x:g}" y="{y}" width="{(column - begin) * WIDTH:g}" height="{HEIGHT}" fill="#{back:06x}"/>')
            run = [cell[0] for cell in cells[begin:column]]  # the second half of a wide character is ""
            while run and run[-1] == " ":
                run.pop()
            lead = next((i for i, text in enumerate(run) if text != " "), len(run))
            run = run[lead:]
            if not run:
                continue
            # Spaces side by side would be taken for one, and the text stretched.
            text = "".join(run).replace(" ", "\u00a0")
            style = ' font-weight="bold"' if look.get("bold") else ""
            style += ' font-style="italic"' if look.get("italic") else ""
            style += ' text-decoration="underline"' if look.get("underline") else ""
            texts.append(f'<text x="{x + lead * WIDTH:g}" y="{y + 13}" textLength="{len(run) * WIDTH:g}" '
                         f'lengthAdjust="spacingAndGlyphs" fill="#{fore:06x}"{style}>{escape(text)}</text>')
    return "\n".join(out + texts + ["</g>", "</svg>", ""])
