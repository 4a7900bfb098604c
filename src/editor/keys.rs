//! What the user typed last: tells a typed `:w` from an autosave, and idle from busy.
//!
//! Neovim's thread only. `vim.on_key` costs up to 1 µs a key, so it listens only while an agent is
//! connected, and then to the pace alone until there is a review. A key marks the present turn of
//! the main loop; `vim.schedule` ends the turn, so timers, autocommands and RPC commands find it
//! unmarked.
//!
//! Neovim fires no event for a `:update` or `:x` of an unmodified buffer, so what a command line or
//! a mapping says is looked into, and the user's word for "write" is passed on.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use nvim_oxi::mlua::{self, Function, Table, Value};

use super::Editor;
use super::api::{Api, At, Result, Win};

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

/// One command of the line the user just left with Enter, as `nvim_parse_cmd` reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Command {
    name: String,
    /// No argument and no range: it writes the whole buffer to its own name.
    bare: bool,
    bang: bool,
    /// A command whose work cannot be looked into (a Lua function).
    opaque: bool,
}

/// Commands that run what cannot be known; the plain texts in them are looked into.
const OPAQUE: [&str; 5] = ["lua", "execute", "call", "eval", "normal"];
/// Commands before which 'autowrite' writes.
const AUTOWRITING: [&str; 8] =
    ["make", "lmake", "grep", "lgrep", "!", "terminal", "suspend", "stop"];
/// Commands that say "write this buffer".
const WRITES: [&str; 5] = ["write", "wq", "xit", "exit", "update"];
/// How many commands of one line, and user commands within user commands, are looked into.
const MAX_COMMANDS: usize = 16;

/// What a key becomes when a mapping runs a command without a command line (`<Cmd>`), or a Lua
/// function.
const COMMAND_KEY: &[u8] = b"\x80\xfdh";
const LUA_KEY: &[u8] = b"\x80\xfdg";

/// What keys are listened to for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listening {
    Off,
    /// When the last one was typed, and whether it was `<CR>`.
    Pace,
    /// What they say about a review as well.
    Meaning,
}

struct State {
    /// `None` until the first key is heard.
    last_key: Cell<Option<Instant>>,
    last_was_enter: Cell<bool>,
    /// The window that was current at a key of this turn.
    turn: Cell<Option<Win>>,
    /// `None`: no command line was left in this turn.
    command_line: RefCell<Option<Vec<Command>>>,
    last_was_suspend: Cell<bool>,
    /// The keys before any mapping, of the last key in this turn that was typed.
    typed: RefCell<Vec<u8>>,
    editor: RefCell<Weak<Editor>>,
}

pub struct Keys {
    api: Api,
    state: Rc<State>,
    namespace: i64,
    on_key: Function,
    on_key_pace: Function,
    listening: Cell<Listening>,
}

impl State {
    fn hears(&self, key: &Value) {
        let is = |bytes: &[u8]| matches!(key, Value::String(s) if &*s.as_bytes() == bytes);
        self.last_key.set(Some(Instant::now()));
        self.last_was_enter.set(is(b"\r"));
        self.last_was_suspend.set(is(b"\x1a"));
    }
}

impl Keys {
    pub fn new(api: &Api) -> Result<Self> {
        let state = Rc::new(State {
            last_key: Cell::new(None),
            last_was_enter: Cell::new(false),
            turn: Cell::new(None),
            command_line: RefCell::new(None),
            last_was_suspend: Cell::new(false),
            typed: RefCell::default(),
            editor: RefCell::default(),
        });
        let ended = Rc::clone(&state);
        let end_turn = api.lua.create_function(move |_, ()| {
            let win = ended.turn.take();
            let commands = ended.command_line.take();
            ended.typed.borrow_mut().clear();
            if let (Some(win), Some(editor)) = (win, ended.editor.borrow().upgrade()) {
                let says_write = commands.as_deref().is_some_and(say_write);
                editor.stage.turn_ended(&editor, win, says_write);
            }
            Ok(())
        })?;
        let vim: Table = api.lua.globals().get("vim")?;
        let schedule: Function = vim.get("schedule")?;
        let current_win: Function = vim.get::<Table>("api")?.get("nvim_get_current_win")?;
        let heard = Rc::clone(&state);
        let executing: Function = vim.get::<Table>("fn")?.get("reg_executing")?;
        let on_key = api.lua.create_function(move |_, (key, typed): (Value, Value)| {
            // Keys that `:normal` (ours, or a timer's) and feedkeys() make up are nobody's, unless
            // a typed key is behind them in this turn (a mapping), or a macro.
            let made_up = matches!(&typed, Value::String(s) if s.as_bytes().is_empty());
            if made_up && heard.turn.get().is_none() && executing.call::<String>(())?.is_empty() {
                return Ok(());
            }
            heard.hears(&key);
            let is = |bytes: &[u8]| matches!(&key, Value::String(s) if &*s.as_bytes() == bytes);
            let first = heard.turn.get().is_none();
            let win = current_win.call(())?;
            heard.turn.set(Some(win));
            if !made_up && let Value::String(typed) = &typed {
                let mut last = heard.typed.borrow_mut();
                last.clear();
                last.extend_from_slice(&typed.as_bytes());
            }
            if first {
                schedule.call::<()>(&end_turn)?;
            }
            if (is(COMMAND_KEY) || is(LUA_KEY))
                && let Some(editor) = heard.editor.borrow().upgrade()
                && let Err(error) = editor.keys.mapping_runs(&editor, win)
            {
                tracing::debug!("cannot look into a mapping: {error}");
            }
            Ok(())
        })?;
        let heard = Rc::clone(&state);
        let on_key_pace = api.lua.create_function(move |_, (key, typed): (Value, Value)| {
            if matches!(&typed, Value::String(s) if s.as_bytes().is_empty()) {
                return Ok(());
            }
            heard.hears(&key);
            Ok(())
        })?;
        let namespace = api.call("nvim_create_namespace", "gangway_keys")?;
        let listening = Cell::new(Listening::Off);
        Ok(Self { api: api.clone(), state, namespace, on_key, on_key_pace, listening })
    }

