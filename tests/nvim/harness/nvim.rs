//! One Neovim under test.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, RawMode};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{Client, Dialect, Pending, Verdict};
use super::pty::{Cell, Pty};
use super::rpc::{Rpc, RpcError};
use super::snapshot::{Counts, Snapshot};
use super::{ARMED, PATIENCE, poll, tail};

const HELPER: &str = include_str!("helper.lua");

/// How a Neovim is to be started. Made by [`Nvim::builder`].
#[must_use]
pub struct Builder {
    root: TempDir,
    home: PathBuf,
    cwd: PathBuf,
    size: Option<(u16, u16)>,
    plugin: bool,
    setup: bool,
    opts: Value,
    before: String,
    after: String,
    env: BTreeMap<OsString, Option<OsString>>,
    args: Vec<OsString>,
    umask: Option<RawMode>,
}

impl Builder {
    /// With its terminal UI, in a pty of this size. Without, it is headless.
    pub fn tty(mut self, rows: u16, cols: u16) -> Self {
        self.size = Some((rows, cols));
        self
    }

    /// A Neovim that has never heard of the plugin.
    pub fn plain(mut self) -> Self {
        self.plugin = false;
        self
    }

    /// The plugin is on the runtimepath, but nobody calls `setup`.
    pub fn no_setup(mut self) -> Self {
        self.setup = false;
        self
    }

    /// Options for `setup`, on top of `auto_start = "always"`.
    pub fn opts(mut self, opts: Value) -> Self {
        merge(&mut self.opts, opts);
        self
    }

    /// Lua that runs before `setup`.
    pub fn before(mut self, lua: &str) -> Self {
        self.before += lua;
        self.before += "\n";
        self
    }

    /// Lua that runs after `setup`.
    pub fn after(mut self, lua: &str) -> Self {
        self.after += lua;
        self.after += "\n";
        self
    }

    /// The working directory, instead of a folder of its own.
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = cwd.into();
        self
    }

    /// The home directory, instead of one of its own: for two Neovims of one user.
    pub fn home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = home.into();
        self
    }

    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.insert(key.as_ref().to_owned(), Some(value.as_ref().to_owned()));
        self
    }

    pub fn unset(mut self, key: impl AsRef<OsStr>) -> Self {
        self.env.insert(key.as_ref().to_owned(), None);
        self
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// What the process takes away from the modes of its new files (without a terminal UI).
    pub fn umask(mut self, bits: RawMode) -> Self {
        self.umask = Some(bits);
        self
    }

    /// Writes a file, relative to the working directory.
    pub fn write(self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Self {
        write_file(&self.cwd.join(path), bytes.as_ref());
        self
    }

    /// Writes a file and opens it at start.
    pub fn file(mut self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Self {
        let path = self.cwd.join(path);
        write_file(&path, bytes.as_ref());
        self.args.push(path.into());
        self
    }

    /// Starts it and waits until it answers.
    #[track_caller]
    pub fn start(self) -> Nvim {
        Nvim::start_with(self)
    }

    fn environment(&self) -> BTreeMap<OsString, OsString> {
        const OTHERS: [&str; 7] = ["PI_", "CLAUDE", "OPENCODE", "NVIM", "VIM", "XDG_", "TMUX"];
        const DISPLAYS: [&str; 3] = ["DISPLAY", "WAYLAND_DISPLAY", "COLORTERM"];
        let foreign = |key: &OsStr| {
            let key = key.to_string_lossy();
            OTHERS.iter().any(|o| key.starts_with(o)) || DISPLAYS.contains(&&*key)
        };
        let mut env: BTreeMap<OsString, OsString> =
            std::env::vars_os().filter(|(k, _)| !foreign(k)).collect();
        let under_home = |name: &str| self.home.join(name).into_os_string();
        env.extend([
            ("HOME".into(), self.home.clone().into()),
            ("XDG_CONFIG_HOME".into(), under_home("config")),
            ("XDG_DATA_HOME".into(), under_home("data")),
            ("XDG_STATE_HOME".into(), under_home("state")),
            ("XDG_CACHE_HOME".into(), under_home("cache")),
            ("XDG_RUNTIME_DIR".into(), self.root.path().into()),
            ("XDG_CONFIG_DIRS".into(), under_home("no-config")),
            ("TERM".into(), "xterm-256color".into()),
            ("LANG".into(), "C.UTF-8".into()),
            ("LC_ALL".into(), "C.UTF-8".into()),
        ]);
        if self.plugin {
            env.insert("GANGWAY_LIBRARY".into(), library().into());
        }
        for (key, value) in &self.env {
            match value {
                Some(value) => env.insert(key.clone(), value.clone()),
                None => env.remove(key),
            };
        }
        env
    }

    fn init(&self) -> String {
        let mut init = format!("{HELPER}\n");
        if self.plugin {
            init += &format!(
                "vim.opt.runtimepath:prepend({})\n",
                lua_string(env!("CARGO_MANIFEST_DIR"))
            );
        }
        init += &self.before;
        if self.plugin && self.setup {
            let opts = lua_string(&self.opts.to_string());
            init += &format!("require('gangway').setup(vim.json.decode({opts}))\n");
        }
        init + &self.after
    }
}

/// A running Neovim. When it is dropped it must still answer and must leave when told to; else the
/// test fails.
pub struct Nvim {
    /// Its working directory.
    pub cwd: PathBuf,
    pub home: PathBuf,
    env: BTreeMap<OsString, OsString>,
    /// The process that runs the plugin: with a terminal UI a child of the one that was started.
    pid: u32,
    rpc: Rpc,
    process: Process,
    output: PathBuf,
    /// The end of this Neovim is the test's own doing.
    ending: AtomicBool,
    /// Right panes that already belong to a proposal.
    claimed: Mutex<HashSet<i64>>,
    root: TempDir,
}

enum Process {
    Headless(Mutex<Child>),
    Tty(Pty),
}

/// How a Neovim ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Exit {
    pub code: Option<i32>,
    /// The signal that killed it (a number, or a text with a terminal UI).
    pub signal: Option<String>,
    pub took: Duration,
}

/// One lock file of this Neovim.
#[derive(Debug, Clone)]
pub struct Lock {
    pub path: PathBuf,
    pub port: u16,
    pub token: String,
    pub json: Value,
}

/// A window in diff mode.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct Pane {
    pub win: i64,
    pub buf: i64,
    pub tab: i64,
    pub buftype: String,
    pub name: String,
    pub filetype: String,
    pub listed: bool,
    pub modifiable: bool,
    pub winbar: String,
}

