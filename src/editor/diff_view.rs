//! The two panes of a proposed change: left what is on disk, right what the agent proposes.
//!
//! Neovim's thread only. Builds the windows (always a tab page of their own), highlights them
//! without ever setting 'filetype' (language servers and ftplugins stay away), and serves the keys
//! that work on hunks.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nvim_oxi::mlua::{self, IntoLua, Table, Value};

use super::api::{Api, At, Buf, Result, Win};
use super::view::{Built, Place, View};
use super::{Editor, winbar};
use crate::review::hunks::{Hunk, Hunks};
use crate::review::two_panes::{Detail, TwoPanes};
use crate::review::{Kind, Review};

/// Plugins that complete, suggest, format or save are told to stay out of the panes. Each name is
/// the documented buffer variable of one of them.
const KEEP_OUT: [(&str, bool); 11] = [
    ("completion", false),
    ("copilot_enabled", false),
    ("copilot_suggestion_auto_trigger", false),
    ("copilot_suggestion_hidden", true),
    ("codeium_enabled", false),
    ("minicompletion_disable", true),
    ("coc_enabled", false),
    ("ale_enabled", false),
    ("editorconfig", false),
    ("autoformat", false),
    ("disable_autoformat", true),
];

/// Window options that a new window would take over from wherever the user is (a terminal, a
/// sidebar): the panes get the user's global values.
const FROM_GLOBAL: [&str; 14] = [
    "number",
    "relativenumber",
    "signcolumn",
    "list",
    "cursorline",
    "cursorcolumn",
    "colorcolumn",
    "statuscolumn",
    "scrolloff",
    "sidescrolloff",
    "linebreak",
    "breakindent",
    "showbreak",
    "fillchars",
];

/// Options of the user's buffer that say how typed text is indented and broken into lines.
/// 'indentexpr' goes through `gangway.indent`.
const BORROWED: [&str; 19] = [
    "tabstop",
    "shiftwidth",
    "softtabstop",
    "vartabstop",
    "varsofttabstop",
    "expandtab",
    "autoindent",
    "copyindent",
    "preserveindent",
    "smartindent",
    "cindent",
    "cinkeys",
    "cinoptions",
    "cinwords",
    "indentkeys",
    "comments",
    "formatoptions",
    "textwidth",
    "iskeyword",
];

/// A first redraw shows the panes before a parser takes its time (1 MB: 50 ms).
const HIGHLIGHT_AFTER: Duration = Duration::from_millis(30);
/// Recounts wait this long for the next edit.
const RECOUNT_AFTER: Duration = Duration::from_millis(150);
/// How long a key that needs the differences waits for them.
const COUNT_PATIENCE: Duration = Duration::from_millis(100);
/// Proposals larger than this are not recounted while the user types (bytes).
const RECOUNT_BYTES: usize = 2 << 20;

pub(super) fn build(
    editor: &Rc<Editor>,
    review: &Arc<Review>,
    panes: &TwoPanes,
    made: &mut Vec<Buf>,
) -> Result<Built> {
    let api = &editor.api;
    let path = review.kind.path().unwrap_or(Path::new(""));
    let old_path = match &review.kind {
        Kind::Write { old_path, .. } => old_path,
        _ => path,
    };
    let serial = editor.next_serial();
    let left = pane(api, made, &panes.left, "nofile")?;
    let right = pane(api, made, &panes.right.body, "acwrite")?;
    // What matters stands last: Neovim's tab line shortens the folders of a name.
    let name = |path: &Path, what: &str| {
        format!("gangway://{serial}/{} ({what})", winbar::visible(&editor.short_path(path)))
    };
    let left_name = name(old_path, "on disk");
    let right_name = name(path, "proposed");
    api.call::<()>("nvim_buf_set_name", (left, left_name.as_str()))?;
    api.call::<()>("nvim_buf_set_name", (right, right_name.as_str()))?;
    // Setting the name looks for a matching buffer type again on some versions.
    api.set_option("buftype", "acwrite", At::Buf(right))?;
    mark_line_ends(api, left, &panes.left_odd_ends, panes.left_unterminated)?;
    mark_line_ends(api, right, &panes.right_odd_ends, panes.right_unterminated)?;

    borrow_indentation(editor, path, right);
    let place = open_windows(editor, left, right, panes)?;
    highlight_later(editor, path, [left, right], panes.detail);
    Ok(Built { right, right_name, left_name, left: Some(left), place })
}

