//! The table `require("gangway.native")` gets: small functions over `Plugin`.
//!
//! Neovim's thread only. Every function is an mlua function behind `door`: errors and panics become
//! ordinary Lua errors. The table exists once a process, even if a second copy of the library is
//! loaded.

use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use nvim_oxi::mlua::{self, FromLuaMulti, IntoLua, IntoLuaMulti, Lua, Table, Value};

use super::{Plugin, lock};
use crate::agents::codex::{Codex, CodexStatus};
use crate::agents::mcp::{ClientEvent, ClientInfo, Mention};
use crate::context::paths::real_path;
use crate::context::privacy::Share;
use crate::disk::within;
use crate::editor::Editor;
use crate::editor::api::Buf;
use crate::editor::stage::{Decision, describe};
use crate::log;
use crate::panic::catch;

thread_local! {
    static PLUGIN: Slot = const { Slot(OnceCell::new()) };
}

/// Dropped when the process ends, by whatever way it was left.
struct Slot(OnceCell<Rc<Plugin>>);

impl Drop for Slot {
    fn drop(&mut self) {
        // What it holds of Lua must not be touched any more: it is never dropped.
        if let Some(plugin) = self.0.take().map(ManuallyDrop::new) {
            plugin.end_without_neovim();
        }
    }
}

/// Registers the export table as `package.loaded.gangway_native`. A second call, also from another
/// copy of the library, registers the first table again.
pub fn open() -> mlua::Result<()> {
    const REGISTRY: &str = "gangway_native";
    let lua = nvim_oxi::mlua::lua();
    let exports = match lua.named_registry_value::<Value>(REGISTRY)? {
        Value::Table(exports) => exports,
        _ => {
            let exports = build(&lua)?;
            lua.set_named_registry_value(REGISTRY, &exports)?;
            exports
        }
    };
    lua.globals().get::<Table>("package")?.get::<Table>("loaded")?.set("gangway_native", exports)
}

pub(super) fn plugin() -> Option<Rc<Plugin>> {
    PLUGIN.try_with(|slot| slot.0.get().cloned()).ok().flatten()
}

/// A Lua function that cannot take Neovim down.
fn door<A: FromLuaMulti, R: IntoLuaMulti>(
    lua: &Lua,
    name: &'static str,
    f: impl Fn(&Rc<Plugin>, A) -> mlua::Result<R> + 'static,
) -> mlua::Result<mlua::Function> {
    lua.create_function(move |_, args: A| {
        let plugin =
            plugin().ok_or_else(|| mlua::Error::runtime("gangway: the library is not ready"))?;
        catch(name, || f(&plugin, args))
            .unwrap_or_else(|caught| Err(mlua::Error::runtime(format!("gangway: {caught}"))))
    })
}

fn build(lua: &Lua) -> mlua::Result<Table> {
    let made = Plugin::new(lua, || plugin().map(|p| Rc::clone(&p.editor)))?;
    leave_at_exit(lua, &made)?;
    PLUGIN.with(|slot| {
        let _ = slot.0.set(made);
    });
    let table = lua.create_table()?;
    table.set("version", env!("CARGO_PKG_VERSION"))?;
    let set =
        |name: &'static str, function: mlua::Result<mlua::Function>| table.set(name, function?);
    set("configure", door(lua, "setup", |p, options: Value| p.configure(&options)))?;
    set("configured", door(lua, "setup", |p, ()| Ok(p.configured.get())))?;
    set("start", door(lua, "start", |p, ()| p.start()))?;
    set("stop", door(lua, "stop", |p, ()| p.stop(false)))?;
    set("running", door(lua, "running", |p, ()| Ok(p.running.borrow().is_some())))?;
    set("status", door(lua, "status", |p, ()| p.status()))?;
    set("statusline", door(lua, "statusline", |p, ()| Ok(p.statusline())))?;
    set("decide", door(lua, "decide", |p, (what, id, unseen)| Ok(p.decide(what, id, unseen))))?;
    set(
        "show",
        door(lua, "show", |p, id: String| {
            Ok(p.editor.stage.show(&p.editor, &crate::review::ReviewId(id.into())))
        }),
    )?;
    set("is_pane", door(lua, "session", |p, buf| Ok(p.editor.stage.is_pane(Buf(buf)))))?;
    set("selected", door(lua, "send", |p, ()| p.editor.selected()))?;
    set("send", door(lua, "send", |p, options: Table| p.send(&options)))?;
    set("suggest", door(lua, "suggest", |p, (around, reply)| p.suggest(&around, reply)))?;
    set("suggestion_keys", door(lua, "suggest", |p, ()| p.suggestion_keys()))?;
    set(
        "unsuggest",
        door(lua, "suggest", |p, ()| {
            p.suggesting.take();
            Ok(())
        }),
    )?;
    set("share", door(lua, "share", |p, what: Option<String>| p.share(what.as_deref())))?;
    set("log_path", door(lua, "log", |_, ()| Ok(log::path().map(|p| p.display().to_string()))))?;
    set("_panic", door(lua, "test", |p, door: String| p.panic_on_purpose(&door)))?;
    Ok(table)
}

