//! Lock files: how agents find this Neovim and prove that its user let them.
//!
//! One file for each family, named after our port: `places` says where, `form` what is in it,
//! `stale` which may go. All calls read and write files and try ports: never on Neovim's thread.
//! One family failing never undoes the other, and a file that is not ours any more (another
//! process id or token) is neither overwritten nor removed.

mod form;
mod places;
mod stale;

use std::path::{Path, PathBuf};

use super::auth::{Credentials, Token};
use crate::agents::mcp::Family;
use crate::files;
use form::{Content, Seen};
pub use form::{Lock, locks_in};
pub use places::Environment;

/// Larger ones are no lock files, in bytes.
const MAX_LOCK: u64 = 1 << 20;

/// A family's lock file could not be made. Names the file; agents of other families may be fine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LockError {
    pub family: Family,
    pub message: String,
}

/// Our lock files. Removed when dropped.
#[derive(Debug)]
pub struct LockFiles {
    environment: Environment,
    port: u16,
    pid: u32,
    folders: Vec<String>,
    name: String,
    /// When this was first published, in milliseconds since the Unix epoch.
    since: u64,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    family: Family,
    token: Token,
    path: PathBuf,
    /// What we have told about it already.
    trouble: Option<String>,
}

/// What is in a place where our lock file should be.
enum Found {
    Ours(Vec<u8>),
    Nothing,
    Foreign,
}

impl LockFiles {
    /// Cleans up after crashed Neovims and writes a lock file for each credential. Errors are for
    /// the user to see; `check` tries again.
    #[must_use]
    pub fn publish(
        environment: &Environment,
        port: u16,
        credentials: &Credentials,
        roots: &[&Path],
    ) -> (Self, Vec<LockError>) {
        let mut errors = Vec::new();
        let mut entries = Vec::new();
        for (family, token) in credentials.iter() {
            match environment.directory(family) {
                Ok(directory) => {
                    stale::sweep(family, &directory);
                    let name = form::file_name(family, port, std::process::id());
                    let path = directory.join(name);
                    entries.push(Entry { family, token: token.clone(), path, trouble: None });
                }
                // Whoever has no home has not been here either.
                Err(_) if environment.auto.contains(&family) => {}
                Err(error) => errors.push(error),
            }
        }
        let mut out = Self {
            environment: environment.clone(),
            port,
            pid: std::process::id(),
            folders: Vec::new(),
            name: String::new(),
            since: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            entries,
        };
        out.set_roots(roots);
        out.name = out.distinct_name(|_| true);
        for index in 0..out.entries.len() {
            // Whatever is there is stale: the port is ours.
            if out.is_due(&out.entries[index]) {
                errors.extend(out.write(index));
            }
        }
        (out, errors)
    }

    /// Copilot CLI can be sent to this socket from now on.
    pub fn set_socket(&mut self, path: PathBuf) -> Vec<LockError> {
        self.environment.socket = Some(path);
        self.renew(|found, wanted| found != wanted)
    }

    /// This family's agent has a reason to look for us.
    fn is_due(&self, entry: &Entry) -> bool {
        let family = entry.family;
        (family != Family::Copilot || self.environment.socket.is_some())
            && (!self.environment.auto.contains(&family) || self.environment.is_used(family))
    }

    /// Tells agents about other folders. Does nothing when they are the same.
    pub fn rewrite(&mut self, roots: &[&Path]) -> Vec<LockError> {
        let before = (self.folders.clone(), self.name.clone());
        self.set_roots(roots);
        self.name = self.distinct_name(|_| true);
        if before == (self.folders.clone(), self.name.clone()) {
            return Vec::new();
        }
        self.renew(|_, _| true)
    }

    /// Puts back what somebody deleted. Cheap: to be called now and then, and on focus.
    pub fn check(&mut self) -> Vec<LockError> {
        // Two Neovims that started together may have taken one name: the one behind changes.
        let port = self.port;
        self.name = self.distinct_name(|other| other < port);
        self.renew(|found, wanted| found != wanted)
    }

