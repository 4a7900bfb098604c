#!/usr/bin/env python3
"""The documentation says what the code does. `make lint` runs it.

Compared: commands and <Plug> maps (as Neovim has them), options and their defaults (lua/gangway/config.lua and
src/config.rs), public functions, `User` events and highlight groups, with the tags of doc/gangway.txt, both ways; the
configuration in doc/gangway.txt and README.md with the defaults; README.md's commands; the versions; the repository's
address with the one in Cargo.toml; relative links;
the tests that ARCHITECTURE.md and SECURITY.md name.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROBLEMS = []

ASK_NEOVIM = r"""
vim.opt.runtimepath:prepend(_G.arg[1])
vim.cmd.runtime('plugin/gangway.lua')
local out = { commands = {}, plugs = {}, functions = {}, blocks = {} }
for name in pairs(vim.api.nvim_get_commands({})) do
  if name:match('^Ide') then table.insert(out.commands, name) end
end
for _, mode in ipairs({ 'n', 'x', 'i' }) do
  for _, map in ipairs(vim.api.nvim_get_keymap(mode)) do
    if map.lhs:match('^<Plug>%(gangway') then out.plugs[map.lhs] = true end
  end
end
out.plugs = vim.tbl_keys(out.plugs)
local gangway = require('gangway')
for name, value in pairs(gangway) do
  if type(value) == 'function' and not name:match('^_') then table.insert(out.functions, name) end
end
out.defaults = require('gangway.config').defaults
for index = 2, #_G.arg do
  local chunk = assert(loadfile(_G.arg[index]))
  package.loaded.gangway = { setup = function(opts) out.blocks[index - 1] = opts end }
  chunk()
