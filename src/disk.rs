//! What has to be asked of the file system about paths, asked so that nobody waits for one that
//! hangs (a network that is gone).
//!
//! `learn` asks on tokio's blocking threads, waits for so long and no longer, and what it heard is
//! remembered; everything else answers from that, at once. `within` is the same for a thread that
//! is not the runtime's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::context::paths::real_path;
use crate::context::tracker;
use crate::files::{self, ReadError};

/// How long anybody waits for the file system.
pub const PATIENCE: Duration = Duration::from_millis(200);
/// How long an answer is believed where it need not be fresh.
const TRUST: Duration = Duration::from_secs(2);
/// Questions that hang at once, each holding a thread; with more nothing new is asked.
const MAX_STUCK: usize = 8;
/// Far more paths than anybody has open.
const MAX_KNOWN: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    File,
    /// A file whose text leaves Neovim: an old answer will not do.
    Fresh,
    /// A folder: also which work tree it lies in.
    Folder,
}

/// An answer of the file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Answer {
    real: Option<PathBuf>,
    /// A folder, a device, a window into the kernel.
    no_file: bool,
    /// Of a folder: the work tree, and where its symbolic links lead.
    work_tree: Option<(PathBuf, Option<PathBuf>)>,
}

type Ask = Box<dyn Fn(&Path, Asked) -> Answer + Send + Sync>;

struct State {
    known: HashMap<PathBuf, (Instant, Answer)>,
    /// Under way; true when nobody waits for it any more.
    asking: Vec<(PathBuf, Arc<AtomicBool>)>,
}

struct Inner {
    ask: Ask,
    state: Mutex<State>,
    late: Notify,
}

/// Cheap to clone; clones remember the same.
#[derive(Clone)]
pub struct Disk(Arc<Inner>);

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Disk").field(&self.state().known.len()).finish()
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new(Box::new(ask))
    }
}

impl Disk {
    fn new(ask: Ask) -> Self {
        let state = State { known: HashMap::new(), asking: Vec::new() };
        Self(Arc::new(Inner { ask, state: Mutex::new(state), late: Notify::new() }))
    }

    /// One that hangs below `folder` until the sender is dropped; elsewhere a path leads to itself.
    #[cfg(test)]
    pub(crate) fn hanging(folder: &'static str) -> (Self, mpsc::Sender<()>) {
        let (wake, woken) = mpsc::channel::<()>();
        let woken = Mutex::new(woken);
        let ask = move |path: &Path, _| {
            if path.starts_with(folder) {
                let _ = woken.lock().map(|woken| woken.recv());
            }
            Answer { real: Some(path.to_path_buf()), ..Answer::default() }
        };
        (Self::new(Box::new(ask)), wake)
    }

    /// Ends when an answer came that nobody waited for any more.
    pub async fn late(&self) {
        self.0.late.notified().await;
    }

    /// Returns once everything asked is known, or after `PATIENCE`; then what was known before
    /// stands. A path that hangs, and what lies beside it, is not asked again until it answers.
    pub async fn learn(&self, paths: Vec<(PathBuf, Asked)>) {
        let due = self.due(paths);
        if due.is_empty() {
            return;
        }
        let enough = Arc::new(AtomicBool::new(false));
        let (disk, stop) = (self.clone(), Arc::clone(&enough));
        let asking = tokio::task::spawn_blocking(move || {
            for (path, asked) in due {
                disk.ask(path, asked, &stop);
                if stop.load(Ordering::Relaxed) {
                    disk.0.late.notify_one();
                    break;
                }
            }
        });
        if tokio::time::timeout(PATIENCE, asking).await.is_err() {
            enough.store(true, Ordering::Relaxed);
            tracing::warn!("a file system does not answer; files there are told to nobody new");
        }
    }

    /// Where a path's symbolic links lead, as far as that is known.
    #[must_use]
    pub fn real(&self, path: &Path) -> Option<PathBuf> {
        self.state().known.get(path)?.1.real.clone()
    }

    /// What is there is known, and is nothing that holds a text.
    #[must_use]
    pub fn is_no_file(&self, path: &Path) -> bool {
        self.state().known.get(path).is_some_and(|(_, answer)| answer.no_file)
    }

    fn due(&self, mut paths: Vec<(PathBuf, Asked)>) -> Vec<(PathBuf, Asked)> {
        let now = Instant::now();
        let mut state = self.state();
        if state.known.len() > MAX_KNOWN {
            state.known.retain(|_, (at, _)| now - *at < TRUST);
        }
        let stuck: Vec<&Path> = state
            .asking
            .iter()
            .filter(|(_, given_up)| given_up.load(Ordering::Relaxed))
            .map(|(path, _)| path.parent().unwrap_or(path))
            .collect();
        if stuck.len() >= MAX_STUCK {
            return Vec::new();
        }
        paths.retain(|(path, asked)| {
            let trusted = *asked != Asked::Fresh
                && state.known.get(path).is_some_and(|(at, _)| now - *at < TRUST);
            !trusted && !stuck.iter().any(|folder| path.starts_with(folder))
        });
        paths
    }

