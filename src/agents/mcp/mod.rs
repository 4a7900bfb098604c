//! Agents that speak MCP: Pi, Claude Code and opencode over a WebSocket, Gemini CLI, Qwen Code and
//! Copilot CLI over HTTP.
//!
//! `Mcp` is what all their connections share; `plugin.rs` makes one and hands it every connection
//! the server lets in. `session` is one connection, `requests` what it has asked, `asks` what we
//! ask it, `rpc` its messages, `tools` what it can call, `suggest` what it can be asked for,
//! `dialect` how the agents differ. Runs on the tokio runtime; `Mcp` itself may be used anywhere.

mod asks;
pub mod dialect;
mod requests;
pub mod rpc;
mod session;
pub mod suggest;
pub mod tools;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures_util::{Sink, Stream};
use tokio::sync::watch;

use super::Host;
use crate::context::Snapshot;
use crate::review::desk::Desk;
pub use crate::review::owed::Owed;
pub use dialect::{Dialect, Family, Transport};

/// Complete messages of the peer, in order; ends when the connection does.
pub type Inbound = Pin<Box<dyn Stream<Item = String> + Send>>;
/// Takes whole messages; ready again when the one before is on its way.
pub type Outbound = Pin<Box<dyn Sink<String, Error = Closed> + Send>>;

/// The connection ended while a message was being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is closed")]
pub struct Closed;

/// One authenticated connection, as the server hands it over.
pub struct Link {
    pub family: Family,
    pub inbound: Inbound,
    pub outbound: Outbound,
    /// A way of its own for what a newer message makes worthless, where there is one: it may be
    /// slow without holding up answers.
    pub news: Option<Outbound>,
    /// Becomes true when the server stops: answer what is owed, then end.
    pub stop: watch::Receiver<bool>,
    /// How many of the user's decisions this connection waits for; the server has more patience
    /// with a silent peer while there are any.
    pub owed: Owed,
}

/// A connected agent that has introduced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Unique while Neovim runs; also the number of the `review::Owner`.
    pub id: u64,
    /// As users know it: "Claude Code", "Pi", "opencode".
    pub name: String,
    /// As it says itself.
    pub version: Option<String>,
    pub dialect: Dialect,
    pub family: Family,
    pub connected_at: SystemTime,
    /// Folders it works in, where it says so (Claude Code does).
    pub roots: Vec<PathBuf>,
    /// Its process, where it says so (Claude Code does).
    pub pid: Option<u32>,
    /// Its reviews that wait for the user.
    pub pending: usize,
}

/// What `plugin.rs` hears of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    Connected(ClientInfo),
    Disconnected(ClientInfo),
}

/// A place in a file to put into an agent's prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mention {
    /// Absolute.
    pub path: PathBuf,
    /// 0-based, inclusive; `None` for the whole file.
    pub lines: Option<(u32, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MentionError {
    #[error("no agent is connected")]
    NoClients,
    /// The user has to say which.
    #[error("several agents are connected")]
    Several(Vec<ClientInfo>),
    /// That client has left, or it does not read what it is sent.
    #[error("that agent is not connected any more")]
    Gone,
    /// It puts the current selection into its prompts by itself.
    #[error("{0} reads your selection by itself: select the lines instead")]
    Unsupported(String),
}

type Listener = Box<dyn Fn(ClientEvent) + Send + Sync>;

/// A connection as it is listed, whatever it speaks.
pub(super) trait Peer: Send + Sync {
    /// What is known of it; `None` while it has not introduced itself.
    fn client(&self) -> Option<ClientInfo>;
    fn is_introduced(&self) -> bool;
    /// Sends a notification without waiting. False when the peer does not read what it is sent.
    fn send_now(&self, notification: String) -> bool;
    /// What we have asked it; `None` when it takes no questions.
    fn asks(&self) -> Option<&asks::Asks> {
        None
    }
}

pub(super) struct Shared {
    pub(super) desk: Desk,
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) host: Arc<dyn Host>,
    pub(super) listener: Listener,
    pub(super) sessions: Mutex<BTreeMap<u64, Arc<dyn Peer>>>,
    /// False: Claude Code asks in its own terminal.
    claude_diffs: AtomicBool,
}

