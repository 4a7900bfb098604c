//! One review on the screen: its buffers, windows and autocommands, from opening to closing.
//!
//! Neovim's thread only. `diff_view` and `ask_view` fill it, `stage` says when it is opened, comes
//! into view and goes; deciding always goes through the desk. State is in cells, and none is
//! borrowed across a call into Neovim, because users' autocommands may call back.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nvim_oxi::mlua::{IntoLua, Table, Value};

use super::api::{Api, At, Buf, Result, Tab, Win};
use super::{Editor, ask_view, diff_view, winbar};
use crate::review::hunks::Hunks;
use crate::review::text::{Endings, OldText};
use crate::review::two_panes::TwoPanes;
use crate::review::{Kind, Review, Verdict};

/// Where the user was when a view took their place, to bring them back.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) win: Win,
    /// Mode to restore: `i`, `t`, a visual mode, or empty.
    pub(super) mode: String,
    /// Where insert mode was (1-based line, 0-based byte column).
    pub(super) insert_at: (i64, i64),
}

pub(super) struct View {
    pub(super) review: Arc<Review>,
    /// The file's path without symbolic links; empty for the ask view.
    pub(super) on_disk: PathBuf,
    /// `None` for the ask view. Replaced when the file on disk changes meanwhile.
    panes: RefCell<Option<Arc<TwoPanes>>>,
    /// The pane that is decided on: the proposal, or the question.
    pub(super) right: Buf,
    pub(super) right_name: String,
    left_name: String,
    pub(super) left: Option<Buf>,
    place: Cell<Place>,
    /// Its windows are closed for the moment; see `step_aside`.
    aside: Cell<bool>,
    /// `changedtick` of the right buffer right after filling: the same means untouched.
    filled_at: Cell<i64>,
    /// It was before the user's eyes since then.
    pub(super) seen_since: Cell<Option<Instant>>,
    /// Keys and edits take effect: it has been in view for a moment without keys.
    pub(super) armed: Cell<bool>,
    /// The user's verdict is on its way; nothing more may be decided here.
    pub(super) decided: Cell<bool>,
    closed: Cell<bool>,
    pub(super) origin: RefCell<Option<Origin>>,
    /// The tab page `g<Tab>` led to before this one was made.
    previous_tab: Option<Tab>,
    /// `None` until they are counted.
    pub(super) hunks: RefCell<Option<Rc<Hunks>>>,
    /// `changedtick` of the right buffer they were counted at.
    pub(super) counted_at: Cell<i64>,
    /// A recount of the hunks is under way.
    pub(super) counting: Cell<bool>,
    /// It shows as modified for this turn only; `changedtick` at that.
    shown_unwritten: Cell<Option<i64>>,
    group: Cell<Option<i64>>,
}

/// Where a view was opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) tab: Tab,
    pub(super) right_win: Win,
    pub(super) left_win: Option<Win>,
}

/// What a builder (`diff_view`, `ask_view`) has made, current window and all.
pub(super) struct Built {
    pub(super) right: Buf,
    pub(super) right_name: String,
    pub(super) left_name: String,
    pub(super) left: Option<Buf>,
    pub(super) place: Place,
}

/// A proposal as the user has changed it, still as lines.
pub struct Edited {
    panes: Arc<TwoPanes>,
    body: String,
}

impl Edited {
    /// Finding the line ends of a large mixed text takes long enough to belong on a worker.
    fn is_quick(&self) -> bool {
        !matches!(self.panes.right.endings, Endings::Mixed(_)) || self.body.len() <= 1 << 20
    }

    /// With the line ends it came with. Any thread.
    #[must_use]
    pub fn text(&self) -> Arc<str> {
        self.panes.right.rejoin(&self.body)
    }
}

