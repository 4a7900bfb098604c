//! One folder for each family of agents: each turns its own protocol into a `Snapshot` that goes
//! out and a `Review` that comes in. They run on the tokio runtime, never on Neovim's thread.
//!
//! May use `context`, `review` and `files`. What only an editor can do (open a file, save a
//! buffer) is asked of the `Host`, which `plugin.rs` connects to the editor.

pub mod aivyx;
pub mod amp;
pub mod codex;
pub mod mcp;
mod paths;
pub mod rivumi;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use crate::context::{Position, Snapshot};
use crate::review::ReviewId;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whether an agent that speaks through files is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enabled {
    /// Only where the agent's own directory exists; one that appears later is noticed.
    #[default]
    Auto,
    On,
    Off,
}

/// Which part of an opened file to select, all optional (`openFile`'s arguments).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenFile {
    pub path: PathBuf,
    /// Literal text, never a pattern; the selection starts where it is found.
    pub start_text: Option<String>,
    /// Literal text; the selection ends behind its first occurrence after `start_text`.
    pub end_text: Option<String>,
    /// 0-based line to go to when there is no text to look for.
    pub line: Option<u32>,
    pub select_to_end_of_line: bool,
    /// False: load it without taking the user away from where they are.
    pub make_frontmost: bool,
}

/// What `openFile` reports back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    pub language: String,
    pub line_count: u32,
    /// Where the searched text was found; `None` when it was asked for and is not there, or when
    /// none was asked for.
    pub found: Option<(Position, Position)>,
}

/// A loaded buffer of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document {
    pub modified: bool,
    pub untitled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// A sentence that names the file and what to do; goes to the agent as it is.
    #[error("{0}")]
    Refused(String),
    /// Neovim did not get to it in time (a prompt is open, or it is busy).
    #[error("Neovim is busy and did not answer in time; try again")]
    Busy,
    /// Neovim is leaving, or the plugin was stopped.
    #[error("Neovim is stopping")]
    Stopping,
}

/// What agents may ask of the editor beside reviews. Every call waits for Neovim's thread with a
/// deadline of its own and never holds it up.
pub trait Host: Send + Sync + 'static {
    /// The present state, filtered for privacy; after 300 ms of a busy Neovim the last known one.
    fn snapshot(&self) -> BoxFuture<'_, Arc<Snapshot>>;
    /// Opens a file as if the user had. `Ok(None)`: it is open, and what is in it is private.
    fn open_file(&self, what: OpenFile) -> BoxFuture<'_, Result<Option<Opened>, HostError>>;
    /// Writes the buffer of `path`, as the user's `:write` would. `Ok(Some(false))`: nothing to
    /// save; `Ok(None)`: no buffer is loaded for it, as far as agents may know.
    fn save<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Option<bool>, HostError>>;
    /// `Ok(None)`: no buffer is loaded for `path`, as far as agents may know.
    fn document<'a>(&'a self, path: &'a Path)
    -> BoxFuture<'a, Result<Option<Document>, HostError>>;
    /// The encodings to try for a file that is not UTF-8, as Neovim names them: the open buffer's
    /// 'fileencoding' first, then 'fileencodings'.
    fn encodings<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Vec<String>>;
    /// What the user has made of a proposal that still waits for its verdict; `None` when nothing,
    /// or when Neovim is busy for too long.
    fn edited<'a>(&'a self, id: &'a ReviewId) -> BoxFuture<'a, Option<Arc<str>>>;
}
