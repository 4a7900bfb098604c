//! The server and its MCP sessions over real sockets, with a fake editor behind them and a fake
//! user who decides at the desk. No Neovim, no Lua: what agents can observe, and how much of the
//! world's malice is survived.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    unreachable_pub
)]

mod amp;
mod calls;
mod copilot;
mod door;
mod example;
#[path = "../fuzz/mod.rs"]
mod fuzz;
mod gemini;
mod hostile;
mod http;
mod reviews;
mod selection;
mod support;
mod wire;
