//! The composition root: builds the parts, starts and stops them. `exports` is its Lua face,
//! `host` carries what agents ask of the editor, `suggest` what the user asks of one, `gate` is the privacy filter on the way out.
//!
//! Neovim's thread only. A running plugin is one tokio runtime; stopping answers every pending
//! review before a socket closes, because Pi takes a dropped connection for "go ahead".

mod exports;
mod gate;
mod host;
mod suggest;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvim_oxi::mlua::{self, Lua, Table, Value};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::agents::Host;
use crate::agents::aivyx::{Aivyx, AivyxConfig, key};
use crate::agents::codex::{Codex, CodexConfig};
use crate::agents::mcp::{ClientEvent, ClientInfo, Family, Mcp};
use crate::agents::rivumi::push::PushUrl;
use crate::agents::rivumi::{Rivumi, RivumiConfig};
use crate::config::{self, Enabled, Settings};
use crate::context::Snapshot;
use crate::context::debounce::Pace;
use crate::context::tracker::RawState;
use crate::disk::Disk;
use crate::editor::api::{Api, to_plain};
use crate::editor::watch::{Feed, Keeper, feed};
use crate::editor::{Bridge, Editor};
use crate::log;
use crate::review::desk::Desk;
use crate::review::owed::Owed;
use crate::server::lockfile::{Environment, LockFiles};
use crate::server::{self, Credentials, Limits, Server, ServerConfig};
use crate::sharing::SharingStore;
use gate::Gate;
use host::EditorHost;
use suggest::Suggesting;

pub use exports::open;

/// Serve sockets, timers and files.
const WORKERS: usize = 2;
/// How long leaving may wait for answers to be on the wire.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);
/// The same, with what else is to be tidied up.
const LEAVE_WITHIN: Duration = Duration::from_millis(350);
/// A text the user accepted may take this long to be put together before Neovim leaves.
const VERDICTS_WITHIN: Duration = Duration::from_secs(2);
/// How long after that for the runtime to end.
const END_WITHIN: Duration = Duration::from_millis(100);
/// How often deleted lock files are put back; also on focus.
const CHECK_LOCKS: Duration = Duration::from_secs(5);

pub(crate) struct Plugin {
    editor: Rc<Editor>,
    bridge: Bridge,
    desk: Desk,
    gate: Arc<Gate>,
    disk: Disk,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    configured: Cell<bool>,
    running: RefCell<Option<Running>>,
    stopping: Cell<bool>,
    /// Somebody said start while it was stopping.
    start_again: Cell<bool>,
    /// Agents whose coming was told to `User` handlers, and whose going was not.
    known: RefCell<Vec<ClientInfo>>,
    /// What the user waits for an agent to suggest.
    suggesting: RefCell<Option<Suggesting>>,
    /// Port and tokens of the last server, so that agents find a restarted one again.
    before: RefCell<Option<(u16, Credentials)>>,
}

/// What exists only while the plugin runs.
struct Running {
    runtime: Runtime,
    feed: Feed,
    mcp: Mcp,
    shared: Arc<Mutex<Shared>>,
    check_locks: Arc<tokio::sync::Notify>,
}