/// Also for `:qa!`, SIGTERM and SIGHUP. Another plugin's slow handler may come first or last.
fn leave_at_exit(lua: &Lua, plugin: &Rc<Plugin>) -> mlua::Result<()> {
    let api = &plugin.editor.api;
    let group = api.augroup("gangway_exit")?;
    let _ = lua;
    api.autocmd(group, &["VimLeavePre"], None, |_, _| match self::plugin() {
        Some(plugin) => plugin.stop(true),
        None => Ok(()),
    })?;
    api.autocmd(group, &["FocusGained"], None, |_, _| {
        if let Some(plugin) = self::plugin()
            && let Some(running) = &*plugin.running.borrow()
        {
            running.check_locks.notify_one();
        }
        Ok(())
    })?;
    Ok(())
}

/// The lock files are out: agents can come.
pub(super) fn started(editor: &Rc<Editor>) {
    let fire = || -> mlua::Result<()> {
        let data = editor.api.table()?;
        let port =
            plugin().and_then(|p| p.running.borrow().as_ref().and_then(|r| lock(&r.shared).port));
        data.set("port", port)?;
        editor.api.user_event("GangwayStarted", data);
        Ok(())
    };
    if let Err(error) = fire() {
        tracing::warn!("GangwayStarted: {error}");
    }
}

/// An agent came or went; posted from the runtime.
pub(super) fn client_event(event: &ClientEvent) {
    let Some(plugin) = plugin() else { return };
    let editor = &plugin.editor;
    let count = plugin.running.borrow().as_ref().map_or(0, |r| r.mcp.client_count());
    editor.set_clients(count);
    match event {
        ClientEvent::Connected(client) => plugin.known.borrow_mut().push(client.clone()),
        ClientEvent::Disconnected(gone) => {
            plugin.known.borrow_mut().retain(|client| client.id != gone.id);
        }
    }
    tell_of_client(&plugin, event);
}

pub(super) fn tell_of_client(plugin: &Plugin, event: &ClientEvent) {
    let (name, client) = match event {
        ClientEvent::Connected(client) => ("GangwayConnected", client),
        ClientEvent::Disconnected(client) => ("GangwayDisconnected", client),
    };
    match client_table(plugin, client) {
        Ok(data) => plugin.editor.api.user_event(name, data),
        Err(error) => tracing::warn!("{name}: {error}"),
    }
}

fn client_table(plugin: &Plugin, client: &ClientInfo) -> mlua::Result<Table> {
    let lua = &plugin.editor.api.lua;
    let table = plugin.editor.api.opts([
        ("id", client.id.into_lua(lua)?),
        ("name", client.name.as_str().into_lua(lua)?),
        ("version", client.version.as_deref().into_lua(lua)?),
        ("pending", client.pending.into_lua(lua)?),
        ("pid", client.pid.into_lua(lua)?),
        ("takes_mentions", client.dialect.takes_mentions().into_lua(lua)?),
    ])?;
    if let Some(root) = client.roots.first() {
        table.set("root", root.to_string_lossy())?;
    }
    Ok(table)
}

pub(super) fn path_of(bytes: &mlua::String) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes.as_bytes()))
}