impl View {
    /// Opens the view in a tab page behind the user's and leaves them where they are, in whatever
    /// mode. Fails as a whole: nothing of it stays.
    pub(super) fn open(
        editor: &Rc<Editor>,
        review: &Arc<Review>,
        panes: Option<Arc<TwoPanes>>,
        on_disk: &Path,
    ) -> Result<Rc<Self>> {
        let api = &editor.api;
        let here = api.current_win()?;
        let previous_tab = api.previous_tab();
        let (mode, _) = api.mode()?;
        let mut made = Vec::new();
        let built = {
            let _quiet = api.quiet()?;
            let built = match &panes {
                Some(panes) => diff_view::build(editor, review, panes, &mut made),
                None => ask_view::build(editor, review, &mut made),
            };
            // Back first, whatever happened: the user's window must be current again.
            let back = api.set_current_win(here).and_then(|()| reselect(editor, &mode));
            built.and_then(|built| back.map(|()| built)).inspect_err(|_| {
                for buf in &made {
                    for win in api.wins_of(*buf).unwrap_or_default() {
                        let _ = api.win_close(win);
                    }
                    let _ = api.delete_buf(*buf);
                }
            })?
        };
        let hunks = panes.as_ref().and_then(|panes| panes.hunks.clone()).map(Rc::new);
        let view = Rc::new(Self {
            review: Arc::clone(review),
            on_disk: on_disk.to_owned(),
            place: Cell::new(built.place),
            aside: Cell::new(false),
            filled_at: Cell::new(api.changedtick(built.right)?),
            panes: RefCell::new(panes),
            right: built.right,
            right_name: built.right_name,
            left_name: built.left_name,
            left: built.left,
            seen_since: Cell::new(None),
            armed: Cell::new(false),
            decided: Cell::new(false),
            closed: Cell::new(false),
            origin: RefCell::new(None),
            previous_tab,
            hunks: RefCell::new(hunks),
            counted_at: Cell::new(api.changedtick(built.right)?),
            counting: Cell::new(false),
            shown_unwritten: Cell::new(None),
            group: Cell::new(None),
        });
        // A key that cannot be mapped, say: what was opened goes again.
        if let Err(error) = view.listen(editor).and_then(|()| view.map_keys(editor)) {
            view.close(editor);
            return Err(error);
        }
        winbar::draw(editor, &view);
        Ok(view)
    }

    pub(super) fn panes(&self) -> Option<Arc<TwoPanes>> {
        self.panes.borrow().clone()
    }

    /// The encoding the file on disk was decoded from, if it is not UTF-8.
    pub(super) fn encoding(&self) -> Vec<String> {
        let (Kind::Write { old, .. } | Kind::Delete { old, .. }) = &self.review.kind else {
            return Vec::new();
        };
        match old {
            OldText::Text { decoded_from: Some(name), .. } => vec![name.to_string()],
            _ => Vec::new(),
        }
    }

    /// The file has changed on disk: the left pane follows, the proposal stays.
    pub(super) fn disk_changed(
        self: &Rc<Self>,
        editor: &Rc<Editor>,
        panes: Arc<TwoPanes>,
    ) -> Result<()> {
        let Some(left) = self.left.filter(|left| editor.api.buf_loaded(*left)) else {
            return Ok(());
        };
        editor.api.fill(left, &panes.left)?;
        diff_view::mark_line_ends(
            &editor.api,
            left,
            &panes.left_odd_ends,
            panes.left_unterminated,
        )?;
        *self.panes.borrow_mut() = Some(panes);
        self.counted_at.set(-1);
        if let Some(win) = self.place.get().left_win.filter(|win| editor.api.win_valid(*win)) {
            editor.api.in_win(win, |api| api.command("diffupdate"))?;
        }
        diff_view::count(editor, self);
        Ok(())
    }

    pub(super) fn tab(&self) -> Tab {
        self.place.get().tab
    }

    pub(super) fn bufs(&self) -> impl Iterator<Item = Buf> {
        self.left.into_iter().chain([self.right])
    }

    /// A window that shows the right pane: the one it was opened in, while that is so.
    pub(super) fn right_window(&self, api: &Api) -> Option<Win> {
        let wins = api.wins_of(self.right).unwrap_or_default();
        wins.iter().find(|win| **win == self.place.get().right_win).or(wins.first()).copied()
    }

    /// Windows of any tab page that show one of the panes.
    pub(super) fn wins(&self, api: &Api) -> Vec<Win> {
        let of = |buf| api.wins_of(buf).unwrap_or_default();
        self.bufs().flat_map(of).collect()
    }