/// Filled in by the runtime as it comes up.
#[derive(Default)]
struct Shared {
    server: Option<Server>,
    port: Option<u16>,
    locks: Option<LockFiles>,
    /// The socket file that Copilot CLI comes to.
    socket: Option<PathBuf>,
    aivyx: Option<Aivyx>,
    rivumi: Option<Rivumi>,
    codex: Option<Codex>,
    /// For `status()` and `:checkhealth`.
    problems: Vec<String>,
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Neovim's environment variables that matter, as they are now.
struct Variables {
    home: Option<PathBuf>,
    xdg_state_home: Option<PathBuf>,
    codex_home: Option<PathBuf>,
    /// Where a socket may be put.
    runtime_dirs: Vec<PathBuf>,
    locks: Environment,
}

impl Variables {
    fn read(api: &Api) -> mlua::Result<Self> {
        let env: Table = api.lua.globals().get::<Table>("vim")?.get("env")?;
        let get = |name: &str| -> mlua::Result<Option<PathBuf>> {
            use std::os::unix::ffi::OsStrExt;
            let value: Option<mlua::String> = env.get(name)?;
            Ok(value.map(|v| PathBuf::from(std::ffi::OsStr::from_bytes(&v.as_bytes()))))
        };
        let cwd: mlua::String = api.func("getcwd", ())?;
        Ok(Self {
            home: get("HOME")?,
            xdg_state_home: get("XDG_STATE_HOME")?,
            codex_home: get("CODEX_HOME")?,
            runtime_dirs: [get("XDG_RUNTIME_DIR")?, get("TMPDIR")?, Some("/tmp".into())]
                .into_iter()
                .flatten()
                .filter(|dir| dir.is_absolute())
                .collect(),
            locks: Environment {
                home: get("HOME")?,
                pi_lock_dir: get("PI_IDE_LOCK_DIR")?,
                claude_config_dir: get("CLAUDE_CONFIG_DIR")?,
                qwen_home: get("QWEN_HOME")?,
                copilot_home: get("COPILOT_HOME")?,
                xdg_data_home: get("XDG_DATA_HOME")?,
                temporary: [get("TMPDIR")?, get("TMP")?, get("TEMP")?],
                cwd: PathBuf::from(cwd.to_string_lossy()),
                ..Environment::default()
            },
        })
    }
}

impl Plugin {
    fn new(
        lua: &Lua,
        editor_of: impl Fn() -> Option<Rc<Editor>> + 'static,
    ) -> mlua::Result<Rc<Self>> {
        crate::panic::install_hook();
        let api = Api::new(lua)?;
        let directory: String = api.func("stdpath", "log")?;
        log::open(directory.as_ref());
        let desk = Desk::default();
        let bridge = Bridge::install(lua, editor_of)?;
        let editor = Editor::new(lua, bridge.clone(), desk.clone())?;
        let home = Variables::read(&api)?.home;
        let (store, disk) = (SharingStore::new(editor.state_dir.clone()), Disk::default());
        let tell = bridge.clone();
        let (gate, snapshots) = Gate::new(store, home, disk.clone(), move |message| {
            tell.post(move |editor| editor.report(&message));
        });
        Ok(Rc::new(Self {
            editor,
            bridge,
            desk,
            gate,
            disk,
            snapshots,
            configured: Cell::new(false),
            running: RefCell::new(None),
            stopping: Cell::new(false),
            start_again: Cell::new(false),
            known: RefCell::default(),
            suggesting: RefCell::default(),
            before: RefCell::new(None),
        }))
    }

    /// Takes the user's options; returns what is wrong with them. A running plugin is restarted
    /// only if what serves the agents changed.
    fn configure(self: &Rc<Self>, options: &Value) -> mlua::Result<Vec<String>> {
        let (settings, complaints) = config::read(&to_plain(options));
        let mut problems: Vec<String> = complaints.iter().map(ToString::to_string).collect();
        problems.extend(self.gate.configure(&settings));
        let url = settings.rivumi_url.as_deref().map(PushUrl::parse);
        if let Some(Err(error)) = url {
            problems.push(format!("agents.rivumi.websocket_url: {error}"));
        }
        log::set_level(&settings.log_level);
        let restart = self.configured.replace(true)
            && self.running.borrow().is_some()
            && serves_differently(&self.editor.settings(), &settings);
        self.editor.set_settings(settings);
        if restart {
            self.stop(false)?;
            self.start()?;
        } else {
            self.editor.set_root(self.root_option()?)?;
        }
        Ok(problems)
    }

