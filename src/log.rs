//! The log: `stdpath("log")/gangway.log`, never the user's screen.
//!
//! Any thread may log through `tracing`. Lines are written by a thread of their own, so that a slow
//! disk never holds up Neovim. One file, private, begun anew when it has grown past `MAX_BYTES`.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;

/// A log larger than this when Neovim starts is renamed to `gangway.log.old`.
const MAX_BYTES: u64 = 5 << 20;

/// 0 = off … 5 = trace.
static LEVEL: AtomicU8 = AtomicU8::new(3);

struct Log {
    path: PathBuf,
    guard: Mutex<Option<WorkerGuard>>,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// `off`, `error`, `warn`, `info`, `debug` or `trace`, as `log_level` takes them.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Sets what is written from now on; unknown names change nothing.
pub fn set_level(name: &str) {
    if let Some(level) = LEVELS.iter().position(|l| *l == name) {
        LEVEL.store(u8::try_from(level).unwrap_or(3), Ordering::Relaxed);
    }
}

/// Opens the log in `directory` (made if missing); later calls do nothing. A log that cannot be
/// opened is no reason not to work: the plugin then runs without one.
pub fn open(directory: &Path) {
    LOG.get_or_init(|| {
        let path = directory.join("gangway.log");
        let guard = create(&path);
        Log { path, guard: Mutex::new(guard) }
    });
}

/// Where the log is, once opened.
#[must_use]
pub fn path() -> Option<&'static Path> {
    LOG.get().map(|log| log.path.as_path())
}

/// Writes out what is queued and ends the writer. At exit only.
pub fn close() {
    if let Some(log) = LOG.get() {
        log.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn create(path: &Path) -> Option<WorkerGuard> {
    std::fs::create_dir_all(path.parent()?).ok()?;
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_BYTES) {
        let _ = std::fs::rename(path, path.with_extension("log.old"));
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path).ok()?;
    let (writer, guard) = tracing_appender::non_blocking(file);
    tracing::subscriber::set_global_default(subscriber(writer)).ok()?;
    Some(guard)
}

fn subscriber(writer: NonBlocking) -> impl tracing::Subscriber + Send + Sync {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false)
        .with_target(true)
        .with_filter(tracing_subscriber::filter::filter_fn(|meta| {
            let wanted = match LEVEL.load(Ordering::Relaxed) {
                0 => LevelFilter::OFF,
                1 => LevelFilter::ERROR,
                2 => LevelFilter::WARN,
                3 => LevelFilter::INFO,
                4 => LevelFilter::DEBUG,
                _ => LevelFilter::TRACE,
            };
            // Other crates' chatter (hyper, mio) is never wanted below warnings.
            *meta.level() <= wanted
                && (meta.target().starts_with("gangway") || *meta.level() <= LevelFilter::WARN)
        }));
    tracing_subscriber::registry().with(lines)
}