/// The two windows, in a tab page behind the present one; the right one becomes current.
pub(super) fn open_windows(
    editor: &Rc<Editor>,
    left: Buf,
    right: Buf,
    panes: &TwoPanes,
) -> Result<Place> {
    let api = &editor.api;
    let left_win = open_tab(api, left)?;
    let split = |where_to: &str| -> Result<Win> {
        let opts = api.opts([
            ("split", where_to.into_lua(&api.lua)?),
            ("win", left_win.into_lua(&api.lua)?),
        ])?;
        api.call("nvim_open_win", (right, true, opts))
    };
    // One above the other where a large 'winminwidth' leaves no room side by side.
    let right_win = split("right").or_else(|_| split("below"))?;
    for win in [left_win, right_win] {
        plain_window(api, win)?;
    }
    if panes.detail < Detail::NoDiff {
        for win in [left_win, right_win] {
            api.in_win(win, |api| api.command("diffthis"))?;
        }
    }
    for win in [left_win, right_win] {
        api.set_option("winfixbuf", true, At::Win(win))?;
        // Else a large 'winwidth' of the user's would take the room of the other pane.
        api.set_option("winfixwidth", true, At::Win(win))?;
    }
    share_width(api, left_win, right_win)?;
    for win in [left_win, right_win] {
        show_line(api, win, i64::from(panes.first_change) + 1)?;
    }
    Ok(Place { tab: api.win_tab(right_win)?, right_win, left_win: Some(left_win) })
}

/// Half of the room for each, if they are side by side.
pub(super) fn share_width(api: &Api, left: Win, right: Win) -> Result<()> {
    let column = |win: Win| -> Result<i64> {
        let [_, column]: [i64; 2] = api.call("nvim_win_get_position", win)?;
        Ok(column)
    };
    if column(left)? == column(right)? {
        return Ok(());
    }
    let width = |win: Win| api.call::<i64>("nvim_win_get_width", win);
    let half = i64::midpoint(width(left)?, width(right)?);
    api.call("nvim_win_set_width", (left, half))
}

/// One pane's buffer: scratch in every respect, filled, not modifiable.
pub(super) fn pane(api: &Api, made: &mut Vec<Buf>, body: &str, kind: &str) -> Result<Buf> {
    let buf = api.create_buf()?;
    made.push(buf);
    for (name, value) in [
        // `nvim -M` would not let us fill it.
        ("modifiable", Value::Boolean(true)),
        ("swapfile", Value::Boolean(false)),
        ("undofile", Value::Boolean(false)),
        ("modeline", Value::Boolean(false)),
        ("buflisted", Value::Boolean(false)),
        ("fixendofline", Value::Boolean(false)),
        ("endofline", Value::Boolean(true)),
        ("fileformat", "unix".into_lua(&api.lua)?),
        ("bufhidden", "hide".into_lua(&api.lua)?),
        ("buftype", kind.into_lua(&api.lua)?),
    ] {
        api.set_option(name, value, At::Buf(buf))?;
    }
    for (name, value) in KEEP_OUT {
        api.set_buf_var(buf, name, value)?;
    }
    api.fill(buf, body)?;
    api.set_option("modifiable", false, At::Buf(buf))?;
    Ok(buf)
}

/// A new tab page behind the present one that shows `buf`; its window becomes current.
pub(super) fn open_tab(api: &Api, buf: Buf) -> Result<Win> {
    let after: i64 = api.func("tabpagenr", ())?;
    let mods = api.opts([
        ("tab", Value::Integer(after)),
        ("keepalt", Value::Boolean(true)),
        ("keepjumps", Value::Boolean(true)),
    ])?;
    let cmd = api.opts([
        ("cmd", "sbuffer".into_lua(&api.lua)?),
        ("args", vec![buf.0.to_string()].into_lua(&api.lua)?),
        ("mods", Value::Table(mods)),
    ])?;
    api.call::<mlua::Value>("nvim_cmd", (cmd, api.table()?))?;
    api.current_win()
}

/// Undoes what a new window takes over from the window the user happened to be in.
pub(super) fn plain_window(api: &Api, win: Win) -> Result<()> {
    for name in FROM_GLOBAL {
        let global: Value = api.option(name, At::Global)?;
        api.set_option(name, global, At::Win(win))?;
    }
    for (name, value) in [
        ("spell", Value::Boolean(false)),
        ("winfixwidth", Value::Boolean(false)),
        ("winfixheight", Value::Boolean(false)),
        ("conceallevel", Value::Integer(0)),
        ("winhighlight", "".into_lua(&api.lua)?),
        ("foldenable", Value::Boolean(true)),
    ] {
        api.set_option(name, value, At::Win(win))?;
    }
    Ok(())
}

