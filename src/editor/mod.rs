//! Everything that touches Neovim; the only code besides `plugin` that knows it.

pub mod documents;
pub mod watch;