/// The two panes of one proposal.
#[derive(Debug, Clone)]
pub struct Review {
    /// What is on disk.
    pub left: Pane,
    /// What the agent proposes.
    pub right: Pane,
}

impl Nvim {
    /// Headless, with the plugin set up and started, unless told otherwise.
    pub fn builder() -> Builder {
        let root =
            tempfile::Builder::new().prefix("gangway-").tempdir().expect("a temporary folder");
        let (home, cwd) = (root.path().join("home"), root.path().join("work"));
        for folder in [&home, &cwd] {
            std::fs::create_dir(folder).unwrap();
        }
        Builder {
            root,
            home,
            cwd,
            size: None,
            plugin: true,
            setup: true,
            opts: json!({ "auto_start": "always" }),
            before: String::new(),
            after: String::new(),
            env: BTreeMap::new(),
            args: Vec::new(),
            umask: None,
        }
    }

    /// Headless, with the plugin set up and started.
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    #[track_caller]
    fn start_with(builder: Builder) -> Self {
        let root = builder.root.path();
        let (socket, init) = (root.join("rpc"), root.join("init.lua"));
        let output = root.join("output");
        std::fs::create_dir_all(&builder.home).unwrap();
        std::fs::write(&init, builder.init()).unwrap();
        let env = builder.environment();
        let program = std::env::var("GANGWAY_NVIM").unwrap_or_else(|_| "nvim".to_owned());

        let mut args: Vec<OsString> = vec!["--clean".into()];
        if builder.size.is_none() {
            args.push("--headless".into());
        }
        args.extend(["-u".into(), init.into(), "--listen".into(), socket.clone().into()]);
        args.extend(builder.args.iter().cloned());

        let process = match builder.size {
            Some(size) => Process::Tty(Pty::spawn(&program, &args, &builder.cwd, &env, size)),
            None => {
                let (cwd, umask) = (&builder.cwd, builder.umask);
                Process::Headless(Mutex::new(spawn(&program, &args, cwd, &env, &output, umask)))
            }
        };
        let connected = poll(Duration::from_secs(15), || {
            Rpc::connect(&socket).ok().map(Ok).or_else(|| ended(&process).map(Err))
        });
        let rpc = match connected {
            Some(Ok(rpc)) => rpc,
            other => {
                let why = match other {
                    Some(Err(exit)) => format!("ended at start ({exit:?})"),
                    _ => "opened no RPC socket".to_owned(),
                };
                let said = match &process {
                    Process::Tty(pty) => pty.text(),
                    Process::Headless(_) => std::fs::read_to_string(&output).unwrap_or_default(),
                };
                kill_tree(&process);
                panic!("Neovim {why}\n--- output\n{}", tail(&said, 40));
            }
        };
        let mut nvim = Self {
            cwd: builder.cwd,
            home: builder.home,
            env,
            pid: 0,
            rpc,
            process,
            output,
            ending: AtomicBool::new(false),
            claimed: Mutex::new(HashSet::new()),
            root: builder.root,
        };
        // The first answer comes when init.lua has run.
        match nvim.try_lua("return vim.fn.getpid()", ()) {
            Ok(pid) => nvim.pid = pid.as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap(),
            Err(_) if poll(Duration::from_secs(1), || ended(&nvim.process)).is_some() => {
                nvim.fail("Neovim ended at start")
            }
            Err(e) => nvim.fail_rpc("the first call", &e),
        }
        let error = nvim.eval("v:errmsg").to_string();
        if error.contains("E5112") || error.contains("E5113") {
            nvim.fail("init.lua failed");
        }
        nvim
    }

