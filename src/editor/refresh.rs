//! Shows in the user's buffers what an agent has written to their files.
//!
//! Neovim's thread owns the decision; a worker watches the directories of loaded files (a watch on
//! a file dies at the first rename over it). A buffer without unsaved changes is reloaded without a
//! prompt and with its undo history, line ends and encoding found anew, its cursors staying on their
//! text; one with unsaved changes is kept, and the user's own later `:w` asks, as Vim should.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use nvim_oxi::mlua::{self, Table};

use super::api::{Buf, Result, Win};
use super::bridge::Due;
use super::{Bridge, Editor};
use crate::files;
use crate::review::hunks::kept_lines_within;

/// Writes come in bursts (truncate, write, close; or create, rename).
const SETTLE: Duration = Duration::from_millis(40);
/// How long after its review a file is still expected to be written.
const LINGER: Duration = Duration::from_secs(60);
/// Above this many bytes cursors stay on their line number instead of their text.
const FOLLOW_BYTES: usize = 2 << 20;
/// The same if finding that text takes longer; Neovim waits for it.
const FOLLOW_PATIENCE: Duration = Duration::from_millis(80);
/// How often a reload that the user's mode holds up is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// More directories than this are not watched; Neovim's own check on focus still applies.
const MAX_DIRS: usize = 512;

#[derive(Default)]
struct Shared {
    /// Real path of each file that matters → buffers that hold it (none for a reviewed file that
    /// is not open).
    buffers: HashMap<PathBuf, Vec<Buf>>,
    /// Directories watched.
    dirs: BTreeSet<PathBuf>,
    watcher: Option<RecommendedWatcher>,
    /// Changed since the last report.
    changed: BTreeSet<PathBuf>,
}

#[derive(Default)]
pub struct Refresh {
    shared: RefCell<Arc<Mutex<Shared>>>,
    /// An agent is connected; agents also write without asking.
    active: Cell<bool>,
    /// Files under review (`None`), and files an agent was just allowed to write: until when.
    expected: RefCell<BTreeMap<PathBuf, Option<Instant>>>,
    update_due: Due,
}

impl Refresh {
    pub(super) fn set_active(&self, editor: &Rc<Editor>, on: bool) {
        if self.active.replace(on) != on {
            self.update_soon(editor);
        }
    }

    /// The plugin stops: nothing is watched, and what comes after a start begins anew.
    pub(super) fn stop(&self) {
        self.shared.take();
        self.expected.borrow_mut().clear();
        self.active.set(false);
    }

    /// This file is under review: its panes and buffers follow what happens on disk.
    pub(super) fn review_begins(&self, editor: &Rc<Editor>, path: &Path) {
        self.expected.borrow_mut().insert(path.to_owned(), None);
        self.update_soon(editor);
    }

    /// The agent writes well after its answer; the file is watched a while longer.
    pub(super) fn review_ended(&self, editor: &Rc<Editor>, path: &Path) {
        let until = Instant::now() + LINGER;
        self.expected.borrow_mut().insert(path.to_owned(), Some(until));
        editor.after(LINGER + SETTLE, |editor| editor.refresh.update_soon(editor));
    }

    /// Buffers came or went.
    pub(super) fn update_soon(&self, editor: &Rc<Editor>) {
        let Some(claim) = self.update_due.claim() else { return };
        editor.after(Duration::from_millis(20), move |editor| {
            drop(claim);
            if let Err(error) = editor.refresh.update(editor) {
                tracing::warn!("cannot list buffers: {error}");
            }
        });
    }