impl Plugin {
    fn status(&self) -> mlua::Result<Table> {
        let api = &self.editor.api;
        let table = api.table()?;
        let (clients, reviews, files) = (api.table()?, api.table()?, api.table()?);
        // Whoever reads of a review here may go and look at it.
        let pending = self.desk.pending().into_iter();
        for (review, seen) in pending.filter(|(review, _)| self.editor.stage.knows(review)) {
            let entry = describe(&self.editor, &review)?;
            entry.set("seen", seen)?;
            reviews.push(entry)?;
        }
        let notes = api.table()?;
        if let Some(problem) = log::problem() {
            notes.push(problem)?;
        }
        if let Some(running) = &*self.running.borrow() {
            for client in running.mcp.clients() {
                clients.push(client_table(self, &client)?)?;
            }
            let shared = lock(&running.shared);
            table.set("port", shared.port)?;
            for (_, path) in shared.locks.iter().flat_map(|locks| locks.paths()) {
                files.push(api.lua.create_string(path.as_os_str().as_encoded_bytes())?)?;
            }
            for problem in &shared.problems {
                notes.push(problem.as_str())?;
            }
            if let Some(status) = shared.aivyx.as_ref().map(|aivyx| aivyx.status())
                && status.active
            {
                let dir = status.state_dir.unwrap_or_default();
                notes.push(format!("aivyx-coder is served through {}", dir.display()))?;
            }
            match shared.codex.as_ref().map(Codex::status) {
                Some(CodexStatus::Joined(path)) => {
                    notes.push(format!("Codex is served through {}, joined", path.display()))?;
                }
                Some(CodexStatus::Serving(path)) => {
                    notes.push(format!("Codex is served through {}", path.display()))?;
                }
                Some(CodexStatus::Waiting) => notes.push("Codex's socket is not to be had yet")?,
                None => {}
            }
            if let Some(status) = shared.rivumi.as_ref().map(|rivumi| rivumi.status()) {
                for dir in status.directories {
                    notes.push(format!("Rivumi is served through {}", dir.display()))?;
                }
                if let Some(error) = status.push_error {
                    notes.push(format!("pushing to Rivumi failed: {error}"))?;
                }
            }
        }
        table.set("running", self.running.borrow().is_some())?;
        table.set("sharing", self.sharing()?)?;
        table.set("clients", clients)?;
        table.set("reviews", reviews)?;
        table.set("lock_files", files)?;
        table.set("notes", notes)?;
        Ok(table)
    }