    /// One of the panes is the current window's buffer.
    pub(super) fn is_current(&self, api: &Api) -> bool {
        api.current_win()
            .and_then(|win| api.win_buf(win))
            .is_ok_and(|buf| self.bufs().any(|mine| mine == buf))
    }

    /// The user looks at the tab page it is in.
    pub(super) fn in_view(&self, api: &Api) -> bool {
        !self.closed.get()
            && api.current_tab().is_ok_and(|tab| {
                let here = |win: Win| api.win_tab(win).is_ok_and(|t| t == tab);
                tab == self.tab()
                    || api.wins_of(self.right).unwrap_or_default().into_iter().any(here)
            })
    }

    pub(super) fn editable(&self) -> bool {
        self.panes.borrow().is_some()
            && self.review.editable
            && matches!(self.review.kind, Kind::Write { .. })
    }

    /// The user changed the proposal.
    pub(super) fn edited(&self, api: &Api) -> bool {
        api.buf_valid(self.right)
            && api.changedtick(self.right).is_ok_and(|tick| tick != self.filled_at.get())
    }

    pub(super) fn edits(&self, editor: &Rc<Editor>) -> Result<Option<Edited>> {
        let changed = self.editable() && !self.decided.get() && self.edited(&editor.api);
        let Some(panes) = self.panes().filter(|_| changed) else { return Ok(None) };
        Ok(Some(Edited { panes, body: editor.api.buf_text(self.right)? }))
    }

    /// From now on keys decide and the proposal can be edited.
    pub(super) fn arm(&self, editor: &Rc<Editor>) {
        if self.armed.replace(true) {
            return;
        }
        if self.editable()
            && let Err(error) = editor.api.set_option("modifiable", true, At::Buf(self.right))
        {
            tracing::error!("cannot make the proposal editable: {error}");
        }
        winbar::draw(editor, self);
    }

    // ---- deciding

    /// The user says yes; `always` if that is for good.
    pub(super) fn accept(&self, editor: &Rc<Editor>, always: bool) -> Result<()> {
        if self.decided.get() {
            return Ok(());
        }
        let id = self.review.id.clone();
        let verdict =
            move |text| if always { Verdict::AlwaysAllow } else { Verdict::Accept { text } };
        let Some(edited) = self.edits(editor)? else {
            self.settle(editor);
            editor.desk.decide(&id, verdict(self.review.kind.proposed()));
            return Ok(());
        };
        self.settle(editor);
        if edited.is_quick() {
            // Here and now, so that a `:qa` right behind cannot overtake.
            editor.desk.decide(&id, verdict(edited.text()));
        } else {
            let (desk, owed) = (editor.desk.clone(), editor.owed.one_more());
            editor.on_worker(move || {
                // A `:qa` waits for it.
                let _owed = owed;
                desk.decide(&id, verdict(edited.text()));
            });
        }
        Ok(())
    }

    pub(super) fn reject(&self, editor: &Rc<Editor>) {
        if !self.decided.get() {
            self.settle(editor);
            editor.desk.decide(&self.review.id, Verdict::Reject);
        }
    }

    /// The user closed it without a word.
    fn dismiss(&self, editor: &Rc<Editor>) {
        if !self.decided.get() {
            self.settle(editor);
            editor.desk.decide(&self.review.id, Verdict::Dismissed);
        }
    }

    fn settle(&self, editor: &Rc<Editor>) {
        self.decided.set(true);
        if editor.api.buf_valid(self.right) {
            let _ = editor.api.set_option("modified", false, At::Buf(self.right));
        }
    }

    // ---- what happens to it

