//! The one way from any thread to Neovim's: a queue, an `AsyncHandle`, and a drain.
//!
//! A tokio task pushes a job and calls `AsyncHandle::send`. libuv calls back whenever Neovim polls,
//! possibly in the middle of a redraw and with Neovim's own guard off, so the callback does nothing
//! but `vim.schedule(drain)`. `drain` runs where Lua may change the editor; it takes all that is
//! queued (sends coalesce) for at most `BUDGET`, then wakes itself again so that keys get through.
//! Each job runs under a catch and answers through a oneshot. `Bridge` is the handle of any thread;
//! `install` and `stop` belong to Neovim's.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nvim_oxi::libuv::AsyncHandle;
use nvim_oxi::mlua::{Function, Lua, Table};
use tokio::sync::oneshot;

use super::Editor;
use crate::panic::catch;

/// How long one drain may keep Neovim from its keys before it lets the loop turn. A single job is
/// never cut, so the real bound is this plus the longest job.
const BUDGET: Duration = Duration::from_millis(4);

type Job = Box<dyn FnOnce(&Rc<Editor>) + Send>;

struct Shared {
    queue: Mutex<VecDeque<Job>>,
    wake: OnceLock<AsyncHandle>,
    /// No send after this: the loop may be gone.
    closing: AtomicBool,
}

/// Keeps a job from being queued twice. It may be queued again once it runs, and also when it is
/// dropped without having run: the plugin may stop in between, and start again.
#[derive(Debug, Clone, Default)]
pub struct Due(Arc<AtomicBool>);

impl Due {
    /// To be moved into the job and dropped when it runs. `None`: the job is queued already.
    #[must_use]
    pub fn claim(&self) -> Option<Claim> {
        (!self.0.swap(true, Ordering::AcqRel)).then(|| Claim(Arc::clone(&self.0)))
    }
}

#[derive(Debug)]
pub struct Claim(Arc<AtomicBool>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Handle for any thread.
#[derive(Clone)]
pub struct Bridge(Arc<Shared>);

/// The job was dropped: Neovim is leaving, or the job panicked (logged).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Neovim is stopping")]
pub struct Gone;

impl Bridge {
    /// Neovim's thread, once. `editor` is asked for when a job runs, so that jobs of a stopped
    /// editor are dropped.
    pub fn install(
        lua: &Lua,
        editor: impl Fn() -> Option<Rc<Editor>> + 'static,
    ) -> nvim_oxi::mlua::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(VecDeque::new()),
            wake: OnceLock::new(),
            closing: AtomicBool::new(false),
        });
        let bridge = Self(Arc::clone(&shared));

        let for_drain = bridge.clone();
        let drain = lua.create_function(move |_, ()| {
            // The catch around the whole keeps even a fault of the queue itself inside.
            let _ = catch("the queue", || for_drain.drain(&editor));
            Ok(())
        })?;
        let schedule: Function = lua.globals().get::<Table>("vim")?.get("schedule")?;
        let handle = AsyncHandle::new(move || {
            let _ = catch("the wake-up", || {
                if let Err(error) = schedule.call::<()>(&drain) {
                    tracing::error!("vim.schedule: {error}");
                }
            });
        })
        .map_err(nvim_oxi::mlua::Error::external)?;
        let _ = shared.wake.set(handle);
        Ok(bridge)
    }

    /// Runs `job` on Neovim's thread, in order of arrival. Any thread.
    pub fn post(&self, job: impl FnOnce(&Rc<Editor>) + Send + 'static) {
        if self.0.closing.load(Ordering::Acquire) {
            return;
        }
        self.lock().push_back(Box::new(job));
        self.wake();
    }

    /// The same, with an answer. Never await this on Neovim's thread.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Rc<Editor>) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        let (answer, answered) = oneshot::channel();
        self.post(move |editor| {
            // A caller that gave up waiting needs no work done.
            if !answer.is_closed() {
                let _ = answer.send(job(editor));
            }
        });
        answered.await.map_err(|_| Gone)
    }

    /// Drops what is queued and refuses what comes: exit, or `:IdeStop` of the last user.
    pub fn stop(&self) {
        self.0.closing.store(true, Ordering::Release);
        self.lock().clear();
    }

    /// Takes jobs again after `stop`.
    pub fn resume(&self) {
        self.0.closing.store(false, Ordering::Release);
    }

    fn drain(&self, editor: &impl Fn() -> Option<Rc<Editor>>) {
        let started = Instant::now();
        loop {
            let Some(job) = self.lock().pop_front() else { return };
            let Some(editor) = editor() else { continue };
            if let Err(caught) = catch("a queued job", || job(&editor)) {
                editor.report(&caught.to_string());
            }
            if started.elapsed() > BUDGET {
                break;
            }
        }
        self.wake();
    }

    fn wake(&self) {
        if !self.0.closing.load(Ordering::Acquire)
            && let Some(handle) = self.0.wake.get()
            && let Err(error) = handle.send()
        {
            tracing::error!("cannot wake Neovim: {error}");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Job>> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