    fn update(&self, editor: &Rc<Editor>) -> Result<()> {
        let now = Instant::now();
        self.expected.borrow_mut().retain(|_, until| until.is_none_or(|until| until > now));
        let mut files: Vec<(PathBuf, Option<Buf>)> =
            self.expected.borrow().keys().map(|path| (path.clone(), None)).collect();
        if self.active.get() || !files.is_empty() {
            let list = editor.api.chunk("files", include_str!("files.lua"))?;
            let found: Table = list.call(())?;
            for entry in found.sequence_values::<Table>() {
                let entry = entry?;
                let name: mlua::String = entry.get(2)?;
                let path = PathBuf::from(OsStr::from_bytes(&name.as_bytes()));
                files.push((path, Some(entry.get(1)?)));
            }
        }
        let (shared, bridge, runtime) =
            (Arc::clone(&self.shared.borrow()), editor.bridge.clone(), editor.runtime());
        editor.on_worker(move || watch(&shared, &bridge, runtime.as_ref(), files));
        Ok(())
    }
}

/// Without symbolic links; a file that does not exist yet has a directory that does. Asks the file
/// system, so not on Neovim's thread.
pub(super) fn real_path(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let parent = path.parent().and_then(|p| std::fs::canonicalize(p).ok());
        parent.zip(path.file_name()).map_or(path.to_owned(), |(dir, name)| dir.join(name))
    })
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Worker: resolves names and moves the watches to where the files are.
fn watch(
    shared: &Arc<Mutex<Shared>>,
    bridge: &Bridge,
    runtime: Option<&tokio::runtime::Handle>,
    files: Vec<(PathBuf, Option<Buf>)>,
) {
    let mut buffers: HashMap<PathBuf, Vec<Buf>> = HashMap::new();
    let mut dirs = BTreeSet::new();
    for (path, buf) in files {
        let real = real_path(&path);
        if let Some(dir) = real.parent().filter(|dir| dir.is_dir() && dirs.len() < MAX_DIRS) {
            dirs.insert(dir.to_owned());
        }
        buffers.entry(real).or_default().extend(buf);
    }
    let mut state = lock(shared);
    state.buffers = buffers;
    if state.watcher.is_none() && !dirs.is_empty() {
        state.watcher = make_watcher(shared, bridge, runtime);
    }
    let gone: Vec<PathBuf> = state.dirs.difference(&dirs).cloned().collect();
    let new: Vec<PathBuf> = dirs.difference(&state.dirs).cloned().collect();
    let mut failed = Vec::new();
    if let Some(watcher) = state.watcher.as_mut() {
        for dir in &gone {
            let _ = watcher.unwatch(dir);
        }
        for dir in &new {
            if let Err(error) = watcher.watch(dir, RecursiveMode::NonRecursive) {
                tracing::info!("cannot watch {}: {error}", dir.display());
                failed.push(dir.clone());
            }
        }
    }
    if dirs.is_empty() {
        state.watcher = None;
    }
    state.dirs = dirs;
    for dir in failed {
        state.dirs.remove(&dir);
    }
}

fn make_watcher(
    shared: &Arc<Mutex<Shared>>,
    bridge: &Bridge,
    runtime: Option<&tokio::runtime::Handle>,
) -> Option<RecommendedWatcher> {
    let (shared, bridge) = (Arc::downgrade(shared), bridge.clone());
    let runtime = runtime?.clone();
    let made = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let (Ok(event), Some(shared)) = (event, shared.upgrade()) else { return };
        // Reads are reported too; whoever acts on them feeds itself.
        let relevant = matches!(
            event.kind,
            EventKind::Create(_)
                | EventKind::Remove(_)
                | EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Name(_) | ModifyKind::Any)
                | EventKind::Access(AccessKind::Close(AccessMode::Write))
        );
        if !relevant {
            return;
        }
        let first = {
            let mut state = lock(&shared);
            let first = state.changed.is_empty();
            let known: Vec<PathBuf> =
                event.paths.into_iter().filter(|p| state.buffers.contains_key(p)).collect();
            state.changed.extend(known);
            first && !state.changed.is_empty()
        };
        if first {
            let (shared, bridge) = (Arc::clone(&shared), bridge.clone());
            runtime.spawn(async move {
                tokio::time::sleep(SETTLE).await;
                // A file system that hangs must not hold the runtime up.
                tokio::task::spawn_blocking(move || report(&shared, &bridge));
            });
        }
    });
    made.inspect_err(|error| tracing::warn!("cannot watch files: {error}")).ok()
}