    /// Who is told what the user's keys say.
    pub fn attach(&self, editor: &Rc<Editor>) {
        *self.state.editor.borrow_mut() = Rc::downgrade(editor);
    }

    /// Starts or stops listening; cheap to call with the same value.
    pub fn listen(&self, listening: Listening) -> Result<()> {
        let before = self.listening.replace(listening);
        if before == listening {
            return Ok(());
        }
        let function = match listening {
            Listening::Off => Value::Nil,
            Listening::Pace => Value::Function(self.on_key_pace.clone()),
            Listening::Meaning => Value::Function(self.on_key.clone()),
        };
        if (before, listening) != (Listening::Pace, Listening::Meaning) {
            // The keys were about the reviews, which are done: the next one need not wait for them.
            self.state.last_key.set(None);
            self.state.turn.set(None);
        }
        if listening == Listening::Off {
            self.state.last_was_enter.set(false);
        }
        self.api.vim("on_key", (function, self.namespace))
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
        if self.state.turn.get().is_none() {
            return Ok(());
        }
        let vim: Table = self.api.lua.globals().get("vim")?;
        let event: Table = vim.get::<Table>("v")?.get("event")?;
        let aborted: bool = event.get::<Option<bool>>("abort")?.unwrap_or(false);
        let kind: String = self.api.func("getcmdtype", ())?;
        if aborted || kind != ":" {
            return Ok(());
        }
        // From the command-line window: the key was typed in a window that is gone by now.
        if self.state.turn.get().is_some_and(|win| !self.api.win_valid(win)) {
            self.state.turn.set(Some(self.api.current_win()?));
        }
        let line: mlua::String = self.api.func("getcmdline", ())?;
        let mut commands = Vec::new();
        self.look_into(Value::String(line), &mut commands);
        *self.state.command_line.borrow_mut() = Some(commands);
        Ok(())
    }

    /// Adds every command of `line`, user commands by what they stand for.
    fn look_into(&self, line: Value, commands: &mut Vec<Command>) {
        let mut rest = line;
        while commands.len() < MAX_COMMANDS {
            let opts = self.api.table();
            // A line that does not parse is about to fail by itself.
            let parsed =
                opts.and_then(|opts| self.api.call::<Table>("nvim_parse_cmd", (&rest, opts)));
            let Ok(parsed) = parsed else { return };
            let list = |name: &str| parsed.get::<Option<Table>>(name).ok().flatten();
            let empty = |list: Option<Table>| list.is_none_or(|l| l.raw_len() == 0);
            let Ok(name) = parsed.get::<String>("cmd") else { return };
            let definition = self.definition(&name);
            let opaque = definition.as_deref() == Some("") || OPAQUE.contains(&name.as_str());
            let bare = empty(list("args")) && empty(list("range"));
            let inside = opaque.then(|| list("args")).flatten();
            let bang = parsed.get::<Option<bool>>("bang").ok().flatten().unwrap_or(false);
            commands.push(Command { name, bare, bang, opaque });
            for text in inside.map(|args| texts_in(&self.api.lua, &args)).unwrap_or_default() {
                self.look_into(Value::String(text), commands);
            }
            if let Some(definition) = definition.filter(|text| !text.is_empty())
                && let Ok(text) = self.api.lua.create_string(definition)
            {
                self.look_into(Value::String(text), commands);
            }
            match parsed.get::<Option<mlua::String>>("nextcmd") {
                Ok(Some(next)) if !next.as_bytes().is_empty() => rest = Value::String(next),
                _ => return,
            }
        }
    }