    fn listen(self: &Rc<Self>, editor: &Rc<Editor>) -> Result<()> {
        let api = &editor.api;
        let group = api.augroup(&format!("gangway_review_{}", self.right.0))?;
        self.group.set(Some(group));
        if self.panes.borrow().is_some() {
            for event in ["BufWriteCmd", "FileWriteCmd", "FileAppendCmd"] {
                let (view, editor) = (Rc::clone(self), Rc::clone(editor));
                api.autocmd(group, &[event], Some(self.right), move |_, ev| {
                    view.written(&editor, event, &ev)
                })?;
            }
            let (view, ed) = (Rc::clone(self), Rc::clone(editor));
            let edits = ["TextChanged", "TextChangedI", "TextChangedP"];
            api.autocmd(group, &edits, Some(self.right), move |_, _| {
                diff_view::recount_soon(&ed, &view);
                Ok(())
            })?;
        }
        for (buf, name) in self.names() {
            let ed = Rc::clone(editor);
            api.autocmd(group, &["BufFilePost"], Some(buf), move |_, _| {
                let name = name.clone();
                ed.later(move |editor| diff_view::keep_name(editor, buf, &name));
                Ok(())
            })?;
        }
        for buf in self.bufs() {
            let (view, ed) = (Rc::clone(self), Rc::clone(editor));
            api.autocmd(group, &["CursorMoved"], Some(buf), move |_, _| {
                winbar::moved(&ed, &view);
                Ok(())
            })?;
            let (view, ed) = (Rc::clone(self), Rc::clone(editor));
            api.autocmd(group, &["BufUnload"], Some(buf), move |_, _| {
                let view = Rc::clone(&view);
                ed.later(move |ed| {
                    // `:e` unloads and loads again; whatever else does it has closed the pane.
                    if !ed.api.buf_loaded(buf) {
                        view.dismiss(ed);
                    }
                });
                Ok(())
            })?;
            let (view, ed) = (Rc::clone(self), Rc::clone(editor));
            api.autocmd(group, &["BufReadCmd"], Some(buf), move |_, _| view.refill(&ed, buf))?;
        }
        let (view, ed) = (Rc::clone(self), Rc::clone(editor));
        api.autocmd(group, &["WinResized", "VimResized"], None, move |_, _| {
            winbar::draw(&ed, &view);
            Ok(())
        })?;
        let (view, ed) = (Rc::clone(self), Rc::clone(editor));
        api.autocmd(group, &["WinClosed"], None, move |_, ev| {
            let closing: String = ev.get("match")?;
            view.win_closing(&ed, Win(closing.parse().unwrap_or(-1)))
        })?;
        Ok(())
    }

    /// Each pane with its name.
    fn names(&self) -> impl Iterator<Item = (Buf, String)> {
        let left = self.left.into_iter().map(|buf| (buf, self.left_name.clone()));
        left.chain([(self.right, self.right_name.clone())])
    }

    /// `:e` and `:e!` in a pane: it shows again what it showed at first.
    fn refill(&self, editor: &Rc<Editor>, buf: Buf) -> Result<()> {
        let Some(panes) = self.panes() else { return Ok(()) };
        if buf == self.right {
            editor.api.fill(buf, &panes.right.body)?;
            self.filled_at.set(editor.api.changedtick(buf)?);
        } else {
            editor.api.fill(buf, &panes.left)?;
        }
        let changes = buf == self.right && self.editable() && self.armed.get();
        editor.api.set_option("modifiable", changes, At::Buf(buf))
    }

    /// No window shows one of its panes any more, and no event said so (`:noautocmd`).
    pub(super) fn dismiss_if_closed(&self, editor: &Rc<Editor>) {
        let gone = |buf: Buf| editor.api.wins_of(buf).is_ok_and(|wins| wins.is_empty());
        if !self.aside.get() && self.bufs().any(gone) {
            self.dismiss(editor);
        }
    }

    /// A window closes. The last one of a pane is the user's "no", and any one of the proposal their
    /// "yes" if they typed `:x` or `:wq` there: on an unmodified one that fires no write event.
    fn win_closing(&self, editor: &Rc<Editor>, closing: Win) -> Result<()> {
        let api = &editor.api;
        if self.decided.get() || self.closed.get() || !api.win_valid(closing) {
            return Ok(());
        }
        let buf = api.win_buf(closing)?;
        if !self.bufs().any(|mine| mine == buf) {
            return Ok(());
        }
        if buf == self.right
            && self.armed.get()
            && editor.keys.typed_in() == Some(closing)
            && editor.keys.says_write()
        {
            return self.accept(editor, false);
        }
        if !api.wins_of(buf)?.iter().any(|win| *win != closing) {
            // To an agent that asks elsewhere as well it is a difference.
            if editor.keys.typed_in() == Some(closing) && editor.keys.says_discard() {
                self.reject(editor);
            } else {
                self.dismiss(editor);
            }
        }
        Ok(())
    }

