//! Lock files: how agents find this Neovim and prove that its user let them.
//!
//! One file for each family, named after our port. What is in it, and where it is, differs from
//! family to family: `content` and `Environment` say how. All calls read and write files and try ports:
//! never on Neovim's thread. One family failing never undoes the other, and a file that is not ours
//! any more (another process id or token) is neither overwritten nor removed.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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
    /// `$QWEN_HOME`, in place of `~/.qwen`.
    pub qwen_home: Option<PathBuf>,
    /// `$COPILOT_HOME`, in place of `~/.copilot`.
    pub copilot_home: Option<PathBuf>,
    /// `$XDG_DATA_HOME`; Amp goes by it on Linux.
    pub xdg_data_home: Option<PathBuf>,
    /// `$TMPDIR`, `$TMP`, `$TEMP`: the first that is set is where Gemini CLI looks.
    pub temporary: [Option<PathBuf>; 3],
    /// What relative values are relative to.
    pub cwd: PathBuf,
    /// The socket file that Copilot CLI is sent to.
    pub socket: Option<PathBuf>,
    /// Families that are published only where their agent has been: its own directory exists.
    pub auto: Vec<Family>,
}

fn set(value: Option<&PathBuf>) -> Option<PathBuf> {
    value.cloned().filter(|value| !value.as_os_str().is_empty())
}

