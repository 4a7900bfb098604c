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
import subprocess
import sys
import tempfile
import threading
import time

from terminal import LOGS, PATIENCE, ROOT, Neovim, end_children, fail, neovim, start, wait_for

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
    nvim = Neovim([nvim_path, "--clean", "-u", init, target], env, project, ROWS, COLUMNS)
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
    nvim.quit()
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
            end_children()


if __name__ == "__main__":
    sys.exit(main())