    fn start(self: &Rc<Self>) -> mlua::Result<()> {
        if self.running.borrow().is_some() || self.editor.api.is_exiting()? {
            return Ok(());
        }
        // A handler of what stopping does: the new one would be stopped half-way through as well.
        if self.stopping.get() {
            self.start_again.set(true);
            return Ok(());
        }
        let settings = self.editor.settings();
        let variables = Variables::read(&self.editor.api)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("gangway")
            .enable_all()
            .build()
            .map_err(mlua::Error::external)?;
        self.bridge.resume();
        self.desk.reopen();
        self.editor.set_runtime(Some(runtime.handle().clone()));

        let pace = Pace { quiet: settings.debounce, longest: settings.max_wait };
        let (feed, keeper) = feed(pace, self.disk.clone());
        let root = self.root_option()?;
        self.editor.start_watching(root, &feed)?;
        // Now, not when Neovim's loop next turns: a prompt of its start may hold that up for long,
        // and nobody can find us before the folders are known.
        let first = self.editor.collect(true);
        self.run_keeper(&runtime, keeper, first);

        let host = EditorHost {
            bridge: self.bridge.clone(),
            feed: feed.clone(),
            latest: self.snapshots.clone(),
            gate: Arc::clone(&self.gate),
        };
        let host: Arc<dyn Host> = Arc::new(host);
        let bridge = self.bridge.clone();
        let mcp =
            Mcp::new(self.desk.clone(), self.snapshots.clone(), Arc::clone(&host), move |event| {
                bridge.post(move |_| exports::client_event(&event));
            });
        mcp.set_claude_diffs(settings.claude_diffs);
        let served = served(&settings);
        let families = served.iter().filter(|(_, on)| *on != Enabled::Off).map(|(f, _)| *f);
        let auto = served.iter().filter(|(_, on)| *on == Enabled::Auto).map(|(f, _)| *f);
        let environment = Environment { auto: auto.collect(), ..variables.locks.clone() };
        let (port_hint, credentials) = match self.before.borrow().clone() {
            Some((port, credentials)) => (Some(port), credentials.for_families(families)),
            None => (None, Credentials::generate(families)),
        };
        let config = ServerConfig {
            port_hint,
            credentials: credentials.map_err(mlua::Error::external)?,
            limits: Limits::default(),
        };
        let shared = Arc::new(Mutex::new(Shared::default()));
        let check_locks = Arc::new(tokio::sync::Notify::new());
        runtime.spawn(bring_up(BringUp {
            config,
            environment,
            runtime_dirs: variables.runtime_dirs.clone(),
            mcp: mcp.clone(),
            feed: feed.clone(),
            snapshots: self.snapshots.clone(),
            bridge: self.bridge.clone(),
            shared: Arc::clone(&shared),
            check_locks: Arc::clone(&check_locks),
        }));
        self.serve_files(&runtime, &settings, &variables, &shared);
        if settings.codex {
            let temporary = variables.locks.temporary[0].clone();
            let config = CodexConfig::new(variables.codex_home, variables.home, temporary);
            let _entered = runtime.enter();
            lock(&shared).codex = config.map(|config| Codex::start(config, host));
        }
        *self.running.borrow_mut() = Some(Running { runtime, feed, mcp, shared, check_locks });
        Ok(())
    }

    /// `context.root` as the user wrote it: a string, or a function that only Lua can call.
    fn root_option(&self) -> mlua::Result<Value> {
        let gangway: Table = self.editor.api.lua.globals().get("package")?;
        let loaded: Table = gangway.get("loaded")?;
        match loaded.get::<Option<Table>>("gangway")? {
            Some(module) => module.get("_root"),
            None => Ok(Value::Nil),
        }
    }

    /// One task turns collections into snapshots and hands them through the gate; another follows
    /// what other Neovims are told about sharing.
    fn run_keeper(&self, runtime: &Runtime, keeper: Keeper, first: Option<RawState>) {
        let (bridge, gate) = (self.bridge.clone(), Arc::clone(&self.gate));
        let first = Mutex::new(first);
        let collect = move |urgent| {
            let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let bridge = bridge.clone();
            async move {
                match first {
                    Some(first) => Some(first),
                    None => bridge.run(move |editor| editor.collect(urgent)).await.ok().flatten(),
                }
            }
        };
        let publish = move |snapshot| {
            let gate = Arc::clone(&gate);
            async move { gate.publish(snapshot).await }
        };
        runtime.spawn(keeper.run(collect, publish));
        let bridge = self.bridge.clone();
        runtime.spawn(Arc::clone(&self.gate).follow(move || {
            bridge.post(|editor| _ = editor.api.command("redrawstatus"));
        }));
    }