    /// A write of the right pane: a verdict only if the user typed it, here, about this buffer.
    fn written(&self, editor: &Rc<Editor>, event: &str, ev: &Table) -> Result<()> {
        let target: nvim_oxi::mlua::String = ev.get("match")?;
        let own = &*target.as_bytes() == self.right_name.as_bytes();
        if own && event != "BufWriteCmd" {
            editor.api.notify("a part of the proposal cannot be accepted; :w accepts all of it", 3);
            return Ok(());
        }
        if !own {
            return diff_view::write_copy(editor, self, event, &target);
        }
        if self.decided.get() || !self.typed_here(editor)? || !editor.keys.may_write() {
            return Ok(());
        }
        if !self.armed.get() {
            editor.api.notify("this review just came into view; write again to accept", 2);
            return Ok(());
        }
        self.accept(editor, false)
    }

    /// What runs now was typed by the user in a window of the right pane, and no other
    /// autocommand stands between the key and us.
    fn typed_here(&self, editor: &Rc<Editor>) -> Result<bool> {
        let Some(win) = editor.keys.typed_in() else { return Ok(false) };
        let api = &editor.api;
        let stack: String = api.func("expand", "<stack>")?;
        Ok(api.win_valid(win)
            && api.win_buf(win)? == self.right
            && stack.matches("Autocommands for").count() <= 1)
    }

    /// `:update` (and the like) typed on an unmodified proposal: Neovim writes nothing and fires
    /// nothing, but the user said "write".
    pub(super) fn accept_unmodified_write(&self, editor: &Rc<Editor>) -> Result<()> {
        if self.decided.get() || self.closed.get() || !self.armed.get() {
            return Ok(());
        }
        let modified: bool = editor.api.option("modified", At::Buf(self.right))?;
        // `nvim -m`: nothing is written, and no event says that it was to be.
        let may_write: bool = editor.api.option("write", At::Global)?;
        if modified && may_write { Ok(()) } else { self.accept(editor, false) }
    }

    /// A typed write would be taken for a verdict.
    pub(super) fn takes_writes(&self) -> bool {
        self.panes.borrow().is_some() && self.armed.get() && !self.decided.get()
    }

    /// 'modified', although nothing was changed, until `show_written`.
    pub(super) fn show_unwritten(&self, editor: &Rc<Editor>) -> Result<()> {
        let at = At::Buf(self.right);
        if self.takes_writes() && !editor.api.option::<bool>("modified", at)? {
            let _quiet = editor.api.quiet()?;
            editor.api.set_option("modified", true, at)?;
            self.shown_unwritten.set(Some(editor.api.changedtick(self.right)?));
        }
        Ok(())
    }

    pub(super) fn show_written(&self, editor: &Rc<Editor>) {
        let api = &editor.api;
        if let Some(tick) = self.shown_unwritten.take()
            && api.buf_loaded(self.right)
            && api.changedtick(self.right).is_ok_and(|now| now == tick)
            && let Ok(_quiet) = api.quiet()
            && let Err(error) = api.set_option("modified", false, At::Buf(self.right))
        {
            tracing::warn!("cannot reset 'modified': {error}");
        }
    }

    // ---- keys in the panes

    fn map_keys(self: &Rc<Self>, editor: &Rc<Editor>) -> Result<()> {
        let keys = editor.settings().keys.clone();
        let yes = |view: &Rc<View>, ed: &Rc<Editor>| view.accept(ed, false);
        let no = |view: &Rc<View>, ed: &Rc<Editor>| {
            view.reject(ed);
            Ok(())
        };
        for buf in self.bufs() {
            self.map(editor, buf, keys.accept.as_deref(), "accept this change", yes)?;
            self.map(editor, buf, keys.reject.as_deref(), "reject this change", no)?;
            if self.review.can_always {
                let always = |view: &Rc<View>, ed: &Rc<Editor>| view.accept(ed, true);
                self.map(editor, buf, keys.always.as_deref(), "always allow this", always)?;
            }
            if self.panes.borrow().is_some() {
                diff_view::map_hunk_keys(self, editor, buf, keys.drop_hunk.as_deref())?;
            }
        }
        if self.panes.borrow().is_some() {
            self.map(editor, self.right, Some("ZZ"), "accept this change", yes)?;
        }
        self.map(editor, self.right, Some("ZQ"), "reject this change", no)
    }

