//! Thin typed wrapper over `vim.api` and `vim.fn`, through mlua: the same calls on 0.10, 0.11, 0.12
//! and later, because Neovim's own generated code converts the arguments. Neovim's thread only
//! (`!Send`). Every call can run users' autocommands, which can call back into the plugin: hold no
//! borrow of the plugin's state across one.

use nvim_oxi::mlua::{self, Function, IntoLua, IntoLuaMulti, Lua, Table, Value};

pub use mlua::Result;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);

        impl IntoLua for $name {
            fn into_lua(self, lua: &Lua) -> Result<Value> {
                self.0.into_lua(lua)
            }
        }

        impl mlua::FromLua for $name {
            fn from_lua(value: Value, lua: &Lua) -> Result<Self> {
                i64::from_lua(value, lua).map(Self)
            }
        }
    };
}

handle!(
    /// A buffer number.
    Buf
);
handle!(
    /// A window-ID.
    Win
);
handle!(
    /// A tabpage handle (not its number on the tab line).
    Tab
);

/// Scope of an option write or read.
#[derive(Debug, Clone, Copy)]
pub enum At {
    Global,
    Buf(Buf),
    /// The window's own value, as `:setlocal`.
    Win(Win),
}

#[derive(Clone)]
pub struct Api {
    pub lua: Lua,
    api: Table,
    vim: Table,
    func: Table,
}

/// `eventignore=all` for as long as it lives: nobody's autocommands see our windows being built or
/// taken down, so none can close them half-way.
pub struct Quiet<'a> {
    api: &'a Api,
    before: String,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.api.set_option("eventignore", self.before.as_str(), At::Global) {
            tracing::error!("cannot restore 'eventignore': {error}");
        }
    }
}

impl Api {
    pub fn new(lua: &Lua) -> Result<Self> {
        let vim: Table = lua.globals().get("vim")?;
        Ok(Self { lua: lua.clone(), api: vim.get("api")?, func: vim.get("fn")?, vim })
    }

    /// `vim.api[name](…)`.
    pub fn call<R: mlua::FromLuaMulti>(&self, name: &str, args: impl IntoLuaMulti) -> Result<R> {
        self.api.get::<Function>(name)?.call(args)
    }

    /// `vim.fn[name](…)`. Strings must not hold NUL (they would become Blobs).
    pub fn func<R: mlua::FromLuaMulti>(&self, name: &str, args: impl IntoLuaMulti) -> Result<R> {
        self.func.get::<Function>(name)?.call(args)
    }

    /// `vim[name](…)`.
    pub fn vim<R: mlua::FromLuaMulti>(&self, name: &str, args: impl IntoLuaMulti) -> Result<R> {
        self.vim.get::<Function>(name)?.call(args)
    }

    /// Neovim is on its way out, and cannot be held back any more.
    pub fn is_exiting(&self) -> Result<bool> {
        let v: Table = self.vim.get("v")?;
        Ok(v.get::<Value>("exiting")?.is_integer())
    }

    /// A chunk of our own Lua, as a function of its arguments.
    pub fn chunk(&self, name: &'static str, source: &'static str) -> Result<Function> {
        self.lua.load(source).set_name(format!("=gangway/{name}")).into_function()
    }

    pub fn table(&self) -> Result<Table> {
        self.lua.create_table()
    }

    /// `{ key = value, … }` for an options argument.
    pub fn opts<const N: usize>(&self, entries: [(&str, Value); N]) -> Result<Table> {
        let table = self.lua.create_table_with_capacity(0, N)?;
        for (key, value) in entries {
            table.set(key, value)?;
        }
        Ok(table)
    }

    /// Runs an Ex command of ours; nothing a client says may ever be part of it.
    pub fn command(&self, command: &'static str) -> Result<()> {
        self.call("nvim_command", command)
    }

    // ---- where we are

    pub fn current_win(&self) -> Result<Win> {
        self.call("nvim_get_current_win", ())
    }

    pub fn current_tab(&self) -> Result<Tab> {
        self.call("nvim_get_current_tabpage", ())
    }

