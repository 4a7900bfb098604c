//! What an agent may have the editor do with a file: open it, save it, tell whether it is changed.
//!
//! On Neovim's thread (not `Send`). Buffers are found by their literal or real path (`real`: asked
//! elsewhere, since a file system may hang), never by a pattern, no command line is ever built from
//! a client's string, and nothing here can leave the user in front of a prompt.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mlua::{Function, Lua, Table};

use crate::agents::{Document, OpenFile, Opened};
use crate::context::Position;
use crate::context::position::utf16_len;

const DOCUMENTS: &str = include_str!("documents.lua");

/// The functions of `documents.lua`.
pub struct Documents {
    chunk: Table,
    open: Function,
    save: Function,
    modified: Function,
    encodings: Function,
}

impl Documents {
    /// Loads the functions and begins to remember each file's time stamp (augroup
    /// `gangway.documents`), which is what keeps `save` from prompting.
    ///
    /// # Errors
    /// What Neovim says when it refuses an autocommand.
    pub fn install(lua: &Lua) -> mlua::Result<Self> {
        let chunk: Table = lua.load(DOCUMENTS).set_name("=gangway/documents.lua").eval()?;
        chunk.get::<Function>("install")?.call::<()>(())?;
        Ok(Self {
            open: chunk.get("open")?,
            save: chunk.get("save")?,
            modified: chunk.get("modified")?,
            encodings: chunk.get("encodings")?,
            chunk,
        })
    }

    /// Takes the autocommands away again.
    ///
    /// # Errors
    /// What Neovim says.
    pub fn remove(&self) -> mlua::Result<()> {
        self.chunk.get::<Function>("remove")?.call(())
    }

    /// Opens a file as if the user had, and selects what was asked for.
    ///
    /// # Errors
    /// A sentence for the agent that names the file.
    pub fn open_file(
        &self,
        lua: &Lua,
        what: &OpenFile,
        real: Option<&Path>,
    ) -> Result<Opened, String> {
        let path = usable(&what.path)?;
        let say = |why: &dyn std::fmt::Display| sentence(&path, why);
        let open = || -> mlua::Result<Result<Opened, String>> {
            let request = lua.create_table()?;
            request.set("path", name(lua, &path)?)?;
            request.set("real", real.map(|real| name(lua, real)).transpose()?)?;
            request.set("start_text", what.start_text.as_deref())?;
            request.set("end_text", what.end_text.as_deref())?;
            request.set("line", what.line)?;
            request.set("select_to_end_of_line", what.select_to_end_of_line)?;
            request.set("make_frontmost", what.make_frontmost)?;
            let answer: Table = self.open.call(request)?;
            if let Some(refused) = answer.get::<Option<mlua::String>>("refused")? {
                return Ok(Err(say(&refused.to_string_lossy())));
            }
            let place = |line: &str, head: &str| -> mlua::Result<Option<Position>> {
                let line: Option<u32> = answer.get(line)?;
                let head: Option<mlua::String> = answer.get(head)?;
                Ok(line
                    .zip(head)
                    .map(|(line, head)| Position::new(line, utf16_len(&head.as_bytes()))))
            };
            Ok(Ok(Opened {
                language: answer.get::<mlua::String>("language")?.to_string_lossy(),
                line_count: answer.get("line_count")?,
                found: place("start_line", "start_head")?.zip(place("stop_line", "stop_head")?),
            }))
        };
        open()
            .unwrap_or_else(|error| Err(say(&format!("cannot be opened: {}", first_line(&error)))))
    }

    /// Writes exactly the buffer of `path`, as `:write` would. `Ok(false)`: it was not modified.
    ///
    /// # Errors
    /// A sentence for the agent that names the file: not open, read-only, changed on disk since it
    /// was read, or what Neovim says.
    pub fn save(&self, lua: &Lua, path: &Path, real: Option<&Path>) -> Result<bool, String> {
        let path = usable(path)?;
        let save = || -> mlua::Result<(bool, Option<mlua::String>)> {
            self.save.call(names(lua, &path, real)?)
        };
        match save() {
            Ok((saved, None)) => Ok(saved),
            Ok((_, Some(why))) => Err(sentence(&path, &why.to_string_lossy())),
            Err(error) => {
                Err(sentence(&path, &format!("could not be saved: {}", first_line(&error))))
            }
        }
    }

    /// `None`: no buffer is loaded for `path`.
    ///
    /// # Errors
    /// A sentence for the agent that names the file.
    pub fn document(
        &self,
        lua: &Lua,
        path: &Path,
        real: Option<&Path>,
    ) -> Result<Option<Document>, String> {
        let path = usable(path)?;
        let modified =
            || -> mlua::Result<Option<bool>> { self.modified.call(names(lua, &path, real)?) };
        match modified() {
            // What has a path is not untitled.
            Ok(modified) => Ok(modified.map(|modified| Document { modified, untitled: false })),
            Err(error) => Err(sentence(&path, &format!("is not known: {}", first_line(&error)))),
        }
    }

    /// The encodings to try for a file that is not UTF-8, as Neovim names them: the open buffer's
    /// 'fileencoding' first, then 'fileencodings'.
    #[must_use]
    pub fn encodings(&self, lua: &Lua, path: &Path, real: Option<&Path>) -> Vec<String> {
        let found = || -> mlua::Result<String> { self.encodings.call(names(lua, path, real)?) };
        let mut encodings: Vec<String> = Vec::new();
        // Without an answer UTF-8 is what is left to try.
        for name in found().unwrap_or_default().split(',').map(str::trim) {
            if !name.is_empty() && !encodings.iter().any(|known| known == name) {
                encodings.push(name.to_string());
            }
        }
        encodings
    }
}

/// A path Neovim can be given: absolute, without NUL, without "." and doubled slashes.
fn usable(path: &Path) -> Result<PathBuf, String> {
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(sentence(path, &"is no possible file name (it holds NUL)"));
    }
    if !path.is_absolute() {
        return Err(sentence(path, &"is not an absolute path"));
    }
    Ok(path.components().collect())
}

fn name(lua: &Lua, path: &Path) -> mlua::Result<mlua::String> {
    lua.create_string(path.as_os_str().as_bytes())
}

fn names(
    lua: &Lua,
    path: &Path,
    real: Option<&Path>,
) -> mlua::Result<(mlua::String, Option<mlua::String>)> {
    Ok((name(lua, path)?, real.map(|real| name(lua, real)).transpose()?))
}

fn sentence(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("{} {why}", path.display())
}

fn first_line(error: &mlua::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::usable;

    #[test]
    fn paths_are_checked_before_neovim_sees_them() {
        assert_eq!(usable(Path::new("/a//b/./c")).as_deref(), Ok(Path::new("/a/b/c")));
        assert!(usable(Path::new("a/b")).is_err());
        assert!(usable(Path::new("~/x")).is_err());
        assert!(usable(Path::new("/a\0b")).is_err());
    }
}
