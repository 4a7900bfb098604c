//! What the user typed last: tells a typed `:w` from an autosave, and idle from busy.
//!
//! Neovim's thread only. `vim.on_key` costs up to 1 µs a key, so it listens only while a review
//! exists or the user is in a terminal (whether the last key there was `<CR>` decides if a review
//! may come into view). A key marks the present turn of the main loop; `vim.schedule` ends the
//! turn, so timers, autocommands and RPC commands find it unmarked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nvim_oxi::mlua::{self, Function, Table, Value};

use super::api::{Api, Result, Win};

/// Commands that write many buffers at once, or a buffer on the way to another one: never a word
/// about this one review.
const NOT_ABOUT_ONE_BUFFER: [&str; 14] = [
    "wall",
    "wqall",
    "xall",
    "bufdo",
    "windo",
    "tabdo",
    "argdo",
    "cdo",
    "ldo",
    "cfdo",
    "lfdo",
    "wnext",
    "wNext",
    "wprevious",
];

/// A command line the user just left with Enter, as `nvim_parse_cmd` reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CommandLine {
    command: String,
    /// No argument and no range: it writes the whole buffer to its own name.
    bare: bool,
}

struct State {
    /// `None` until the first key is heard.
    last_key: Cell<Option<Instant>>,
    last_was_enter: Cell<bool>,
    /// The window that was current at a key of this turn.
    turn: Cell<Option<Win>>,
    command_line: RefCell<Option<CommandLine>>,
    /// The keys that come now are ours.
    deaf: Cell<bool>,
}

pub struct Keys {
    api: Api,
    state: Rc<State>,
    namespace: i64,
    on_key: Function,
    listening: Cell<bool>,
}

impl Keys {
    pub fn new(api: &Api) -> Result<Self> {
        let state = Rc::new(State {
            last_key: Cell::new(None),
            last_was_enter: Cell::new(false),
            turn: Cell::new(None),
            command_line: RefCell::new(None),
            deaf: Cell::new(false),
        });
        let ended = Rc::clone(&state);
        let end_turn = api.lua.create_function(move |_, ()| {
            ended.turn.set(None);
            ended.command_line.borrow_mut().take();
            Ok(())
        })?;
        let vim: Table = api.lua.globals().get("vim")?;
        let schedule: Function = vim.get("schedule")?;
        let current_win: Function = vim.get::<Table>("api")?.get("nvim_get_current_win")?;
        let heard = Rc::clone(&state);
        let on_key = api.lua.create_function(move |_, key: Value| {
            if heard.deaf.get() {
                return Ok(());
            }
            heard.last_key.set(Some(Instant::now()));
            let enter = matches!(&key, Value::String(s) if &*s.as_bytes() == b"\r");
            heard.last_was_enter.set(enter);
            let first = heard.turn.get().is_none();
            heard.turn.set(Some(current_win.call(())?));
            if first { schedule.call::<()>(&end_turn) } else { Ok(()) }
        })?;
        let namespace = api.call("nvim_create_namespace", "gangway_keys")?;
        let listening = Cell::new(false);
        Ok(Self { api: api.clone(), state, namespace, on_key, listening })
    }

    /// Starts or stops listening; cheap to call with the same value.
    pub fn listen(&self, on: bool) -> Result<()> {
        if self.listening.replace(on) == on {
            return Ok(());
        }
        let function = if on { Value::Function(self.on_key.clone()) } else { Value::Nil };
        if !on {
            self.state.last_key.set(None);
            self.state.last_was_enter.set(false);
            self.state.turn.set(None);
        }
        self.api.vim("on_key", (function, self.namespace))
    }

    /// For `:normal` of our own: its keys are heard like any, but the user typed none of them.
    pub fn unheard<T>(&self, run: impl FnOnce() -> T) -> T {
        self.state.deaf.set(true);
        let done = run();
        self.state.deaf.set(false);
        done
    }

    /// Time since the last key, if one was heard since listening began.
    #[must_use]
    pub fn quiet_for(&self) -> Option<Duration> {
        self.state.last_key.get().map(|at| at.elapsed())
    }

    #[must_use]
    pub fn last_was_enter(&self) -> bool {
        self.state.last_was_enter.get()
    }

    /// The window in which a key was typed in this turn of the main loop; `None` when whatever
    /// runs now was not typed.
    #[must_use]
    pub fn typed_in(&self) -> Option<Win> {
        self.state.turn.get()
    }

    /// To be called on `CmdlineLeave`, before the command runs.
    pub fn command_line_left(&self) -> Result<()> {
        let vim: Table = self.api.lua.globals().get("vim")?;
        let event: Table = vim.get::<Table>("v")?.get("event")?;
        let aborted: bool = event.get::<Option<bool>>("abort")?.unwrap_or(false);
        let kind: String = self.api.func("getcmdtype", ())?;
        if aborted || kind != ":" {
            return Ok(());
        }
        let line: mlua::String = self.api.func("getcmdline", ())?;
        // A line that does not parse is about to fail by itself.
        let parsed: Option<Table> = self.api.call("nvim_parse_cmd", (line, self.api.table()?)).ok();
        let read = |table: &Table| -> Result<CommandLine> {
            let args = table.get::<Option<Table>>("args")?;
            let range = table.get::<Option<Table>>("range")?;
            let empty = |list: Option<Table>| list.is_none_or(|l| l.raw_len() == 0);
            Ok(CommandLine { command: table.get("cmd")?, bare: empty(args) && empty(range) })
        };
        *self.state.command_line.borrow_mut() = parsed.and_then(|table| read(&table).ok());
        Ok(())
    }

    /// The command line of this turn writes several buffers, or moves on to another one.
    #[must_use]
    pub fn writes_many(&self) -> bool {
        self.state
            .command_line
            .borrow()
            .as_ref()
            .is_some_and(|line| NOT_ABOUT_ONE_BUFFER.contains(&line.command.as_str()))
    }

    /// The command line of this turn says "write this buffer (and quit)", although Neovim does not
    /// write an unmodified buffer for it.
    #[must_use]
    pub fn says_write(&self) -> bool {
        self.state.command_line.borrow().as_ref().is_some_and(|line| {
            line.bare && matches!(line.command.as_str(), "write" | "wq" | "xit" | "exit" | "update")
        })
    }
}