    /// Goes there with all the events a user's own move would fire.
    pub fn set_current_win(&self, win: Win) -> Result<()> {
        self.call("nvim_set_current_win", win)
    }

    pub fn set_current_tab(&self, tab: Tab) -> Result<()> {
        self.call("nvim_set_current_tabpage", tab)
    }

    /// The tab page `g<Tab>` leads to.
    #[must_use]
    pub fn previous_tab(&self) -> Option<Tab> {
        let number: usize = self.func("tabpagenr", "#").ok()?;
        let tabs: Vec<Tab> = self.call("nvim_list_tabpages", ()).ok()?;
        tabs.get(number.checked_sub(1)?).copied()
    }

    /// `nvim_get_mode()`: the mode's letters, and whether Neovim waits for input it cannot be
    /// interrupted in.
    pub fn mode(&self) -> Result<(String, bool)> {
        let mode: Table = self.call("nvim_get_mode", ())?;
        Ok((mode.get("mode")?, mode.get("blocking")?))
    }

    // ---- windows

    #[must_use]
    pub fn win_valid(&self, win: Win) -> bool {
        self.call("nvim_win_is_valid", win).unwrap_or(false)
    }

    #[must_use]
    pub fn tab_valid(&self, tab: Tab) -> bool {
        self.call("nvim_tabpage_is_valid", tab).unwrap_or(false)
    }

    pub fn win_buf(&self, win: Win) -> Result<Buf> {
        self.call("nvim_win_get_buf", win)
    }

    pub fn is_floating(&self, win: Win) -> Result<bool> {
        let config: Table = self.call("nvim_win_get_config", win)?;
        Ok(config.get::<Option<String>>("relative")?.is_some_and(|to| !to.is_empty()))
    }

    pub fn win_tab(&self, win: Win) -> Result<Tab> {
        self.call("nvim_win_get_tabpage", win)
    }

    pub fn win_close(&self, win: Win) -> Result<()> {
        self.call("nvim_win_close", (win, true))
    }

    /// Every window, in any tab page, that shows `buf`.
    pub fn wins_of(&self, buf: Buf) -> Result<Vec<Win>> {
        self.func("win_findbuf", buf)
    }

    /// Some window of any tab page is in diff mode.
    pub fn any_diff(&self) -> Result<bool> {
        let wins: Vec<Win> = self.call("nvim_list_wins", ())?;
        Ok(wins.into_iter().any(|win| self.option("diff", At::Win(win)).unwrap_or(false)))
    }

    /// 1-based line, 0-based byte column.
    pub fn cursor(&self, win: Win) -> Result<(i64, i64)> {
        let [line, col]: [i64; 2] = self.call("nvim_win_get_cursor", win)?;
        Ok((line, col))
    }

    pub fn set_cursor(&self, win: Win, line: i64, col: i64) -> Result<()> {
        self.call("nvim_win_set_cursor", (win, vec![line, col]))
    }

