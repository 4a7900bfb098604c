//! What is in a lock file, as each agent wants to read it, and read back in the words of all of
//! them. Pure but for `locks_in`; any thread.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::MAX_LOCK;
use crate::agents::mcp::Family;
use crate::files;

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

/// The last component of the file's path.
pub(super) fn file_name(family: Family, port: u16, pid: u32) -> String {
    match family {
        Family::Gemini => format!("gemini-ide-server-{pid}-{port}.json"),
        Family::Amp => format!("{port}.json"),
        _ => format!("{port}.lock"),
    }
}

/// What there is to say.
pub(super) struct Content<'a> {
    pub pid: u32,
    pub port: u16,
    /// Absolute.
    pub folders: &'a [String],
    pub name: &'a str,
    pub token: &'a str,
    /// The socket file that Copilot CLI is sent to.
    pub socket: Option<&'a Path>,
    /// In milliseconds since the Unix epoch.
    pub since: u64,
}

impl Content<'_> {
    pub fn bytes(&self, family: Family) -> Vec<u8> {
        let Self { pid, port, folders, name, token, socket, since } = *self;
        let written = match family {
            Family::Pi | Family::Claude => serde_json::to_vec(&Lock {
                pid,
                workspace_folders: folders.to_vec(),
                ide_name: name.to_owned(),
                transport: "ws".into(),
                running_in_windows: (family == Family::Claude).then_some(false),
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
                "socketPath": socket.map(Path::to_string_lossy),
                "scheme": "unix",
                "headers": {"Authorization": format!("Nonce {token}")},
                "pid": pid,
                "timestamp": since,
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
pub(super) struct Seen {
    pub pid: u32,
    pub port: u16,
    pub name: String,
    pub token: String,
    pub socket: Option<PathBuf>,
}

impl Seen {
    pub fn read(family: Family, file_name: &str, bytes: &[u8]) -> Option<Self> {
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