    /// A mapping that was typed in `win` begins to run a command, or a Lua function, without a
    /// command line.
    fn mapping_runs(&self, editor: &Rc<Editor>, win: Win) -> Result<()> {
        if !editor.stage.may_be_written(editor, win) {
            return Ok(());
        }
        let typed = self.api.lua.create_string(&*self.state.typed.borrow())?;
        let look = self.api.chunk("mapping", include_str!("mapping.lua"))?;
        let (kind, texts): (String, Vec<mlua::String>) = look.call(typed)?;
        let mut commands = Vec::new();
        for text in texts {
            self.look_into(Value::String(text), &mut commands);
        }
        let writes = commands.iter().any(|c| WRITES.contains(&c.name.as_str()));
        let many = commands.iter().any(is_about_many);
        // What a function will do nobody can know: it sees the proposal as what it is, not yet
        // written.
        if kind == "lua" && !many {
            if writes {
                return editor.stage.show_unwritten(editor, win);
            }
            if !self.writes_on_the_way(&commands)? {
                return Ok(());
            }
        }
        if !commands.is_empty() {
            *self.state.command_line.borrow_mut() = Some(commands);
        }
        Ok(())
    }

    /// Commands that write what is modified only because of 'autowrite'.
    fn writes_on_the_way(&self, commands: &[Command]) -> Result<bool> {
        let on = |name: &str| self.api.option::<bool>(name, At::Global);
        let by = |c: &Command| AUTOWRITING.contains(&c.name.as_str());
        Ok(commands.iter().any(by) && (on("autowrite")? || on("autowriteall")?))
    }

    /// What a user command stands for; empty when that is a Lua function.
    fn definition(&self, name: &str) -> Option<String> {
        if !name.starts_with(|c: char| c.is_ascii_uppercase()) {
            return None;
        }
        let of = |commands: Result<Table>| -> Option<String> {
            let command: Table = commands.ok()?.get::<Option<Table>>(name).ok()??;
            if !matches!(command.get::<Value>("callback"), Ok(Value::Nil) | Err(_)) {
                return Some(String::new());
            }
            command.get("definition").ok()
        };
        let opts = || self.api.table();
        of(opts().and_then(|opts| self.api.call("nvim_buf_get_commands", (0, opts))))
            .or_else(|| of(opts().and_then(|opts| self.api.call("nvim_get_commands", opts))))
    }

    /// What the user typed in this turn can be about writing one buffer: a mapping without a
    /// command line, or a command line that says so and names no command for all buffers.
    #[must_use]
    pub fn may_write(&self) -> bool {
        match &*self.state.command_line.borrow() {
            // Suspending writes for 'autowrite', not for the user.
            None => !self.state.last_was_suspend.get(),
            Some(commands) => {
                let writes = |c: &Command| c.opaque || WRITES.contains(&c.name.as_str());
                commands.iter().any(writes) && !commands.iter().any(is_about_many)
            }
        }
    }

    /// The command line of this turn says "write this buffer (and quit)", although Neovim does not
    /// write an unmodified buffer for it.
    #[must_use]
    pub fn says_write(&self) -> bool {
        self.state.command_line.borrow().as_deref().is_some_and(say_write)
    }

    /// The command line of this turn is `:q!`: away with it, in so many words.
    #[must_use]
    pub fn says_discard(&self) -> bool {
        let discards = |c: &Command| c.name == "quit" && c.bang && c.bare;
        self.state.command_line.borrow().iter().flatten().any(discards)
    }
}

/// The quoted texts in a command's arguments, and the commands of `vim.cmd.command()`.
fn texts_in(lua: &mlua::Lua, args: &Table) -> Vec<mlua::String> {
    let args = args.sequence_values::<mlua::String>().filter_map(Result::ok);
    let args: Vec<Vec<u8>> = args.map(|arg| arg.as_bytes().to_vec()).collect();
    let mut found = Vec::new();
    let all = args.join(&b' ');
    let mut rest = &all[..];
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if matches!(first, b'\'' | b'"')
            && let Some(end) = after.iter().position(|byte| byte == first)
        {
            found.push(&after[..end]);
            rest = &after[end + 1..];
        } else if let Some(name) = rest.strip_prefix(b"md.").filter(|_| *first == b'c') {
            let end = name.iter().position(|byte| !byte.is_ascii_alphabetic());
            found.push(&name[..end.unwrap_or(name.len())]);
        }
    }
    found.into_iter().filter_map(|text| lua.create_string(text).ok()).collect()
}

fn is_about_many(command: &Command) -> bool {
    NOT_ABOUT_ONE_BUFFER.contains(&command.name.as_str())
}

fn say_write(commands: &[Command]) -> bool {
    commands.iter().any(|c| c.bare && WRITES.contains(&c.name.as_str()))
        && !commands.iter().any(is_about_many)
}
