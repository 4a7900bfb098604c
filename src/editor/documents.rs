//! What an agent may have the editor do with a file: open it, save it, tell whether it is changed.
//!
//! On Neovim's thread. Buffers are found by their literal or real path, never by a pattern, and no
//! command line is ever built from a client's string.

use std::path::Path;

use mlua::Lua;

use crate::agents::{Document, OpenFile, Opened};

/// Opens a file as if the user had, and selects what was asked for.
///
/// # Errors
/// A sentence for the agent that names the file.
pub fn open_file(_lua: &Lua, what: &OpenFile) -> Result<Opened, String> {
    Err(format!("{} cannot be opened", what.path.display()))
}

/// Writes exactly the buffer of `path`, as `:write` would. `Ok(false)`: it was not modified.
///
/// # Errors
/// A sentence for the agent that names the file.
pub fn save(_lua: &Lua, path: &Path) -> Result<bool, String> {
    Err(format!("{} cannot be saved", path.display()))
}

/// `None`: no buffer is loaded for `path`.
///
/// # Errors
/// A sentence for the agent that names the file.
pub fn document(_lua: &Lua, _path: &Path) -> Result<Option<Document>, String> {
    Ok(None)
}

/// The encodings to try for a file that is not UTF-8: the open buffer's 'fileencoding' first,
/// then 'fileencodings'.
#[must_use]
pub fn encodings(_lua: &Lua, _path: &Path) -> Vec<String> {
    Vec::new()
}