    /// Runs `f` with `win` as the current window, without events, and comes back.
    pub fn in_win<T: 'static>(
        &self,
        win: Win,
        f: impl FnOnce(&Self) -> Result<T> + 'static,
    ) -> Result<T> {
        let slot = std::rc::Rc::new(std::cell::RefCell::new(None));
        let (out, api, mut f) = (slot.clone(), self.clone(), Some(f));
        let callback = self.lua.create_function_mut(move |_, ()| {
            if let Some(f) = f.take() {
                let value = f(&api)?;
                *out.borrow_mut() = Some(value);
            }
            Ok(())
        })?;
        self.call::<()>("nvim_win_call", (win, callback))?;
        let value = slot.borrow_mut().take();
        value.ok_or_else(|| mlua::Error::runtime("the window's callback did not run"))
    }

    // ---- buffers

    #[must_use]
    pub fn buf_valid(&self, buf: Buf) -> bool {
        self.call("nvim_buf_is_valid", buf).unwrap_or(false)
    }

    #[must_use]
    pub fn buf_loaded(&self, buf: Buf) -> bool {
        self.call("nvim_buf_is_loaded", buf).unwrap_or(false)
    }

    /// An unlisted scratch buffer.
    pub fn create_buf(&self) -> Result<Buf> {
        self.call("nvim_create_buf", (false, true))
    }

    pub fn delete_buf(&self, buf: Buf) -> Result<()> {
        let opts = self.opts([("force", Value::Boolean(true))])?;
        self.call("nvim_buf_delete", (buf, opts))
    }

    /// The full name, as bytes.
    pub fn buf_name(&self, buf: Buf) -> Result<mlua::String> {
        self.call("nvim_buf_get_name", buf)
    }

    pub fn line_count(&self, buf: Buf) -> Result<i64> {
        self.call("nvim_buf_line_count", buf)
    }

    pub fn changedtick(&self, buf: Buf) -> Result<i64> {
        self.call("nvim_buf_get_changedtick", buf)
    }

    /// All lines joined by `\n`, in one crossing; invalid UTF-8 becomes U+FFFD.
    pub fn buf_text(&self, buf: Buf) -> Result<String> {
        let join = self.chunk(
            "text",
            "return table.concat(vim.api.nvim_buf_get_lines(..., 0, -1, true), '\\n')",
        )?;
        let text: mlua::String = join.call(buf)?;
        Ok(text.to_string_lossy())
    }

    /// Replaces lines `start..end` (0-based, exclusive end).
    pub fn set_lines(&self, buf: Buf, start: i64, end: i64, lines: Vec<&str>) -> Result<()> {
        self.call("nvim_buf_set_lines", (buf, start, end, true, lines))
    }

    /// The buffer's whole content from one string (lines separated by `\n`), without leaving
    /// anything to undo; 'modified' is off afterwards.
    pub fn fill(&self, buf: Buf, body: &str) -> Result<()> {
        self.chunk("fill", include_str!("fill.lua"))?.call((buf, self.lua.create_string(body)?))
    }

    // ---- options and variables

    /// An `OptionSet` handler of the user's that throws is not ours to fail on.
    pub fn set_option(&self, name: &str, value: impl IntoLua, at: At) -> Result<()> {
        let value = value.into_lua(&self.lua)?;
        let opts = match at {
            At::Global => self.table()?,
            At::Buf(buf) => self.opts([("buf", buf.into_lua(&self.lua)?)])?,
            At::Win(win) => self.opts([
                ("win", win.into_lua(&self.lua)?),
                ("scope", "local".into_lua(&self.lua)?),
            ])?,
        };
        let set = self.call::<()>("nvim_set_option_value", (name, value.clone(), opts.clone()));
        let Err(error) = set else { return Ok(()) };
        if self.call::<Value>("nvim_get_option_value", (name, opts))? != value {
            return Err(error);
        }
        tracing::debug!("after setting '{name}': {error}");
        Ok(())
    }

    pub fn option<R: mlua::FromLua>(&self, name: &str, at: At) -> Result<R> {
        let opts = match at {
            At::Global => self.opts([("scope", "global".into_lua(&self.lua)?)])?,
            At::Buf(buf) => self.opts([("buf", buf.into_lua(&self.lua)?)])?,
            At::Win(win) => self.opts([("win", win.into_lua(&self.lua)?)])?,
        };
        self.call("nvim_get_option_value", (name, opts))
    }

    pub fn set_buf_var(&self, buf: Buf, name: &str, value: impl IntoLua) -> Result<()> {
        self.call("nvim_buf_set_var", (buf, name, value))
    }

    pub fn quiet(&self) -> Result<Quiet<'_>> {
        let before: String = self.option("eventignore", At::Global)?;
        self.set_option("eventignore", "all", At::Global)?;
        Ok(Quiet { api: self, before })
    }

    // ---- autocommands, maps, messages

    /// An autocommand of `group`. The callback gets Neovim's event table.
    pub fn autocmd(
        &self,
        group: i64,
        events: &[&str],
        buf: Option<Buf>,
        callback: impl Fn(&Lua, Table) -> Result<()> + 'static,
    ) -> Result<i64> {
        let callback = self.lua.create_function(move |lua, event: Table| {
            match crate::panic::catch("an autocommand", || callback(lua, event)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!("autocommand: {error}"),
                Err(caught) => return Err(mlua::Error::runtime(caught)),
            }
            Ok(())
        })?;
        let opts =
            self.opts([("group", Value::Integer(group)), ("callback", Value::Function(callback))])?;
        if let Some(buf) = buf {
            opts.set("buffer", buf)?;
        }
        self.call("nvim_create_autocmd", (events.to_vec(), opts))
    }

    /// Makes or empties an augroup.
    pub fn augroup(&self, name: &str) -> Result<i64> {
        let opts = self.opts([("clear", Value::Boolean(true))])?;
        self.call("nvim_create_augroup", (name, opts))
    }

    pub fn delete_augroup(&self, group: i64) -> Result<()> {
        self.call("nvim_del_augroup_by_id", group)
    }

    /// A `User` event with data. A user's handler that throws is not ours to fail on: it is told
    /// once for each event.
    pub fn user_event(&self, pattern: &str, data: Table) {
        let fire = || -> Result<Option<mlua::String>> {
            let require: Function = self.lua.globals().get("require")?;
            let event: Table = require.call("gangway.event")?;
            event.get::<Function>("fire")?.call((pattern, data))
        };
        match fire() {
            Ok(None) => {}
            Ok(Some(failure)) => {
                let failure = failure.to_string_lossy();
                tracing::warn!("a handler of {pattern} failed: {failure}");
                self.notify(&format!("your handler of {pattern} failed: {failure}"), 4);
            }
            Err(error) => tracing::warn!("{pattern}: {error}"),
        }
    }

    /// One message through `vim.notify`, cut so that it never asks for Enter. Levels as in
    /// `vim.log.levels`: 2 info, 3 warn, 4 error.
    pub fn notify(&self, message: &str, level: i64) {
        let tell = || -> Result<()> {
            let room: usize = self.vim.get::<Table>("v")?.get::<usize>("echospace")?.max(1);
            let line = format!("gangway: {}", message.replace(['\n', '\r'], " "));
            // Errors may be long and worth a second line; a mere announcement never is.
            let line = if level >= 4 || line.chars().count() <= room {
                line
            } else {
                line.chars().take(room - 1).chain(['…']).collect()
            };
            let opts = self.opts([("title", "gangway".into_lua(&self.lua)?)])?;
            self.vim("notify", (line, level, opts))
        };
        if let Err(error) = tell() {
            tracing::warn!("vim.notify failed: {error}");
        }
    }
}