impl Environment {
    /// Where the family's agents look. Values are taken literally but for a leading `~`.
    ///
    /// # Errors
    /// When that needs a home directory and there is none.
    pub fn directory(&self, family: Family) -> Result<PathBuf, LockError> {
        let (variable, path) = self.named(family);
        let below = match family {
            Family::Pi => "",
            Family::Claude | Family::Qwen | Family::Copilot => "ide",
            Family::Gemini => "gemini/ide",
            Family::Amp => "amp/ide",
        };
        let home = set(self.home.as_ref());
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

    /// The variable that says where the family's directory is, and what it says.
    fn named(&self, family: Family) -> (&'static str, PathBuf) {
        let (variable, value, default) = match family {
            Family::Pi => ("PI_IDE_LOCK_DIR", set(self.pi_lock_dir.as_ref()), "~/.pi/ide"),
            Family::Claude => {
                ("CLAUDE_CONFIG_DIR", set(self.claude_config_dir.as_ref()), "~/.claude")
            }
            Family::Gemini => {
                ("TMPDIR", self.temporary.iter().find_map(|value| set(value.as_ref())), "/tmp")
            }
            Family::Qwen => ("QWEN_HOME", set(self.qwen_home.as_ref()), "~/.qwen"),
            Family::Copilot => ("COPILOT_HOME", set(self.copilot_home.as_ref()), "~/.copilot"),
            Family::Amp if cfg!(target_os = "linux") => {
                ("XDG_DATA_HOME", set(self.xdg_data_home.as_ref()), "~/.local/share")
            }
            Family::Amp => ("XDG_DATA_HOME", None, "~/.local/share"),
        };
        (variable, value.unwrap_or_else(|| default.into()))
    }

    /// The agent of this family has been here: it leaves a directory behind wherever it runs.
    #[must_use]
    pub fn is_used(&self, family: Family) -> bool {
        let own = match family {
            // Its settings are not where it looks for us.
            Family::Gemini => {
                let home = set(self.home.as_ref());
                files::expand_home(Path::new("~/.gemini"), home.as_deref())
            }
            _ => self.directory(family).ok().and_then(|dir| dir.parent().map(Path::to_path_buf)),
        };
        own.is_some_and(|own| own.is_dir())
    }

    fn file_name(family: Family, port: u16, pid: u32) -> String {
        match family {
            Family::Gemini => format!("gemini-ide-server-{pid}-{port}.json"),
            Family::Amp => format!("{port}.json"),
            _ => format!("{port}.lock"),
        }
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
                    sweep(family, &directory);
                    let name = Environment::file_name(family, port, std::process::id());
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
        let token = entry.token.secret();
        let (pid, port, folders, name) = (self.pid, self.port, &self.folders, &self.name);
        let written = match entry.family {
            Family::Pi | Family::Claude => serde_json::to_vec(&Lock {
                pid,
                workspace_folders: folders.clone(),
                ide_name: name.clone(),
                transport: "ws".into(),
                running_in_windows: (entry.family == Family::Claude).then_some(false),
                auth_token: token.into(),
            }),
            // Without `ideInfo` it serves only terminals of editors it knows by name. The process
            // id is in the file's name.
            Family::Gemini => serde_json::to_vec(&json!({
                "port": port,
                "workspacePath": folders.join(":"),
                "authToken": token,
                "ideInfo": {"name": "neovim", "displayName": name},
            })),
            // A file without `ppid`, or with a dead one, is deleted by the agent.
            Family::Qwen => serde_json::to_vec(&json!({
                "port": port,
                "workspacePath": folders.join(":"),
                "ppid": pid,
                "authToken": token,
                "ideName": name,
                "ideInfo": {"name": "neovim", "displayName": name},
            })),
            Family::Copilot => serde_json::to_vec(&json!({
                "socketPath": self.environment.socket.as_deref().map(Path::to_string_lossy),
                "scheme": "unix",
                "headers": {"Authorization": format!("Nonce {token}")},
                "pid": pid,
                "timestamp": self.since,
                "workspaceFolders": folders,
                "ideName": name,
            })),
            Family::Amp => serde_json::to_vec(&json!({
                "workspaceFolders": folders,
                "port": port,
                "ideName": name,
                "authToken": token,
                "pid": pid,
            })),
        };
        // Numbers and strings: there is nothing in it that JSON could not say.
        written.unwrap_or_default()
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
            seen_in(entry.family, directory).into_iter().any(|(_, other)| {
                let different = other.port != self.port && other.pid != self.pid;
                different && before(other.port) && other.name == plain && is_alive(other.pid)
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

/// The readable lock files of Pi's or Claude Code's directory, with their ports.
pub fn locks_in(directory: &Path) -> impl Iterator<Item = (u16, Lock)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let path = entry.path();
        let port = path.file_name()?.to_str()?.strip_suffix(".lock")?.parse().ok()?;
        let bytes = files::read_own(&path, MAX_LOCK).ok()?;
        Some((port, serde_json::from_slice(&bytes).ok()?))
    })
}

/// What the lock files of all families say, each in its own words.
struct Seen {
    pid: u32,
    port: u16,
    name: String,
    token: String,
    socket: Option<PathBuf>,
}

impl Seen {
    fn read(family: Family, file_name: &str, bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let (stem, extension) = file_name.rsplit_once('.')?;
        let named = match family {
            Family::Gemini => {
                let (pid, port) = stem.strip_prefix("gemini-ide-server-")?.split_once('-')?;
                (extension == "json").then_some((pid.parse().ok(), port))?
            }
            Family::Amp => (extension == "json").then_some((None, stem))?,
            _ => (extension == "lock").then_some((None, stem))?,
        };
        let port = named.1.parse().ok()?;
        let (pid, name, token) = match family {
            Family::Gemini => {
                (named.0, text(&value["ideInfo"]["displayName"]), text(&value["authToken"]))
            }
            Family::Qwen => {
                (number(&value["ppid"]), text(&value["ideName"]), text(&value["authToken"]))
            }
            Family::Copilot => (
                number(&value["pid"]),
                text(&value["ideName"]),
                text(&value["headers"]["Authorization"])
                    .and_then(|value| value.strip_prefix("Nonce ").map(str::to_owned)),
            ),
            Family::Pi | Family::Claude | Family::Amp => {
                (number(&value["pid"]), text(&value["ideName"]), text(&value["authToken"]))
            }
        };
        let socket = text(&value["socketPath"]).map(PathBuf::from);
        Some(Self { pid: pid?, port, name: name.unwrap_or_default(), token: token?, socket })
    }
}

/// The readable lock files of a family's directory.
fn seen_in(family: Family, directory: &Path) -> Vec<(PathBuf, Seen)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let read = entries.filter_map(|entry| {
        let path = entry.path();
        let bytes = files::read_own(&path, MAX_LOCK).ok()?;
        let seen = Seen::read(family, path.file_name()?.to_str()?, &bytes)?;
        Some((path, seen))
    });
    read.collect()
}

/// Removes what crashed Neovims left in `directory`: lock files with our kind of name whose
/// process is gone and whose port is closed, and unfinished ones. Nothing of anybody else.
fn sweep(family: Family, directory: &Path) {
    for (path, seen) in seen_in(family, directory) {
        let ours = seen.name.starts_with("Neovim (") && seen.name.ends_with(')');
        if ours && !is_alive(seen.pid) && !is_open(seen.port) {
            tracing::info!(path = %path.display(), "removing a stale lock file");
            let _ = std::fs::remove_file(path);
            if let Some(socket) = seen.socket {
                super::remove_socket(&socket);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    struct Case {
        dir: tempfile::TempDir,
        environment: Environment,
        credentials: Credentials,
        /// Keeps the port ours.
        _listener: TcpListener,
        port: u16,
    }

    impl Case {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            Self {
                environment: Environment {
                    home: Some(dir.path().into()),
                    cwd: "/work".into(),
                    ..Environment::default()
                },
                port: listener.local_addr().unwrap().port(),
                credentials: Credentials::generate([Family::Pi, Family::Claude]).unwrap(),
                _listener: listener,
                dir,
            }
        }

        fn publish(&self, roots: &[&str]) -> (LockFiles, Vec<LockError>) {
            let roots: Vec<&Path> = roots.iter().map(Path::new).collect();
            LockFiles::publish(&self.environment, self.port, &self.credentials, &roots)
        }

        fn path(&self, family: Family) -> PathBuf {
            let directory = self.environment.directory(family).unwrap();
            directory.join(format!("{}.lock", self.port))
        }

        fn lock(&self, family: Family) -> Lock {
            serde_json::from_slice(&std::fs::read(self.path(family)).unwrap()).unwrap()
        }

        /// A lock file of somebody else's.
        fn plant(&self, family: Family, port: u16, pid: u32, name: &str) -> PathBuf {
            let directory = self.environment.directory(family).unwrap();
            std::fs::create_dir_all(&directory).unwrap();
            let path = directory.join(format!("{port}.lock"));
            let lock = Lock {
                pid,
                workspace_folders: vec!["/x".into()],
                ide_name: name.into(),
                transport: "ws".into(),
                running_in_windows: None,
                auth_token: "theirs".into(),
            };
            std::fs::write(&path, serde_json::to_vec(&lock).unwrap()).unwrap();
            path
        }
    }

    /// The id of a process that has ended.
    fn dead_pid() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        pid
    }

    fn closed_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn each_family_gets_its_fields_and_both_go_together() {
        let case = Case::new();
        let (files, errors) = case.publish(&["/work/proj", "/real/proj"]);
        assert_eq!(errors, []);
        let pid = std::process::id();
        for family in [Family::Pi, Family::Claude] {
            let token = case.credentials.token(family).unwrap().secret();
            let text = std::fs::read_to_string(case.path(family)).unwrap();
            let windows =
                if family == Family::Claude { r#""runningInWindows":false,"# } else { "" };
            assert_eq!(
                text,
                format!(
                    r#"{{"pid":{pid},"workspaceFolders":["/work/proj","/real/proj"],"ideName":"Neovim (proj)","transport":"ws",{windows}"authToken":"{token}"}}"#
                )
            );
            let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&case.path(family)), 0o600);
            assert_eq!(mode(case.path(family).parent().unwrap()), 0o700);
        }
        assert!(case.path(Family::Pi).starts_with(case.dir.path().join(".pi/ide")));
        assert!(case.path(Family::Claude).starts_with(case.dir.path().join(".claude/ide")));
        drop(files);
        assert!(!case.path(Family::Pi).exists() && !case.path(Family::Claude).exists());
    }

    #[test]
    fn directories_are_taken_literally() {
        let directory = |family, value: &str| {
            let mut environment = Environment {
                home: Some("/home/u".into()),
                cwd: "/work".into(),
                ..Environment::default()
            };
            match family {
                Family::Pi => environment.pi_lock_dir = Some(value.into()),
                _ => environment.claude_config_dir = Some(value.into()),
            }
            environment.directory(family).unwrap().to_str().unwrap().to_owned()
        };
        for (value, expected) in [
            ("/tmp/a b/$x[1]", "/tmp/a b/$x[1]"),
            ("/tmp/slash///", "/tmp/slash"),
            ("~/sub dir", "/home/u/sub dir"),
            ("~", "/home/u"),
            ("rel/dir", "/work/rel/dir"),
            ("~user", "/work/~user"),
        ] {
            assert_eq!(directory(Family::Pi, value), expected);
            assert_eq!(directory(Family::Claude, value), format!("{expected}/ide"));
        }
        assert_eq!(directory(Family::Pi, ""), "/home/u/.pi/ide");
        assert_eq!(directory(Family::Claude, ""), "/home/u/.claude/ide");
    }

    #[test]
    fn without_a_home_only_what_needs_one_fails_and_says_so() {
        let mut case = Case::new();
        case.environment.pi_lock_dir = Some(case.dir.path().join("pi"));
        case.environment.home = None;
        let (_files, errors) = case.publish(&["/w"]);
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].family, Family::Claude);
        assert!(errors[0].message.contains("HOME is not set"), "{}", errors[0]);
        assert!(errors[0].message.contains("CLAUDE_CONFIG_DIR"), "{}", errors[0]);
        assert!(case.path(Family::Pi).exists());
    }

    #[test]
    fn a_family_that_cannot_be_published_does_not_undo_the_other() {
        for (broken, fine) in [(Family::Pi, Family::Claude), (Family::Claude, Family::Pi)] {
            let case = Case::new();
            let name = if broken == Family::Pi { ".pi" } else { ".claude" };
            let obstacle = case.dir.path().join(name);
            std::fs::write(&obstacle, "a file").unwrap();
            let (mut files, errors) = case.publish(&["/w"]);
            assert_eq!(errors.len(), 1);
            assert_eq!(errors[0].family, broken);
            assert!(errors[0].message.contains(name), "{}", errors[0]);
            assert!(case.path(fine).exists());
            assert_eq!(files.check(), [], "told once");
            std::fs::remove_file(obstacle).unwrap();
            assert_eq!(files.check(), []);
            assert!(case.path(broken).exists(), "made up for");
        }
    }

    #[test]
    fn a_rewrite_keeps_port_and_token() {
        let case = Case::new();
        let (mut files, _) = case.publish(&["/a"]);
        let before = case.lock(Family::Pi);
        assert_eq!(files.rewrite(&[Path::new("/b"), Path::new("/a")]), []);
        let after = case.lock(Family::Pi);
        assert_eq!(after.workspace_folders, ["/b", "/a"]);
        assert_eq!((after.pid, &after.auth_token), (before.pid, &before.auth_token));
        assert_eq!(after.ide_name, "Neovim (b)");
    }

    #[test]
    fn what_was_deleted_comes_back() {
        let case = Case::new();
        let (mut files, _) = case.publish(&["/a"]);
        let before = case.lock(Family::Claude);
        std::fs::remove_file(case.path(Family::Claude)).unwrap();
        std::fs::remove_dir_all(case.dir.path().join(".pi")).unwrap();
        assert_eq!(files.check(), []);
        assert_eq!(case.lock(Family::Claude), before);
        case.lock(Family::Pi);
        files.remove();
        assert!(!case.path(Family::Pi).exists());
    }

    #[test]
    fn what_is_not_ours_any_more_is_left_alone() {
        let case = Case::new();
        let (mut files, _) = case.publish(&["/a"]);
        let theirs = case.plant(Family::Claude, case.port, std::process::id(), "Other");
        std::fs::write(case.path(Family::Pi), "half a fi").unwrap();
        assert_eq!(files.check(), []);
        assert_eq!(files.rewrite(&[Path::new("/b")]), []);
        assert_eq!(case.lock(Family::Claude).ide_name, "Other");
        drop(files);
        assert!(theirs.exists());
        assert_eq!(std::fs::read(case.path(Family::Pi)).unwrap(), b"half a fi");
    }

    #[test]
    fn a_link_in_the_place_of_the_lock_is_neither_followed_nor_removed() {
        let case = Case::new();
        let (mut files, _) = case.publish(&["/a"]);
        let (path, target) = (case.path(Family::Pi), case.dir.path().join("target"));
        std::fs::rename(&path, &target).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert_eq!(files.rewrite(&[Path::new("/b")]), []);
        drop(files);
        assert!(std::fs::read_to_string(&target).unwrap().contains("[\"/a\"]"));
        assert!(path.is_symlink());
    }

    #[test]
    fn crashed_neovims_are_cleaned_up_after_and_nobody_else() {
        let case = Case::new();
        let dead = dead_pid();
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = open.local_addr().unwrap().port();
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let family = Family::Claude;
        let gone = case.plant(family, closed_port(), dead, "Neovim (proj)");
        let kept = [
            case.plant(family, closed_port(), std::process::id(), "Neovim (proj)"),
            case.plant(family, listening.local_addr().unwrap().port(), dead, "Neovim (proj)"),
            case.plant(family, open.wrapping_add(1), dead, "Visual Studio Code"),
            case.plant(family, open.wrapping_add(2), dead, "Neovim"),
            case.plant(family, open.wrapping_add(3), dead, "Neovim (proj) fork"),
        ];
        let directory = case.environment.directory(family).unwrap();
        std::fs::write(directory.join("2.lock"), "not json").unwrap();
        std::fs::write(directory.join("x.lock"), "{}").unwrap();
        let unfinished = directory.join(format!(".gangway-{dead}-3.tmp"));
        std::fs::write(&unfinished, "").unwrap();
        let (_files, errors) = case.publish(&["/w"]);
        assert_eq!(errors, []);
        assert!(!gone.exists() && !unfinished.exists());
        for path in kept {
            assert!(path.exists(), "{}", path.display());
        }
        assert!(directory.join("2.lock").exists() && directory.join("x.lock").exists());
    }

    #[test]
    fn two_neovims_of_one_project_have_two_names() {
        let case = Case::new();
        // Some process that lives: this test's parent.
        let other = std::os::unix::process::parent_id();
        let path = case.plant(Family::Claude, 1, other, "Neovim (proj)");
        let (mut files, _) = case.publish(&["/work/proj"]);
        let distinct = format!("Neovim (proj, {})", std::process::id());
        assert_eq!(case.lock(Family::Claude).ide_name, distinct);
        assert_eq!(case.lock(Family::Pi).ide_name, distinct);
        // It keeps that name, whatever the other one does.
        std::fs::remove_file(path).unwrap();
        files.check();
        assert_eq!(case.lock(Family::Pi).ide_name, distinct);
    }

    #[test]
    fn of_two_that_started_together_the_one_with_the_higher_port_changes() {
        let case = Case::new();
        let other = std::os::unix::process::parent_id();
        let (mut files, _) = case.publish(&["/work/proj"]);
        case.plant(Family::Pi, u16::MAX, other, "Neovim (proj)");
        files.check();
        assert_eq!(case.lock(Family::Pi).ide_name, "Neovim (proj)");
        case.plant(Family::Pi, 1, other, "Neovim (proj)");
        files.check();
        assert_eq!(
            case.lock(Family::Pi).ide_name,
            format!("Neovim (proj, {})", std::process::id())
        );
    }

    #[test]
    fn a_lock_does_not_show_its_token() {
        let case = Case::new();
        let (files, _) = case.publish(&["/w"]);
        let lock = case.lock(Family::Pi);
        let shown = format!("{lock:?} {files:?} {:?}", case.credentials);
        assert!(!shown.contains(&lock.auth_token), "{shown}");
    }

    fn everybody() -> Case {
        let mut case = Case::new();
        case.credentials = Credentials::generate(Family::ALL).unwrap();
        case.environment.temporary[1] = Some(case.dir.path().join("tmp"));
        case
    }

    fn read(path: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn every_other_agent_finds_what_it_looks_for_where_it_looks() {
        let case = everybody();
        let (mut files, errors) = case.publish(&["/work/proj", "/real/proj"]);
        assert_eq!(errors, []);
        assert_eq!(files.set_socket("/run/x/ide.sock".into()), []);
        let (port, pid, home) = (case.port, std::process::id(), case.dir.path());
        let token = |family| case.credentials.token(family).unwrap().secret();
        let (name, info) =
            ("Neovim (proj)", json!({"name": "neovim", "displayName": "Neovim (proj)"}));
        let gemini = home.join(format!("tmp/gemini/ide/gemini-ide-server-{pid}-{port}.json"));
        assert_eq!(
            read(&gemini),
            json!({"port": port, "workspacePath": "/work/proj:/real/proj",
                "authToken": token(Family::Gemini), "ideInfo": info})
        );
        let qwen = home.join(format!(".qwen/ide/{port}.lock"));
        assert_eq!(
            read(&qwen),
            json!({"port": port, "workspacePath": "/work/proj:/real/proj", "ppid": pid,
                "authToken": token(Family::Qwen), "ideName": name, "ideInfo": info})
        );
        let copilot = home.join(format!(".copilot/ide/{port}.lock"));
        let mut lock = read(&copilot);
        assert!(lock["timestamp"].take().as_u64().unwrap() > 1_700_000_000_000);
        assert_eq!(
            lock,
            json!({"socketPath": "/run/x/ide.sock", "scheme": "unix", "timestamp": null,
                "headers": {"Authorization": format!("Nonce {}", token(Family::Copilot))},
                "pid": pid, "workspaceFolders": ["/work/proj", "/real/proj"], "ideName": name})
        );
        let amp = home.join(format!(".local/share/amp/ide/{port}.json"));
        assert_eq!(
            read(&amp),
            json!({"workspaceFolders": ["/work/proj", "/real/proj"], "port": port,
                "ideName": name, "authToken": token(Family::Amp), "pid": pid})
        );
        for path in [&gemini, &qwen, &copilot, &amp] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(files.paths().len(), 6);
        drop(files);
        assert!([gemini, qwen, copilot, amp].iter().all(|path| !path.exists()));
    }

    #[test]
    fn an_agent_that_was_never_here_gets_no_directory_until_it_comes() {
        let mut case = everybody();
        case.environment.auto = vec![Family::Gemini, Family::Qwen, Family::Copilot, Family::Amp];
        let (mut files, errors) = case.publish(&["/w"]);
        assert_eq!(errors, []);
        assert_eq!(files.set_socket("/run/x/ide.sock".into()), []);
        let home = case.dir.path();
        let made = |name: &str| home.join(name).exists();
        for name in [".gemini", "tmp", ".qwen", ".copilot", ".local"] {
            assert!(!made(name), "{name}");
        }
        assert_eq!(files.paths().len(), 2);
        std::fs::create_dir(home.join(".gemini")).unwrap();
        std::fs::create_dir(home.join(".qwen")).unwrap();
        std::fs::create_dir_all(home.join(".local/share/amp")).unwrap();
        assert_eq!(files.check(), []);
        assert!(made("tmp/gemini/ide") && made(".qwen/ide") && made(".local/share/amp/ide"));
        assert!(!made(".copilot"));
        assert_eq!(files.paths().len(), 5);
        case.environment.home = None;
        case.environment.auto.retain(|family| *family != Family::Amp);
        let (_files, errors) = case.publish(&["/w"]);
        let families: Vec<Family> = errors.iter().map(|error| error.family).collect();
        assert_eq!(families, [Family::Pi, Family::Claude, Family::Amp], "those that are on");
    }

    #[test]
    fn what_others_left_for_any_agent_is_cleaned_up_with_its_socket() {
        let case = everybody();
        let (dead, port) = (dead_pid(), closed_port());
        let socket = super::super::place_for_socket(&[case.dir.path()], "gangway-1").unwrap();
        let mode = socket.parent().unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::write(&socket, "").unwrap();
        let plant = |family, name: String, content: Value| {
            let path = case.environment.directory(family).unwrap().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content.to_string()).unwrap();
            path
        };
        let info = json!({"name": "neovim", "displayName": "Neovim (a)"});
        let left = [
            plant(
                Family::Gemini,
                format!("gemini-ide-server-{dead}-{port}.json"),
                json!({"authToken": "x", "ideInfo": info}),
            ),
            plant(
                Family::Qwen,
                format!("{port}.lock"),
                json!({"ppid": dead, "authToken": "x", "ideName": "Neovim (a)"}),
            ),
            plant(
                Family::Copilot,
                format!("{port}.lock"),
                json!({"pid": dead, "headers": {"Authorization": "Nonce x"},
                    "ideName": "Neovim (a)", "socketPath": socket}),
            ),
            plant(
                Family::Amp,
                format!("{port}.json"),
                json!({"pid": dead, "authToken": "x", "ideName": "Neovim (a)"}),
            ),
        ];
        let kept = plant(
            Family::Gemini,
            format!("gemini-ide-server-{dead}-{}.json", port + 1),
            json!({"authToken": "x", "ideInfo": {"displayName": "Some Editor"}}),
        );
        let (_files, errors) = case.publish(&["/w"]);
        assert_eq!(errors, []);
        assert!(left.iter().all(|path| !path.exists()) && kept.exists());
        assert!(!socket.parent().unwrap().exists());
    }
}
