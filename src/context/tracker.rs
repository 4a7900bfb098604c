//! From what Neovim's thread collected to a `Snapshot`, with the memory that needs: the file and
//! selection last seen while the user is in a terminal, and each file's diagnostics.
//!
//! Pure, any thread. Neovim's thread only packs bytes (`RawState`); they are read here.

use std::path::{Path, PathBuf};

use crate::context::Snapshot;

/// What `editor/watch` collected in one go, packed by `collect.lua`. Each one says only what
/// changed since the one before, so a `Tracker` must be given all of them, in order.
#[derive(Debug, Clone)]
pub struct RawState(Vec<u8>);

impl RawState {
    #[must_use]
    pub fn new(packed: Vec<u8>) -> Self {
        Self(packed)
    }
}

/// A `RawState` that cannot be read: library and `collect.lua` are of different versions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the collected state is malformed at byte {at}: {what} expected")]
pub struct Malformed {
    at: usize,
    what: &'static str,
}

/// What has to be asked of the file system. Slow on a bad day, so never on Neovim's thread.
pub trait Disk {
    /// The work tree (the folder that holds `.git`) `folder` lies in.
    fn work_tree(&self, folder: &Path) -> Option<PathBuf>;
    /// `path` without symbolic links; `path` itself where that cannot be told.
    fn real(&self, path: &Path) -> PathBuf;
}

/// Keeps the state that snapshots are made from.
#[derive(Debug, Default)]
pub struct Tracker {
    state: Snapshot,
}

impl Tracker {
    /// Takes in what was collected.
    ///
    /// # Errors
    /// `Malformed`, which leaves the state as it was.
    pub fn apply(&mut self, _raw: &RawState, _disk: &dyn Disk) -> Result<Snapshot, Malformed> {
        Ok(self.state.clone())
    }
}
