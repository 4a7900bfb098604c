//! The only code that touches Neovim: what the user sees, does and is asked.
//!
//! Neovim's thread only: `Editor` is `!Send` and other threads reach it through `Bridge`. State is
//! in cells, never borrowed across a call into Neovim, because users' autocommands may call back
//! into any part of the plugin at any such call.

pub mod api;
mod ask_view;
pub mod bridge;
mod diff_options;
mod diff_view;
pub mod documents;
mod keys;
mod recover;
mod refresh;
mod sizes;
pub mod stage;
mod view;
pub mod watch;
mod winbar;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nvim_oxi::mlua::{self, FromLuaMulti, Function, IntoLuaMulti, Lua, Table};

use bridge::Due;
pub use bridge::{Bridge, Gone};

use crate::config::Settings;
use crate::context::tracker::RawState;
use crate::panic::catch;
use crate::review::desk::Desk;
use crate::review::owed::Owed;
use crate::review::{Review, Verdict};
use api::{Api, At, Buf, Result};
use keys::{Keys, Listening};
use stage::Stage;
use view::View;

/// How long an announcement beside the text stays.
const ANNOUNCED_MS: u32 = 5000;
/// Rings where a terminal shows this Neovim, and writes to nothing else.
const BELL: &str = "
if vim.api.nvim_ui_send then return vim.api.nvim_ui_send('\\a') end
local function terminal(ui) return ui.stdout_tty end
if vim.iter(vim.api.nvim_list_uis()):any(terminal) then io.stdout:write('\\a') end
";

pub struct Editor {
    pub api: Api,
    pub bridge: Bridge,
    pub desk: Desk,
    pub stage: Stage,
    pub(crate) keys: Keys,
    pub(crate) refresh: refresh::Refresh,
    settings: RefCell<Rc<Settings>>,
    runtime: RefCell<Option<tokio::runtime::Handle>>,
    /// `stdpath("state")/gangway`.
    pub state_dir: PathBuf,
    /// Neovim has the terminal's focus, as far as it was told.
    pub(crate) focused: Cell<bool>,
    /// The user's last sign of life that an autocommand showed.
    pub(crate) last_activity: Cell<Instant>,
    /// Agents connected over a socket.
    clients: Cell<usize>,
    serial: Cell<u64>,
    watch: RefCell<Option<Rc<watch::Watch>>>,
    /// The selection while nobody watches.
    held: RefCell<mlua::Value>,
    documents: RefCell<Option<Rc<documents::Documents>>>,
    /// Verdicts that a worker is still working out.
    pub(crate) owed: Owed,
    group: i64,
}

impl Editor {
    pub fn new(lua: &Lua, bridge: Bridge, desk: Desk) -> Result<Rc<Self>> {
        let api = Api::new(lua)?;
        let state: String = api.func("stdpath", "state")?;
        let editor = Rc::new(Self {
            keys: Keys::new(&api)?,
            group: api.augroup("gangway")?,
            bridge: bridge.clone(),
            desk: desk.clone(),
            stage: Stage::default(),
            refresh: refresh::Refresh::default(),
            settings: RefCell::default(),
            runtime: RefCell::default(),
            state_dir: Path::new(&state).join("gangway"),
            focused: Cell::new(true),
            last_activity: Cell::new(Instant::now()),
            clients: Cell::new(0),
            serial: Cell::new(0),
            watch: RefCell::new(None),
            held: RefCell::new(mlua::Value::Nil),
            documents: RefCell::new(None),
            owed: Owed::default(),
            api,
        });
        editor.keys.attach(&editor);
        editor.listen()?;
        editor.define_highlights()?;
        // Many changes, one job: the events themselves wait in the desk.
        let news = Due::default();
        desk.listen(move || {
            if let Some(claim) = news.claim() {
                bridge.post(move |editor| {
                    drop(claim);
                    editor.stage.desk_changed(editor);
                });
            }
        });
        Ok(editor)
    }

    #[must_use]
    pub fn settings(&self) -> Rc<Settings> {
        Rc::clone(&self.settings.borrow())
    }

