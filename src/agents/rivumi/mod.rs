//! Rivumi, now looplane: it reads snapshot files in the work tree before every model request.
//!
//! `snapshots` writes them, `push` is the optional WebSocket message. One tokio task waits for
//! quiet, because each change of a file costs the user's agent tokens; the disk is touched on
//! tokio's blocking threads only.

pub mod push;
pub mod snapshots;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::push::PushUrl;
use self::snapshots::{Payload, SnapshotFiles};
use crate::agents::Enabled;
use crate::context::Snapshot;

/// How long `stop` waits for the disk; Neovim's exit is waiting too.
const STOP_WITHIN: Duration = Duration::from_millis(250);

/// How Rivumi is served.
#[derive(Debug, Clone)]
pub struct RivumiConfig {
    pub enabled: Enabled,
    /// Neovim's `$HOME`, where nothing is ever written.
    pub home: Option<PathBuf>,
    /// Where to push to as well; `None`, the default: nowhere.
    pub websocket_url: Option<PushUrl>,
    /// The files are written once nothing has changed for this long.
    pub quiet: Duration,
    /// Written after this long even if it never becomes quiet (a linter that never rests).
    pub max_wait: Duration,
    /// How often to look for a directory of the agent's that has appeared.
    pub poll: Duration,
}

impl Default for RivumiConfig {
    fn default() -> Self {
        Self {
            enabled: Enabled::Auto,
            home: None,
            websocket_url: None,
            quiet: Duration::from_secs(1),
            max_wait: Duration::from_secs(10),
            poll: Duration::from_secs(3),
        }
    }
}

/// For `status()` and `:checkhealth`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RivumiStatus {
    /// The `ide` directories that are kept up to date.
    pub directories: Vec<PathBuf>,
    /// Why the last push failed, if it did.
    pub push_error: Option<String>,
}

/// Rivumi, served. Dropping it stops it, without waiting.
pub struct Rivumi {
    status: Arc<Mutex<RivumiStatus>>,
    stop: watch::Sender<()>,
    task: Option<JoinHandle<()>>,
}

impl Rivumi {
    /// Starts to serve. Must be called within the tokio runtime. `snapshots` carries what the
    /// privacy filter has let through.
    #[must_use]
    pub fn start(config: RivumiConfig, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        let status = Arc::new(Mutex::new(RivumiStatus::default()));
        let (stop, stopped) = watch::channel(());
        let task = (config.enabled != Enabled::Off)
            .then(|| tokio::spawn(run(config, snapshots, stopped, Arc::clone(&status))));
        Self { status, stop, task }
    }

    #[must_use]
    pub fn status(&self) -> RivumiStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Empties our files and ends the task. Takes no longer than 250 ms, whatever the disk does.
    pub async fn stop(mut self) {
        let _ = self.stop.send(());
        if let Some(mut task) = self.task.take()
            && tokio::time::timeout(STOP_WITHIN, &mut task).await.is_err()
        {
            tracing::warn!("Rivumi's files took too long to empty");
            task.abort();
        }
    }
}

async fn run(
    config: RivumiConfig,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    mut stopped: watch::Receiver<()>,
    status: Arc<Mutex<RivumiStatus>>,
) {
    let mut files = SnapshotFiles::new(config.enabled, config.home.as_deref());
    let mut pushed = Payload::nothing();
    // The state of the last quiet moment: what the poll writes into a new directory.
    let mut settled = Arc::clone(&snapshots.borrow_and_update());
    let mut next_poll = Instant::now();
    let mut restless_since: Option<Instant> = None;
    let mut write_at = Some(next_poll);
    loop {
        let wake = write_at.map_or(next_poll, |at| at.min(next_poll));
        tokio::select! {
            biased;
            // Told, or dropped: the end either way.
            _ = stopped.changed() => break,
            () = tokio::time::sleep_until(wake) => {}
            changed = snapshots.changed() => {
                if changed.is_err() {
                    break;
                }
                let now = Instant::now();
                let latest = *restless_since.get_or_insert(now) + config.max_wait;
                // What is no longer shared goes at once.
                let sharing = snapshots.borrow_and_update().sharing;
                write_at = Some(if sharing { (now + config.quiet).min(latest) } else { now });
                continue;
            }
        }
        let now = Instant::now();
        let changed = write_at.is_some_and(|at| at <= now);
        if changed {
            (write_at, restless_since) = (None, None);
            settled = Arc::clone(&snapshots.borrow());
        }
        if next_poll <= now {
            next_poll = now + config.poll;
        }
        let snapshot = Arc::clone(&settled);
        let push = config.websocket_url.is_some();
        let step = move || {
            if changed || files.moved(&snapshot) {
                files.update(&snapshot);
            }
            let root = snapshot.roots.first().filter(|_| push && changed);
            let payload = root.map(|root| Payload::new(&snapshot, root));
            (files, payload)
        };
        let payload;
        (files, payload) = match tokio::task::spawn_blocking(step).await {
            Ok(back) => back,
            Err(error) => {
                tracing::error!("Rivumi is no longer served: {error}");
                return;
            }
        };
        status.lock().unwrap_or_else(PoisonError::into_inner).directories = files.directories();
        if let (Some(url), Some(payload)) = (&config.websocket_url, payload)
            && payload != pushed
        {
            if let Some(message) = push::message(&payload) {
                // Beside the loop, so that a server that hangs delays no file.
                tokio::spawn(send(url.clone(), message, Arc::clone(&status)));
            }
            pushed = payload;
        }
    }
    if let Err(error) = tokio::task::spawn_blocking(move || files.clear()).await {
        tracing::error!("Rivumi's files were not emptied: {error}");
    }
}

async fn send(url: PushUrl, message: String, status: Arc<Mutex<RivumiStatus>>) {
    let error = push::push(&url, message).await.err().map(|error| error.to_string());
    if let Some(error) = &error {
        tracing::info!("Rivumi's server was not reached: {error}");
    }
    status.lock().unwrap_or_else(PoisonError::into_inner).push_error = error;
}