/// Worker: passes on what has changed.
fn report(shared: &Mutex<Shared>, bridge: &Bridge) {
    let changed = std::mem::take(&mut lock(shared).changed);
    // Neovim would wait for somebody to write into a pipe.
    let plain = |path: &&PathBuf| files::check_plain(path, true).is_ok();
    let readable: Vec<&PathBuf> = changed.iter().filter(plain).collect();
    let bufs: Vec<Buf> = {
        let state = lock(shared);
        let bufs = readable.into_iter().filter_map(|path| state.buffers.get(path)).flatten();
        bufs.copied().collect()
    };
    bridge.post(move |editor| {
        editor.stage.disk_changed(editor, &changed);
        for buf in bufs {
            reload_or_warn(editor, buf);
        }
    });
}

fn reload_or_warn(editor: &Rc<Editor>, buf: Buf) {
    if let Err(error) = reload(editor, buf) {
        tracing::warn!("cannot refresh buffer {}: {error}", buf.0);
    }
}

/// Brings one buffer up to date, or leaves it alone if it has unsaved changes.
fn reload(editor: &Rc<Editor>, buf: Buf) -> Result<()> {
    let api = &editor.api;
    if !api.buf_loaded(buf) || editor.stage.is_pane(buf) {
        return Ok(());
    }
    // `:checktime` is not allowed in the command-line window; and what an operator waits for, or a
    // typed key would replace, are lines by their numbers.
    let (mode, _) = api.mode()?;
    let here = api.win_buf(api.current_win()?)? == buf;
    let held = here && (mode.starts_with("no") || mode.starts_with(['s', 'S', '\u{13}']));
    let selected: Option<[i64; 4]> = if here && mode.starts_with(['v', 'V', '\u{16}']) {
        Some(api.func("getpos", "v")?)
    } else {
        None
    };
    if held || !api.func::<String>("getcmdwintype", ())?.is_empty() {
        editor.after(RETRY, move |editor| reload_or_warn(editor, buf));
        return Ok(());
    }
    let before = api.changedtick(buf)?;
    let old = api.buf_text(buf)?;
    let wins = api.wins_of(buf)?;
    let mut views: Vec<(Win, Table)> = Vec::new();
    for win in wins {
        views.push((win, api.in_win(win, |api| api.func("winsaveview", ()))?));
    }
    api.chunk("reload", include_str!("reload.lua"))?.call::<()>(buf)?;
    if api.changedtick(buf)? == before {
        return Ok(());
    }
    let origins = if old.len() > FOLLOW_BYTES {
        None
    } else {
        kept_lines_within(FOLLOW_PATIENCE, &old, &api.buf_text(buf)?)
    };
    let follow = |line| origins.as_ref().and_then(|origins| follow(origins, line));
    for (win, view) in views {
        let line: i64 = view.get("lnum")?;
        let top: i64 = view.get("topline")?;
        let Some(moved) = follow(line) else { continue };
        view.set("lnum", moved)?;
        view.set("topline", (top + moved - line).max(1))?;
        api.in_win(win, move |api| api.func::<()>("winrestview", view))?;
    }
    let Some([_, line, col, _]) = selected else { return Ok(()) };
    // Other lines than the user has seen there would be worse than none.
    let Some(line) = follow(line) else { return api.command("normal! \x1b") };
    let _quiet = api.quiet()?;
    api.chunk("reselect", include_str!("reselect.lua"))?.call((line, col))
}

/// Where 1-based `line` of the old text went; `None` when it is gone.
fn follow(origins: &[Option<u32>], line: i64) -> Option<i64> {
    let old = u32::try_from(line - 1).ok()?;
    let new = origins.iter().position(|origin| *origin == Some(old))?;
    i64::try_from(new + 1).ok()
}