    // ----------------------------------------------------------------------------- talking to it

    /// Runs Lua and returns what it returns. `args`, a tuple or a list, arrive as `...`.
    #[track_caller]
    pub fn lua<T: DeserializeOwned>(&self, code: &str, args: impl Serialize) -> T {
        self.lua_within(PATIENCE, code, args)
    }

    #[track_caller]
    pub fn lua_within<T: DeserializeOwned>(
        &self,
        limit: Duration,
        code: &str,
        args: impl Serialize,
    ) -> T {
        let value = match self.try_lua_within(limit, code, args) {
            Ok(value) => value,
            Err(e) => self.fail_rpc(&format!("Lua `{}`", super::short(code)), &e),
        };
        serde_json::from_value(value.clone())
            .unwrap_or_else(|e| panic!("Lua `{}` gave {value}: {e}", super::short(code)))
    }

    /// As [`Self::lua`], but an error in Lua, a hang and a crash are for the test to judge.
    pub fn try_lua(&self, code: &str, args: impl Serialize) -> Result<Value, RpcError> {
        self.try_lua_within(PATIENCE, code, args)
    }

    pub fn try_lua_within(
        &self,
        limit: Duration,
        code: &str,
        args: impl Serialize,
    ) -> Result<Value, RpcError> {
        let args = match serde_json::to_value(args).expect("arguments for Lua") {
            Value::Null => json!([]),
            list @ Value::Array(_) => list,
            single => json!([single]),
        };
        self.rpc.call("nvim_exec_lua", json!([code, args]), limit)
    }

    /// Any API function.
    #[track_caller]
    pub fn call(&self, method: &str, args: Value) -> Value {
        match self.rpc.call(method, args, PATIENCE) {
            Ok(value) => value,
            Err(e) => self.fail_rpc(method, &e),
        }
    }

    /// An Ex command; one that fails fails the test.
    #[track_caller]
    pub fn cmd(&self, command: &str) {
        self.call("nvim_command", json!([command]));
    }

    /// Runs an Ex command and returns its output.
    #[track_caller]
    pub fn cmd_output(&self, command: &str) -> String {
        self.lua("return vim.api.nvim_exec2(..., { output = true }).output", (command,))
    }

    /// Sends a command and does not wait for its end.
    pub fn cmd_nowait(&self, command: &str) {
        let _ = self.rpc.notify("nvim_command", json!([command]));
    }

    #[track_caller]
    pub fn eval(&self, expression: &str) -> Value {
        self.call("nvim_eval", json!([expression]))
    }

    /// Keys as from a UI, in Neovim's notation (`<Esc>`, `<CR>`; a literal `<` is `<lt>`).
    #[track_caller]
    pub fn input(&self, keys: &str) {
        self.call("nvim_input", json!([keys]));
    }

    /// The mode, as `mode(1)` names it.
    #[track_caller]
    pub fn mode(&self) -> String {
        self.call("nvim_get_mode", json!([]))["mode"].as_str().unwrap_or_default().to_owned()
    }

    /// Neovim waits for a key (a hit-enter prompt, a pending operator, `getchar`) and serves no
    /// RPC.
    #[track_caller]
    pub fn blocked(&self) -> bool {
        self.call("nvim_get_mode", json!([]))["blocking"] == json!(true)
    }

    /// The lines of a buffer (0: the current one).
    #[track_caller]
    pub fn lines(&self, buffer: i64) -> Vec<String> {
        self.lua("return vim.api.nvim_buf_get_lines(..., 0, -1, false)", (buffer,))
    }

