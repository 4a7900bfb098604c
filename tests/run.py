#!/usr/bin/env python3
"""Every check of the project, in the order that tells soonest. `make test` runs it.

Format and lints, unit and integration tests, the release library, and with it the end-to-end tests in each Neovim that
GANGWAY_NVIM names (several with `:`), or tests/nvim/fetch.py provides. Nothing runs twice. Goes on after a failure and tells all of them at the end; the last
line is `N passed, N failed`, and the exit status is 1 when something failed, was not to be had, or ran no test.
Arguments go to the end-to-end tests' program, which takes the name of a test or of a group (`review`).
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
E2E_LIMIT = 1200  # seconds for one Neovim; a run takes a few minutes
RESULT = re.compile(r"^(?:test result: \w+\. )?(\d+) passed[;,] (\d+) failed\b")


class Report:
    def __init__(self):
        self.passed = self.failed = 0
        self.lines, self.troubles = [], []

    def trouble(self, text):
        self.troubles.append(text)
        print(f"==> {text}", flush=True)

    def step(self, title):
        print(f"\n==> {title}", flush=True)


def run(argv, env=None, limit=None):
    """Run a command with its output shown; (exit status, tests passed, tests failed)."""
    process = subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    end = limit and time.monotonic() + limit
    passed = failed = 0
    if end:
        # A test that hangs prints nothing, so the clock must not wait for a line.
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(limit)
    try:
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace")
            sys.stdout.write(line)
            sys.stdout.flush()
            m = RESULT.match(line)
            if m:
                passed += int(m.group(1))
                failed += int(m.group(2))
        status = process.wait()
    finally:  # also when we are interrupted: nothing may go on running without us
        signal.alarm(0)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    if end and status == -signal.SIGKILL and time.monotonic() >= end:
        print(f"==> stopped after {limit} seconds", flush=True)
    return status, passed, failed


def has_cargo(command):
    return subprocess.run(["cargo", command, "--version"], cwd=ROOT, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


def lints(report):
    for command, argv in (
        ("fmt", ["cargo", "fmt", "--check"]),
        ("clippy", ["cargo", "clippy", "--locked", "--all-targets", "--", "-D", "warnings"]),
    ):
        report.step(" ".join(argv))
        if not has_cargo(command):
            print(f"cargo {command} is not installed here: not checked")
            report.lines.append(f"cargo {command}: not installed here, not checked")
        elif run(argv)[0] != 0:
            report.trouble(f"cargo {command} found something")
    for script, what in (("lint_lua.py", "Lua"), ("docs.py", "documentation against code"),
                         ("rules.py", "who may know whom")):
        report.step(what)
        if run([sys.executable, os.path.join(ROOT, "tests", script)])[0] != 0:
            report.trouble(f"tests/{script} found something")


def cargo_tests(report):
    """All test targets but the end-to-end one."""
    targets = [os.path.splitext(os.path.basename(p))[0] for p in sorted(glob.glob(os.path.join(ROOT, "tests", "*.rs")))]
    targets += [os.path.basename(os.path.dirname(p)) for p in sorted(glob.glob(os.path.join(ROOT, "tests", "*", "main.rs")))]
    others = [x for t in targets if t != "nvim" for x in ("--test", t)]
    for title, argv in (
        ("unit and integration tests", ["--lib", *others]),
        ("examples in the documentation", ["--doc"]),
    ):
        report.step(title)
        status, passed, failed = run(["cargo", "test", "--locked", "--no-fail-fast", *argv])
        count(report, title, status, passed, failed)


def count(report, title, status, passed, failed, must_run=False):
    report.passed += passed
    report.failed += failed
    report.lines.append(f"{title}: {passed} passed, {failed} failed")
    if status != 0 and failed == 0:
        report.trouble(f"{title} ended with status {status}")
    if must_run and passed + failed == 0:
        report.trouble(f"{title}: no test ran")


def built(argv, kind, name):
    """Run a cargo build and return the file it made."""
    command = ["cargo", *argv, "--locked", "--message-format", "json-render-diagnostics"]
    process = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if process.returncode != 0:
        return None
    for line in reversed(process.stdout.splitlines()):
        message = json.loads(line)
        target = message.get("target", {})
        if message.get("reason") == "compiler-artifact" and target.get("name") == name and kind in target["kind"]:
            if message.get("executable"):
                return message["executable"]
            files = [f for f in message["filenames"] if f.endswith((".so", ".dylib", ".dll"))]
            if files:
                return files[0]
    return None


def neovims(report):
    report.step("Neovims to test in")
    argv = [sys.executable, os.path.join(ROOT, "tests", "nvim", "fetch.py")]
    for path in filter(None, os.environ.get("GANGWAY_NVIM", "").split(os.pathsep)):
        argv += ["--named", path]
    fetch = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    found = [line.split("\t", 1) for line in fetch.stdout.decode().splitlines()]
    for version, path in found:
        print(f"{version}\t{path}", flush=True)
    if fetch.returncode != 0:
        report.trouble("not every Neovim could be had")
    return found


def end_to_end(report, found):
    report.step("the release library")
    library = built(["build", "--release", "--lib"], "cdylib", "gangway")
    report.step("the end-to-end tests' program")
    tests = built(["test", "--no-run", "--test", "nvim"], "test", "nvim")
    if not library or not tests:
        report.trouble("the end-to-end tests could not be built")
        return
    report.step("what the library imports")
    if run([sys.executable, os.path.join(ROOT, "tests", "rules.py"), "--library", library])[0] != 0:
        report.trouble("the library imports what it may not")
    report.step("installing the library")
    status, passed, failed = run([sys.executable, os.path.join(ROOT, "tests", "install.py"), "--library", library,
                                  *(x for _, path in found for x in ("--nvim", path))], limit=E2E_LIMIT)
    count(report, "installing", status, passed, failed, must_run=True)
    size = os.path.getsize(library)
    report.lines.append(f"release library: {size / 1e6:.1f} MB")
    for version, path in found:
        report.step(f"end-to-end tests in Neovim {version}")
        env = dict(os.environ, GANGWAY_NVIM=path, GANGWAY_LIBRARY=library)
        began = time.monotonic()
        status, passed, failed = run([tests, *sys.argv[1:]], env=env, limit=E2E_LIMIT)
        count(report, f"Neovim {version} ({time.monotonic() - began:.0f} s)", status, passed, failed, must_run=True)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report()
    if not shutil.which("cargo"):
        print("cargo is not on PATH: install Rust first", file=sys.stderr)
        return 1
    found = neovims(report)
    lints(report)
    cargo_tests(report)
    end_to_end(report, found)

    print("\n==> summary")
    for line in report.lines:
        print(line)
    for trouble in report.troubles:
        print(f"FAILED: {trouble}")
    print("tested in Neovim " + (", ".join(version for version, _ in found) or "none"))
    print(f"{report.passed} passed, {report.failed + len(report.troubles)} failed", flush=True)
    return 1 if report.failed or report.troubles or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