    /// Agents that speak through files.
    fn serve_files(
        &self,
        runtime: &Runtime,
        settings: &Settings,
        variables: &Variables,
        shared: &Arc<Mutex<Shared>>,
    ) {
        let _entered = runtime.enter();
        let enabled = |enabled| match enabled {
            Enabled::Auto => crate::agents::Enabled::Auto,
            Enabled::On => crate::agents::Enabled::On,
            Enabled::Off => crate::agents::Enabled::Off,
        };
        let os = |path: &Option<PathBuf>| path.as_ref().map(|p| p.clone().into_os_string());
        let state_dir = key::state_dir(
            os(&variables.xdg_state_home).as_deref(),
            os(&variables.home).as_deref(),
        );
        let aivyx = AivyxConfig {
            enabled: enabled(settings.aivyx),
            approvals: settings.aivyx_approvals,
            state_dir,
            tell: {
                let bridge = self.bridge.clone();
                Arc::new(move |message| bridge.post(move |editor| editor.report(&message)))
            },
            ..AivyxConfig::default()
        };
        let url = settings.rivumi_url.as_deref().map(PushUrl::parse);
        let rivumi = RivumiConfig {
            enabled: enabled(settings.rivumi),
            home: variables.home.clone(),
            websocket_url: url.and_then(Result::ok),
            ..RivumiConfig::default()
        };
        let mut shared = lock(shared);
        shared.aivyx = Some(Aivyx::start(aivyx, self.desk.clone(), self.snapshots.clone()));
        shared.rivumi = Some(Rivumi::start(rivumi, self.snapshots.clone()));
    }

    /// Rejects what is pending, lets the answers out, removes our files, ends the runtime.
    /// `leaving`: Neovim exits, nothing starts again.
    fn stop(self: &Rc<Self>, leaving: bool) -> mlua::Result<()> {
        let Some(running) = self.running.borrow_mut().take() else {
            self.start_again.set(false);
            return Ok(());
        };
        let stopping = Stopping::begin(&self.stopping);
        match self.gate.settle() {
            // A message would hold up leaving.
            Some(problem) if leaving => tracing::warn!("{problem}"),
            Some(problem) => self.editor.report(&problem),
            None => {}
        }
        self.suggesting.take();
        let farewell = self.farewell(&running);
        farewell.answer();
        if let Some(server) = &farewell.shared.server {
            *self.before.borrow_mut() = Some((server.port(), server.credentials().clone()));
        }
        let (done, finished) = std::sync::mpsc::channel::<()>();
        running.runtime.spawn(async move {
            farewell.leave().await;
            let _ = done.send(());
        });
        // The reviews' windows go now, while sockets are still writing.
        self.editor.stage.desk_changed(&self.editor);
        self.editor.stage.close_leaving(&self.editor, true);
        self.editor.stop_watching();
        self.editor.set_clients(0);
        self.editor.set_runtime(None);
        let _ = finished.recv_timeout(LEAVE_WITHIN);
        self.bridge.stop();
        running.runtime.shutdown_timeout(END_WITHIN);
        drop(stopping);
        let start_again = self.start_again.take();
        if leaving {
            log::close();
            return Ok(());
        }
        // The server's own word of it went with the runtime.
        for client in self.known.take() {
            exports::tell_of_client(self, &ClientEvent::Disconnected(client));
        }
        let data = self.editor.api.table()?;
        self.editor.api.user_event("GangwayStopped", data);
        if start_again { self.start() } else { Ok(()) }
    }

