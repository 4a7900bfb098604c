//! The outgoing flow's ear: autocommands that mark, one collection per quiet moment, one task that
//! turns collections into snapshots.
//!
//! `Watch` lives on Neovim's thread and only packs bytes (`collect.lua`). `Keeper` runs on tokio:
//! it decides when to collect and owns the `Tracker`. `Feed` is the handle both sides share.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlua::{Function, Lua, Table, Value};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::context::Snapshot;
use crate::context::debounce::{Debounce, Pace};
use crate::context::tracker::{RawState, Tracker};
use crate::disk::{Asked, Disk};

const COLLECT: &str = include_str!("collect.lua");

/// The autocommands and the collecting chunk. Belongs to Neovim's thread (not `Send`).
pub struct Watch {
    collect: Function,
    selected: Function,
    set_root: Function,
    remove: Function,
}

impl Watch {
    /// Registers the autocommands (augroup `gangway.watch`); each only marks `feed`, which costs
    /// well under a microsecond. `root` is the option of that name: "auto" or nil, a path, or a
    /// function that returns a path or a list of them. `held` is what `remove` gave.
    ///
    /// # Errors
    /// What Neovim says when it refuses an autocommand.
    pub fn install(lua: &Lua, root: Value, held: Value, feed: &Feed) -> mlua::Result<Self> {
        let marker = feed.marker.clone();
        let mark = lua.create_function(move |_, ()| {
            marker.mark();
            Ok(())
        })?;
        let options = lua.create_table()?;
        options.set("root", root)?;
        options.set("held", held)?;
        let build: Function = lua.load(COLLECT).set_name("=gangway/collect.lua").eval()?;
        let chunk: Table = build.call((mark, options))?;
        chunk.get::<Function>("install")?.call::<()>(())?;
        feed.mark();
        Ok(Self {
            collect: chunk.get("collect")?,
            selected: chunk.get("selected")?,
            set_root: chunk.get("set_root")?,
            remove: chunk.get("remove")?,
        })
    }

    /// Packs what changed since the last call. Every result must reach the `Keeper`.
    ///
    /// # Errors
    /// A Lua error, which means a mistake in `collect.lua`: log it and carry on.
    pub fn collect(&self, urgent: bool) -> mlua::Result<RawState> {
        let (packed, failure): (mlua::String, Option<String>) = self.collect.call(urgent)?;
        if let Some(failure) = failure {
            tracing::error!(%failure, "a part of the state could not be collected");
        }
        Ok(RawState::new(packed.as_bytes().to_vec()))
    }

    /// The lines, from 1, of what is still selected in the current buffer.
    ///
    /// # Errors
    /// What Neovim says.
    pub fn selected(&self) -> mlua::Result<(Option<u32>, Option<u32>)> {
        self.selected.call(())
    }

    /// Another `root`, as in `install`.
    ///
    /// # Errors
    /// What Neovim says.
    pub fn set_root(&self, root: Value) -> mlua::Result<()> {
        self.set_root.call(root)
    }

