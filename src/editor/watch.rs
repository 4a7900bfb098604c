//! The outgoing flow's ear: autocommands that mark, one collection per quiet moment, one task that
//! turns collections into snapshots.
//!
//! `Watch` lives on Neovim's thread and only packs bytes (`collect.lua`). `Keeper` runs on tokio:
//! it decides when to collect and owns the `Tracker`. `Feed` is the handle both sides share.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlua::{Function, Lua, Table, Value};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::context::Snapshot;
use crate::context::debounce::{Debounce, Pace};
use crate::context::tracker::{Disk, RawState, Tracker};

const COLLECT: &str = include_str!("collect.lua");

/// The autocommands and the collecting chunk. Belongs to Neovim's thread (not `Send`).
pub struct Watch {
    collect: Function,
    remove: Function,
}

impl Watch {
    /// Registers the autocommands (augroup `gangway.watch`); each only marks `feed`, which costs
    /// well under a microsecond. `root` is the option of that name: "auto" or nil, a path, or a
    /// function that returns a path or a list of them.
    ///
    /// # Errors
    /// What Neovim says when it refuses an autocommand.
    pub fn install(lua: &Lua, root: Value, feed: &Feed) -> mlua::Result<Self> {
        let marker = feed.marker.clone();
        let mark = lua.create_function(move |_, ()| {
            marker.mark();
            Ok(())
        })?;
        let options = lua.create_table()?;
        options.set("root", root)?;
        let build: Function = lua.load(COLLECT).set_name("=gangway/collect.lua").eval()?;
        let chunk: Table = build.call((mark, options))?;
        chunk.get::<Function>("install")?.call::<()>(())?;
        feed.mark();
        Ok(Self { collect: chunk.get("collect")?, remove: chunk.get("remove")? })
    }

    /// Packs what changed since the last call. Every result must reach the `Keeper`.
    ///
    /// # Errors
    /// A Lua error, which means a mistake in `collect.lua`: log it and carry on.
    pub fn collect(&self, urgent: bool) -> mlua::Result<RawState> {
        let packed: mlua::String = self.collect.call(urgent)?;
        Ok(RawState::new(packed.as_bytes().to_vec()))
    }

    /// Takes the autocommands away again.
    ///
    /// # Errors
    /// What Neovim says.
    pub fn remove(&self) -> mlua::Result<()> {
        self.remove.call(())
    }
}

/// Set by autocommands, read by the `Keeper`.
#[derive(Debug)]
struct Marker {
    start: Instant,
    /// Milliseconds from `start` to the latest mark.
    last: AtomicU64,
    /// The keeper knows that something changed; it need not be woken again.
    awake: AtomicBool,
    wake: Notify,
}

impl Marker {
    /// Tens of nanoseconds; wakes the keeper once per quiet period.
    fn mark(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }
}

/// The handle to the outgoing flow. Clones are the same flow.
#[derive(Debug, Clone)]
pub struct Feed {
    marker: Arc<Marker>,
    asks: mpsc::UnboundedSender<oneshot::Sender<Arc<Snapshot>>>,
}

impl Feed {
    /// Something changed: a snapshot becomes due. Any thread.
    pub fn mark(&self) {
        self.marker.mark();
    }

    /// The state of now, as published (after the filter). Waits for Neovim's thread as long as
    /// that takes, so give it a deadline; dropping the future loses nothing. `None`: the keeper
    /// has ended.
    pub async fn fresh(&self) -> Option<Arc<Snapshot>> {
        let (answer, answered) = oneshot::channel();
        self.asks.send(answer).ok()?;
        answered.await.ok()
    }
}

/// The task that owns the `Tracker`.
#[derive(Debug)]
pub struct Keeper {
    marker: Arc<Marker>,
    asks: mpsc::UnboundedReceiver<oneshot::Sender<Arc<Snapshot>>>,
    pace: Pace,
    tracker: Tracker,
}

/// A new outgoing flow: the handle, and the task to spawn (`Keeper::run`).
#[must_use]
pub fn feed(pace: Pace) -> (Feed, Keeper) {
    let marker = Arc::new(Marker {
        start: Instant::now(),
        last: AtomicU64::new(0),
        awake: AtomicBool::new(false),
        wake: Notify::new(),
    });
    let (asks, asked) = mpsc::unbounded_channel();
    let keeper = Keeper { marker: marker.clone(), asks: asked, pace, tracker: Tracker::default() };
    (Feed { marker, asks }, keeper)
}

impl Keeper {
    /// Runs until every `Feed` is gone. `collect(urgent)` has Neovim's thread call
    /// `Watch::collect` and gives its result, `None` when it failed; it is never called while one
    /// is under way and never cancelled. `publish` filters, hands the snapshot to the agents and
    /// returns what it handed out.
    pub async fn run<C, F, P>(mut self, collect: C, mut publish: P)
    where
        C: Fn(bool) -> F + Send,
        F: Future<Output = Option<RawState>> + Send,
        P: FnMut(Snapshot) -> Arc<Snapshot> + Send,
    {
        let _ = (&mut self, &collect, &mut publish);
    }
}