    /// The process ends and nobody said so (`:noautocmd qa`, a handler of another's that threw,
    /// `os.exit()`): what is pending is answered all the same. There is no Lua any more, and this
    /// thread may have nothing left to log with.
    fn end_without_neovim(&self) {
        let Ok(Some(running)) = self.running.try_borrow_mut().map(|mut running| running.take())
        else {
            return;
        };
        self.bridge.stop();
        let farewell = self.farewell(&running);
        let (step, steps) = std::sync::mpsc::channel::<()>();
        running.runtime.spawn(async move {
            tokio::task::block_in_place(|| farewell.answer());
            let _ = step.send(());
            farewell.leave().await;
            let _ = step.send(());
        });
        let _ = steps.recv_timeout(VERDICTS_WITHIN);
        let _ = steps.recv_timeout(LEAVE_WITHIN);
        running.runtime.shutdown_timeout(END_WITHIN);
    }

    fn farewell(&self, running: &Running) -> Farewell {
        let shared = std::mem::take(&mut *lock(&running.shared));
        Farewell { shared, owed: self.editor.owed.clone(), desk: self.desk.clone() }
    }
}

/// The half of stopping that needs no Neovim. Any thread.
struct Farewell {
    shared: Shared,
    owed: Owed,
    desk: Desk,
}

impl Farewell {
    /// Every question has its answer after this, though not on the wire yet.
    fn answer(&self) {
        // aivyx has its own prompt: its questions go there unanswered, they are not rejected.
        if let Some(aivyx) = &self.shared.aivyx {
            aivyx.leave();
        }
        if !self.owed.wait(VERDICTS_WITHIN) {
            tracing::error!("an accepted text was not ready in time; it is rejected");
        }
        self.desk.shutdown();
    }

    /// Lets the answers out and removes our files.
    async fn leave(self) {
        let Shared { server, aivyx, rivumi, locks, socket, codex, .. } = self.shared;
        drop(locks);
        if let Some(socket) = socket {
            server::remove_socket(&socket);
        }
        let stop_server = async {
            if let Some(server) = server {
                server.stop(ANSWER_WITHIN).await;
            }
        };
        let stop_aivyx = async {
            if let Some(aivyx) = aivyx {
                aivyx.stop().await;
            }
        };
        let stop_rivumi = async {
            if let Some(rivumi) = rivumi {
                rivumi.stop().await;
            }
        };
        let stop_codex = async {
            if let Some(codex) = codex {
                codex.stop().await;
            }
        };
        tokio::join!(stop_server, stop_aivyx, stop_rivumi, stop_codex);
    }
}

/// True while it lives.
struct Stopping<'a>(&'a Cell<bool>);

impl<'a> Stopping<'a> {
    fn begin(stopping: &'a Cell<bool>) -> Self {
        stopping.set(true);
        Self(stopping)
    }
}

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The agents that come to the server, and whether they may.
fn served(settings: &Settings) -> [(Family, Enabled); 6] {
    let switch = |on| if on { Enabled::On } else { Enabled::Off };
    [
        (Family::Pi, switch(settings.pi)),
        (Family::Claude, switch(settings.claude)),
        (Family::Gemini, settings.gemini),
        (Family::Qwen, settings.qwen),
        (Family::Copilot, settings.copilot),
        (Family::Amp, settings.amp),
    ]
}

/// True if the change is one that only a restart brings into force.
fn serves_differently(old: &Settings, new: &Settings) -> bool {
    let parts = |s: &Settings| {
        (
            (served(s), s.claude_diffs, s.codex),
            (s.aivyx, s.aivyx_approvals, s.rivumi, s.rivumi_url.clone()),
            (s.debounce, s.max_wait, s.context),
        )
    };
    parts(old) != parts(new)
}

struct BringUp {
    config: ServerConfig,
    environment: Environment,
    runtime_dirs: Vec<PathBuf>,
    mcp: Mcp,
    feed: Feed,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    bridge: Bridge,
    shared: Arc<Mutex<Shared>>,
    check_locks: Arc<tokio::sync::Notify>,
}

