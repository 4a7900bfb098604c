//! The one gate everything passes on its way out: the privacy filter, with the sharing switches of
//! the projects.
//!
//! Any thread. The keeper of snapshots publishes through it; `:IdeShare` turns the switch, in another
//! Neovim as well. The file of switches is read and written on blocking threads, one at a time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::config::Settings;
use crate::context::Snapshot;
use crate::context::paths::real_path;
use crate::context::privacy::{DEFAULT_EXCLUDE, Privacy, Share, Switches, nearest};
use crate::context::tracker::Disk as _;
use crate::disk::{Asked, Disk, PATIENCE, within, work_tree};
use crate::sharing::SharingStore;

/// How long the remembered switches may take to read; then nothing is shared.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// How often it is looked what other Neovims were told.
const FOLLOW: Duration = Duration::from_secs(1);

struct State {
    /// In force, with the switches.
    privacy: Privacy,
    /// `context.enabled`; off is as if nothing were shared, whatever the switch says.
    enabled: bool,
    /// What the switch is turned for: see `project_of`.
    project: Option<PathBuf>,
    /// What the user said last, until the next snapshot tells about which project.
    said: Option<Share>,
    /// The switches as they are remembered.
    stored: Switches,
    /// False: others may have turned them since, while nobody looked.
    looked: bool,
    /// What was said here and is not remembered, or not yet.
    own: Switches,
    /// The last snapshot before the filter, to send again when a switch is turned.
    last: Option<Snapshot>,
}

impl State {
    /// `stored` with what was said here.
    fn switches(&self, stored: &Switches) -> Switches {
        let mut all = stored.clone();
        all.extend(self.own.clone());
        all
    }

    /// Puts the switches in force.
    fn renew(&mut self) {
        let switches = self.switches(&self.stored);
        let project = self.project.as_deref().unwrap_or(Path::new("/"));
        self.privacy.sharing = self.said.unwrap_or_else(|| nearest(&switches, project));
        self.privacy.switches = switches;
    }
}

/// What cannot be read may have said "off".
fn unknown() -> Switches {
    Switches::from([("/".into(), Share::Off)])
}

/// The project that a folder is in: its work tree, else the folder itself. All real paths.
fn project_of(folder: &Path, tree: Option<&Path>, home: Option<&Path>) -> PathBuf {
    // A home directory under version control (dotfiles) does not make all of it one project.
    tree.filter(|tree| Some(*tree) != home).unwrap_or(folder).to_path_buf()
}

type Tell = Box<dyn Fn(String) + Send + Sync>;

pub(super) struct Gate {
    state: Mutex<State>,
    store: SharingStore,
    /// Held while the file of switches is read or written and that is put in force.
    turn: Mutex<()>,
    out: watch::Sender<Arc<Snapshot>>,
    home: Option<PathBuf>,
    disk: Disk,
    tell: Tell,
}