/// Reads any Lua value into the plain form that `config` validates.
pub fn to_plain(value: &Value) -> crate::config::Value {
    plain(value, 0)
}

fn plain(value: &Value, depth: usize) -> crate::config::Value {
    use crate::config::Value as Plain;
    // A cyclic table is never a setting.
    if depth > 8 {
        return Plain::Other("deeply nested table");
    }
    match value {
        Value::Boolean(b) => Plain::Bool(*b),
        #[allow(clippy::cast_precision_loss, reason = "settings are small numbers")]
        Value::Integer(n) => Plain::Number(*n as f64),
        Value::Number(n) => Plain::Number(*n),
        Value::String(s) => Plain::Text(s.to_string_lossy()),
        Value::Table(table) => {
            let pairs = || table.pairs::<Value, Value>().flatten();
            if pairs().all(|(key, _)| matches!(key, Value::Integer(_) | Value::Number(_))) {
                Plain::List(pairs().map(|(_, item)| plain(&item, depth + 1)).collect())
            } else {
                let name = |key: &Value| key.to_string().unwrap_or_default();
                Plain::Map(pairs().map(|(k, v)| (name(&k), plain(&v, depth + 1))).collect())
            }
        }
        Value::Nil => Plain::Other("nil"),
        other => Plain::Other(other.type_name()),
    }
}