    /// The files as they should be, for `status()`.
    #[must_use]
    pub fn paths(&self) -> Vec<(Family, PathBuf)> {
        let due = self.entries.iter().filter(|entry| self.is_due(entry));
        due.map(|entry| (entry.family, entry.path.clone())).collect()
    }

    /// Removes what is still ours.
    pub fn remove(&mut self) {
        for entry in self.entries.drain(..) {
            if let Found::Ours(_) = find(&entry, self.pid) {
                let _ = std::fs::remove_file(&entry.path);
            }
        }
    }

    fn set_roots(&mut self, roots: &[&Path]) {
        self.folders = roots.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    }

    /// Writes every file that is missing, or ours and outdated.
    fn renew(&mut self, outdated: impl Fn(&[u8], &[u8]) -> bool) -> Vec<LockError> {
        let mut errors = Vec::new();
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if !self.is_due(entry) {
                continue;
            }
            let write = match find(entry, self.pid) {
                Found::Nothing => true,
                Found::Ours(bytes) => outdated(&bytes, &self.content(entry)),
                Found::Foreign => false,
            };
            if write {
                errors.extend(self.write(index));
            }
        }
        errors
    }

    /// An error only when it says something new.
    fn write(&mut self, index: usize) -> Option<LockError> {
        let content = self.content(&self.entries[index]);
        let entry = &mut self.entries[index];
        let directory = entry.path.parent().unwrap_or(Path::new("/"));
        let written = files::private_dir(directory)
            .and_then(|()| files::write_private(&entry.path, &content));
        let trouble = written.err().map(|error| error.to_string());
        let news = trouble.clone().filter(|_| trouble != entry.trouble);
        entry.trouble = trouble;
        news.map(|message| LockError { family: entry.family, message })
    }

    fn content(&self, entry: &Entry) -> Vec<u8> {
        let content = Content {
            pid: self.pid,
            port: self.port,
            folders: &self.folders,
            name: &self.name,
            token: entry.token.secret(),
            socket: self.environment.socket.as_deref(),
            since: self.since,
        };
        content.bytes(entry.family)
    }

    /// `Neovim (project)`; with our process id behind it when another Neovim that is running, and
    /// whose port `before` says is to be minded, has that name.
    fn distinct_name(&self, before: impl Fn(u16) -> bool) -> String {
        let root = self.folders.first().map(Path::new).unwrap_or(Path::new("/"));
        let project = root.file_name().unwrap_or(root.as_os_str()).to_string_lossy();
        let project: String = project.chars().filter(|c| !c.is_control()).collect();
        let (plain, distinct) =
            (format!("Neovim ({project})"), format!("Neovim ({project}, {})", self.pid));
        if self.name == distinct {
            return distinct;
        }
        let taken = self.entries.iter().any(|entry| {
            let directory = entry.path.parent().unwrap_or(Path::new("/"));
            stale::seen_in(entry.family, directory).into_iter().any(|(_, other)| {
                let different = other.port != self.port && other.pid != self.pid;
                different && before(other.port) && other.name == plain && files::is_alive(other.pid)
            })
        });
        if taken { distinct } else { plain }
    }
}

impl Drop for LockFiles {
    fn drop(&mut self) {
        self.remove();
    }
}

fn find(entry: &Entry, pid: u32) -> Found {
    let name = entry.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match files::read_own(&entry.path, MAX_LOCK) {
        Ok(bytes) => match Seen::read(entry.family, &name, &bytes) {
            Some(seen) if seen.pid == pid && seen.token == entry.token.secret() => {
                Found::Ours(bytes)
            }
            _ => Found::Foreign,
        },
        Err(error) if error.is_missing() => Found::Nothing,
        // The directory itself may be gone, or a file may be in its place: writing will tell.
        Err(_) if !entry.path.parent().is_some_and(Path::is_dir) => Found::Nothing,
        Err(_) => Found::Foreign,
    }
}

#[cfg(test)]
mod tests;
