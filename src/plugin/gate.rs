//! The one gate everything passes on its way out: the privacy filter, with the project's sharing
//! switch.
//!
//! Any thread. The keeper of snapshots publishes through it; `:IdeShare` turns it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::config::Settings;
use crate::context::Snapshot;
use crate::context::privacy::{DEFAULT_EXCLUDE, Privacy, Share};
use crate::sharing::SharingStore;

struct State {
    privacy: Privacy,
    /// `context.enabled`; off is as if nothing were shared, whatever the switch says.
    enabled: bool,
    /// The project the switch was read for: the first root's real path.
    project: Option<PathBuf>,
    /// The last snapshot before the filter, to send again when the switch is turned.
    last: Option<Snapshot>,
}

pub(super) struct Gate {
    state: Mutex<State>,
    store: SharingStore,
    out: watch::Sender<Arc<Snapshot>>,
    home: Option<PathBuf>,
}

impl Gate {
    pub(super) fn new(
        store: SharingStore,
        home: Option<PathBuf>,
    ) -> (Arc<Self>, watch::Receiver<Arc<Snapshot>>) {
        let (out, snapshots) = watch::channel(Arc::new(Snapshot::default()));
        let state = State { privacy: Privacy::default(), enabled: true, project: None, last: None };
        (Arc::new(Self { state: Mutex::new(state), store, out, home }), snapshots)
    }

    /// Takes the patterns in force; says which one is wrong.
    pub(super) fn configure(&self, settings: &Settings) -> Option<String> {
        let mut state = self.lock();
        state.enabled = settings.context;
        let sharing = state.privacy.sharing;
        let made = match &settings.exclude {
            Some(patterns) => Privacy::new(patterns, self.home.as_deref(), sharing),
            None => Privacy::new(DEFAULT_EXCLUDE, self.home.as_deref(), sharing),
        };
        match made {
            Ok(privacy) => {
                state.privacy = privacy;
                None
            }
            Err(error) => Some(format!("context.exclude: {error}")),
        }
    }

    /// Filters and hands out; the keeper's last step, on a runtime thread.
    pub(super) fn publish(&self, snapshot: Snapshot) -> Arc<Snapshot> {
        let mut state = self.lock();
        let project = snapshot.roots.first().map(|root| root.real.clone());
        if project != state.project {
            // Something that cannot be read may have said "off".
            let share = project.as_ref().map_or(Ok(Share::On), |dir| self.store.get(dir));
            state.privacy.sharing = share.unwrap_or_else(|error| {
                tracing::warn!("cannot read the sharing switch, sharing nothing: {error}");
                Share::Off
            });
            state.project = project;
        }
        state.last = Some(snapshot);
        self.send(&state)
    }

    /// Turns the switch for the present project, at once for everybody and remembered.
    pub(super) fn share(&self, share: Share) {
        let mut state = self.lock();
        state.privacy.sharing = share;
        self.send(&state);
        if let Some(project) = state.project.clone() {
            drop(state);
            if let Err(error) = self.store.set(&project, share) {
                tracing::warn!("the sharing switch is not remembered: {error}");
            }
        }
    }

    #[must_use]
    pub(super) fn sharing(&self) -> bool {
        self.lock().privacy.sharing == Share::On
    }

    /// The file may be mentioned without asking first.
    pub(super) fn allows(&self, path: &Path) -> bool {
        self.lock().privacy.allows(path)
    }

    fn send(&self, state: &State) -> Arc<Snapshot> {
        let filter = |last: &Snapshot| {
            if state.enabled {
                return state.privacy.filter(last);
            }
            let mut nothing = state.privacy.clone();
            nothing.sharing = Share::Off;
            nothing.filter(last)
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