/// Runtime: listens, then publishes the lock files and keeps them true.
async fn bring_up(up: BringUp) {
    let BringUp { config, environment, runtime_dirs, mcp, feed, bridge, shared, .. } = up;
    let (mut snapshots, check_locks) = (up.snapshots, up.check_locks);
    let credentials = config.credentials.clone();
    let serve = move |link| {
        let mcp = mcp.clone();
        async move { mcp.serve(link).await }
    };
    let server = match Server::start(config, serve).await {
        Ok(server) => server,
        Err(error) => {
            let message = format!("cannot listen on 127.0.0.1: {error}");
            lock(&shared).problems.push(message.clone());
            bridge.post(move |editor| editor.report(&message));
            return;
        }
    };
    let port = server.port();
    {
        let mut shared = lock(&shared);
        shared.port = Some(port);
        shared.server = Some(server);
    }
    // The roots must be known before anybody reads them from a lock file.
    let snapshot = feed.fresh().await.unwrap_or_default();
    // The first state is that of the moment of the start; what has changed since was not noticed.
    feed.mark();
    let roots = snapshot.root_spellings();
    let (locks, errors) = LockFiles::publish(&environment, port, &credentials, &roots);
    lock(&shared).locks = Some(locks);
    for error in errors {
        let message = error.to_string();
        lock(&shared).problems.push(message.clone());
        bridge.post(move |editor| editor.report(&message));
    }
    bridge.post(exports::started);

    let copilot = credentials.token(Family::Copilot).is_some();
    let door = copilot.then_some(UnixDoor { environment, dirs: runtime_dirs });
    let mut published = snapshot.roots.clone();
    let mut tick = tokio::time::interval(CHECK_LOCKS);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = snapshots.changed() => {
                if changed.is_err() { return }
                let snapshot = Arc::clone(&snapshots.borrow_and_update());
                if snapshot.roots != published {
                    published.clone_from(&snapshot.roots);
                    with_locks(&shared, |locks| locks.rewrite(&snapshot.root_spellings()));
                }
                continue;
            }
            _ = tick.tick() => {}
            () = check_locks.notified() => {}
        }
        if let Some(door) = &door {
            door.check(&shared);
        }
        with_locks(&shared, LockFiles::check);
    }
}

/// Copilot CLI comes through a Unix socket, which is made when there is a reason to, and again when
/// somebody (a cleaner of temporary files, say) has removed it.
struct UnixDoor {
    environment: Environment,
    dirs: Vec<PathBuf>,
}

impl UnixDoor {
    fn check(&self, shared: &Mutex<Shared>) {
        let family = Family::Copilot;
        if self.environment.auto.contains(&family) && !self.environment.is_used(family) {
            return;
        }
        let mut shared = lock(shared);
        if shared.socket.as_ref().is_some_and(|path| path.exists()) {
            return;
        }
        let Some(server) = &mut shared.server else { return };
        let dirs: Vec<_> = self.dirs.iter().map(PathBuf::as_path).collect();
        let name = format!("gangway-{}", std::process::id());
        let made = server::place_for_socket(&dirs, &name).and_then(|path| {
            server.listen_unix(&path).inspect_err(|_| server::remove_socket(&path))?;
            Ok(path)
        });
        match made {
            Ok(path) => {
                if let Some(gone) = shared.socket.replace(path.clone()) {
                    server::remove_socket(&gone);
                }
                let errors = shared.locks.as_mut().map(|locks| locks.set_socket(path));
                for error in errors.unwrap_or_default() {
                    tracing::warn!("lock file: {error}");
                }
            }
            Err(error) => {
                let problem = format!("no socket for Copilot CLI: {error}");
                // Tried again and again, said once.
                if !shared.problems.contains(&problem) {
                    tracing::warn!("{problem}");
                    shared.problems.push(problem);
                }
            }
        }
    }
}

fn with_locks<E: std::fmt::Display>(
    shared: &Mutex<Shared>,
    change: impl FnOnce(&mut LockFiles) -> Vec<E>,
) {
    let errors = lock(shared).locks.as_mut().map(change).unwrap_or_default();
    for error in errors {
        tracing::warn!("lock file: {error}");
    }
}
