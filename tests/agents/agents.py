"""The shipped agents: where they come from, how each is told of the scripted model, and how it is talked to.

`context` is how it tells its model what the user is at. `calls` are the tool calls that make it change the file; the
first of them may be a reading one, which some want before an edit.
"""

import os
import shutil

from stage import SELECTED

KEY = "key-0123456789-0123456789"


class Agent:
    name = package = version = binary = None
    # What npm is to install beside it.
    extra = None
    # What it is called in :IdeStatus.
    client = None
    # On its screen when it can be talked to.
    ready = ()
    # What :IdeSend of the first two lines puts into its prompt.
    mention = None
    # It makes the folder of a file that it writes.
    makes_folders = True
    # Its own question about an edit, and the keys that answer it.
    asks, yes, no = (), "\r", "\x1b"

    def __init__(self, folder):
        self.folder = folder
        self.program = os.path.join(folder, "node_modules", *self.binary.split("/"))

    def prepare(self, stage, model):
        """Writes its settings; returns its arguments and its environment."""
        raise NotImplementedError

    def start(self, stage, model):
        argv, env = self.prepare(stage, model)
        return stage.terminal([self.program, *argv], env)

    def connect(self, terminal):
        """What the user has to do for that; most connect by themselves."""

    def calls(self, stage):
        raise NotImplementedError

    def after_reading(self, stage, read, write):
        """Most do not write to a file that they have not read."""
        return [write] if stage.before is None else [read, write]

    def context(self, stage):
        """Texts that must have reached the model."""
        raise NotImplementedError