    #[track_caller]
    pub fn set_lines(&self, buffer: i64, lines: &[&str]) {
        self.lua::<Value>(
            "local b, l = ...; vim.api.nvim_buf_set_lines(b, 0, -1, false, l)",
            (buffer, lines),
        );
    }

    /// The output of `:messages`.
    #[track_caller]
    pub fn messages(&self) -> String {
        self.cmd_output("messages")
    }

    /// The texts of all `vim.notify` calls so far.
    #[track_caller]
    pub fn notifications(&self) -> Vec<String> {
        self.lua("return vim.tbl_map(function(n) return n.message end, T.notifications)", ())
    }

    /// All `User Gangway…` events so far, as `{ name, data }`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        self.lua("return T.events", ())
    }

    /// The number of the test's channel, for `rpcnotify()`. (On 0.10, channel 0 does not mean all.)
    #[track_caller]
    pub fn channel(&self) -> i64 {
        self.call("nvim_get_api_info", json!([]))[0].as_i64().unwrap_or_default()
    }

    /// What came by `rpcnotify()`.
    pub fn rpc_notifications(&self) -> Vec<(String, Value)> {
        self.rpc.notifications()
    }

    /// `:edit`, taking the name literally.
    #[track_caller]
    pub fn edit(&self, path: impl AsRef<Path>) {
        let path = self.path(path);
        self.lua::<Value>(
            "vim.cmd.edit({ args = { ... }, magic = { file = false, bar = false } })",
            (path,),
        );
    }

    /// Gives Neovim time for what is scheduled, and waits until it has taken it.
    #[track_caller]
    pub fn settle(&self, time: Duration) {
        std::thread::sleep(time);
        self.lua::<Value>("return 1", ());
    }

    /// Waits until something is so.
    #[track_caller]
    pub fn wait_until(&self, what: &str, mut probe: impl FnMut() -> bool) {
        self.wait_for(what, || probe().then_some(()));
    }

    /// Waits until there is something, and returns it.
    #[track_caller]
    pub fn wait_for<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        match poll(PATIENCE, probe) {
            Some(found) => found,
            None => self.fail(&format!("waited {PATIENCE:?} in vain: {what}")),
        }
    }

    // ------------------------------------------------------------------------------------- files

    /// A path, relative to the working directory.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.cwd.join(path)
    }

    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(path);
        write_file(&path, bytes.as_ref());
        path
    }

    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> Vec<u8> {
        let path = self.path(path);
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// An environment variable it was started with.
    pub fn env(&self, key: &str) -> Option<PathBuf> {
        self.env.get(OsStr::new(key)).map(PathBuf::from)
    }

    /// The init.lua it was started with, for another one like it.
    pub fn init(&self) -> PathBuf {
        self.root.path().join("init.lua")
    }

    /// The plugin's log, so far.
    pub fn log(&self) -> String {
        std::fs::read(self.home.join("state/nvim/gangway.log"))
            .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    // -------------------------------------------------------------------------------- lock files

    /// Where lock files for this kind of agent belong.
    pub fn lock_dir(&self, dialect: Dialect) -> PathBuf {
        let (variable, sub, default) = match dialect {
            Dialect::Pi => ("PI_IDE_LOCK_DIR", "", ".pi/ide"),
            Dialect::Claude => ("CLAUDE_CONFIG_DIR", "ide", ".claude/ide"),
            Dialect::Opencode => return self.home.join(".claude/ide"),
        };
        self.env(variable).map_or_else(|| self.home.join(default), |dir| dir.join(sub))
    }

    /// The lock files of this Neovim that are there now.
    pub fn locks(&self, dialect: Dialect) -> Vec<Lock> {
        let Ok(entries) = std::fs::read_dir(self.lock_dir(dialect)) else { return Vec::new() };
        let mut locks: Vec<Lock> = entries
            .filter_map(|entry| Lock::read(&entry.ok()?.path()))
            .filter(|lock| lock.json["pid"] == json!(self.pid))
            .collect();
        locks.sort_by(|a, b| a.path.cmp(&b.path));
        locks
    }

    /// Waits for the one lock file of this Neovim.
    #[track_caller]
    pub fn lock(&self, dialect: Dialect) -> Lock {
        let found = self.wait_for(
            &format!("a lock file for {dialect:?} in {:?}", self.lock_dir(dialect)),
            || Some(self.locks(dialect)).filter(|locks| !locks.is_empty()),
        );
        assert_eq!(found.len(), 1, "one lock file for {dialect:?}: {found:?}");
        found.into_iter().next().unwrap()
    }

    /// Waits until this Neovim has no lock file any more.
    #[track_caller]
    pub fn wait_no_locks(&self) {
        self.wait_until("the lock files to vanish", || {
            self.locks(Dialect::Pi).is_empty() && self.locks(Dialect::Claude).is_empty()
        });
    }

    // --------------------------------------------------------------- the user's part of a review

    /// All windows in diff mode.
    #[track_caller]
    pub fn panes(&self) -> Vec<Pane> {
        self.lua("return T.panes()", ())
    }

    /// The panes that hold proposals.
    #[track_caller]
    pub fn right_panes(&self) -> Vec<Pane> {
        self.panes().into_iter().filter(|p| p.buftype == "acwrite").collect()
    }

    /// Waits until a proposal is shown in two panes. Of several it is told by its text.
    #[track_caller]
    pub fn shown(&self, pending: &Pending) -> Review {
        let want: Vec<&str> =
            pending.text.strip_suffix('\n').unwrap_or(&pending.text).split('\n').collect();
        let same = |pane: &Pane| {
            let lines = self.lines(pane.buf);
            lines.len() == want.len()
                && lines
                    .iter()
                    .zip(&want)
                    .all(|(a, b)| a.trim_end_matches('\r') == b.trim_end_matches('\r'))
        };
        let review = poll(PATIENCE, || {
            if let Some(answer) = pending.answers().first() {
                self.fail(&format!("openDiff was answered instead of shown: {answer}"));
            }
            let claimed = self.claimed.lock().unwrap().clone();
            let panes = self.panes();
            let free: Vec<&Pane> = panes
                .iter()
                .filter(|p| p.buftype == "acwrite" && !claimed.contains(&p.buf))
                .collect();
            let right = match free[..] {
                [only] => only,
                _ => free.into_iter().find(|p| same(p))?,
            };
            let left = panes.iter().find(|p| p.tab == right.tab && p.buftype != "acwrite")?;
            Some(Review { left: left.clone(), right: right.clone() })
        });
        let Some(review) = review else {
            self.fail(&format!("no two panes for {} within {PATIENCE:?}", pending.path.display()))
        };
        // What is set last (winbar, modifiable) is set now.
        self.settle(Duration::from_millis(30));
        let panes = self.panes();
        let again = |pane: Pane| panes.iter().find(|p| p.win == pane.win).cloned().unwrap_or(pane);
        let review = Review { left: again(review.left), right: again(review.right) };
        self.claimed.lock().unwrap().insert(review.right.buf);
        review
    }

    #[track_caller]
    pub fn goto(&self, win: i64) {
        self.lua::<Value>("vim.api.nvim_set_current_win(...)", (win,));
    }

    #[track_caller]
    pub fn win_exists(&self, win: i64) -> bool {
        self.lua("return vim.api.nvim_win_is_valid(...)", (win,))
    }

    /// Keys typed in a pane, from normal mode, as soon as it takes them.
    #[track_caller]
    pub fn keys_in(&self, pane: &Pane, keys: &str) {
        if !self.win_exists(pane.win) {
            self.fail(&format!("the pane {} is gone", pane.name));
        }
        self.goto(pane.win);
        self.settle(ARMED);
        self.input(&format!("<C-\\><C-n>{keys}"));
    }

    /// The user types `:w` in the right pane.
    #[track_caller]
    pub fn accept(&self, review: &Review) {
        self.keys_in(&review.right, ":w<CR>");
    }

    /// Accepts the only review as soon as it stands, however big it is and whatever is in it.
    #[track_caller]
    pub fn accept_unread(&self) {
        let patience = Duration::from_secs(40);
        if poll(patience, || (!self.right_panes().is_empty()).then_some(())).is_none() {
            self.fail("no review");
        }
        self.lua_within::<Value>(patience, "vim.cmd('IdeAccept!')", ());
    }

    /// The user types `:q!` in the right pane.
    #[track_caller]
    pub fn reject(&self, review: &Review) {
        self.keys_in(&review.right, ":q!<CR>");
    }

    /// A whole review: the user accepts or rejects it when it is shown, the agent closes its tab.
    #[track_caller]
    pub fn decide(&self, agent: &Client, pending: &Pending, accept: bool) -> Verdict {
        let review = self.shown(pending);
        if accept {
            self.accept(&review);
        } else {
            self.reject(&review);
        }
        let verdict = pending.verdict();
        agent.close_tab(pending);
        self.wait_until("the panes to go", || self.panes().is_empty());
        verdict
    }

    /// Replaces the proposal, as an edit of the user's would.
    #[track_caller]
    pub fn rewrite(&self, review: &Review, lines: &[&str]) {
        self.goto(review.right.win);
        self.settle(ARMED);
        self.set_lines(review.right.buf, lines);
    }

    /// The lines of a pane that are shown as changed, from 1.
    #[track_caller]
    pub fn changed_lines(&self, pane: &Pane) -> Vec<u32> {
        self.lua("return T.changed(...)", (pane.win,))
    }

    /// `require("gangway").status()`.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.lua("return require('gangway').status()", ())
    }

    // ------------------------------------------------------------------------ what it looks like

    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_with_keys(&[])
    }

    /// With what these keys are mapped to in normal mode, in every buffer.
    #[track_caller]
    pub fn snapshot_with_keys(&self, keys: &[&str]) -> Snapshot {
        Snapshot(self.lua("return T.snapshot(...)", (keys,)))
    }

    #[track_caller]
    pub fn counts(&self) -> Counts {
        let mut counts: BTreeMap<String, i64> = self.lua("return T.counts()", ());
        // Where there is no /proc they stay 0, and never grow.
        counts.extend(["threads", "rss_kib", "fds"].map(|name| (name.to_owned(), 0)));
        if let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", self.pid)) {
            let number = |field: &str| -> Option<i64> {
                status
                    .lines()
                    .find_map(|l| l.strip_prefix(field)?.split_whitespace().next()?.parse().ok())
            };
            counts.extend(number("Threads:").map(|n| ("threads".to_owned(), n)));
            counts.extend(number("VmRSS:").map(|n| ("rss_kib".to_owned(), n)));
        }
        if let Ok(fds) = std::fs::read_dir(format!("/proc/{}/fd", self.pid)) {
            counts.insert("fds".to_owned(), fds.count() as i64);
        }
        Counts(counts)
    }

    /// Begins to watch for stalls of the main loop.
    #[track_caller]
    pub fn stall_start(&self) {
        self.lua::<Value>("T.stall_start()", ());
    }

    /// The longest stall since [`Self::stall_start`].
    #[track_caller]
    pub fn stall(&self) -> Duration {
        Duration::from_secs_f64(
            self.lua_within::<f64>(Duration::from_secs(60), "return T.stall()", ()) / 1e3,
        )
    }

    // ------------------------------------------------------------------------------ its terminal

    #[track_caller]
    fn pty(&self) -> &Pty {
        match &self.process {
            Process::Tty(pty) => pty,
            Process::Headless(_) => {
                panic!("this Neovim has no terminal: build it with .tty(rows, cols)")
            }
        }
    }

    /// Raw bytes as from a keyboard.
    #[track_caller]
    pub fn type_keys(&self, bytes: impl AsRef<[u8]>) {
        self.pty().write(bytes.as_ref());
    }

    /// Raw bytes, one at a time.
    #[track_caller]
    pub fn type_slowly(&self, bytes: impl AsRef<[u8]>, gap: Duration) {
        for byte in bytes.as_ref() {
            self.pty().write(&[*byte]);
            std::thread::sleep(gap);
        }
    }

    /// The screen, row by row.
    #[track_caller]
    pub fn screen_text(&self) -> String {
        self.pty().text()
    }

    /// How often the terminal's bell rang.
    #[track_caller]
    pub fn bells(&self) -> usize {
        self.pty().bells()
    }

    /// What the terminal was told to do beside showing text, such as "9;text".
    #[track_caller]
    pub fn os_commands(&self) -> Vec<String> {
        self.pty().os_commands()
    }

    /// One cell with its attributes; rows and columns from 0.
    #[track_caller]
    pub fn screen_cell(&self, row: u16, col: u16) -> Option<Cell> {
        self.pty().cell(row, col)
    }

    /// Where a text stands on the screen: row and column, from 0.
    #[track_caller]
    pub fn screen_find(&self, text: &str) -> Option<(u16, u16)> {
        self.screen_text().lines().enumerate().find_map(|(row, line)| {
            let at = line.find(text)?;
            Some((row as u16, line[..at].chars().count() as u16))
        })
    }

    #[track_caller]
    pub fn screen_cursor(&self) -> (u16, u16) {
        self.pty().cursor()
    }

    #[track_caller]
    pub fn resize(&self, rows: u16, cols: u16) {
        self.pty().resize(rows, cols);
    }

    /// Waits until a text is on the screen.
    #[track_caller]
    pub fn wait_for_text(&self, text: &str) {
        self.wait_until(&format!("{text:?} on the screen"), || self.screen_find(text).is_some());
    }

    /// Presses Enter while a hit-enter prompt stands.
    #[track_caller]
    pub fn dismiss_prompts(&self) {
        for _ in 0..5 {
            if !self.blocked() {
                return;
            }
            self.input("<CR>");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    // ----------------------------------------------------------------------------------- its end

    /// The process the plugin lives in.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is still there.
    pub fn running(&self) -> bool {
        ended(&self.process).is_none()
    }

    /// Tells it to leave by a command (`qa!`) and waits until it has.
    #[track_caller]
    pub fn quit(&self, command: &str) -> Exit {
        self.ending.store(true, Ordering::Relaxed);
        self.cmd_nowait(command);
        self.wait_exit(Duration::from_secs(5))
    }

    /// Sends a signal (to the process that runs the plugin) and waits for the end.
    #[track_caller]
    pub fn kill(&self, signal: Signal) -> Exit {
        self.ending.store(true, Ordering::Relaxed);
        signal_process(self.pid, signal);
        self.wait_exit(Duration::from_secs(5))
    }

    /// Waits until it has ended, for whatever reason.
    #[track_caller]
    pub fn wait_exit(&self, limit: Duration) -> Exit {
        self.ending.store(true, Ordering::Relaxed);
        let began = Instant::now();
        match poll(limit, || ended(&self.process)) {
            Some(exit) => Exit { took: began.elapsed(), ..exit },
            None => self.fail(&format!("Neovim had not ended after {limit:?}")),
        }
    }

    /// The test makes it end, or go on as another process.
    pub fn ends_by_itself(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// The window of its terminal is closed.
    #[track_caller]
    pub fn hang_up(&self) {
        self.ends_by_itself();
        let Process::Tty(pty) = &self.process else { panic!("this Neovim has no terminal") };
        pty.hang_up();
    }

    #[track_caller]
    fn fail_rpc(&self, what: &str, error: &RpcError) -> ! {
        match error {
            RpcError::Error(message) => self.fail(&format!("{what}: {message}")),
            RpcError::TimedOut => self.fail(&format!("{what}: Neovim does not answer")),
            RpcError::Gone => {
                let _ = poll(Duration::from_secs(1), || ended(&self.process));
                self.fail(&format!("{what}: Neovim is gone"))
            }
        }
    }

    /// Panics with all there is to know about this Neovim.
    #[track_caller]
    pub fn fail(&self, what: &str) -> ! {
        panic!("{what}\n{}", self.report());
    }

    fn report(&self) -> String {
        let state = match ended(&self.process) {
            Some(Exit { signal: Some(signal), .. }) => format!("killed by signal {signal}"),
            Some(Exit { code, .. }) => format!("ended with code {code:?}"),
            None => match self.rpc.call("nvim_get_mode", json!([]), Duration::from_secs(1)) {
                Ok(mode) => format!("running, mode {mode}"),
                Err(e) => format!("running, but answers nothing ({e:?})"),
            },
        };
        let mut report = format!("--- Neovim: {state}");
        let said = match &self.process {
            Process::Tty(pty) => pty.text(),
            Process::Headless(_) => std::fs::read(&self.output)
                .map(|b| String::from_utf8_lossy(&b).into_owned())
                .unwrap_or_default(),
        };
        for (title, text) in [("its screen or output", said), ("the plugin's log", self.log())] {
            if !text.trim().is_empty() {
                report += &format!("\n--- {title}\n{}", tail(&text, 40));
            }
        }
        report
    }
}

impl Drop for Nvim {
    fn drop(&mut self) {
        let mut trouble = None;
        if !std::thread::panicking() && !self.ending.load(Ordering::Relaxed) {
            trouble = self.leave().err();
        }
        kill_tree(&self.process);
        if self.running() {
            signal_process(self.pid, Signal::KILL);
        }
        if let Some(trouble) = trouble {
            panic!("{trouble}");
        }
    }
}

impl Nvim {
    /// Leaves as a user would who is done.
    fn leave(&self) -> Result<(), String> {
        let mode = self.rpc.call("nvim_get_mode", json!([]), Duration::from_secs(4));
        match mode {
            // The test left a prompt: no command gets through.
            Ok(mode) if mode["blocking"] == json!(true) => return Ok(()),
            Ok(_) => {}
            Err(RpcError::Gone) => {
                let _ = poll(Duration::from_secs(1), || ended(&self.process));
                return Err(format!("Neovim ended by itself during the test\n{}", self.report()));
            }
            Err(_) => {
                return Err(format!("Neovim hangs at the end of the test\n{}", self.report()));
            }
        }
        self.cmd_nowait("qa!");
        match poll(Duration::from_secs(4), || ended(&self.process)) {
            Some(Exit { signal: None, code: Some(0), .. }) => Ok(()),
            Some(_) => Err(format!("Neovim did not end cleanly after the test\n{}", self.report())),
            None => Err(format!("`:qa!` after the test did not end Neovim\n{}", self.report())),
        }
    }
}

impl Lock {
    /// A lock file that is whole.
    pub fn read(path: &Path) -> Option<Self> {
        let port = path.file_name()?.to_str()?.strip_suffix(".lock")?.parse().ok()?;
        let json: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let token = json["authToken"].as_str()?.to_owned();
        Some(Self { path: path.to_owned(), port, token, json })
    }
}

// --------------------------------------------------------------------------------- processes

fn spawn(
    program: &str,
    args: &[OsString],
    cwd: &Path,
    env: &BTreeMap<OsString, OsString>,
    output: &Path,
    umask: Option<RawMode>,
) -> Child {
    let output = std::fs::File::create(output).unwrap();
    let mut command = Command::new(program);
    command.args(args).current_dir(cwd).env_clear().envs(env);
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    if let Some(bits) = umask {
        // SAFETY: umask() is async-signal-safe and cannot fail.
        unsafe {
            command.pre_exec(move || {
                rustix::process::umask(Mode::from_raw_mode(bits));
                Ok(())
            });
        }
    }
    #[cfg(target_os = "linux")]
    // SAFETY: prctl() is async-signal-safe, and nothing else happens between fork and exec.
    unsafe {
        command
            .pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {program} (GANGWAY_NVIM names another): {e}"))
}

fn ended(process: &Process) -> Option<Exit> {
    let took = Duration::ZERO;
    match process {
        Process::Headless(child) => {
            let status = child.lock().unwrap().try_wait().ok()??;
            Some(Exit { code: status.code(), signal: status.signal().map(|n| n.to_string()), took })
        }
        Process::Tty(pty) => {
            let status = pty.exit_status()?;
            let signal = status.signal().map(str::to_owned);
            Some(Exit { code: signal.is_none().then_some(status.exit_code() as i32), signal, took })
        }
    }
}

fn signal_process(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Kills the process that was started and its children: with a terminal UI the Neovim itself is a
/// child.
fn kill_tree(process: &Process) {
    if ended(process).is_some() {
        return;
    }
    let pid = match process {
        Process::Headless(child) => child.lock().unwrap().id(),
        Process::Tty(pty) => match pty.pid() {
            Some(pid) => pid,
            None => return,
        },
    };
    // The program is for where there is no /proc.
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .or_else(|_| {
            let said = Command::new("pgrep").args(["-P", &pid.to_string()]).output()?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&said.stdout).into_owned())
        })
        .unwrap_or_default();
    for pid in children.split_whitespace().filter_map(|p| p.parse().ok()).chain([pid]) {
        signal_process(pid, Signal::KILL);
    }
    let _ = poll(Duration::from_secs(2), || ended(process));
}

/// The library under test: `GANGWAY_LIBRARY`, else the one cargo built along with this test.
fn library() -> PathBuf {
    if let Some(library) = std::env::var_os("GANGWAY_LIBRARY") {
        let library = PathBuf::from(library);
        assert!(library.is_file(), "GANGWAY_LIBRARY names no file: {}", library.display());
        return std::path::absolute(library).unwrap();
    }
    let name = format!("{}gangway{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let tried = [deps.join(&name), deps.join("..").join(&name)];
    let newest = tried
        .iter()
        .filter(|p| p.is_file())
        .max_by_key(|p| p.metadata().and_then(|m| m.modified()).ok());
    newest.cloned().unwrap_or_else(|| {
        panic!("the plugin's library is not built; tried {tried:?}. Run `cargo build`.")
    })
}

fn write_file(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// A Lua string literal. (Lua has no `\u{…}` before 5.3, so other characters stand as they are.)
fn lua_string(text: &str) -> String {
    let mut literal = String::from("'");
    for c in text.chars() {
        match c {
            '\\' | '\'' => literal.extend(['\\', c]),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            '\0' => literal.push_str("\\0"),
            c => literal.push(c),
        }
    }
    literal + "'"
}

/// Lays `over` on top of `base`, table by table.
fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}