/// What all connections share, also those that speak something else. Cheap to clone, any thread.
#[derive(Clone)]
pub struct Mcp(Arc<Shared>);

impl Mcp {
    /// `listener` hears of clients that come and go, on a runtime thread; it must not block.
    #[must_use]
    pub fn new(
        desk: Desk,
        snapshots: watch::Receiver<Arc<Snapshot>>,
        host: Arc<dyn Host>,
        listener: impl Fn(ClientEvent) + Send + Sync + 'static,
    ) -> Self {
        let (listener, sessions) = (Box::new(listener), Mutex::default());
        let claude_diffs = AtomicBool::new(true);
        Self(Arc::new(Shared { desk, snapshots, host, listener, sessions, claude_diffs }))
    }

    /// False leaves `openDiff` out of Claude Code's tools, and answers a call of it with an error:
    /// it calls the tool all the same, and then stays with its own prompt.
    pub fn set_claude_diffs(&self, on: bool) {
        self.0.claude_diffs.store(on, Ordering::Relaxed);
    }

    /// Serves one connection until it ends or is told to stop. Whatever way that happens (also
    /// when the future is dropped), its reviews are taken off the desk.
    pub async fn serve(&self, link: Link) {
        let shared = Arc::clone(&self.0);
        match link.family {
            Family::Amp => super::amp::run(shared, link).await,
            _ => session::run(shared, link).await,
        }
    }

    /// Who is connected, oldest first.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientInfo> {
        let sessions: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        sessions.iter().filter_map(|session| session.client()).collect()
    }

    /// `clients().len()`, cheap enough for a statusline.
    #[must_use]
    pub fn client_count(&self) -> usize {
        lock(&self.0.sessions).values().filter(|session| session.is_introduced()).count()
    }

    /// Puts a file into an agent's prompt: the one named, or the only one that can take it.
    ///
    /// # Errors
    /// See `MentionError`.
    pub fn mention(
        &self,
        client: Option<u64>,
        mention: &Mention,
    ) -> Result<ClientInfo, MentionError> {
        let clients = self.clients();
        let chosen = match client {
            Some(id) => clients.into_iter().find(|c| c.id == id).ok_or(MentionError::Gone)?,
            None => {
                let (able, unable): (Vec<_>, Vec<_>) =
                    clients.into_iter().partition(|client| client.dialect.takes_mentions());
                let mut able = able.into_iter();
                match (able.next(), able.next(), unable.into_iter().next()) {
                    (Some(only), None, _) => only,
                    (Some(one), Some(two), _) => {
                        let all = [one, two].into_iter().chain(able).collect();
                        return Err(MentionError::Several(all));
                    }
                    (None, _, Some(other)) => return Err(MentionError::Unsupported(other.name)),
                    (None, _, None) => return Err(MentionError::NoClients),
                }
            }
        };
        if !chosen.dialect.takes_mentions() {
            return Err(MentionError::Unsupported(chosen.name));
        }
        let selected = self.selected(mention);
        let note = chosen.dialect.mention_note(&mention.path, mention.lines, selected.as_deref());
        let session = lock(&self.0.sessions).get(&chosen.id).cloned();
        let sent = session.is_some_and(|session| session.send_now(note));
        if sent { Ok(chosen) } else { Err(MentionError::Gone) }
    }
}

impl Mcp {
    /// The text of what is mentioned, when the user has selected just that.
    fn selected(&self, mention: &Mention) -> Option<Arc<str>> {
        let snapshot = self.0.snapshots.borrow();
        let active = snapshot.active.as_ref().filter(|_| snapshot.sharing)?;
        let selection = active.selection.as_ref().filter(|_| active.path == mention.path)?;
        let (start, end) = (selection.range.start, selection.range.end);
        let last = if end.character == 0 { end.line.saturating_sub(1) } else { end.line };
        (mention.lines == Some((start.line, last.max(start.line))))
            .then(|| Arc::clone(&selection.text))
    }
}

/// A panic while a lock was held leaves nothing half done here: poisoning is no reason to lose the
/// other connections.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
