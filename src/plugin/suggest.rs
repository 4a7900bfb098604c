//! The user asks an agent to go on with their text; `lua/gangway/suggestion.lua` shows what comes.
//!
//! Neovim's thread. One question at a time: the next one, and whatever makes the answer worthless,
//! takes the one before back. The text passes the privacy gate before it leaves.

use std::rc::Rc;

use nvim_oxi::mlua::{self, Function, IntoLua, Table, Value};
use tokio::task::AbortHandle;

use super::Plugin;
use super::exports::{path_of, plugin};
use crate::agents::mcp::suggest::Around;
use crate::editor::Editor;

/// Dropped, it is taken back.
pub(super) struct Suggesting {
    /// `changedtick` and cursor are Lua's to compare; this tells answers of another question.
    serial: u64,
    reply: Function,
    task: AbortHandle,
}

impl Drop for Suggesting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Plugin {
    /// `around { path, language, before, after, in_comment }`; `reply(texts)` or
    /// `reply(nil, problem)` comes later, once, unless something else is asked first. Returns the
    /// problem when it cannot even be asked.
    pub(super) fn suggest(
        &self,
        around: &Table,
        reply: Function,
    ) -> mlua::Result<Option<&'static str>> {
        let text = |name: &str| -> mlua::Result<String> {
            Ok(around.get::<mlua::String>(name)?.to_string_lossy())
        };
        let path = path_of(&around.get("path")?);
        let around = Around {
            file_path: path.to_string_lossy().into_owned(),
            language: text("language")?,
            cursor_before: text("before")?,
            cursor_after: text("after")?,
            cursor_in_comment: around.get("in_comment")?,
        };
        let running = self.running.borrow();
        let Some(running) = &*running else { return Ok(Some("not running (:IdeStart)")) };
        let serial = self.editor.next_serial();
        let (gate, mcp, bridge) = (self.gate.clone(), running.mcp.clone(), self.bridge.clone());
        let task = running.runtime.spawn(async move {
            let answer = if gate.tells(&path).await {
                mcp.suggest(&around).await.map_err(|error| error.to_string())
            } else {
                Err("this file is kept from agents (:IdeShare, context.exclude)".to_owned())
            };
            bridge.post(move |editor| answered(editor, serial, answer));
        });
        let task = task.abort_handle();
        self.suggesting.replace(Some(Suggesting { serial, reply, task }));
        Ok(None)
    }

    /// The keys while a suggestion is shown: `{ take, next, dismiss }`, nil where switched off.
    pub(super) fn suggestion_keys(&self) -> mlua::Result<Table> {
        let keys = self.editor.settings().suggestion.clone();
        let table = self.editor.api.table()?;
        table.set("take", keys.take)?;
        table.set("next", keys.next)?;
        table.set("dismiss", keys.dismiss)?;
        Ok(table)
    }
}

fn answered(editor: &Rc<Editor>, serial: u64, answer: Result<Vec<String>, String>) {
    let Some(plugin) = plugin() else { return };
    let asked = plugin.suggesting.borrow_mut().take_if(|asked| asked.serial == serial);
    let Some(asked) = asked else { return };
    let lua = &editor.api.lua;
    let told = match answer {
        Ok(texts) => texts.into_lua(lua).and_then(|texts| asked.reply.call::<()>(texts)),
        Err(problem) => asked.reply.call::<()>((Value::Nil, problem)),
    };
    if let Err(error) = told {
        tracing::warn!("cannot show a suggestion: {error}");
    }
}