class Gemini(Agent):
    name, package, version = "gemini", "@google/gemini-cli", "0.61.0"
    binary, client = ".bin/gemini", "Gemini CLI"
    ready = ("Type your message",)
    asks = ("Apply this change?", "Allow execution", "Modify with external editor")

    def prepare(self, stage, model):
        stage.settings(".gemini/settings.json", {
            "ide": {"enabled": True, "hasSeenNudge": True},
            "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "privacy": {"usageStatisticsEnabled": False}})
        return ["-m", "gemini-2.5-pro"], {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": model.url,
                                          "REMOTE_CONTAINERS": "true"}

    def calls(self, stage):
        return [("write_file", {"file_path": stage.file, "content": stage.after})]

    def context(self, stage):
        return [f'"path": "{stage.open}"', f'"line": {SELECTED[1]}', """"selectedText": "def bye():\\n    return 'bye'\""""]


class Qwen(Gemini):
    name, package, version = "qwen", "@qwen-code/qwen-code", "0.24.4"
    binary, client = ".bin/qwen", "Qwen Code"

    def prepare(self, stage, model):
        stage.settings(".qwen/settings.json", {
            "ide": {"enabled": True, "hasSeenNudge": True},
            "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
            "privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}})
        return ["--approval-mode", "default"], {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": model.url + "/v1", "OPENAI_MODEL": "scripted"}

    def calls(self, stage):
        return self.after_reading(stage, ("read_file", {"file_path": stage.file}),
                                  ("write_file", {"file_path": stage.file, "content": stage.after}))

    def context(self, stage):
        return [f"Active file:\n  Path: {stage.open}\n  Cursor: line {SELECTED[1]}, character 1\n"
                "  Selected text:\n```\ndef bye():\n    return 'bye'\n```"]


class Opencode(Agent):
    name, package, version = "opencode", "opencode-ai", "1.18.33"
    binary, client = ".bin/opencode", "opencode"
    mention = "@greet.py#1-2"
    ready = ("Ask anything",)

    def prepare(self, stage, model):
        stage.settings(".claude/.keep", "")
        stage.write(os.path.join(stage.project, "opencode.json"), {
            "autoupdate": False, "share": "disabled", "model": "scripted/scripted", "small_model": "scripted/scripted",
            "provider": {"scripted": {"npm": "@ai-sdk/openai-compatible", "name": "Scripted",
                                      "options": {"baseURL": model.url + "/v1", "apiKey": KEY},
                                      "models": {"scripted": {"name": "Scripted"}}}}})
        return [], {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
                    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}

    def calls(self, stage):
        return []

    def context(self, stage):
        # It prints the numbers as it gets them.
        first, last = SELECTED
        return [f"The user selected #{first}-{last} from \"{stage.open}\". ```def bye():\n    return 'bye'```"]


class Claude(Agent):
    name, package, version = "claude", "@anthropic-ai/claude-code", "2.1.332"
    binary, client = ".bin/claude", "Claude Code"
    mention = "@greet.py#L1-2"
    ready = ("? for shortcuts", "manual mode on", "⧉")
    asks, no = ("Do you want to",), "\x1b"

    def prepare(self, stage, model):
        trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        stage.settings(".claude/.keep", "")
        stage.settings(".claude.json", {
            "hasCompletedOnboarding": True, "theme": "dark", "autoUpdates": False, "numStartups": 9,
            "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []}, "projects": {stage.project: trusted}})
        return ["--ide", "--permission-mode", "default"], {
            "ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": KEY, "IS_SANDBOX": "1", "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_IDE_SKIP_AUTO_INSTALL": "1"}

    def connect(self, terminal):
        terminal.wait("2 lines selected")

    def calls(self, stage):
        return self.after_reading(stage, ("Read", {"file_path": stage.file}),
                                  ("Write", {"file_path": stage.file, "content": stage.after}))

    def context(self, stage):
        first, last = SELECTED
        return [f"The user selected the lines {first} to {last} from {stage.open}:\ndef bye():\n    return 'bye'\n"]


class Copilot(Agent):
    name, package, version = "copilot", "@github/copilot", "1.0.102"
    binary, client = ".bin/copilot", "Copilot CLI"
    mention = "@greet.py:1-2"
    ready = ("Type @", "Describe a task", "/ commands", "? for")
    makes_folders = False
    asks = ("Do you want to",)

    def prepare(self, stage, model):
        stage.settings(".copilot/config.json", {"trustedFolders": [stage.project], "trusted_folders": [stage.project]})
        return ["--no-auto-update"], {
            "COPILOT_PROVIDER_BASE_URL": model.url + "/v1", "COPILOT_PROVIDER_TYPE": "openai",
            "COPILOT_PROVIDER_API_KEY": KEY, "COPILOT_MODEL": "scripted", "COPILOT_OFFLINE": "true",
            # It unpacks itself: once, not into every home.
            "COPILOT_CACHE_HOME": os.path.join(self.folder, "unpacked")}

    def calls(self, stage):
        if stage.before is None:
            return [("create", {"path": stage.file, "file_text": stage.after})]
        return [("view", {"path": stage.file}),
                ("edit", {"path": stage.file, "old_str": stage.before, "new_str": stage.after})]

    def context(self, stage):
        first, last = SELECTED
        return [f"File: greet.py (lines {first}-{last})\n```\ndef bye():\n    return 'bye'\n```"]


class Pi(Agent):
    """Its editor extension is no npm package: $PI_IDE names a checkout of ldelossa/pi-ide, else Pi is left out."""

    name, package, version = "pi", "@earendil-works/pi-coding-agent", "1.6.0"
    binary, client = ".bin/pi", "Pi"
    extra = "ws@8.18.0"
    ready = ("scripted",)

    def prepare(self, stage, model):
        stage.settings(".pi/agent/models.json", {"providers": {"scripted": {
            "baseUrl": model.url + "/v1", "api": "openai-completions", "apiKey": KEY,
            "models": [{"id": "scripted", "name": "Scripted", "contextWindow": 128000, "maxTokens": 4096}]}}})
        stage.settings(".pi/agent/settings.json", {
            "defaultProvider": "scripted", "defaultModel": "scripted", "enableInstallTelemetry": False})
        extension = os.path.join(stage.folder, "pi-ide")
        if not os.path.exists(extension):
            shutil.copytree(os.environ["PI_IDE"], extension, ignore=shutil.ignore_patterns(".git", "node_modules"))
            os.symlink(os.path.join(self.folder, "node_modules"), os.path.join(extension, "node_modules"))
        return ["-e", os.path.join(extension, "index.ts")], {
            "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}

    def connect(self, terminal):
        picker = "Connect to IDE"
        terminal.say("/ide", lambda: picker in terminal.screen())
        terminal.send("\r")

    def calls(self, stage):
        return self.after_reading(stage, ("read", {"path": stage.file}),
                                  ("write", {"path": stage.file, "content": stage.after}))

    def context(self, stage):
        return ["<editor>", "greet.py", "def bye():\n    return 'bye'"]


ALL = [Gemini, Qwen, Opencode, Claude, Copilot, Pi]
