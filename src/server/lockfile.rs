//! Lock files: how agents find this Neovim and prove that its user let them.
//!
//! One file for each family, named after our port. All calls read and write files and try ports:
//! never on Neovim's thread. One family failing never undoes the other, and a file that is not ours
//! any more (another process id or token) is neither overwritten nor removed.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::auth::{Credentials, Token};
use crate::agents::mcp::Family;
use crate::files;

/// Larger ones are no lock files, in bytes.
const MAX_LOCK: u64 = 1 << 20;
/// A closed port of this machine refuses at once; a full one does not answer.
const PROBE: Duration = Duration::from_millis(200);

/// What is in a lock file; the fields that agents read and no others.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// Neovim's process id; agents and we ourselves take a lock with a dead one for stale.
    pub pid: u32,
    /// Absolute. Agents compare these as strings with their working directory, so links are there
    /// in both spellings.
    #[serde(default)]
    pub workspace_folders: Vec<String>,
    #[serde(default)]
    pub ide_name: String,
    /// Always "ws".
    #[serde(default)]
    pub transport: String,
    /// Claude Code reads it under WSL.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub running_in_windows: Option<bool>,
    pub auth_token: String,
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pid, workspace_folders, ide_name, .. } = self;
        f.debug_struct("Lock")
            .field("pid", pid)
            .field("workspace_folders", workspace_folders)
            .field("ide_name", ide_name)
            .finish_non_exhaustive()
    }
}

/// The variables that say where lock files are, as Neovim has them now (it can change them while
/// it runs); empty ones count as unset.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `$HOME`.
    pub home: Option<PathBuf>,
    /// `$PI_IDE_LOCK_DIR`: the directory itself.
    pub pi_lock_dir: Option<PathBuf>,
    /// `$CLAUDE_CONFIG_DIR`: its `ide` is the directory.
    pub claude_config_dir: Option<PathBuf>,
    /// What relative values are relative to.
    pub cwd: PathBuf,
}

impl Environment {
    /// Where the family's agents look. Values are taken literally but for a leading `~`.
    ///
    /// # Errors
    /// When that needs a home directory and there is none.
    pub fn directory(&self, family: Family) -> Result<PathBuf, LockError> {
        let set = |value: &Option<PathBuf>| value.clone().filter(|v| !v.as_os_str().is_empty());
        let (variable, value, default, below) = match family {
            Family::Pi => ("PI_IDE_LOCK_DIR", &self.pi_lock_dir, "~/.pi/ide", ""),
            Family::Claude => ("CLAUDE_CONFIG_DIR", &self.claude_config_dir, "~/.claude", "ide"),
        };
        let path = set(value).unwrap_or_else(|| default.into());
        let home = set(&self.home);
        let path = files::expand_home(&path, home.as_deref()).ok_or_else(|| LockError {
            family,
            message: format!(
                "HOME is not set, so {} is nowhere; set HOME or {variable}",
                path.display()
            ),
        })?;
        // Collecting the components cuts trailing slashes.
        Ok(self.cwd.join(path).join(below).components().collect())
    }
}

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
    port: u16,
    pid: u32,
    folders: Vec<String>,
    name: String,
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
                    sweep(&directory);
                    let path = directory.join(format!("{port}.lock"));
                    entries.push(Entry { family, token: token.clone(), path, trouble: None });
                }
                Err(error) => errors.push(error),
            }
        }
        let mut out = Self {
            port,
            pid: std::process::id(),
            folders: Vec::new(),
            name: String::new(),
            entries,
        };
        out.set_roots(roots);
        out.name = out.distinct_name(|_| true);
        for index in 0..out.entries.len() {
            // Whatever is there is stale: the port is ours.
            errors.extend(out.write(index));
        }
        (out, errors)
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
        self.entries.iter().map(|entry| (entry.family, entry.path.clone())).collect()
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
        let lock = Lock {
            pid: self.pid,
            workspace_folders: self.folders.clone(),
            ide_name: self.name.clone(),
            transport: "ws".into(),
            running_in_windows: (entry.family == Family::Claude).then_some(false),
            auth_token: entry.token.secret().into(),
        };
        // Numbers and strings: there is nothing in it that JSON could not say.
        serde_json::to_vec(&lock).unwrap_or_default()
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
        let taken = self.entries.iter().filter_map(|entry| entry.path.parent()).any(|directory| {
            locks_in(directory).any(|(port, lock)| {
                let other = port != self.port && lock.pid != self.pid && before(port);
                other && lock.ide_name == plain && is_alive(lock.pid)
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
    match files::read_own(&entry.path, MAX_LOCK) {
        Ok(bytes) => match serde_json::from_slice::<Lock>(&bytes) {
            Ok(lock) if lock.pid == pid && lock.auth_token == entry.token.secret() => {
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

/// The readable lock files of a directory, with their ports.
pub fn locks_in(directory: &Path) -> impl Iterator<Item = (u16, Lock)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let path = entry.path();
        let name = path.file_name()?.to_str()?;
        let port = name.strip_suffix(".lock")?.parse().ok()?;
        let bytes = files::read_own(&path, MAX_LOCK).ok()?;
        Some((port, serde_json::from_slice(&bytes).ok()?))
    })
}

/// Removes what crashed Neovims left in `directory`: lock files with our kind of name whose
/// process is gone and whose port is closed, and unfinished ones. Nothing of anybody else.
fn sweep(directory: &Path) {
    for (port, lock) in locks_in(directory) {
        let ours = lock.ide_name.starts_with("Neovim (") && lock.ide_name.ends_with(')');
        if ours && !is_alive(lock.pid) && !is_open(port) {
            let path = directory.join(format!("{port}.lock"));
            tracing::info!(path = %path.display(), "removing a stale lock file");
            let _ = std::fs::remove_file(path);
        }
    }
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            name.strip_prefix(".gangway-")?.strip_suffix(".tmp")?.split('-').next()?.parse().ok()
        });
        if pid.is_some_and(|pid| !is_alive(pid)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A process of that id runs, whoever's it is.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| match rustix::process::test_kill_process(pid) {
        Ok(()) => true,
        Err(error) => error == rustix::io::Errno::PERM,
    })
}

fn is_open(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpStream::connect_timeout(&address, PROBE) {
        Ok(_) => true,
        // Only a refusal says that nobody listens.
        Err(error) => error.kind() != std::io::ErrorKind::ConnectionRefused,
    }
}