    pub fn set_settings(&self, settings: Settings) {
        *self.settings.borrow_mut() = Rc::new(settings);
    }

    /// The runtime that workers and timers run on; `None` while the plugin is stopped.
    pub fn set_runtime(&self, runtime: Option<tokio::runtime::Handle>) {
        *self.runtime.borrow_mut() = runtime;
    }

    pub(crate) fn runtime(&self) -> Option<tokio::runtime::Handle> {
        self.runtime.borrow().clone()
    }

    // ---- what the user sees

    /// Listens to what happens and marks `feed`; until `stop_watching`.
    pub fn start_watching(&self, root: mlua::Value, feed: &watch::Feed) -> Result<()> {
        let held = self.held.replace(mlua::Value::Nil);
        let watch = watch::Watch::install(&self.api.lua, root, held, feed)?;
        let documents = documents::Documents::install(&self.api.lua)?;
        *self.watch.borrow_mut() = Some(Rc::new(watch));
        *self.documents.borrow_mut() = Some(Rc::new(documents));
        Ok(())
    }

    /// Other roots from now on; nothing while stopped.
    pub fn set_root(&self, root: mlua::Value) -> Result<()> {
        let watch = self.watch.borrow().clone();
        watch.map_or(Ok(()), |watch| watch.set_root(root))
    }

    pub fn stop_watching(&self) {
        self.refresh.stop();
        let (watch, documents) = (self.watch.take(), self.documents.take());
        let watch = watch.map(|w| w.remove().map(|held| _ = self.held.replace(held)));
        let removed = watch.into_iter().chain(documents.map(|d| d.remove()));
        for error in removed.filter_map(Result::err) {
            tracing::warn!("cannot remove autocommands: {error}");
        }
    }

    /// For what agents ask of files.
    ///
    /// # Errors
    /// A sentence for the agent, while the plugin is stopped.
    pub fn documents(&self) -> std::result::Result<Rc<documents::Documents>, String> {
        self.documents.borrow().clone().ok_or_else(|| "Neovim is stopping".to_owned())
    }

    /// Packs what changed since the last time; `None` when stopped, or after a (logged) failure.
    pub fn collect(&self, urgent: bool) -> Option<RawState> {
        let watch = self.watch.borrow().clone()?;
        watch
            .collect(urgent)
            .inspect_err(|error| tracing::error!("cannot collect the context: {error}"))
            .ok()
    }

    /// The lines, from 1, of what is still selected in the current buffer.
    pub fn selected(&self) -> Result<(Option<u32>, Option<u32>)> {
        let watch = self.watch.borrow().clone();
        watch.map_or(Ok((None, None)), |watch| watch.selected())
    }

    // ---- other times and threads