/// Puts the cursor on a line and the line into the middle, without a key or a mode.
fn show_line(api: &Api, win: Win, line: i64) -> Result<()> {
    let buf = api.win_buf(win)?;
    let line = line.clamp(1, api.line_count(buf)?.max(1));
    api.set_cursor(win, line, 0)?;
    let height: i64 = api.call("nvim_win_get_height", win)?;
    api.in_win(win, move |api| {
        let view = api.opts([("topline", Value::Integer((line - height / 2).max(1)))])?;
        api.func("winrestview", view)
    })
}

/// Line ends cannot be coloured as changes: an unusual one, and a missing last one, get a mark.
pub(super) fn mark_line_ends(api: &Api, buf: Buf, odd: &[u32], unterminated: bool) -> Result<()> {
    let namespace: i64 = api.call("nvim_create_namespace", "gangway_line_ends")?;
    api.call::<()>("nvim_buf_clear_namespace", (buf, namespace, 0, -1))?;
    let mark = |line: i64, text: &str| -> Result<()> {
        let chunk = vec![text.to_owned(), "GangwayLineEnd".to_owned()];
        let opts = api.opts([
            ("virt_text", vec![chunk].into_lua(&api.lua)?),
            ("virt_text_pos", "eol".into_lua(&api.lua)?),
        ])?;
        api.call::<i64>("nvim_buf_set_extmark", (buf, namespace, line, 0, opts)).map(drop)
    };
    // Thousands of marks say no more than the first ones and the winbar's note.
    for line in odd.iter().take(2000) {
        mark(i64::from(*line), "other line end")?;
    }
    if unterminated {
        mark(api.line_count(buf)? - 1, "no newline at end of file")?;
    }
    Ok(())
}

/// How the user's own buffer of that file indents and breaks lines, so that edits look alike.
fn borrow_indentation(editor: &Rc<Editor>, path: &Path, right: Buf) {
    let api = &editor.api;
    let Some(source) = editor.buffer_of(path) else { return };
    for name in BORROWED {
        let copied = api
            .option::<Value>(name, At::Buf(source))
            .and_then(|value| api.set_option(name, value, At::Buf(right)));
        if let Err(error) = copied {
            tracing::debug!("{name}: {error}");
        }
    }
    let expression = || -> Result<()> {
        if api.option::<mlua::String>("indentexpr", At::Buf(source))?.as_bytes().is_empty() {
            return Ok(());
        }
        let ours = format!("v:lua.require'gangway.indent'.of({})", source.0);
        api.set_option("indentexpr", ours, At::Buf(right))
    };
    if let Err(error) = expression() {
        tracing::debug!("indentexpr: {error}");
    }
}

/// Highlights once the panes are on the screen, so that a slow parser never delays them.
fn highlight_later(editor: &Rc<Editor>, path: &Path, bufs: [Buf; 2], detail: Detail) {
    if detail > Detail::Syntax {
        return;
    }
    let path = path.to_owned();
    let treesitter = detail == Detail::Full;
    editor.after(HIGHLIGHT_AFTER, move |editor| {
        let api = &editor.api;
        let run = || -> Result<()> {
            let language = editor
                .buffer_of(&path)
                .and_then(|b| api.option::<String>("filetype", At::Buf(b)).ok());
            let name = api.lua.create_string(path.as_os_str().as_encoded_bytes())?;
            let highlight = api.chunk("highlight", include_str!("highlight.lua"))?;
            for buf in bufs.into_iter().filter(|buf| api.buf_loaded(*buf)) {
                highlight.call::<()>((buf, &name, language.as_deref(), treesitter))?;
            }
            Ok(())
        };
        if let Err(error) = run() {
            tracing::debug!("no highlighting: {error}");
        }
    });
}

// ---- hunks

/// Counts the hunks anew once the user pauses.
pub(super) fn recount_soon(editor: &Rc<Editor>, view: &Rc<View>) {
    if view.counting.replace(true) {
        return;
    }
    let buf = view.right;
    editor.after(RECOUNT_AFTER, move |editor| {
        let Some(view) = editor.stage.view_of_buf(buf) else { return };
        view.counting.set(false);
        recount(editor, &view);
    });
}

/// Counts the hunks of the buffer as it is, unless it is large.
fn recount(editor: &Rc<Editor>, view: &Rc<View>) {
    let small = view.panes().is_some_and(|panes| panes.left.len() <= RECOUNT_BYTES);
    if small {
        count(editor, view);
    }
}

