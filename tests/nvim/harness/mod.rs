//! A Neovim, an agent and a user, for tests that read from top to bottom.
//!
//! ```ignore
//! let nvim = Nvim::builder().write("a.txt", "one\ntwo\n").start(); // own HOME, plugin set up
//! let agent = Client::connect(&nvim, Dialect::Pi); // found by its lock file
//! let pending = agent.open_diff(nvim.path("a.txt"), "one\nTWO\n"); // the agent proposes
//! let review = nvim.shown(&pending); // both panes are there
//! nvim.accept(&review); // the user types :w in the right one
//! assert_eq!(pending.verdict(), Verdict::Saved("one\nTWO\n".into()));
//! ```
//!
//! Everything waits with a limit and panics with what Neovim and the plugin's log said last.
//! Whatever a test forgets to look at is looked at when its values are dropped: a Neovim must still
//! be alive and must quit cleanly ([`Nvim`]), an agent must not have got two answers to one
//! request, nor a malformed frame ([`Client`]).

mod client;
mod nvim;
mod pty;
mod rpc;
mod snapshot;
pub mod ws;

use std::time::{Duration, Instant};

pub use client::{Client, ClientBuilder, Dialect, Note, Pending, Refused, Verdict, openable_tab};
pub use nvim::{Builder, Exit, Lock, Nvim, Pane, Review};
pub use pty::Cell;
pub use rpc::RpcError;
pub use snapshot::{Counts, Snapshot};

/// How long anything may take before the test says that it never came.
pub const PATIENCE: Duration = Duration::from_secs(8);

/// A pane that has just come into view ignores keys for 300 ms; a user's first key comes later than
/// that.
pub const ARMED: Duration = Duration::from_millis(500);

/// Calls `probe` until it gives something, for `limit` at most.
pub fn poll<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The last `lines` lines of a text.
fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A text short enough for a message.
pub fn short(text: &str) -> String {
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}