    /// Empty while stopped; else what is worth a look: agents, waiting reviews, sharing off.
    fn statusline(&self) -> String {
        let running = self.running.borrow();
        let Some(running) = &*running else { return String::new() };
        let plural = |n: usize, what: &str| match n {
            0 => None,
            1 => Some(format!("1 {what}")),
            n => Some(format!("{n} {what}s")),
        };
        let parts = [
            plural(running.mcp.client_count(), "agent"),
            plural(self.desk.len(), "review"),
            (!self.gate.sharing()).then(|| "not sharing".to_owned()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
    }

    /// `None` when all is well, else what to tell the user.
    fn decide(&self, what: String, id: Option<String>, unseen: bool) -> Option<String> {
        let decision = match what.as_str() {
            "accept" => Decision::Accept,
            "always_allow" => Decision::AlwaysAllow,
            "reject" => Decision::Reject,
            _ => return Some(format!("no such decision: {what}")),
        };
        self.editor.stage.decide(&self.editor, id.as_deref(), unseen, decision).err()
    }

    /// The project the user is in, as the sharing switch knows it; `None` when they have chosen
    /// another one, which is known once it runs.
    fn project_here(&self) -> mlua::Result<Option<PathBuf>> {
        if !self.root_option()?.is_nil() {
            return Ok(None);
        }
        let cwd = path_of(&self.editor.api.func("getcwd", ())?);
        Ok(self.gate.project_here(cwd))
    }

    fn sharing(&self) -> mlua::Result<bool> {
        if self.running.borrow().is_some() {
            return Ok(self.gate.sharing());
        }
        let here = self.project_here()?;
        Ok(here.map_or_else(|| self.gate.sharing(), |project| self.gate.sharing_of(&project)))
    }

    fn share(&self, what: Option<&str>) -> mlua::Result<bool> {
        let share = match what {
            Some("on") => Share::On,
            Some("off") => Share::Off,
            Some("toggle") if self.sharing()? => Share::Off,
            Some("toggle") => Share::On,
            _ => return self.sharing(),
        };
        let problem = match &*self.running.borrow() {
            Some(running) => {
                let problem = self.gate.share(share, None);
                // The next snapshot says about which project that was.
                running.feed.mark();
                problem
            }
            None => self.gate.share(share, self.project_here()?),
        };
        if let Some(problem) = problem {
            self.editor.report(&problem);
        }
        let _ = self.editor.api.command("redrawstatus");
        Ok(share == Share::On)
    }

    /// `send{ path, line1, line2, client }`; lines 1-based and inclusive.
    fn send(&self, options: &Table) -> mlua::Result<bool> {
        let api = &self.editor.api;
        let path: Option<mlua::String> = options.get("path")?;
        let path = match path {
            Some(path) if !path.as_bytes().contains(&0) => path,
            Some(_) => return self.cannot_send("send: path holds a NUL"),
            None => api.buf_name(api.win_buf(api.current_win()?)?)?,
        };
        let path = path_of(&api.func("fnamemodify", (path, ":p"))?);
        // The file system may hang: then nothing is known of the file, and the user is asked.
        let looked = path.clone();
        let (is_folder, real) =
            within(move || (looked.is_dir(), real_path(&looked))).unwrap_or((false, None));
        if path.as_os_str().is_empty() || !path.is_absolute() || is_folder {
            return self.cannot_send("this window holds no file to send");
        }
        let line = |name: &str| -> mlua::Result<Option<u32>> {
            let value: Option<f64> = options.get(name)?;
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
            Ok(value.filter(|v| v.is_finite()).map(|v| v.clamp(1.0, 4e9) as u32 - 1))
        };
        let lines = line("line1")?.map(|first| -> mlua::Result<_> {
            let last = line("line2")?.unwrap_or(first);
            Ok((first.min(last), first.max(last)))
        });
        let mention = Mention { path, lines: lines.transpose()? };
        if self.running.borrow().is_none() {
            return self.cannot_send("not running (:IdeStart)");
        }
        let allowed = self.gate.allows(&mention.path, real.as_deref());
        if !allowed && !self.user_insists(&mention)? {
            return Ok(false);
        }
        let client: Option<u64> = options.get("client")?;
        // Asked again: the user may have stopped it while the question stood. Nothing is held
        // while handlers run, which may stop it as well.
        let running = self.running.borrow();
        let sent = running.as_ref().map(|running| running.mcp.mention(client, &mention));
        drop(running);
        let Some(sent) = sent else { return self.cannot_send("not running (:IdeStart)") };
        match sent {
            Ok(client) => {
                let data = client_table(self, &client)?;
                let bytes = mention.path.as_os_str().as_encoded_bytes();
                data.set("path", api.lua.create_string(bytes)?)?;
                if let Some((first, last)) = mention.lines {
                    data.set("line1", first + 1)?;
                    data.set("line2", last + 1)?;
                }
                api.user_event("GangwaySent", data);
                Ok(true)
            }
            Err(error) => self.cannot_send(&error.to_string()),
        }
    }

    fn cannot_send(&self, why: &str) -> mlua::Result<bool> {
        self.editor.api.notify(why, 3);
        Ok(false)
    }

    /// A file that is kept private is mentioned only after a yes.
    fn user_insists(&self, mention: &Mention) -> mlua::Result<bool> {
        let name = self.editor.short_path(&mention.path).replace(['\n', '\0'], " ");
        let why = if self.gate.sharing() { "is kept from agents" } else { "is not shared" };
        let question = format!("{name} {why}. Mention its path all the same?");
        let answer: i64 = self.editor.api.func("confirm", (question, "&No\n&Yes", 1))?;
        Ok(answer == 2)
    }

    /// For the tests that show a panic anywhere leaves Neovim running, and a worker that is stuck
    /// lets it go.
    fn panic_on_purpose(self: &Rc<Self>, door: &str) -> mlua::Result<()> {
        #[allow(clippy::panic, reason = "that is what it is for")]
        fn boom() {
            panic!("on purpose");
        }
        match door {
            "job" => self.bridge.post(|_| boom()),
            "task" => {
                if let Some(running) = &*self.running.borrow() {
                    running.runtime.spawn(async { boom() });
                }
            }
            "worker" => self.editor.on_worker(boom),
            "stuck" => self.editor.on_worker(|| std::thread::sleep(Duration::from_secs(60))),
            "autocmd" => {
                let api = &self.editor.api;
                let group = api.augroup("gangway_test")?;
                api.autocmd(group, &["User"], None, |_, _| {
                    boom();
                    Ok(())
                })?;
                let fired = api.call::<()>("nvim_exec_autocmds", ("User", api.table()?));
                api.delete_augroup(group)?;
                fired?;
            }
            _ => boom(),
        }
        Ok(())
    }
}