/// Compares on a worker, whatever the size, and draws the result.
pub(super) fn count(editor: &Rc<Editor>, view: &Rc<View>) {
    let Some(panes) = view.panes() else { return };
    let Ok(tick) = editor.api.changedtick(view.right) else { return };
    let edited = view.edited(&editor.api).then(|| editor.api.buf_text(view.right).ok()).flatten();
    let (buf, bridge) = (view.right, editor.bridge.clone());
    editor.on_worker(move || {
        let hunks = Hunks::between(&panes.left, edited.as_ref().unwrap_or(&panes.right.body));
        bridge.post(move |editor| {
            if let Some(view) = editor.stage.view_of_buf(buf) {
                view.counted_at.set(tick);
                *view.hunks.borrow_mut() = Some(Rc::new(hunks));
                winbar::draw(editor, &view);
            }
        });
    });
}

/// The hunks as the buffer is now; asked for at a key press, so it may count what takes no time.
/// `None`, after a message, while the others are still being counted.
fn present_hunks(editor: &Rc<Editor>, view: &View) -> Result<Option<Rc<Hunks>>> {
    let tick = editor.api.changedtick(view.right)?;
    if let Some(panes) = view.panes()
        && view.counted_at.get() != tick
        && view.edited(&editor.api)
        && panes.left.len() <= RECOUNT_BYTES
    {
        let body = editor.api.buf_text(view.right)?;
        let hunks = Hunks::within(COUNT_PATIENCE, &panes.left, &body);
        if hunks.is_some() {
            view.counted_at.set(tick);
        }
        *view.hunks.borrow_mut() = hunks.map(Rc::new);
    }
    let hunks = view.hunks.borrow().clone();
    if hunks.is_none() {
        editor.api.notify("the differences are still being counted", 2);
    }
    Ok(hunks)
}

pub(super) fn map_hunk_keys(
    view: &Rc<View>,
    editor: &Rc<Editor>,
    buf: Buf,
    drop: Option<&str>,
) -> Result<()> {
    view.map(editor, buf, Some("]c"), "next difference", |v, e| jump(e, v, true))?;
    view.map(editor, buf, Some("[c"), "previous difference", |v, e| jump(e, v, false))?;
    if view.editable() {
        view.map(editor, buf, drop, "drop this hunk", |v, e| drop_hunk(e, v))?;
    }
    if Some(buf) == view.left {
        // The left pane cannot change, so u means the proposal, wherever the cursor is.
        for (key, command) in [("u", "silent! undo"), ("<C-r>", "silent! redo")] {
            view.map(editor, buf, Some(key), "undo in the proposal", move |v, e| {
                match v.right_window(&e.api) {
                    Some(win) => e.api.in_win(win, move |api| api.command(command)),
                    None => Ok(()),
                }
            })?;
        }
    }
    Ok(())
}

/// Where the cursor is: which pane, and its 0-based line.
fn cursor(editor: &Rc<Editor>, view: &View) -> Result<(Win, bool, u32)> {
    let api = &editor.api;
    let win = api.current_win()?;
    let in_new = api.win_buf(win)? == view.right;
    let (line, _) = api.cursor(win)?;
    Ok((win, in_new, u32::try_from(line - 1).unwrap_or(0)))
}

fn jump(editor: &Rc<Editor>, view: &Rc<View>, forward: bool) -> Result<()> {
    let api = &editor.api;
    let (win, in_new, line) = cursor(editor, view)?;
    let Some(hunks) = present_hunks(editor, view)? else { return Ok(()) };
    let start = |hunk: &Hunk| if in_new { hunk.new.start } else { hunk.old.start };
    let last = u32::try_from(api.line_count(api.win_buf(win)?)? - 1).unwrap_or(0);
    let starts = hunks.list.iter().map(|hunk| start(hunk).min(last));
    let mut further: Vec<u32> =
        starts.filter(|at| if forward { *at > line } else { *at < line }).collect();
    further.sort_unstable();
    if !forward {
        further.reverse();
    }
    further.dedup();
    let v: Table = api.lua.globals().get::<Table>("vim")?.get("v")?;
    let count: usize = v.get("count1")?;
    let target = further.get(count.min(further.len()).saturating_sub(1)).copied();
    match target {
        // `m'` as every jump does, so that '' leads back.
        Some(at) => {
            api.command("normal! m'")?;
            api.set_cursor(win, i64::from(at) + 1, 0)
        }
        None => Ok(()),
    }
}