    fn ask(&self, path: PathBuf, asked: Asked, given_up: &Arc<AtomicBool>) {
        self.state().asking.push((path.clone(), Arc::clone(given_up)));
        let answer = (self.0.ask)(&path, asked);
        let mut state = self.state();
        let now = Instant::now();
        if let Some(at) = state.asking.iter().position(|(_, of)| Arc::ptr_eq(of, given_up)) {
            state.asking.swap_remove(at);
        }
        if let Some((tree, real)) = &answer.work_tree {
            let real = Answer { real: real.clone(), ..Answer::default() };
            state.known.entry(tree.clone()).or_insert((now, real));
        }
        state.known.insert(path, (now, answer));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves whole answers behind.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl tracker::Disk for Disk {
    fn work_tree(&self, folder: &Path) -> Option<PathBuf> {
        let state = self.state();
        Some(state.known.get(folder)?.1.work_tree.as_ref()?.0.clone())
    }

    fn real(&self, path: &Path) -> PathBuf {
        self.real(path).unwrap_or_else(|| path.to_path_buf())
    }

    fn home(&self) -> Option<PathBuf> {
        std::env::home_dir()
    }
}

fn ask(path: &Path, asked: Asked) -> Answer {
    // A folder may be asked for as a file first: people open folders.
    let folder = asked == Asked::Folder || path.is_dir();
    let tree = if folder { work_tree(path) } else { None };
    Answer {
        real: real_path(path),
        no_file: matches!(files::check_plain(path, true), Err(ReadError::NotPlain { .. })),
        work_tree: tree.map(|tree| (tree.to_path_buf(), real_path(tree))),
    }
}

/// The work tree (the folder that holds `.git`, a file in linked ones and submodules) that `folder`
/// lies in. Asks the file system.
#[must_use]
pub fn work_tree(folder: &Path) -> Option<&Path> {
    folder.ancestors().find(|at| at.join(".git").exists())
}

/// What `work` returns, if it does so within `PATIENCE`; else it goes on by itself.
pub fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, answered) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("gangway-disk".into());
    thread.spawn(move || done.send(work())).ok()?;
    answered.recv_timeout(PATIENCE).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;

    use super::*;

    /// A file system on which everything below /gone hangs until `wake` is called.
    #[derive(Clone, Default)]
    struct Network(Arc<(Mutex<bool>, Condvar)>, Arc<Mutex<Vec<PathBuf>>>);

    impl Network {
        fn disk(&self) -> Disk {
            let Network(gate, asked) = self.clone();
            Disk::new(Box::new(move |path, _| {
                asked.lock().unwrap().push(path.into());
                if path.starts_with("/gone") {
                    let awake = gate.1.wait_while(gate.0.lock().unwrap(), |awake| !*awake);
                    drop(awake.unwrap());
                }
                Answer {
                    real: Some(Path::new("/real").join(path.strip_prefix("/").unwrap())),
                    ..Answer::default()
                }
            }))
        }

        fn wake(&self) {
            *self.0.0.lock().unwrap() = true;
            self.0.1.notify_all();
        }

        fn asked(&self) -> usize {
            self.1.lock().unwrap().len()
        }
    }

    fn files(paths: &[&str]) -> Vec<(PathBuf, Asked)> {
        paths.iter().map(|path| (path.into(), Asked::Fresh)).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_file_system_that_hangs_holds_nobody_up_and_is_believed_again_when_it_answers() {
        let network = Network::default();
        let disk = network.disk();
        disk.learn(files(&["/here/a"])).await;
        assert_eq!(disk.real(Path::new("/here/a")), Some("/real/here/a".into()));

        let begun = Instant::now();
        disk.learn(files(&["/gone/a", "/here/b"])).await;
        assert!(begun.elapsed() < PATIENCE * 4, "{:?}", begun.elapsed());
        assert_eq!(disk.real(Path::new("/gone/a")), None);

        // It is waited for once; what lies elsewhere is as before.
        let (begun, asked) = (Instant::now(), network.asked());
        for _ in 0..50 {
            disk.learn(files(&["/gone/a", "/gone/b", "/gone/c/d", "/here/b"])).await;
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        assert_eq!(disk.real(Path::new("/here/b")), Some("/real/here/b".into()));
        assert_eq!(network.asked(), asked + 50, "only /here/b was asked");

        network.wake();
        let deadline = Instant::now() + Duration::from_secs(5);
        while disk.real(Path::new("/gone/a")).is_none() && Instant::now() < deadline {
            disk.learn(files(&["/gone/a"])).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(disk.real(Path::new("/gone/a")), Some("/real/gone/a".into()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn no_number_of_hanging_files_takes_all_threads() {
        let network = Network::default();
        let disk = network.disk();
        for n in 0..MAX_STUCK + 4 {
            disk.learn(files(&[&format!("/gone/{n}/a")])).await;
        }
        assert_eq!(network.asked(), MAX_STUCK);
        network.wake();
    }

    #[test]
    fn another_thread_waits_no_longer_either() {
        assert_eq!(within(|| 7), Some(7));
        let begun = Instant::now();
        let (keep, kept) = mpsc::channel::<()>();
        assert_eq!(within(move || kept.recv().is_ok()), None);
        assert!(begun.elapsed() < PATIENCE * 4, "{:?}", begun.elapsed());
        drop(keep);
    }

    #[test]
    fn what_holds_no_text_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "").unwrap();
        let is_none = |path: &Path| ask(path, Asked::File).no_file;
        assert!(!is_none(&dir.path().join("a.txt")) && !is_none(&dir.path().join("new.txt")));
        assert!(is_none(dir.path()) && is_none(Path::new("/dev/null")));
        #[cfg(target_os = "linux")]
        assert!(is_none(Path::new("/proc/self/status")));
    }

    #[test]
    fn a_folder_knows_its_work_tree() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("repo/.git")).unwrap();
        std::fs::create_dir(root.join("repo/sub")).unwrap();
        let sub = root.join("repo/sub");
        let tree = root.join("repo");
        assert_eq!(ask(&sub, Asked::Folder).work_tree, Some((tree.clone(), Some(tree))));
        assert_eq!(ask(&sub, Asked::File), ask(&sub, Asked::Folder), "opened like a file");
        std::fs::write(sub.join("a.txt"), "").unwrap();
        assert_eq!(ask(&sub.join("a.txt"), Asked::File).work_tree, None);
    }
}
