//! aivyx-coder: it meets the editor in files, both ways.
//!
//! `context` tells it what the user looks at, `approvals` turns its request files into reviews and
//! verdicts into response files, `request` reads them, `key` knows where they are. One tokio task
//! drives both; everything that touches the disk runs on tokio's blocking threads.

pub mod context;
pub mod key;

mod approvals;
mod request;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::approvals::{Approvals, Decided};
use self::context::ContextFiles;
use crate::agents::Enabled;
use crate::context::Snapshot;
use crate::review::desk::Desk;
use crate::review::{Owner, Withdrawal};

/// How long `stop` waits for the disk; Neovim's exit is waiting too.
const STOP_WITHIN: Duration = Duration::from_millis(250);

/// Tells the time of day; tests bring their own.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Tells the user what only they can do something about; any thread.
pub type Tell = Arc<dyn Fn(String) + Send + Sync>;

/// How aivyx-coder is served.
#[derive(Clone)]
pub struct AivyxConfig {
    pub enabled: Enabled,
    /// Show its requests as reviews.
    pub approvals: bool,
    /// `key::state_dir` of Neovim's environment. `None` (no home directory): aivyx is not served.
    pub state_dir: Option<PathBuf>,
    /// A context file that did not change is rewritten at this age; aivyx ignores it after five
    /// minutes.
    pub heartbeat: Duration,
    /// Changes of the context within this time are written as one.
    pub debounce: Duration,
    /// How often the disk is looked at for what no event has told.
    pub poll: Duration,
    pub clock: Clock,
    pub tell: Tell,
}

impl Default for AivyxConfig {
    fn default() -> Self {
        Self {
            enabled: Enabled::Auto,
            approvals: true,
            state_dir: None,
            heartbeat: Duration::from_secs(120),
            debounce: Duration::from_millis(100),
            poll: Duration::from_millis(1500),
            clock: Arc::new(SystemTime::now),
            tell: Arc::new(|_| ()),
        }
    }
}

/// For `status()` and `:checkhealth`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AivyxStatus {
    /// aivyx's directory is there (or `enabled` is on) and it is being served.
    pub active: bool,
    /// Where aivyx keeps its files.
    pub state_dir: Option<PathBuf>,
    /// How many roots have a context file of ours.
    pub context_files: usize,
    /// Requests are noticed at once; false: by the slow poll only, or approvals are off.
    pub watching: bool,
}

/// aivyx-coder, served. Dropping it stops it, without waiting.
pub struct Aivyx {
    desk: Desk,
    owner: Owner,
    leaving: Arc<AtomicBool>,
    status: Arc<Mutex<AivyxStatus>>,
    stop: watch::Sender<()>,
    task: Option<JoinHandle<()>>,
}

impl Aivyx {
    /// Starts to serve. Must be called within the tokio runtime. `snapshots` carries what the
    /// privacy filter has let through.
    #[must_use]
    pub fn start(
        config: AivyxConfig,
        desk: Desk,
        snapshots: watch::Receiver<Arc<Snapshot>>,
    ) -> Self {
        let status = Arc::new(Mutex::new(AivyxStatus {
            state_dir: config.state_dir.clone(),
            ..AivyxStatus::default()
        }));
        let (stop, stopped) = watch::channel(());
        let owner = Owner::unique();
        let leaving = Arc::new(AtomicBool::new(false));
        let state_dir = config.state_dir.clone().filter(|_| config.enabled != Enabled::Off);
        let task = state_dir.map(|state_dir| {
            let (verdicts, decided) = mpsc::unbounded_channel();
            let (events, touched) = mpsc::unbounded_channel();
            let approvals = config.approvals.then(|| {
                let (leaving, tell) = (Arc::clone(&leaving), Arc::clone(&config.tell));
                Approvals::new(&state_dir, desk.clone(), owner, verdicts, events, leaving, tell)
            });
            let work = Work {
                context: ContextFiles::new(&state_dir, config.heartbeat),
                approvals,
                state_dir,
                always: config.enabled == Enabled::On,
                active: false,
                clock: Arc::clone(&config.clock),
                status: Arc::clone(&status),
            };
            let inputs = Inputs { snapshots, stopped, decided, touched };
            tokio::spawn(run(work, inputs, config.debounce, config.poll))
        });
        Self { desk, owner, leaving, status, stop, task }
    }

    #[must_use]
    pub fn status(&self) -> AivyxStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes all of aivyx's questions off the desk and answers none from now on; aivyx's own
    /// prompt has them. **Before** `Desk::shutdown`, whose `Reject` would read as the user's no.
    /// Any thread, does not block, may be called twice.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.desk.withdraw_all(self.owner, Withdrawal::OwnerLost);
    }

    /// `leave`, then writes what the user decided before it, removes our context files and ends
    /// the task. Takes no longer than 250 ms, whatever the disk does.
    pub async fn stop(mut self) {
        self.leave();
        let _ = self.stop.send(());
        if let Some(mut task) = self.task.take()
            && tokio::time::timeout(STOP_WITHIN, &mut task).await.is_err()
        {
            tracing::warn!("aivyx-coder's files took too long to tidy up");
            task.abort();
        }
    }
}

