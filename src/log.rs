//! The log: `stdpath("log")/gangway.log`, never the user's screen.
//!
//! Any thread may log through `tracing`. Lines are written by a thread of their own, so that a slow
//! disk never holds up Neovim. One file, private, begun anew when it has grown past `MAX_BYTES`.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::OFlags;
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
    /// Why there is none.
    problem: Option<String>,
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
        let (guard, problem) = match create(&path) {
            Ok(guard) => (Some(guard), None),
            Err(error) => (None, Some(format!("there is no log: {}: {error}", path.display()))),
        };
        Log { path, guard: Mutex::new(guard), problem }
    });
}

/// Where the log is, once opened.
#[must_use]
pub fn path() -> Option<&'static Path> {
    LOG.get().filter(|log| log.problem.is_none()).map(|log| log.path.as_path())
}

/// Why there is no log, for the user.
#[must_use]
pub fn problem() -> Option<&'static str> {
    LOG.get()?.problem.as_deref()
}

/// Writes out what is queued and ends the writer. At exit only.
pub fn close() {
    if let Some(log) = LOG.get() {
        log.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn create(path: &Path) -> io::Result<WorkerGuard> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.len() > MAX_BYTES) {
        let _ = std::fs::rename(path, path.with_extension("log.old"));
    }
    let (writer, guard) = tracing_appender::non_blocking(open_plain(path)?);
    tracing::subscriber::set_global_default(subscriber(writer)).map_err(io::Error::other)?;
    Ok(guard)
}

/// Neovim's own thread opens it: whatever is there must not make it wait, nor lead elsewhere.
fn open_plain(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits();
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(flags.cast_signed());
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a plain file"));
    }
    // Some umasks take the owner's bits as well.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plain_file_is_no_log_and_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let [fifo, link, victim, folder] =
            ["fifo", "link", "victim", "folder"].map(|name| dir.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        std::fs::create_dir(&folder).unwrap();
        for path in [&fifo, &link, &folder] {
            assert!(open_plain(path).is_err(), "{}", path.display());
        }
        // One that somebody reads from would take what is written.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let _reader = OpenOptions::new().read(true).custom_flags(flags).open(&fifo).unwrap();
        assert!(open_plain(&fifo).unwrap_err().to_string().contains("not a plain file"));
        let log = dir.path().join("log");
        assert!(open_plain(&log).is_ok() && open_plain(&log).is_ok());
        assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }
}