end
local copy = vim.fn.tempname()
vim.fn.mkdir(copy)
vim.uv.fs_copyfile(_G.arg[1] .. '/doc/gangway.txt', copy .. '/gangway.txt')
local ok, err = pcall(vim.cmd.helptags, copy)
out.helptags = ok and '' or err
io.stdout:write(vim.json.encode(out))
"""


def problem(text):
    PROBLEMS.append(text)


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def same(what, code, documented):
    for name in sorted(set(code) - set(documented)):
        problem(f"{what} {name} is not documented")
    for name in sorted(set(documented) - set(code)):
        problem(f"{what} {name} is documented, and does not exist")


def sources():
    """All Rust, without its unit tests."""
    for path in glob.glob(os.path.join(ROOT, "src", "**", "*.rs"), recursive=True):
        with open(path, encoding="utf-8") as f:
            yield f.read().split("#[cfg(test)]")[0]


def rust_options():
    """{option's path: (its field in Settings or None)} from the match arms of src/config.rs."""
    text = read("src", "config.rs")
    text = text[text.index("pub fn read"):text.index("/// Walks the table")]
    options, stack, depth = {}, [], 0
    token = re.compile(r'fn (\w+)\(|"(\w+)"\s*=>\s*(?:\{\s*)?(?:let [^;]*;\s*)?r\s*\.(\w+)\(|&mut s\.([\w.]+)|[(){}]|"(?:[^"\\]|\\.)*"')
    at = 0
    while True:
        m = token.search(text, at)
        if not m:
            break
        at = m.end()
        function, arm, how, field = m.group(1), m.group(2), m.group(3), m.group(4)
        if function:
            stack = [] if function == "read" else [(function, 0)]
            depth = 1
        elif arm:
            depth += m.group(0).count("(") + m.group(0).count("{")
            while stack and stack[-1][1] >= depth:
                stack.pop()
            # `"auto" => …` inside one_of() never has a reader behind it, so this is a field.
            stack = [entry for entry in stack if entry[1] < depth - m.group(0).count("{") or entry[1] == 0]
            stack.append((arm, depth))
            if how == "switch":  # a table with nothing but `enabled`
                stack.append(("enabled", depth))
            if how != "table":
                options.setdefault(".".join(name for name, _ in stack), None)
        elif field:
            path = ".".join(name for name, _ in stack)
            if path in options and options[path] is None:
                options[path] = field
        elif m.group(0) in "({":
            depth += 1
        elif m.group(0) in ")}":
            depth -= 1
            while stack and stack[-1][1] > depth and stack[-1][1] != 0:
                stack.pop()
    return options


def rust_defaults():
    """{field: default} from `impl Default for Settings`, as Lua would write it."""
    text = read("src", "config.rs")
    text = text[text.index("impl Default for Settings"):]
    text = text[text.index("Self {"):text.index("\n    }\n")]
    words = {"AutoStart::WithUi": True, "AutoStart::Always": "always", "AutoStart::Never": False,
             "true": True, "false": False, "None": None}
    found = {}
    for name, value in re.findall(r"(\w+): ((?:[^,{(]|\([^)]*\))+),", text):
        number = re.search(r"from_millis\(([\d_]+)\)", value)
        quoted = re.search(r'"([^"]*)"', value)
        if number:
            found[name] = int(number.group(1).replace("_", ""))
        elif quoted:
            found[name] = quoted.group(1)
        elif value in words:
            found[name] = words[value]
        else:
            found[name] = value.split("::")[-1].lower()
    return found


def leaves(table, path=""):
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        else:
            yield path + name, value


def neovim():
    fetch = [sys.executable, os.path.join(ROOT, "tests", "nvim", "fetch.py"), "--one"]
    answer = subprocess.run(fetch, stdout=subprocess.PIPE, check=False)
    if answer.returncode != 0:
        sys.exit("docs: there is no Neovim, and none could be fetched")
    return answer.stdout.decode().strip().split("\t")[1]


def configuration(text, what):
    """The Lua block that calls setup() with every option."""
    blocks = re.findall(r"(?:```lua|>lua)\n(.*?)\n(?:```|<)", text, re.S)
    full = [block for block in blocks if "log_level" in block and "debounce_ms" in block]
    if len(full) != 1:
        problem(f"{what} shows the full configuration {len(full)} times")
        return "require('gangway').setup({})"
    return full[0]


def ask(files):
    with tempfile.TemporaryDirectory(prefix="gangway-docs-") as folder:
        names = []
        for index, text in enumerate([ASK_NEOVIM, *files]):
            names.append(os.path.join(folder, f"{index}.lua"))
            with open(names[-1], "w", encoding="utf-8") as f:
                f.write(text)
        env = {k: v for k, v in os.environ.items() if not k.startswith("NVIM")}
        env["XDG_STATE_HOME"] = folder
        answer = subprocess.run([neovim(), "--clean", "--headless", "-l", names[0], ROOT, *names[1:]], env=env,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if answer.returncode != 0:
        sys.exit("docs: Neovim failed")
    return json.loads(answer.stdout)


def links(name):
    text = read(name)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = target.split("#")[0]
        if path and "://" not in path and not os.path.exists(os.path.join(ROOT, os.path.dirname(name), path)):
            problem(f"{name} links to {target}, which is not there")


def address(names):
    """The repository has one address, the one in Cargo.toml."""
    url = re.search(r'^repository = "(.*)"', read("Cargo.toml"), re.M).group(1)
    right = "/".join(url.split("/")[-2:])
    for name in names:
        for owner in re.findall(r"(?:github\.com/|(?<![\w/.~-]))([\w-]+/gangway\.nvim)", read(name)):
            if owner != right:
                problem(f"{name} says {owner}, Cargo.toml {right}")


def named_tests():
    """Tests that ARCHITECTURE.md and SECURITY.md name."""
    code = ""
    for folder in ("src", "tests"):
        for path in glob.glob(os.path.join(ROOT, folder, "**", "*.rs"), recursive=True):
            with open(path, encoding="utf-8") as f:
                code += f.read()
    for name in ("ARCHITECTURE.md", "SECURITY.md"):
        for test in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){3,})`", read(name)):
            if f"fn {test}(" not in code:
                problem(f"{name} names the test {test}, which does not exist")
        for part in re.findall(r"make (?:soak|fuzz) ONLY=(\w+)", read(name)):
            if not re.search(rf"fn \w*{part}\w*\(", code):
                problem(f"{name} says ONLY={part}, and no test is called so")


def main():
    help_text, readme = read("doc", "gangway.txt"), read("README.md")
    tags = set(re.findall(r"(?:^|\s)\*([^*\s]+)\*(?=\s|$)", help_text))
    code = ask([configuration(help_text, "the help"), configuration(readme, "README.md")])
    if code["helptags"]:
        problem(f":helptags: {code['helptags']}")

    same("command", code["commands"], [t[1:] for t in tags if re.match(r":Ide", t)])
    same("map", code["plugs"], [t for t in tags if t.startswith("<Plug>")])
    same("function", code["functions"], [t[8:-2] for t in tags if t.startswith("gangway.") and t.endswith("()")])
    for name in code["commands"]:
        if f":{name}" not in readme:
            problem(f"command {name} is not in README.md")

    text = "\n".join(sources())
    colours = set(re.findall(r'\("(Gangway\w+)", "\w+"\)', text))
    events = set(re.findall(r'"(Gangway[A-Z]\w+)"', text)) - colours
    same("highlight group", colours, [t[3:] for t in tags if t.startswith("hl-")])
    same("event", events, [t for t in tags if re.fullmatch(r"Gangway[A-Z]\w+", t)])
    for name in re.findall(r"%#(Gangway\w+)#", text):
        if name not in colours:
            problem(f"highlight group {name} is used and never defined")

    options, defaults = rust_options(), rust_defaults()
    groups = {name.rsplit(".", 1)[0] for name in options if "." in name}
    documented = [t[len("gangway-option-"):] for t in tags if t.startswith("gangway-option-")]
    same("option", options, [name for name in documented if name not in groups])
    lua = dict(leaves(code["defaults"]))
    for name in sorted(set(lua) - set(options)):
        problem(f"option {name} has a default in Lua, and the library does not know it")
    for name, field in options.items():
        if field is None:
            continue
        default = defaults.get(field.split(".")[-1], "?")
        if default != lua.get(name):
            problem(f"option {name}: {default!r} in src/config.rs, {lua.get(name)!r} in config.lua")
    for what, block in zip(("the help", "README.md"), code["blocks"]):
        for name in sorted(set(lua) | set(dict(leaves(block or {})))):
            shown = dict(leaves(block or {})).get(name)
            if shown != lua.get(name):
                problem(f"{what} shows {name} = {shown!r}, the default is {lua.get(name)!r}")
    annotations = read("lua", "gangway", "config.lua")
    for name in options:
        typed = re.findall(rf"\b{name.split('.')[-1]}\b\??:? ", annotations.split("M.defaults")[0])
        if len(typed) < 2:
            problem(f"option {name} has no type in both Config and SetupOpts of config.lua")

    version = re.search(r'^version = "(.*)"', read("Cargo.toml"), re.M).group(1)
    if f"'{version}'" not in read("lua", "gangway", "version.lua"):
        problem("lua/gangway/version.lua and Cargo.toml name different versions")
    if version not in read("CHANGELOG.md"):
        problem(f"CHANGELOG.md says nothing of {version}")
    named_tests()
    pages = sorted(glob.glob("*.md", root_dir=ROOT))
    for name in pages:
        links(name)
    address([*pages, "doc/gangway.txt"])
    for number, line in enumerate(help_text.splitlines(), 1):
        if len(line) > 78:
            problem(f"doc/gangway.txt:{number} is longer than 78 columns")

    for text in PROBLEMS:
        print(f"docs: {text}")
    if not PROBLEMS:
        print(f"the documentation fits: {len(code['commands'])} commands, {len(options)} options, "
              f"{len(code['functions'])} functions, {len(events)} events, {len(colours)} highlight groups")
    return 1 if PROBLEMS else 0


if __name__ == "__main__":
    sys.exit(main())
