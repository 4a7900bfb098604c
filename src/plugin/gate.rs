//! The one gate everything passes on its way out: the privacy filter, with the project's sharing
//! switch.
//!
//! Any thread. The keeper of snapshots publishes through it; `:IdeShare` turns it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::config::Settings;
use crate::context::Snapshot;
use crate::context::paths::real_path;
use crate::context::privacy::{DEFAULT_EXCLUDE, Privacy, Share};
use crate::disk::{Asked, Disk, PATIENCE, within};
use crate::sharing::SharingStore;

/// How long the remembered switch may take to read; then nothing is shared.
const READ_WITHIN: Duration = Duration::from_secs(2);

struct State {
    privacy: Privacy,
    /// `context.enabled`; off is as if nothing were shared, whatever the switch says.
    enabled: bool,
    /// The project the switch was read for: the first root's real path.
    project: Option<PathBuf>,
    /// What the user said last, until the next snapshot tells about which project.
    said: Option<Share>,
    /// The last snapshot before the filter, to send again when the switch is turned.
    last: Option<Snapshot>,
}

pub(super) struct Gate {
    state: Mutex<State>,
    store: SharingStore,
    out: watch::Sender<Arc<Snapshot>>,
    home: Option<PathBuf>,
    disk: Disk,
}

impl Gate {
    pub(super) fn new(
        store: SharingStore,
        home: Option<PathBuf>,
        disk: Disk,
    ) -> (Arc<Self>, watch::Receiver<Arc<Snapshot>>) {
        let (out, snapshots) = watch::channel(Arc::new(Snapshot::default()));
        let (privacy, enabled) = (Privacy::default(), true);
        let state = State { privacy, enabled, project: None, said: None, last: None };
        (Arc::new(Self { state: Mutex::new(state), store, out, home, disk }), snapshots)
    }

    /// Takes the patterns in force; says which one is wrong.
    pub(super) fn configure(&self, settings: &Settings) -> Option<String> {
        let default = || DEFAULT_EXCLUDE.iter().map(ToString::to_string).collect();
        let patterns: Vec<String> = settings.exclude.clone().unwrap_or_else(default);
        let home = self.home.clone();
        let make = |real: fn(&Path) -> Option<PathBuf>| {
            move || Privacy::new(&patterns, home.as_deref(), Share::On, real)
        };
        let made = within(make.clone()(real_path)).unwrap_or_else(|| make(|_| None)());
        let mut state = self.lock();
        state.enabled = settings.context;
        match made {
            Ok(mut privacy) => {
                privacy.sharing = state.privacy.sharing;
                state.privacy = privacy;
                self.send(&state);
                None
            }
            Err(error) => Some(format!("context.exclude: {error}")),
        }
    }

    /// Filters and hands out; the keeper's last step, on the runtime.
    pub(super) async fn publish(&self, snapshot: Snapshot) -> Arc<Snapshot> {
        let active = snapshot.active.iter().map(|file| (file.path.clone(), Asked::Fresh));
        let files = snapshot.files.iter().map(|file| file.path.clone());
        let others = files.chain(snapshot.diagnostics.keys().cloned());
        self.disk.learn(active.chain(others.map(|path| (path, Asked::File))).collect()).await;
        let project = snapshot.roots.first().map(|root| root.real.clone());
        let remembered = if self.lock().project == project {
            None
        } else {
            Some(self.remembered(project.clone()).await)
        };
        let (sent, said) = self.take(snapshot, project, remembered);
        if let Some((share, project)) = said {
            let store = self.store.clone();
            let write = tokio::task::spawn_blocking(move || write(&store, &project, share));
            if tokio::time::timeout(PATIENCE, write).await.is_err() {
                tracing::warn!("the sharing switch may not be remembered: the disk is slow");
            }
        }
        sent
    }

    /// Puts a snapshot in force; gives what was handed out, and what was newly said about a project.
    fn take(
        &self,
        snapshot: Snapshot,
        project: Option<PathBuf>,
        remembered: Option<Share>,
    ) -> (Arc<Snapshot>, Option<(Share, PathBuf)>) {
        let mut state = self.lock();
        // The user may have spoken meanwhile; then that counts.
        if let Some(share) = state.said.or(remembered) {
            state.privacy.sharing = share;
        }
        let said = project.clone().and_then(|project| Some((state.said.take()?, project)));
        state.project = project;
        state.last = Some(snapshot);
        (self.send(&state), said)
    }

    /// What was last said about a project. Something that cannot be read may have said "off".
    async fn remembered(&self, project: Option<PathBuf>) -> Share {
        let Some(project) = project else { return Share::On };
        let store = self.store.clone();
        let read = tokio::task::spawn_blocking(move || store.get(&project));
        match tokio::time::timeout(READ_WITHIN, read).await {
            Ok(Ok(Ok(share))) => share,
            Ok(Ok(Err(error))) => {
                tracing::warn!("cannot read the sharing switch, sharing nothing: {error}");
                Share::Off
            }
            _ => {
                tracing::warn!("cannot read the sharing switch in time, sharing nothing");
                Share::Off
            }
        }
    }

    /// Turns the switch, at once for everybody. For which project the next snapshot says, which the
    /// caller has to ask for; `here` says it where there will be none.
    pub(super) fn share(&self, share: Share, here: Option<PathBuf>) {
        let mut state = self.lock();
        state.privacy.sharing = share;
        state.said = Some(share);
        self.send(&state);
        if let Some(project) = here {
            state.project = Some(project);
            drop(state);
            self.settle();
        }
    }