    /// A normal-mode key of one pane. Until the view is armed it only says so.
    pub(super) fn map(
        self: &Rc<Self>,
        editor: &Rc<Editor>,
        buf: Buf,
        key: Option<&str>,
        what: &'static str,
        action: impl Fn(&Rc<Self>, &Rc<Editor>) -> Result<()> + 'static,
    ) -> Result<()> {
        let Some(key) = key else { return Ok(()) };
        let api = &editor.api;
        let (view, ed) = (Rc::clone(self), Rc::clone(editor));
        let callback = editor.callback(what, move |_, ()| {
            if view.closed.get() {
                return Ok(());
            }
            if !view.armed.get() {
                ed.api.notify("this review just came into view; press again", 2);
                return Ok(());
            }
            action(&view, &ed)
        })?;
        let opts = api.opts([
            ("callback", Value::Function(callback)),
            ("nowait", Value::Boolean(true)),
            ("silent", Value::Boolean(true)),
            ("noremap", Value::Boolean(true)),
            ("desc", format!("gangway: {what}").into_lua(&api.lua)?),
        ])?;
        api.call("nvim_buf_set_keymap", (buf, "n", key, "", opts))
    }

    // ---- leaving

    /// Takes the view down and brings the user back to where they were, if they are still here.
    pub(super) fn close(self: &Rc<Self>, editor: &Rc<Editor>) {
        if self.closed.replace(true) {
            return;
        }
        self.decided.set(true);
        let api = &editor.api;
        if let Some(group) = self.group.take()
            && let Err(error) = api.delete_augroup(group)
        {
            tracing::warn!("cannot delete an augroup: {error}");
        }
        let origin = self.origin.borrow_mut().take();
        let was_here = api.current_tab().is_ok_and(|tab| tab == self.tab()) || self.is_current(api);
        // Diff mode first: Neovim 0.11.0 and 0.12.3 crash when such windows close.
        self.end_diff(api);
        let back = origin.filter(|o| was_here && api.win_valid(o.win));
        let typing = api.mode().is_ok_and(|(mode, _)| mode.starts_with(['i', 'R']));
        let resumes = back.as_ref().is_some_and(|origin| origin.mode.starts_with('i'));
        if was_here && typing && !resumes {
            // The mode belongs to the pane and must not carry over into the user's window.
            let _ = api.command("stopinsert");
        }
        let kept = editor.stage.sizes();
        let sizes = kept.as_ref().and_then(|kept| kept.untouched(api));
        if let Some(origin) = &back
            && let Err(error) = api.set_current_win(origin.win)
        {
            tracing::warn!("cannot go back to window {}: {error}", origin.win.0);
        }
        self.remove(editor);
        if let Some(sizes) = sizes
            && let Err(error) = sizes.restore(api)
        {
            tracing::warn!("cannot restore the sizes of windows: {error}");
        }
        if let Err(error) = self.restore_previous_tab(api) {
            tracing::warn!("cannot restore the previous tab page: {error}");
        }
        if let Some(origin) = back {
            restore(editor, &origin);
        }
    }

    /// Ours was the previous tab page and is gone; `g<Tab>` leads again to where it led before.
    fn restore_previous_tab(&self, api: &Api) -> Result<()> {
        let (mode, _) = api.mode()?;
        let here = api.current_tab()?;
        let wanted = self.previous_tab.filter(|tab| api.tab_valid(*tab) && *tab != here);
        if let Some(wanted) = wanted
            && mode == "n"
            && api.previous_tab().is_none()
        {
            let _quiet = api.quiet()?;
            api.set_current_tab(wanted)?;
            api.set_current_tab(here)?;
        }
        Ok(())
    }

