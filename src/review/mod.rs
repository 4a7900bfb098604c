//! A question to the user and its one answer: `Review` and `Verdict`.
//!
//! Pure: std and plain values, any thread. Agents open reviews at the `desk`, the editor shows
//! them and decides; the desk makes sure that each gets exactly one verdict. `text` converts
//! between a file's bytes and the lines of a pane without losing any; `hunks` compares the two.

pub mod desk;
pub mod hunks;
pub mod owed;
pub mod text;
pub mod two_panes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use text::OldText;

/// Who asks: one connection, or one watched request directory. Unique while Neovim runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u64);

impl Owner {
    /// A new owner, never handed out before in this process.
    #[must_use]
    pub fn unique() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Names a review to users (`:IdeAccept 3`) and in `status()`. Numbers for socket agents; an
/// agent that brings its own identifier (aivyx's request_id) keeps it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReviewId(pub Arc<str>);

impl std::fmt::Display for ReviewId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an agent wants to do.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Write `new` to `path`. `old_path` differs when the agent renames.
    Write { path: PathBuf, old_path: PathBuf, old: OldText, new: Arc<str> },
    /// Remove `path`, which holds `old`.
    Delete { path: PathBuf, old: OldText },
    /// Run a program with these arguments.
    Command { program: String, args: Vec<String>, cwd: Option<PathBuf> },
    /// Call a tool of another server.
    Tool { target: String, description: String },
}

impl Kind {
    /// The word `status()` and the views use.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Write { .. } => "write",
            Kind::Delete { .. } => "delete",
            Kind::Command { .. } => "command",
            Kind::Tool { .. } => "tool",
        }
    }

    /// What an accept without edits returns: the whole proposed text, empty for other kinds.
    #[must_use]
    pub fn proposed(&self) -> Arc<str> {
        match self {
            Kind::Write { new, .. } => Arc::clone(new),
            Kind::Delete { .. } | Kind::Command { .. } | Kind::Tool { .. } => Arc::from(""),
        }
    }

    /// The file in question; none for commands and tools.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Kind::Write { path, .. } | Kind::Delete { path, .. } => Some(path),
            Kind::Command { .. } | Kind::Tool { .. } => None,
        }
    }
}

/// What an agent hands in; the desk makes a `Review` of it.
#[derive(Debug, Clone)]
pub struct Proposal {
    pub owner: Owner,
    /// The agent as users know it: "Pi", "Claude Code", "aivyx-coder".
    pub origin: Arc<str>,
    /// The owner's own name for the question (`tab_name`); a second one of the same name from the
    /// same owner rejects and replaces the first. Empty names never collide.
    pub name: Arc<str>,
    /// Own identifier, if the agent brings one.
    pub id: Option<ReviewId>,
    pub kind: Kind,
    /// The user's edits can be returned with `Verdict::Accept`.
    pub editable: bool,
    /// The agent understands `Verdict::AlwaysAllow`.
    pub can_always: bool,
    /// When the agent asked (a request file may be older than this Neovim).
    pub asked: SystemTime,
}

/// A question that waits for its verdict. Shared between the threads, never changed.
#[derive(Debug)]
pub struct Review {
    pub id: ReviewId,
    pub proposal: Proposal,
}

impl std::ops::Deref for Review {
    type Target = Proposal;
    fn deref(&self) -> &Proposal {
        &self.proposal
    }
}

/// Why a review ended without the user's yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Withdrawal {
    /// The agent closed it (`close_tab`, `closeAllDiffTabs`, request file gone).
    Closed,
    /// The agent cancelled the call (`notifications/cancelled`): no response is due.
    Cancelled,
    /// The owner's connection ended.
    OwnerLost,
}

/// The one answer a review gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go ahead; `text` is the whole final content of a `Write`, exact to the byte, and empty for
    /// other kinds.
    Accept {
        text: Arc<str>,
    },
    Reject,
    /// Go ahead, and do not ask again for the same action.
    AlwaysAllow,
    Withdrawn(Withdrawal),
    /// The user closed the view without a word: MCP agents are told "rejected"; file agents keep
    /// their own prompt in the terminal.
    Dismissed,
}

/// Characters that would let a name look like another one.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(
        u32::from(c),
        0xad | 0x61c
            | 0x115f..=0x1160
            | 0x180e
            | 0x200b..=0x200f
            | 0x2028..=0x202e
            | 0x2060..=0x2069
            | 0x3164
            | 0xfeff
            | 0xe0000..=0xe007f
    )
}