/// Takes the text on disk for the hunk under the cursor.
fn drop_hunk(editor: &Rc<Editor>, view: &Rc<View>) -> Result<()> {
    let api = &editor.api;
    let Some(panes) = view.panes() else { return Ok(()) };
    let (_, in_new, line) = cursor(editor, view)?;
    let Some(hunks) = present_hunks(editor, view)? else { return Ok(()) };
    let Some(hunk) = hunks.at(line, in_new).and_then(|at| hunks.list.get(at)) else {
        api.notify("there is no difference under the cursor", 2);
        return Ok(());
    };
    let skip = hunk.old.start as usize;
    let take = hunk.old.len();
    let lines: Vec<&str> = panes.left.split('\n').skip(skip).take(take).collect();
    api.set_lines(view.right, hunk.new.start.into(), hunk.new.end.into(), lines)?;
    recount(editor, view);
    api.command("diffupdate")
}

// ---- copies

/// `:w other`, `:1,5w other`, `:w >> other`: a copy of the proposal for the user, no verdict.
pub(super) fn write_copy(
    editor: &Rc<Editor>,
    view: &View,
    event: &str,
    target: &mlua::String,
) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let api = &editor.api;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&target.as_bytes()));
    let body = api.buf_text(view.right)?;
    let text = if event == "BufWriteCmd" {
        view.panes().map_or_else(|| Arc::from(body.as_str()), |panes| panes.right.rejoin(&body))
    } else {
        let mark = |name: &str| -> Result<usize> {
            let [line, _]: [i64; 2] = api.call("nvim_buf_get_mark", (view.right, name))?;
            Ok(usize::try_from(line).unwrap_or(1).max(1))
        };
        let (first, last) = (mark("[")?, mark("]")?);
        let lines: Vec<&str> = body.split('\n').skip(first - 1).take(last + 1 - first).collect();
        Arc::from(format!("{}\n", lines.join("\n")))
    };
    let v: Table = api.lua.globals().get::<Table>("vim")?.get("v")?;
    let force = v.get::<i64>("cmdbang").unwrap_or(0) != 0;
    let mut options = std::fs::OpenOptions::new();
    let options = match event {
        "FileAppendCmd" => options.append(true).create(true),
        _ if force => options.write(true).create(true).truncate(true),
        _ => options.write(true).create_new(true),
    };
    let shown = path.display();
    match options.open(&path).and_then(|mut file| file.write_all(text.as_bytes())) {
        Ok(()) => api.notify(&format!("copy of the proposal written to {shown}"), 2),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            api.notify(&format!("{shown} exists (add ! to overwrite it); nothing written"), 4);
        }
        Err(error) => api.notify(&format!("cannot write a copy to {shown}: {error}"), 4),
    }
    // `:saveas` renames the pane, but does not say so (BufFilePost) on all Neovims.
    let (right, name) = (view.right, view.right_name.clone());
    editor.later(move |editor| keep_name(editor, right, &name));
    Ok(())
}

/// `:file` and `:saveas` have given a pane another name, and left a buffer of the old one behind.
pub(super) fn keep_name(editor: &Rc<Editor>, pane: Buf, name: &str) {
    let api = &editor.api;
    let named = |buf: Buf| api.buf_name(buf).is_ok_and(|n| &*n.as_bytes() == name.as_bytes());
    if !api.buf_valid(pane) || named(pane) {
        return;
    }
    let renamed = || -> Result<()> {
        let _quiet = api.quiet()?;
        let given = api.buf_name(pane)?;
        let of_this_name = |wanted: &[u8]| -> Result<Vec<Buf>> {
            let all: Vec<Buf> = api.call("nvim_list_bufs", ())?;
            Ok(all
                .into_iter()
                .filter(|buf| *buf != pane && !api.buf_loaded(*buf))
                .filter(|buf| api.buf_name(*buf).is_ok_and(|n| &*n.as_bytes() == wanted))
                .collect())
        };
        for buf in of_this_name(name.as_bytes())? {
            api.delete_buf(buf)?;
        }
        api.call::<()>("nvim_buf_set_name", (pane, name))?;
        for buf in of_this_name(&given.as_bytes())? {
            api.delete_buf(buf)?;
        }
        api.set_option("buflisted", false, At::Buf(pane))
    };
    match renamed() {
        Ok(()) => api.notify("a pane keeps its name; :w NAME writes a copy", 2),
        Err(error) => tracing::warn!("a pane has lost its name: {error}"),
    }
}