    fn end_diff(&self, api: &Api) {
        let Ok(_quiet) = api.quiet() else { return };
        // `:diffoff` takes "hor" out of it, which diffs in other tab pages need.
        let scrollopt = api.option::<String>("scrollopt", At::Global);
        let mut wins = self.wins(api);
        // A window of ours that shows something else by now keeps that, without our options.
        let place = self.place.get();
        wins.extend(
            place.left_win.into_iter().chain([place.right_win]).filter(|w| api.win_valid(*w)),
        );
        // A split of a pane that shows another file by now is in diff mode still.
        if api.tab_valid(place.tab)
            && let Ok(here) = api.call::<Vec<Win>>("nvim_tabpage_list_wins", place.tab)
        {
            let in_diff = |win: &Win| api.option("diff", At::Win(*win)).unwrap_or(false);
            wins.extend(here.into_iter().filter(in_diff));
        }
        wins.sort_unstable();
        wins.dedup();
        for win in wins {
            let off = |api: &Api| api.command("diffoff");
            let done = api
                .in_win(win, off)
                .and_then(|()| api.set_option("winfixbuf", false, At::Win(win)))
                .and_then(|()| api.set_option("winfixwidth", false, At::Win(win)))
                .and_then(|()| api.set_option("winbar", "", At::Win(win)));
            if let Err(error) = done {
                tracing::warn!("cannot reset window {}: {error}", win.0);
            }
        }
        let restored = scrollopt.and_then(|value| api.set_option("scrollopt", value, At::Global));
        if let Err(error) = restored {
            tracing::warn!("cannot restore 'scrollopt': {error}");
        }
    }

    /// Closes its windows, except the last one of all, which cannot close.
    fn close_windows(&self, api: &Api) -> Option<Win> {
        let Ok(_quiet) = api.quiet() else { return None };
        let ours = self.wins(api);
        if let Err(error) = close_floats_with(api, &ours) {
            tracing::warn!("cannot close floating windows: {error}");
        }
        let mut last = None;
        for win in ours {
            if api.win_close(win).is_err() && api.win_valid(win) {
                last = Some(win);
            }
        }
        last
    }

    fn remove(self: &Rc<Self>, editor: &Rc<Editor>) {
        self.try_remove(editor);
        // Nothing may close while an expression is evaluated, a mapping's for example.
        if self.bufs().into_iter().any(|buf| editor.api.buf_valid(buf)) {
            let view = Rc::clone(self);
            editor.later(move |editor| view.try_remove(editor));
        }
    }

    fn try_remove(&self, editor: &Rc<Editor>) {
        let api = &editor.api;
        if let Some(win) = self.close_windows(api)
            && let Err(error) = self.put_other_buffer(editor, win)
        {
            tracing::warn!("cannot leave window {}: {error}", win.0);
        }
        let Ok(_quiet) = api.quiet() else { return };
        if let Err(error) = close_left_over(api, self.tab()) {
            tracing::warn!("cannot close what is left of a tab page: {error}");
        }
        for buf in self.bufs() {
            if api.buf_valid(buf)
                && let Err(error) = api.delete_buf(buf)
            {
                tracing::warn!("cannot delete buffer {}: {error}", buf.0);
            }
        }
    }
}

impl View {
    /// The user has closed all windows but ours: they get the file of the review, else the buffer
    /// they used last. With all events, because it may be loaded only now.
    fn put_other_buffer(&self, editor: &Rc<Editor>, win: Win) -> Result<()> {
        let api = &editor.api;
        let mut other = self.review.kind.path().and_then(|path| editor.buffer_of(path));
        if other.is_none() && !self.on_disk.as_os_str().is_empty() {
            other = editor.buffer_of(&self.on_disk);
        }
        if other.is_none() {
            let listed = api.opts([("buflisted", Value::Boolean(true))])?;
            let listed: Vec<Table> = api.func("getbufinfo", listed)?;
            let last = listed.into_iter().max_by_key(|b| b.get::<i64>("lastused").unwrap_or(0));
            other = last.map(|b| b.get::<Buf>("bufnr")).transpose()?;
        }
        let other = match other {
            Some(other) => other,
            None => api.call("nvim_create_buf", (true, false))?,
        };
        api.call("nvim_win_set_buf", (win, other))
    }

    pub(super) fn share_width(&self, editor: &Rc<Editor>) -> Result<()> {
        let Place { left_win, right_win, .. } = self.place.get();
        match left_win.filter(|left| editor.api.win_valid(*left)) {
            Some(left) if editor.api.win_valid(right_win) => {
                diff_view::share_width(&editor.api, left, right_win)
            }
            _ => Ok(()),
        }
    }