    /// Runs `work` on a worker thread, for anything that is not an editor call.
    pub(crate) fn on_worker(&self, work: impl FnOnce() + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            runtime.spawn_blocking(move || {
                let _ = catch("a worker", work);
            });
        }
    }

    /// Runs `job` here after `delay`, if the plugin still runs then.
    pub(crate) fn after(&self, delay: Duration, job: impl FnOnce(&Rc<Self>) + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            let bridge = self.bridge.clone();
            runtime.spawn(async move {
                tokio::time::sleep(delay).await;
                bridge.post(job);
            });
        }
    }

    /// Runs `job` here once the present autocommand or command is over (`vim.schedule`).
    pub(crate) fn later(self: &Rc<Self>, job: impl FnOnce(&Rc<Self>) + 'static) {
        let editor = Rc::clone(self);
        let mut job = Some(job);
        let run = || -> Result<()> {
            let function = self.api.lua.create_function_mut(move |_, ()| {
                if let Some(job) = job.take()
                    && let Err(caught) = catch("a scheduled job", || job(&editor))
                {
                    editor.report(&caught.to_string());
                }
                Ok(())
            })?;
            self.api.vim("schedule", function)
        };
        if let Err(error) = run() {
            tracing::error!("vim.schedule: {error}");
        }
    }

    /// A Lua function around `f`: errors and panics become one message, never a traceback.
    pub(crate) fn callback<A, R>(
        self: &Rc<Self>,
        what: &'static str,
        f: impl Fn(&Lua, A) -> Result<R> + 'static,
    ) -> Result<Function>
    where
        A: FromLuaMulti,
        R: IntoLuaMulti + Default,
    {
        let editor = Rc::clone(self);
        self.api.lua.create_function(move |lua, args: A| match catch(what, || f(lua, args)) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                tracing::error!("{what}: {error}");
                editor.report(&format!("{what}: {}", stage::first_line(&error.to_string())));
                Ok(R::default())
            }
            Err(caught) => {
                editor.report(&caught.to_string());
                Ok(R::default())
            }
        })
    }

    // ---- the user

    /// How long the user has not touched a key.
    pub(crate) fn quiet(&self) -> Duration {
        self.keys.quiet_for().unwrap_or_else(|| self.last_activity.get().elapsed())
    }

    /// As long as an agent is connected, and for what they say while there is a review.
    pub(crate) fn update_key_listening(&self) {
        let listening = if !self.stage.is_empty() {
            Listening::Meaning
        } else if self.clients.get() > 0 {
            // Whoever is in the middle of something must not lose the next key to a review.
            Listening::Pace
        } else {
            Listening::Off
        };
        if let Err(error) = self.keys.listen(listening) {
            tracing::warn!("cannot listen to keys: {error}");
        }
    }

    /// An agent has connected or gone.
    pub fn set_clients(self: &Rc<Self>, count: usize) {
        self.clients.set(count);
        self.refresh.set_active(self, count > 0);
        self.update_key_listening();
        let _ = self.api.command("redrawstatus");
    }

    /// One message for something that went wrong.
    pub fn report(&self, message: &str) {
        tracing::error!("{message}");
        self.api.notify(message, 4);
    }

    /// "a change to src/main.rs", "a command".
    pub(crate) fn what(&self, review: &Review) -> String {
        match review.kind.path() {
            Some(path) => winbar::visible(&self.short_path(path)),
            None => format!("a {}", review.kind.name()),
        }
    }

    /// The one announcement of a review that does not come into view at once.
    pub(crate) fn say_waiting(&self, review: &Review) {
        let what = match review.kind.path() {
            Some(_) => format!("a change to {}", self.what(review)),
            None => self.what(review),
        };
        let message = format!("{} proposes {what} (:IdeReviews)", review.origin);
        self.api.notify(&message, 2);
        let announce = self.api.chunk("announce", include_str!("announce.lua"));
        let shown = announce.and_then(|announce| announce.call::<()>((message, ANNOUNCED_MS)));
        if let Err(error) = shown {
            tracing::debug!("cannot announce beside the text: {error}");
        }
        let _ = self.api.command("redrawstatus");
    }

    pub(crate) fn ring(&self) {
        if self.settings().bell {
            let ring = self.api.chunk("bell", BELL);
            let _ = ring.and_then(|ring| ring.call::<()>(()));
        }
    }

    pub(in crate::editor) fn announce_opened(self: &Rc<Self>, view: &View) {
        let data = || -> Result<Table> {
            let data = stage::describe(self, &view.review)?;
            data.set("buffers", view.bufs().map(|buf| buf.0).collect::<Vec<_>>())?;
            data.set("tabpage", view.tab())?;
            Ok(data)
        };
        match data() {
            Ok(data) => self.api.user_event("GangwayReviewOpened", data),
            Err(error) => tracing::warn!("GangwayReviewOpened: {error}"),
        }
    }

    pub(crate) fn announce_closed(self: &Rc<Self>, review: &Review, verdict: &Verdict) {
        let data = || -> Result<Table> {
            let data = stage::describe(self, review)?;
            let word = match verdict {
                Verdict::Accept { .. } => "accepted",
                Verdict::AlwaysAllow => "always_allowed",
                Verdict::Reject | Verdict::Dismissed => "rejected",
                Verdict::Withdrawn(_) => "withdrawn",
            };
            data.set("verdict", word)?;
            Ok(data)
        };
        match data() {
            Ok(data) => self.api.user_event("GangwayReviewClosed", data),
            Err(error) => tracing::warn!("GangwayReviewClosed: {error}"),
        }
        let _ = self.api.command("redrawstatus");
    }

    // ---- names and buffers

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    /// Relative to the working directory where that is shorter; for display only.
    pub(crate) fn short_path(&self, path: &Path) -> String {
        let cwd: String = self.api.func("getcwd", ()).unwrap_or_default();
        let shown = path.strip_prefix(&cwd).unwrap_or(path);
        shown.to_string_lossy().into_owned()
    }

    /// The loaded buffer of exactly this file; names are compared, never matched as patterns.
    pub(crate) fn buffer_of(&self, path: &Path) -> Option<Buf> {
        let bufs: Vec<Buf> = self.api.call("nvim_list_bufs", ()).ok()?;
        bufs.into_iter().find(|buf| {
            self.api.buf_loaded(*buf)
                && self
                    .api
                    .buf_name(*buf)
                    .is_ok_and(|name| &*name.as_bytes() == path.as_os_str().as_encoded_bytes())
        })
    }

    pub(crate) fn has_unsaved_changes(&self, path: &Path) -> bool {
        self.buffer_of(path)
            .is_some_and(|buf| self.api.option("modified", At::Buf(buf)).unwrap_or(false))
    }

    /// A configured key as the user would press it: `<localleader>` by its present value.
    pub(crate) fn shown_key(&self, key: &str) -> String {
        let leader = |name: &str| -> String {
            let globals =
                self.api.lua.globals().get::<Table>("vim").and_then(|v| v.get::<Table>("g"));
            let value = globals.and_then(|g| g.get::<Option<String>>(name)).ok().flatten();
            match value.as_deref() {
                None | Some("") => "\\".into(),
                Some(" ") => "<Space>".into(),
                Some(other) => other.to_owned(),
            }
        };
        let mut shown = key.to_owned();
        for (token, name) in [("<localleader>", "maplocalleader"), ("<leader>", "mapleader")] {
            if let Some(at) = shown.to_ascii_lowercase().find(token) {
                shown.replace_range(at..at + token.len(), &leader(name));
            }
        }
        shown
    }

    // ---- set up

    fn listen(self: &Rc<Self>) -> Result<()> {
        let on = |events: &[&str], f: fn(&Rc<Editor>)| {
            let editor = Rc::clone(self);
            let run = move |_: &Lua, _: Table| {
                f(&editor);
                Ok(())
            };
            self.api.autocmd(self.group, events, None, run).map(drop)
        };
        on(&["FocusGained"], |editor| editor.focused.set(true))?;
        on(&["FocusLost"], |editor| editor.focused.set(false))?;
        on(&["BufReadPost", "BufNewFile", "BufFilePost", "BufDelete"], |editor| {
            editor.refresh.update_soon(editor);
        })?;
        on(&["ColorScheme"], |editor| {
            if let Err(error) = editor.define_highlights() {
                tracing::warn!("highlights: {error}");
            }
        })
    }

    /// All with `default = true`: a colour scheme or the user has the last word.
    fn define_highlights(&self) -> Result<()> {
        for (group, link) in [
            ("GangwayTitle", "Directory"),
            ("GangwayAgent", "Title"),
            ("GangwayNote", "Comment"),
            ("GangwayWarning", "WarningMsg"),
            ("GangwayAdded", "Added"),
            ("GangwayRemoved", "Removed"),
            ("GangwayKey", "Special"),
            ("GangwayLineEnd", "NonText"),
            ("GangwaySuggestion", "Comment"),
        ] {
            let opts = self.api.opts([
                ("link", mlua::Value::String(self.api.lua.create_string(link)?)),
                ("default", mlua::Value::Boolean(true)),
            ])?;
            self.api.call::<()>("nvim_set_hl", (0, group, opts))?;
        }
        Ok(())
    }
}
