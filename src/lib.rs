//! gangway.nvim: the editor side of every terminal coding agent.
//!
//! Two flows, nothing else. A [`context::Snapshot`] of what the user sees goes out to every agent;
//! a [`review::Review`] comes in from one and gets exactly one [`review::Verdict`].
//!
//! ```text
//!  OUT  editor::watch ─▶ context::Snapshot ─▶ plugin::gate (privacy, once) ─▶ watch channel
//!                                                              ├─▶ agents::mcp    selection_changed
//!                                                              ├─▶ agents::aivyx  context file
//!                                                              └─▶ agents::rivumi snapshot files
//!  IN   agents::* ─▶ review::desk ─▶ editor::stage ─▶ editor::diff_view / ask_view
//!                                        └─▶ Verdict ─▶ back to the agent that asked, once
//! ```
//!
//! | room | what is in it | thread |
//! |---|---|---|
//! | [`context`] | the snapshot, positions, the privacy filter; pure | any |
//! | [`review`] | the desk, texts as panes, hunks; pure | any |
//! | [`agents`] | one folder for each family of agents | tokio |
//! | [`server`] | sockets, tokens, lock files; knows no agent's meaning | tokio |
//! | [`editor`] | everything that touches Neovim; `bridge` is the way in | Neovim's |
//! | [`plugin`] | builds, starts, stops; the Lua table | Neovim's |
//! | [`files`], [`sharing`] | private atomic files; the remembered sharing switch | tokio, workers |
//! | [`disk`] | what has to be asked of a file system that may hang | tokio, workers |
//! | [`config`], [`log`], [`panic`] | settings; the log file; the last line of defence | any |
//!
//! `ARCHITECTURE.md` says why, and names the test of each rule.

pub mod agents;
pub mod config;
pub mod context;
pub mod disk;
pub mod editor;
pub mod files;
pub mod log;
pub mod panic;
pub mod plugin;
pub mod review;
pub mod server;
pub mod sharing;

#[cfg(test)]
#[path = "../tests/fuzz/mod.rs"]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "in a test a panic is the report"
)]
mod fuzz;

/// The entry point Neovim calls. It never fails as far as nvim-oxi can see: an `Err` there would
/// abort Neovim.
#[nvim_oxi::plugin]
fn gangway_native() {
    if let Ok(Err(error)) = panic::catch("loading", plugin::open) {
        tracing::error!("cannot load: {error}");
    }
}