    /// Takes the autocommands away again; gives the selection, which lasts until the user moves.
    ///
    /// # Errors
    /// What Neovim says.
    pub fn remove(&self) -> mlua::Result<Value> {
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
        let age = now().saturating_duration_since(self.start).as_millis();
        self.last.store(u64::try_from(age).unwrap_or(u64::MAX), Ordering::Relaxed);
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// When the latest mark was made.
    fn latest(&self) -> Instant {
        self.start + Duration::from_millis(self.last.load(Ordering::Relaxed))
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
    /// has ended, or nothing was ever collected.
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
    disk: Disk,
}

/// A new outgoing flow: the handle, and the task to spawn (`Keeper::run`).
#[must_use]
pub fn feed(pace: Pace, disk: Disk) -> (Feed, Keeper) {
    let marker = Arc::new(Marker {
        start: now(),
        last: AtomicU64::new(0),
        awake: AtomicBool::new(false),
        wake: Notify::new(),
    });
    let (asks, asked) = mpsc::unbounded_channel();
    let keeper =
        Keeper { marker: marker.clone(), asks: asked, pace, tracker: Tracker::default(), disk };
    (Feed { marker, asks }, keeper)
}

impl Keeper {
    /// Runs until every `Feed` is gone. `collect(urgent)` has Neovim's thread call
    /// `Watch::collect` and gives its result, `None` when it failed; it is never called while one
    /// is under way and never cancelled. `publish` filters, hands the snapshot to the agents and
    /// returns what it handed out.
    pub async fn run<C, F, P, G>(mut self, collect: C, mut publish: P)
    where
        C: Fn(bool) -> F + Send,
        F: Future<Output = Option<RawState>> + Send,
        P: FnMut(Snapshot) -> G + Send,
        G: Future<Output = Arc<Snapshot>> + Send,
    {
        let mut debounce = Debounce::default();
        // A collection that was put off, though nothing changed.
        let mut again: Option<Instant> = None;
        let mut published: Option<Arc<Snapshot>> = None;
        loop {
            let due = [debounce.due(self.pace), again].into_iter().flatten().min();
            let mut waiting = Vec::new();
            tokio::select! {
                biased;
                ask = self.asks.recv() => match ask {
                    Some(ask) => waiting.push(ask),
                    None => return,
                },
                () = self.marker.wake.notified() => {
                    debounce.changed(self.marker.latest());
                    continue;
                }
                () = self.disk.late() => {
                    // What was not known when the last snapshot was made.
                    debounce.changed(now());
                    continue;
                }
                () = until(due) => {
                    // Later changes did not wake us; they may put the moment off.
                    if again.is_none_or(|again| now() < again) {
                        debounce.changed(self.marker.latest());
                        if debounce.due(self.pace).is_some_and(|due| now() < due) {
                            continue;
                        }
                    }
                }
            }
            while let Ok(ask) = self.asks.try_recv() {
                waiting.push(ask);
            }
            // From here on a change wakes us again.
            debounce.taken();
            again = None;
            self.marker.awake.store(false, Ordering::Release);
            if let Some(raw) = collect(!waiting.is_empty()).await {
                let folders = raw.folders().into_iter().map(|path| (path, Asked::Folder));
                self.disk.learn(folders.collect()).await;
                match self.tracker.apply(&raw, &self.disk) {
                    Ok(applied) => {
                        again = applied.again_ms.map(|ms| now() + Duration::from_millis(ms));
                        published = Some(publish(applied.snapshot).await);
                    }
                    Err(error) => tracing::error!(%error, "a collected state was dropped"),
                }
            }
            for ask in waiting {
                if let Some(snapshot) = &published {
                    // Whoever asked may have given up.
                    let _ = ask.send(snapshot.clone());
                }
            }
        }
    }
}

/// The runtime's clock, which tests can stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::{Instant, advance, sleep};

    use super::{Feed, Keeper, feed};
    use crate::context::Snapshot;
    use crate::context::debounce::Pace;
    use crate::context::tracker::RawState;
    use crate::disk::Disk;

    const NOTHING: &[u8] = b"1,1,0,0,0,0,0,";

    /// Runs a keeper whose Neovim answers at once; gives the times of its collections, in ms since
    /// the start, and whether each was urgent.
    fn run(again: bool) -> (Feed, mpsc::UnboundedReceiver<(u128, bool)>) {
        let (feed, keeper): (Feed, Keeper) = feed(Pace::default(), Disk::default());
        let (tell, told) = mpsc::unbounded_channel();
        let start = Instant::now();
        let count = AtomicU32::new(0);
        tokio::spawn(keeper.run(
            move |urgent| {
                let _ = tell.send((start.elapsed().as_millis(), urgent));
                let first = count.fetch_add(1, Ordering::Relaxed) == 0;
                let packed = if again && first { &b"1,1,0,0,0,0,40,"[..] } else { NOTHING };
                async move { Some(RawState::new(packed.to_vec())) }
            },
            |snapshot: Snapshot| async { Arc::new(snapshot) },
        ));
        (feed, told)
    }

    #[tokio::test(start_paused = true)]
    async fn one_collection_follows_a_quiet_moment() {
        let (feed, mut told) = run(false);
        for _ in 0..3 {
            feed.mark();
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_secs(1)).await;
        let (at, urgent) = told.recv().await.unwrap();
        assert!((200..=202).contains(&at), "{at}");
        assert!(!urgent);
        assert!(told.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn continuous_movement_is_reported_every_300_ms() {
        let (feed, mut told) = run(false);
        for _ in 0..100 {
            feed.mark();
            advance(Duration::from_millis(10)).await;
            sleep(Duration::from_millis(0)).await;
        }
        sleep(Duration::from_secs(1)).await;
        let mut times = Vec::new();
        while let Ok((at, _)) = told.try_recv() {
            times.push(at);
        }
        assert!((3..=5).contains(&times.len()), "{times:?}");
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 90), "{times:?}");
        assert!(*times.last().unwrap() >= 1000, "the last state is reported: {times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_waits_for_no_quiet_moment() {
        let (feed, mut told) = run(false);
        feed.mark();
        let snapshot = feed.fresh().await.unwrap();
        assert!(snapshot.focused);
        assert_eq!(told.recv().await, Some((0, true)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_put_off_is_collected_without_a_change() {
        let (feed, mut told) = run(true);
        feed.mark();
        sleep(Duration::from_secs(1)).await;
        let (first, _) = told.recv().await.unwrap();
        let (second, _) = told.recv().await.unwrap();
        assert!((140..=145).contains(&second), "{first} {second}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_keeper_ends_with_its_last_feed() {
        let (feed, keeper) = feed(Pace::default(), Disk::default());
        let task =
            tokio::spawn(keeper.run(|_| async { None }, |snapshot| async { Arc::new(snapshot) }));
        drop(feed);
        assert!(task.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_feed_without_a_keeper_answers_nothing() {
        let (feed, keeper) = feed(Pace::default(), Disk::default());
        drop(keeper);
        assert!(feed.fresh().await.is_none());
    }
}