impl Drop for Aivyx {
    fn drop(&mut self) {
        // The task sees the end of `stop` and tidies up.
        self.leave();
    }
}

struct Inputs {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stopped: watch::Receiver<()>,
    decided: mpsc::UnboundedReceiver<Decided>,
    touched: mpsc::UnboundedReceiver<String>,
}

/// What has happened since the last step.
struct Step {
    snapshot: Arc<Snapshot>,
    write_context: bool,
    poll: bool,
    decided: Vec<Decided>,
    touched: Vec<String>,
    now: Instant,
}

/// All that touches the disk; travels to a blocking thread and back.
struct Work {
    context: ContextFiles,
    approvals: Option<Approvals>,
    state_dir: PathBuf,
    /// Serve even where there is no directory of aivyx's.
    always: bool,
    active: bool,
    clock: Clock,
    status: Arc<Mutex<AivyxStatus>>,
}

async fn run(mut work: Work, mut inputs: Inputs, debounce: Duration, poll: Duration) {
    let mut next_poll = Instant::now();
    let mut write_at = None;
    loop {
        let due = work.approvals.as_ref().and_then(Approvals::next_due);
        let wake = [Some(next_poll), write_at, due].into_iter().flatten().min();
        let mut step_touched = Vec::new();
        let mut step_decided = Vec::new();
        tokio::select! {
            biased;
            // Told, or dropped: the end either way.
            _ = inputs.stopped.changed() => break,
            () = tokio::time::sleep_until(wake.unwrap_or(next_poll)) => {}
            Some(decided) = inputs.decided.recv() => step_decided.push(decided),
            Some(name) = inputs.touched.recv() => step_touched.push(name),
            changed = inputs.snapshots.changed() => {
                if changed.is_err() {
                    break;
                }
                let now = Instant::now();
                if inputs.snapshots.borrow_and_update().sharing {
                    write_at.get_or_insert(now + debounce);
                } else {
                    write_at = Some(now);
                }
                // Nothing to do on the disk before that.
                continue;
            }
        }
        let now = Instant::now();
        while let Ok(name) = inputs.touched.try_recv() {
            step_touched.push(name);
        }
        step_touched.sort();
        step_touched.dedup();
        let step = Step {
            snapshot: Arc::clone(&inputs.snapshots.borrow()),
            write_context: write_at.is_some_and(|at| at <= now),
            poll: next_poll <= now,
            decided: step_decided,
            touched: step_touched,
            now,
        };
        if step.write_context || step.poll {
            write_at = None;
        }
        if step.poll {
            next_poll = now + poll;
        }
        match tokio::task::spawn_blocking(move || work.step(step)).await {
            Ok(back) => work = back,
            Err(error) => {
                tracing::error!("aivyx-coder is no longer served: {error}");
                return;
            }
        }
    }
    let mut last = Vec::new();
    while let Ok(decided) = inputs.decided.try_recv() {
        last.push(decided);
    }
    if let Err(error) = tokio::task::spawn_blocking(move || work.finish(last)).await {
        tracing::error!("aivyx-coder's files were not tidied up: {error}");
    }
}

impl Work {
    fn step(mut self, step: Step) -> Self {
        if step.poll {
            self.look_for_aivyx();
        }
        if self.active {
            if let Some(approvals) = &mut self.approvals {
                let new_root = approvals.set_roots(&step.snapshot.roots);
                for decided in step.decided {
                    approvals.decided(decided, step.now);
                }
                for name in &step.touched {
                    approvals.touched(name, step.now);
                }
                if step.poll || new_root {
                    approvals.poll(step.now);
                }
                approvals.due(step.now);
            }
            // The poll is the heartbeat's clock as well.
            if step.write_context || step.poll {
                self.context.update(&step.snapshot, (self.clock)());
            }
        }
        self.publish();
        self
    }

    fn look_for_aivyx(&mut self) {
        let active = self.always || self.state_dir.is_dir();
        if self.active && !active {
            self.context.remove_all();
            if let Some(approvals) = &mut self.approvals {
                approvals.stop();
            }
        }
        self.active = active;
    }

    fn finish(mut self, last: Vec<Decided>) {
        if let Some(approvals) = &mut self.approvals {
            for decided in last {
                approvals.decided(decided, Instant::now());
            }
            approvals.stop();
        }
        self.context.remove_all();
        self.active = false;
        self.publish();
    }

    fn publish(&self) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.active = self.active;
        status.context_files = self.context.len();
        status.watching = self.active && self.approvals.as_ref().is_some_and(Approvals::watching);
    }
}