    /// Remembers what was said since the last snapshot: there may be no other.
    pub(super) fn settle(&self) {
        let mut state = self.lock();
        let said = state.said.take().zip(state.project.clone());
        drop(state);
        if let Some((share, project)) = said {
            let store = self.store.clone();
            if within(move || write(&store, &project, share)).is_none() {
                tracing::warn!("the sharing switch may not be remembered: the disk is slow");
            }
        }
    }

    #[must_use]
    pub(super) fn sharing(&self) -> bool {
        self.lock().privacy.sharing == Share::On
    }

    /// What counts for a project (its real path) before there is a snapshot: while stopped.
    pub(super) fn sharing_of(&self, project: PathBuf) -> bool {
        let state = self.lock();
        if state.said.is_some() || state.project.as_ref() == Some(&project) {
            return state.privacy.sharing == Share::On;
        }
        drop(state);
        let store = self.store.clone();
        matches!(within(move || store.get(&project)), Some(Ok(Share::On)))
    }

    /// The file may be told of; on the runtime.
    pub(super) async fn tells(&self, path: &Path) -> bool {
        self.disk.learn(vec![(path.to_path_buf(), Asked::Fresh)]).await;
        self.allows(path, self.disk.real(path).as_deref())
    }

    /// The file may be told of, given where its symbolic links lead.
    pub(super) fn allows(&self, path: &Path, real: Option<&Path>) -> bool {
        let state = self.lock();
        state.enabled && state.privacy.allows(path, real)
    }

    fn send(&self, state: &State) -> Arc<Snapshot> {
        let filter = |last: &Snapshot| {
            let real = |path: &Path| self.disk.real(path);
            if state.enabled {
                return state.privacy.filter(last, real);
            }
            let mut nothing = Privacy::default();
            nothing.sharing = Share::Off;
            nothing.filter(last, real)
        };
        let filtered = state.last.as_ref().map(filter);
        let filtered = Arc::new(filtered.unwrap_or_default());
        self.out.send_if_modified(|current| {
            let changed = **current != *filtered;
            if changed {
                *current = Arc::clone(&filtered);
            }
            changed
        });
        Arc::clone(&self.out.borrow())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(store: &SharingStore, project: &Path, share: Share) {
    if let Err(error) = store.set(project, share) {
        tracing::warn!("the sharing switch is not remembered: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::context::{OpenFile, Position, Root};

    fn snapshot(root: &str, paths: &[&str]) -> Snapshot {
        let file = |path: &&str| OpenFile {
            path: path.into(),
            language: String::new(),
            active: false,
            visible: true,
            modified: false,
            last_visited: 1,
            cursor: Position::default(),
        };
        Snapshot {
            sharing: true,
            files: paths.iter().map(file).collect(),
            roots: vec![Root { path: root.into(), real: root.into() }],
            ..Snapshot::default()
        }
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.files.iter().map(|file| file.path.to_str().unwrap()).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_file_on_a_disk_that_hangs_is_private_and_holds_up_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, wake) = Disk::hanging("/gone");
        let (gate, _out) = Gate::new(SharingStore::new(dir.path()), None, disk.clone());
        assert_eq!(gate.configure(&Settings::default()), None);
        let open = snapshot("/here", &["/gone/a.txt", "/here/b.txt"]);

        let publishing = tokio::spawn({
            let (gate, open) = (Arc::clone(&gate), open.clone());
            async move { gate.publish(open).await }
        });
        // What Neovim's thread asks for the statusline waits for no disk.
        let begun = Instant::now();
        while !publishing.is_finished() {
            let asked = Instant::now();
            assert!(gate.sharing());
            assert!(asked.elapsed() < PATIENCE / 2, "{:?}", asked.elapsed());
            tokio::task::yield_now().await;
        }
        publishing.await.unwrap();
        assert!(begun.elapsed() < PATIENCE * 5, "{:?}", begun.elapsed());
        let again = Instant::now();
        assert_eq!(names(&*gate.publish(open.clone()).await), ["/here/b.txt"]);
        assert!(!gate.tells(Path::new("/gone/a.txt")).await);
        assert!(again.elapsed() < PATIENCE, "it is waited for once: {:?}", again.elapsed());

        drop(wake);
        disk.late().await;
        assert_eq!(names(&*gate.publish(open).await), ["/gone/a.txt", "/here/b.txt"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_was_said_counts_for_the_project_the_next_snapshot_names() {
        let dir = tempfile::tempdir().unwrap();
        let store = SharingStore::new(dir.path());
        let (gate, _out) = Gate::new(store.clone(), None, Disk::default());
        gate.share(Share::Off, None);
        assert!(!gate.publish(snapshot("/one", &["/one/a"])).await.sharing);
        assert_eq!(store.get(Path::new("/one")).unwrap(), Share::Off);
        assert!(gate.publish(snapshot("/two", &["/two/a"])).await.sharing);
        gate.share(Share::Off, None);
        // Neovim leaves before there is another snapshot.
        gate.settle();
        assert_eq!(store.get(Path::new("/two")).unwrap(), Share::Off);
        assert!(!gate.publish(snapshot("/one", &["/one/a"])).await.sharing);
        gate.share(Share::On, None);
        assert!(gate.publish(snapshot("/one", &["/one/a"])).await.sharing);
        assert_eq!(store.get(Path::new("/one")).unwrap(), Share::On);
    }
}