impl Gate {
    /// `tell` shows the user a message.
    pub(super) fn new(
        store: SharingStore,
        home: Option<PathBuf>,
        disk: Disk,
        tell: impl Fn(String) + Send + Sync + 'static,
    ) -> (Arc<Self>, watch::Receiver<Arc<Snapshot>>) {
        let (out, snapshots) = watch::channel(Arc::new(Snapshot::default()));
        let state = State {
            privacy: Privacy::default(),
            enabled: true,
            project: None,
            said: None,
            stored: Switches::new(),
            looked: false,
            own: Switches::new(),
            last: None,
        };
        let (state, turn, tell) = (Mutex::new(state), Mutex::default(), Box::new(tell));
        (Arc::new(Self { state, store, turn, out, home, disk, tell }), snapshots)
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
            Ok(privacy) => {
                state.privacy = privacy;
                state.renew();
                self.send(&state);
                None
            }
            Err(error) => Some(format!("context.exclude: {error}")),
        }
    }

    /// Filters and hands out; the keeper's last step, on the runtime.
    pub(super) async fn publish(self: &Arc<Self>, mut snapshot: Snapshot) -> Arc<Snapshot> {
        let active = snapshot.active.iter().map(|file| (file.path.clone(), Asked::Fresh));
        let files = snapshot.files.iter().map(|file| file.path.clone());
        let others = files.chain(snapshot.diagnostics.keys().cloned()).chain(self.home.clone());
        let root = snapshot.roots.first().map(|root| (root.real.clone(), Asked::Folder));
        let others = others.map(|path| (path, Asked::File));
        self.disk.learn(active.chain(others).chain(root).collect()).await;
        let holds_text = |path: &Path| !self.disk.is_no_file(path);
        snapshot.active.take_if(|file| !holds_text(&file.path));
        snapshot.files.retain(|file| holds_text(&file.path));
        snapshot.diagnostics.retain(|path, _| holds_text(path));

        let project = snapshot.roots.first().map(|root| {
            let tree = self.disk.work_tree(&root.real);
            let home = self.home.as_deref().and_then(|home| self.disk.real(home));
            project_of(&root.real, tree.as_deref(), home.as_deref())
        });
        let looked = {
            let mut state = self.lock();
            std::mem::replace(&mut state.looked, true) && state.project == project
        };
        if !looked {
            self.look_now().await;
        }
        let (sent, said) = self.take(snapshot, project);
        if let Some(project) = said {
            let gate = Arc::clone(self);
            let write = tokio::task::spawn_blocking(move || {
                if let Some(problem) = gate.remember(&project) {
                    (gate.tell)(problem);
                }
            });
            if tokio::time::timeout(PATIENCE, write).await.is_err() {
                tracing::warn!("the sharing switch may not be remembered: the disk is slow");
            }
        }
        sent
    }

    /// Puts a snapshot in force; gives what was handed out, and which project something was newly
    /// said about.
    fn take(
        &self,
        snapshot: Snapshot,
        project: Option<PathBuf>,
    ) -> (Arc<Snapshot>, Option<PathBuf>) {
        let mut state = self.lock();
        let said = project.clone().and_then(|project| Some((project, state.said.take()?)));
        state.own.extend(said.clone());
        state.project = project;
        state.last = Some(snapshot);
        state.renew();
        (self.send(&state), said.map(|(project, _)| project))
    }

    async fn look_now(self: &Arc<Self>) {
        let gate = Arc::clone(self);
        let looking = tokio::task::spawn_blocking(move || gate.look());
        if tokio::time::timeout(READ_WITHIN, looking).await.is_err() {
            tracing::warn!("cannot read the sharing switches in time, sharing nothing");
            let mut state = self.lock();
            state.stored = unknown();
            state.renew();
        }
    }

    /// Reads what is remembered; true if that is something else than before. Blocks.
    fn look(&self) -> bool {
        let _turn = self.turn.lock();
        let stored = self.store.read();
        let mut state = self.lock();
        if *stored.as_ref().unwrap_or(&unknown()) == state.stored {
            return false;
        }
        state.stored = stored.unwrap_or_else(|error| {
            tracing::warn!("cannot read the sharing switches, sharing nothing: {error}");
            unknown()
        });
        state.renew();
        self.send(&state);
        true
    }

    /// Follows what other Neovims are told; `turned` when that is something new. Never ends.
    pub(super) async fn follow(self: Arc<Self>, turned: impl Fn()) {
        let mut tick = tokio::time::interval(FOLLOW);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let gate = Arc::clone(&self);
            if let Ok(true) = tokio::task::spawn_blocking(move || gate.look()).await {
                turned();
            }
        }
    }

    /// Turns the switch, at once for everybody. For which project the next snapshot says, which the
    /// caller has to ask for; `here` says it where there will be none. Returns what went wrong.
    pub(super) fn share(self: &Arc<Self>, share: Share, here: Option<PathBuf>) -> Option<String> {
        let mut state = self.lock();
        state.said = Some(share);
        state.renew();
        self.send(&state);
        state.project = Some(here?);
        drop(state);
        self.settle()
    }

    /// Remembers what was said since the last snapshot: there may be no other. Returns what went
    /// wrong.
    pub(super) fn settle(self: &Arc<Self>) -> Option<String> {
        let mut state = self.lock();
        state.looked = false;
        let project = state.project.clone()?;
        let share = state.said.take()?;
        state.own.insert(project.clone(), share);
        drop(state);
        let gate = Arc::clone(self);
        within(move || gate.remember(&project)).unwrap_or_else(|| {
            Some("the sharing switch may not be remembered: the disk is slow".into())
        })
    }

    /// Remembers what was said about a project; what to tell the user if that cannot be. Blocks.
    fn remember(&self, project: &Path) -> Option<String> {
        let _turn = self.turn.lock();
        let share = *self.lock().own.get(project)?;
        match self.store.set(project, share) {
            Ok(stored) => {
                let mut state = self.lock();
                // Another word may have come meanwhile, which is remembered next.
                if state.own.get(project) == Some(&share) {
                    state.own.remove(project);
                }
                state.stored = stored;
                state.renew();
                self.send(&state);
                None
            }
            Err(error) => {
                Some(format!("the sharing switch is not remembered once you leave: {error}"))
            }
        }
    }

    #[must_use]
    pub(super) fn sharing(&self) -> bool {
        self.lock().privacy.sharing == Share::On
    }

    /// The project that `folder`, as it is spelled, is in; `None` when the disk does not say.
    pub(super) fn project_here(&self, folder: PathBuf) -> Option<PathBuf> {
        let home = self.home.clone();
        let ask = move || {
            let (folder, home) = (real_path(&folder)?, home.as_deref().and_then(real_path));
            Some(project_of(&folder, work_tree(&folder), home.as_deref()))
        };
        within(ask).flatten()
    }

    /// What counts for a project before there is a snapshot: while stopped.
    pub(super) fn sharing_of(&self, project: &Path) -> bool {
        let store = self.store.clone();
        let stored = within(move || store.read().ok()).flatten().unwrap_or_else(unknown);
        let state = self.lock();
        let share = state.said.unwrap_or_else(|| nearest(&state.switches(&stored), project));
        share == Share::On
    }

    /// Where a file's links lead, as far as the file system says that in time; on the runtime.
    pub(super) async fn real(&self, path: &Path) -> Option<PathBuf> {
        self.disk.learn(vec![(path.to_path_buf(), Asked::Fresh)]).await;
        self.disk.real(path)
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

    fn gate(store: &SharingStore, disk: Disk) -> (Arc<Gate>, watch::Receiver<Arc<Snapshot>>) {
        Gate::new(store.clone(), None, disk, |message| panic!("{message}"))
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.files.iter().map(|file| file.path.to_str().unwrap()).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_file_on_a_disk_that_hangs_is_private_and_holds_up_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, wake) = Disk::hanging("/gone");
        let (gate, _out) = gate(&SharingStore::new(dir.path()), disk.clone());
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
        let (gate, _out) = gate(&store, Disk::default());
        let get = |project: &str| nearest(&store.read().unwrap(), Path::new(project));
        gate.share(Share::Off, None);
        assert!(!gate.publish(snapshot("/one", &["/one/a"])).await.sharing);
        assert_eq!(get("/one"), Share::Off);
        assert!(gate.publish(snapshot("/two", &["/two/a"])).await.sharing);
        gate.share(Share::Off, None);
        // Neovim leaves before there is another snapshot.
        gate.settle();
        assert_eq!(get("/two"), Share::Off);
        assert!(!gate.publish(snapshot("/one", &["/one/a"])).await.sharing);
        gate.share(Share::On, None);
        assert!(gate.publish(snapshot("/one", &["/one/a"])).await.sharing);
        assert_eq!(get("/one"), Share::On);
    }

    /// A work tree with a folder in it, and one beside it, each with a file.
    fn trees() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for made in ["repo/.git", "repo/sub", "else", "state"] {
            std::fs::create_dir_all(root.join(made)).unwrap();
        }
        for file in ["repo/sub/a.txt", "else/b.txt"] {
            std::fs::write(root.join(file), "").unwrap();
        }
        (dir, root)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_switch_is_of_the_work_tree_and_its_files_are_private_from_everywhere() {
        let (_dir, root) = trees();
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        let store = SharingStore::new(root.join("state"));
        let (gate, _out) = gate(&store, Disk::default());
        let (a, b, folder) = (at("repo/sub/a.txt"), at("else/b.txt"), at("repo/sub"));
        let seen = |from: &str| snapshot(&at(from), &[&a, &b, &folder]);
        assert_eq!(names(&*gate.publish(seen("repo/sub")).await), [&a, &b], "no folder is a file");
        gate.share(Share::Off, None);
        assert!(!gate.publish(seen("repo/sub")).await.sharing);
        assert_eq!(store.read().unwrap(), Switches::from([(root.join("repo"), Share::Off)]));
        assert!(!gate.publish(seen("repo")).await.sharing, "the work tree itself");
        let elsewhere = gate.publish(seen("else")).await;
        assert!(elsewhere.sharing && names(&elsewhere) == [&b]);
        assert!(!gate.tells(Path::new(&a)).await && gate.tells(Path::new(&b)).await);
        for (folder, shared) in [("repo", false), ("repo/sub", false), ("else", true)] {
            let project = gate.project_here(root.join(folder)).unwrap();
            assert_eq!(gate.sharing_of(&project), shared, "{folder}, while stopped");
        }
        gate.publish(seen("repo/sub")).await;
        gate.share(Share::On, None);
        assert_eq!(names(&*gate.publish(seen("repo/sub")).await), [&a, &b]);
    }

    #[test]
    fn a_home_under_version_control_is_not_the_project_of_all_in_it() {
        let (home, folder) = (Path::new("/home/u"), Path::new("/home/u/p"));
        assert_eq!(project_of(folder, Some(home), Some(home)), folder);
        assert_eq!(project_of(folder, Some(home), None), home);
        assert_eq!(project_of(folder, None, Some(home)), folder);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_another_neovim_is_told_is_followed() {
        let (_dir, root) = trees();
        let store = SharingStore::new(root.join("state"));
        let here = snapshot("/here", &["/here/a"]);
        let (one, _out) = gate(&store, Disk::default());
        let (other, mut out) = gate(&store, Disk::default());
        other.publish(here.clone()).await;
        let (turned, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let follow = Arc::clone(&other).follow(move || _ = turned.send(()));
        let following = tokio::spawn(follow);
        one.publish(here.clone()).await;
        for share in [Share::Off, Share::On] {
            one.share(share, None);
            one.publish(here.clone()).await;
            let told = tokio::time::timeout(FOLLOW * 3, async {
                out.wait_for(|told| told.sharing == (share == Share::On)).await.unwrap();
                heard.recv().await.unwrap();
            });
            told.await.unwrap();
            assert_eq!(other.sharing(), share == Share::On);
        }
        following.abort();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_cannot_be_remembered_holds_here_and_is_said() {
        let (_dir, root) = trees();
        let store = SharingStore::new(root.join("state"));
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let (gate, _out) = Gate::new(store, None, Disk::default(), move |message| {
            tell.lock().unwrap().push(message);
        });
        // No file can be put in the place of a folder.
        std::fs::create_dir_all(root.join("state/sharing.lock")).unwrap();
        gate.publish(snapshot("/here", &["/here/a"])).await;
        gate.share(Share::Off, None);
        for root in ["/here", "/there", "/here"] {
            let sharing = gate.publish(snapshot(root, &["/here/a"])).await.sharing;
            assert_eq!(sharing, root == "/there");
            assert!(!gate.look(), "nothing else is remembered");
        }
        assert!(!gate.sharing());
        let told = told.lock().unwrap().clone();
        assert!(told.len() == 1 && told[0].contains("not remembered"), "{told:?}");
        assert!(gate.share(Share::Off, Some("/here".into())).is_some(), "and while stopped");
    }
}