    /// Neovim may be about to exit, which our tab page must not prevent: its windows close for the
    /// moment, and nothing is decided.
    pub(super) fn step_aside(&self, editor: &Rc<Editor>) {
        if self.closed.get() || self.aside.replace(true) {
            return;
        }
        self.end_diff(&editor.api);
        self.close_windows(&editor.api);
    }

    /// Neovim stays after all: ready in a tab page behind again.
    pub(super) fn come_back(&self, editor: &Rc<Editor>) -> Result<()> {
        let api = &editor.api;
        if !self.aside.replace(false) || self.closed.get() || self.decided.get() {
            return Ok(());
        }
        let here = api.current_win()?;
        let opened = {
            let _quiet = api.quiet()?;
            let opened = match (self.left, self.panes()) {
                (Some(left), Some(panes)) => {
                    diff_view::open_windows(editor, left, self.right, &panes)
                }
                _ => ask_view::open_window(api, self.right),
            };
            api.set_current_win(here)?;
            opened
        };
        self.place.set(opened?);
        winbar::draw(editor, self);
        Ok(())
    }
}

/// Sidebars and lists that open themselves in every tab page are no reason to keep ours.
fn close_left_over(api: &Api, tab: Tab) -> Result<()> {
    let tabs: Vec<Tab> = api.call("nvim_list_tabpages", ())?;
    if tabs.len() < 2 || !tabs.contains(&tab) {
        return Ok(());
    }
    let wins: Vec<Win> = api.call("nvim_tabpage_list_wins", tab)?;
    for win in wins {
        let kind: String = api.option("buftype", At::Buf(api.win_buf(win)?))?;
        if !api.is_floating(win)? && matches!(kind.as_str(), "" | "help" | "terminal") {
            return Ok(());
        }
    }
    let number: i64 = api.call("nvim_tabpage_get_number", tab)?;
    let cmd = api.opts([
        ("cmd", "tabclose".into_lua(&api.lua)?),
        ("args", vec![number.to_string()].into_lua(&api.lua)?),
    ])?;
    api.call::<Value>("nvim_cmd", (cmd, api.table()?)).map(drop)
}

/// Floating windows (a notification's, a preview's) of tab pages whose other windows are all among
/// `going` close first: Neovim 0.10 and 0.11 crash when the last other window of a tab page behind
/// closes and a floating one is left there.
fn close_floats_with(api: &Api, going: &[Win]) -> Result<()> {
    let mut tabs: Vec<Tab> = going.iter().filter_map(|win| api.win_tab(*win).ok()).collect();
    tabs.sort_unstable();
    tabs.dedup();
    for tab in tabs {
        let wins: Vec<Win> = api.call("nvim_tabpage_list_wins", tab)?;
        let (mut floats, mut stays) = (Vec::new(), false);
        for win in wins {
            if api.is_floating(win)? {
                floats.push(win);
            } else {
                stays |= !going.contains(&win);
            }
        }
        for win in floats.into_iter().filter(|_| !stays) {
            api.win_close(win)?;
        }
    }
    Ok(())
}

/// Puts the user back into the mode they were taken from.
fn restore(editor: &Editor, origin: &Origin) {
    let api = &editor.api;
    let resume = || -> Result<()> {
        match origin.mode.chars().next() {
            Some('t') => api.command("startinsert"),
            Some('i') => {
                let (line, col) = origin.insert_at;
                api.set_cursor(origin.win, line, col)?;
                let text: nvim_oxi::mlua::String = api.call("nvim_get_current_line", ())?;
                let at_end = usize::try_from(col).is_ok_and(|c| c >= text.as_bytes().len());
                if at_end { api.command("startinsert!") } else { api.command("startinsert") }
            }
            _ => reselect(editor, &origin.mode),
        }
    };
    if let Err(error) = resume() {
        tracing::warn!("cannot restore the user's mode: {error}");
    }
}

/// Every way into another tab page ends visual mode: selects again what was selected.
fn reselect(editor: &Editor, mode: &str) -> Result<()> {
    if !mode.starts_with(['v', 'V', '\u{16}']) {
        return Ok(());
    }
    editor.api.command("normal! gv")
}
