//! End-to-end tests: real Neovims, real sockets, real key presses.
//!
//! `cargo test --test nvim` runs them in the `nvim` on PATH, or in the one `GANGWAY_NVIM` names;
//! `make test` runs them in every Neovim that `tests/nvim/fetch.py` provides. How to write one:
//! `harness/mod.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "in a test a panic is the report"
)]
#![allow(
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "the harness offers more than each test takes"
)]

#[path = "../fuzz/mod.rs"]
mod fuzz;
mod harness;

mod aivyx;
mod cases;
mod context;
mod documents;
mod exit;
mod handshake;
mod harness_works;
mod library;
mod lifecycle;
mod locks;
mod looks;
mod lua_face;
mod modes;
mod others;
mod privacy;
mod review;
mod selection;
mod soak;
mod suggestions;
mod tools;
mod transport;
mod trust;
mod watch;
mod words;
