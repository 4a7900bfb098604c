//! Which review is where: waiting, ready in a tab page behind, or before the user's eyes.
//!
//! Neovim's thread only. Reviews arrive from the desk; each is opened behind the user's back as
//! soon as the mode allows, announced once, and brought into view when the user is really idle.
//! One unseen review at a time comes into view, and only when no seen one still waits for its
//! verdict. A tick every few hundredths of a second runs only while there is something to wait for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvim_oxi::mlua::{IntoLua, Table};

use super::api::{At, Buf, Result, Win};
use super::bridge::Due;
use super::diff_options::DiffOptions;
use super::sizes::Kept;
use super::view::{Edited, Origin, View};
use super::{Editor, diff_view, recover, refresh, winbar};
use crate::config::Focus;
use crate::files;
use crate::review::desk::{Event, Target};
use crate::review::text::OldText;
use crate::review::two_panes::TwoPanes;
use crate::review::{Review, ReviewId, Verdict};

/// No key for this long, in normal mode, is idle.
const IDLE: Duration = Duration::from_millis(400);
/// People select text and then ask about it in another window.
const IDLE_VISUAL: Duration = Duration::from_millis(1000);
/// A view in view is inert until there was no key for this long.
const ARM_AFTER: Duration = Duration::from_millis(300);
/// How often a waiting review looks whether its moment has come.
const TICK: Duration = Duration::from_millis(40);
/// Opening is tried this often before the agent is told that it cannot be shown.
const MAX_FAILURES: u32 = 5;
/// How often it is looked whether a pane was closed without an event.
const LOOK: Duration = Duration::from_secs(1);

struct Waiting {
    review: Arc<Review>,
    /// The file's path without symbolic links.
    on_disk: PathBuf,
    panes: Option<Arc<TwoPanes>>,
    failures: u32,
    announced: bool,
}

#[derive(Default)]
pub struct Stage {
    waiting: RefCell<VecDeque<Waiting>>,
    views: RefCell<Vec<Rc<View>>>,
    /// Taken back by their agent while the user types in them: closed at the next pause.
    leaving: RefCell<Vec<Rc<View>>>,
    group: Cell<Option<i64>>,
    /// The user's last window that is none of ours.
    home: RefCell<Option<Origin>>,
    /// We are moving the user right now; their own window's mode is already recorded.
    moving: Cell<bool>,
    /// Insert mode was ended to bring a view in at the next tick.
    interrupted: RefCell<Option<Origin>>,
    tick_due: Due,
    look_due: Due,
    options: DiffOptions,
    /// The user's windows, from the first review to the last.
    sizes: RefCell<Option<Rc<Kept>>>,
}

/// What a user's command wants for a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Accept,
    Reject,
    AlwaysAllow,
}

impl Stage {
    /// The desk has news. Posted by the desk's listener.
    pub(crate) fn desk_changed(&self, editor: &Rc<Editor>) {
        let mut fewer = false;
        for event in editor.desk.take_events() {
            match event {
                Event::Opened(review) => Self::prepare(editor, review),
                Event::Closed(review, verdict) => {
                    self.gone(editor, &review, &verdict);
                    fewer = true;
                }
            }
        }
        // Once for all of them: it goes through those that stay.
        if fewer {
            self.fit_options(editor, None);
            for view in self.views() {
                winbar::draw(editor, &view);
            }
            self.end(editor);
        }
        self.tick(editor);
    }

    /// Comparing may take a while: on a worker, then back here.
    fn prepare(editor: &Rc<Editor>, review: Arc<Review>) {
        let bridge = editor.bridge.clone();
        editor.on_worker(move || {
            let panes = TwoPanes::of(&review).map(Arc::new);
            let on_disk = review.kind.path().map(refresh::real_path).unwrap_or_default();
            let waiting = Waiting { review, on_disk, panes, failures: 0, announced: false };
            bridge.post(move |editor| editor.stage.arrived(editor, waiting));
        });
    }

    fn arrived(&self, editor: &Rc<Editor>, waiting: Waiting) {
        let review = &waiting.review;
        // Withdrawn in the meantime: its Closed event has been and gone.
        if !editor.desk.get(&review.id).is_some_and(|pending| Arc::ptr_eq(&pending, review)) {
            return;
        }
        if let Some(path) = review.kind.path() {
            editor.refresh.review_begins(editor, path);
        }
        self.waiting.borrow_mut().push_back(waiting);
        self.begin(editor);
        self.tick(editor);
    }

    fn gone(&self, editor: &Rc<Editor>, review: &Arc<Review>, verdict: &Verdict) {
        self.waiting.borrow_mut().retain(|w| !Arc::ptr_eq(&w.review, review));
        let found = {
            let mut views = self.views.borrow_mut();
            let at = views.iter().position(|view| Arc::ptr_eq(&view.review, review));
            at.map(|at| views.remove(at))
        };
        if let Some(view) = found {
            let withdrawn = matches!(verdict, Verdict::Withdrawn(_));
            if withdrawn && view.edited(&editor.api) {
                recover::keep(editor, &view);
            }
            if withdrawn && (is_typing_in(editor, &view) || in_command_window(editor)) {
                // What the user types goes on into the pane, which is of no account any more; their
                // own window would take the keys for commands. And nothing closes while the
                // command-line window is open.
                view.decided.set(true);
                self.leaving.borrow_mut().push(view);
            } else {
                view.close(editor);
            }
        }
        if let Some(path) = review.kind.path() {
            editor.refresh.review_ended(editor, path);
        }
        editor.announce_closed(review, verdict);
    }

    /// Files have changed on disk (paths without symbolic links): the left panes follow.
    pub(super) fn disk_changed(&self, editor: &Rc<Editor>, changed: &BTreeSet<PathBuf>) {
        for view in self.views() {
            let (Some(panes), path) = (view.panes(), view.on_disk.clone()) else { continue };
            if view.decided.get() || !changed.contains(&path) {
                continue;
            }
            let (buf, bridge) = (view.right, editor.bridge.clone());
            let encodings = view.encoding();
            editor.on_worker(move || {
                let old = match files::read_plain(&path, files::MAX_REVIEWED) {
                    Ok(bytes) => OldText::from_bytes(bytes, &encodings),
                    Err(error) if error.is_missing() => OldText::Missing,
                    Err(_) => return,
                };
                let Some(renewed) = panes.against(&old) else { return };
                bridge.post(move |editor| {
                    let Some(view) = editor.stage.view_of_buf(buf) else { return };
                    if let Err(error) = view.disk_changed(editor, Arc::new(renewed)) {
                        tracing::warn!("cannot renew the left pane: {error}");
                    }
                    editor.stage.fit_options(editor, None);
                });
            });
        }
    }

    // ---- time

    /// Looks at everything once and comes back while something may still change by itself.
    pub(super) fn tick(&self, editor: &Rc<Editor>) {
        self.close_leaving(editor, false);
        self.open_waiting(editor);
        self.notice_seen(editor);
        self.bring_next(editor);
        self.announce(editor);
        self.arm(editor);
        if self.must_look_again(editor)
            && let Some(claim) = self.tick_due.claim()
        {
            editor.after(TICK, move |editor| {
                drop(claim);
                editor.stage.tick(editor);
            });
        }
    }

    fn must_look_again(&self, editor: &Rc<Editor>) -> bool {
        let never = editor.settings().focus == Focus::Never;
        !self.waiting.borrow().is_empty()
            || !self.leaving.borrow().is_empty()
            || self.views().iter().any(|view| {
                if view.seen_since.get().is_some() { !view.armed.get() } else { !never }
            })
    }

    fn open_waiting(&self, editor: &Rc<Editor>) {
        while !self.waiting.borrow().is_empty() && may_open_behind(editor) {
            let next = self.waiting.borrow_mut().pop_front();
            let Some(mut next) = next else { return };
            if editor.desk.get(&next.review.id).is_none() {
                // Its Closed event is on its way here.
                continue;
            }
            self.fit_options(editor, next.panes.clone());
            let open = || View::open(editor, &next.review, next.panes.clone(), &next.on_disk);
            let first = self.sizes.borrow().is_none();
            let opened = if first {
                let (opened, kept) = Kept::around(&editor.api, open);
                *self.sizes.borrow_mut() = kept.map(Rc::new);
                opened
            } else {
                open()
            };
            match opened {
                Ok(view) => {
                    // It may have got its verdict while autocommands ran.
                    if editor.desk.get(&view.review.id).is_none() {
                        view.close(editor);
                        continue;
                    }
                    self.views.borrow_mut().push(Rc::clone(&view));
                    self.look_for_closed(editor);
                    editor.announce_opened(&view);
                    if view.panes().is_some_and(|panes| panes.hunks.is_none()) {
                        diff_view::count(editor, &view);
                    }
                    if next.announced {
                        continue;
                    }
                    self.bring_next(editor);
                    if view.seen_since.get().is_none() {
                        editor.say_waiting(&view.review);
                    }
                }
                Err(error) => {
                    next.failures += 1;
                    tracing::warn!("cannot open review {}: {error}", next.review.id);
                    if next.failures >= MAX_FAILURES {
                        editor.report(&format!(
                            "cannot show the change to {}; it was rejected ({})",
                            editor.what(&next.review),
                            first_line(&error.to_string())
                        ));
                        editor.desk.decide(&next.review.id, Verdict::Reject);
                    } else {
                        self.waiting.borrow_mut().push_front(next);
                    }
                    return;
                }
            }
        }
    }

    /// Scripts close windows without events, and nobody waits for ever for what nobody sees.
    fn look_for_closed(&self, editor: &Rc<Editor>) {
        let Some(claim) = self.look_due.claim() else { return };
        editor.after(LOOK, move |editor| {
            drop(claim);
            let views = editor.stage.views();
            for view in &views {
                view.dismiss_if_closed(editor);
            }
            if !views.is_empty() {
                editor.stage.look_for_closed(editor);
            }
        });
    }

    /// What cannot even be opened behind the user is announced all the same.
    fn announce(&self, editor: &Rc<Editor>) {
        let unannounced: Vec<Arc<Review>> = {
            let mut waiting = self.waiting.borrow_mut();
            let new = waiting.iter_mut().filter(|w| !w.announced);
            new.map(|w| {
                w.announced = true;
                Arc::clone(&w.review)
            })
            .collect()
        };
        for review in unannounced {
            editor.say_waiting(&review);
        }
    }

    fn notice_seen(&self, editor: &Rc<Editor>) {
        for view in self.views() {
            if view.seen_since.get().is_none() && view.in_view(&editor.api) {
                self.seen(editor, &view);
            }
        }
    }

    fn seen(&self, editor: &Rc<Editor>, view: &Rc<View>) {
        view.seen_since.set(Some(Instant::now()));
        editor.desk.mark_seen(&view.review.id);
        if view.origin.borrow().is_none() {
            *view.origin.borrow_mut() = self.home.borrow().clone();
        }
        winbar::draw(editor, view);
    }

    fn arm(&self, editor: &Rc<Editor>) {
        for view in self.views() {
            let Some(since) = view.seen_since.get() else { continue };
            if !view.armed.get() && since.elapsed().min(editor.quiet()) >= ARM_AFTER {
                view.arm(editor);
            }
        }
    }

    /// Brings the oldest unseen review into view, if no other waits before the user's eyes and the
    /// user is idle.
    fn bring_next(&self, editor: &Rc<Editor>) {
        let views = self.views();
        if views.iter().any(|view| view.seen_since.get().is_some()) {
            return;
        }
        // The one that was asked first; it may still be on its way here.
        let pending = editor.desk.pending();
        let Some((oldest, _)) = pending.first() else { return };
        let Some(view) = views.iter().find(|view| Arc::ptr_eq(&view.review, oldest)) else {
            return;
        };
        match self.may_come(editor) {
            Ok(true) => self.bring(editor, view),
            Ok(false) => {}
            Err(error) => tracing::warn!("cannot tell whether the user is idle: {error}"),
        }
    }

    fn may_come(&self, editor: &Rc<Editor>) -> Result<bool> {
        match editor.settings().focus {
            Focus::Never => Ok(false),
            Focus::Auto => Self::may_move_user(editor, false),
            Focus::Always => Self::may_move_user(editor, true),
        }
    }

    /// No key of the user's would go elsewhere than meant if another window became current now:
    /// they are idle, or away. `at_once`: it will do that they are in a mode that can be left.
    pub(crate) fn may_move_user(editor: &Editor, at_once: bool) -> Result<bool> {
        let api = &editor.api;
        let (mode, blocking) = api.mode()?;
        let command_window: String = api.func("getcmdwintype", ())?;
        if blocking || !command_window.is_empty() {
            return Ok(false);
        }
        let first = mode.chars().next().unwrap_or('n');
        let away = !editor.focused.get();
        if at_once || away {
            return Ok(mode == "n" || matches!(first, 'i' | 't' | 'v' | 'V' | '\u{16}'));
        }
        let quiet = editor.quiet();
        Ok(match first {
            'n' if mode == "n" || mode == "nt" => {
                let state: String = api.func("state", ())?;
                let recording: String = api.func("reg_recording", ())?;
                let executing: String = api.func("reg_executing", ())?;
                let busy = !(state.is_empty() && recording.is_empty() && executing.is_empty());
                !busy && quiet >= IDLE
            }
            'v' | 'V' | '\u{16}' => quiet >= IDLE_VISUAL,
            't' => editor.keys.last_was_enter() && quiet >= IDLE,
            _ => false,
        })
    }

    /// Brings a view before the user, from whatever mode.
    fn bring(&self, editor: &Rc<Editor>, view: &Rc<View>) {
        let api = &editor.api;
        let go = || -> Result<()> {
            let (mode, _) = api.mode()?;
            let resumed = self.interrupted.borrow_mut().take();
            let origin = match resumed {
                Some(origin) if mode == "n" => origin,
                _ => origin_here(editor, &mode)?,
            };
            if mode.starts_with('i') {
                // Insert mode would carry over into the pane; it ends at the next turn.
                *self.interrupted.borrow_mut() = Some(origin);
                return api.command("stopinsert");
            }
            *view.origin.borrow_mut() = Some(origin);
            self.moving.set(true);
            let moved = match view.right_window(api) {
                Some(win) => api.set_current_win(win).and_then(|()| api.command("syncbind")),
                None => Ok(()),
            };
            self.moving.set(false);
            moved
        };
        if let Err(error) = go() {
            tracing::warn!("cannot bring review {} into view: {error}", view.review.id);
        }
        if view.in_view(api) && view.seen_since.get().is_none() {
            self.seen(editor, view);
            editor.ring();
        }
    }

    /// What the user has typed into a proposal that is not decided yet.
    pub fn edited(&self, editor: &Rc<Editor>, id: &ReviewId) -> Result<Option<Edited>> {
        let found = self.views().into_iter().find(|view| view.review.id == *id);
        found.map_or(Ok(None), |view| view.edits(editor))
    }

    // ---- the user's wishes

    /// Shows a review now, because the user asked for it.
    pub fn show(&self, editor: &Rc<Editor>, id: &ReviewId) -> bool {
        self.open_waiting(editor);
        let found = self.views().into_iter().find(|view| view.review.id == *id);
        let Some(view) = found else { return false };
        if !view.in_view(&editor.api) {
            self.bring(editor, &view);
        }
        self.tick(editor);
        true
    }

    /// The review in the current tab page.
    fn visible(&self, editor: &Rc<Editor>) -> Option<Rc<View>> {
        let views = self.views();
        let current = views.iter().find(|view| view.is_current(&editor.api));
        current.or_else(|| views.iter().find(|view| view.in_view(&editor.api))).cloned()
    }

    /// Decides by command. Without an id: the visible review, else the oldest seen one; one that
    /// was never seen is shown instead. `unseen`: decide it all the same. Says what happened when
    /// that is not obvious.
    pub fn decide(
        &self,
        editor: &Rc<Editor>,
        id: Option<&str>,
        unseen: bool,
        decision: Decision,
    ) -> std::result::Result<(), String> {
        let visible = self.visible(editor);
        let review = if let Some(id) = id {
            let wanted = ReviewId(id.into());
            let review = editor.desk.get(&wanted);
            review.ok_or_else(|| format!("no review {id} is waiting (see :IdeReviews)"))?
        } else {
            let target = editor.desk.target(visible.as_ref().map(|view| &view.review.id));
            let (review, target) = target.ok_or("no review is waiting")?;
            if target == Target::Unseen && !unseen {
                if !self.show(editor, &review.id) {
                    return Err("the review cannot be shown right now; try again".into());
                }
                return Ok(());
            }
            review
        };
        if decision == Decision::AlwaysAllow && !review.can_always {
            return Err(format!("{} has no \"always allow\"", review.origin));
        }
        let view = self.views().into_iter().find(|view| Arc::ptr_eq(&view.review, &review));
        let typed_too_soon = view.as_ref().is_some_and(|view| {
            !unseen
                && !view.armed.get()
                && view.in_view(&editor.api)
                && editor.keys.typed_in().is_some()
        });
        if typed_too_soon {
            return Err("this review just came into view; say it again".into());
        }
        match (view, decision) {
            (Some(view), Decision::Reject) => view.reject(editor),
            (Some(view), decision) => {
                let always = decision == Decision::AlwaysAllow;
                view.accept(editor, always).map_err(|error| error.to_string())?;
            }
            (None, decision) => {
                let verdict = match decision {
                    Decision::Accept => Verdict::Accept { text: review.kind.proposed() },
                    Decision::Reject => Verdict::Reject,
                    Decision::AlwaysAllow => Verdict::AlwaysAllow,
                };
                editor.desk.decide(&review.id, verdict);
            }
        }
        Ok(())
    }

    pub(super) fn sizes(&self) -> Option<Rc<Kept>> {
        self.sizes.borrow().clone()
    }

    pub(super) fn views(&self) -> Vec<Rc<View>> {
        self.views.borrow().clone()
    }

    pub(super) fn view_of_buf(&self, buf: Buf) -> Option<Rc<View>> {
        self.views.borrow().iter().find(|view| view.right == buf).cloned()
    }

    /// The buffer numbers of every pane: never "the active file", never reloaded.
    pub fn is_pane(&self, buf: Buf) -> bool {
        let holds = |view: &Rc<View>| view.bufs().any(|mine| mine == buf);
        self.views.borrow().iter().any(holds) || self.leaving.borrow().iter().any(holds)
    }

    /// It has arrived here: shown, standing ready, or waiting for a mode that lets it be opened.
    pub fn knows(&self, review: &Arc<Review>) -> bool {
        self.views.borrow().iter().any(|view| Arc::ptr_eq(&view.review, review))
            || self.waiting.borrow().iter().any(|waiting| Arc::ptr_eq(&waiting.review, review))
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
            && self.views.borrow().is_empty()
            && self.leaving.borrow().is_empty()
    }

    /// Closes what was taken back, unless the user types in it; `now`: all the same.
    pub(crate) fn close_leaving(&self, editor: &Rc<Editor>, now: bool) {
        let all = std::mem::take(&mut *self.leaving.borrow_mut());
        let some = !all.is_empty();
        for view in all {
            if !now && (is_typing_in(editor, &view) || in_command_window(editor)) {
                self.leaving.borrow_mut().push(view);
            } else {
                view.close(editor);
            }
        }
        if some {
            self.end(editor);
        }
    }

    // ---- autocommands, only while there is a review

    fn begin(&self, editor: &Rc<Editor>) {
        if self.group.get().is_none() {
            self.options.begin(&editor.api);
            match self.listen(editor) {
                Ok(group) => self.group.set(Some(group)),
                Err(error) => tracing::error!("cannot listen for the reviews: {error}"),
            }
        }
        editor.update_key_listening();
    }

    fn end(&self, editor: &Rc<Editor>) {
        if !self.is_empty() {
            return;
        }
        if let Some(group) = self.group.take()
            && let Err(error) = editor.api.delete_augroup(group)
        {
            tracing::warn!("cannot delete an augroup: {error}");
        }
        self.home.borrow_mut().take();
        self.sizes.borrow_mut().take();
        self.options.end(&editor.api);
        editor.update_key_listening();
    }

    /// One review more (`coming`), or less, or another text.
    fn fit_options(&self, editor: &Rc<Editor>, coming: Option<Arc<TwoPanes>>) {
        let views = self.views();
        let shown: Vec<_> = views.iter().filter_map(|view| view.panes()).chain(coming).collect();
        self.options.fit(&editor.api, &shown);
    }

    fn listen(&self, editor: &Rc<Editor>) -> Result<i64> {
        let api = &editor.api;
        let group = api.augroup("gangway_reviews")?;
        let on = |events: &[&str], f: fn(&Stage, &Rc<Editor>) -> Result<()>| {
            let editor = Rc::clone(editor);
            api.autocmd(group, events, None, move |_, _| f(&editor.stage, &editor)).map(drop)
        };
        on(&["WinLeave"], Self::leaving_window)?;
        on(&["WinEnter", "TabEnter"], Self::entered_window)?;
        on(&["CmdlineLeave"], |_, editor| editor.keys.command_line_left())?;
        on(&["ExitPre"], Self::exit_asked)?;
        on(&["QuitPre"], Self::quit_asked)?;
        on(&["VimResized"], Self::resized)?;
        on(&["FocusLost"], |_, editor| {
            editor.later(|editor| editor.stage.tick(editor));
            Ok(())
        })?;
        Ok(group)
    }

    fn leaving_window(&self, editor: &Rc<Editor>) -> Result<()> {
        let current = editor.api.win_buf(editor.api.current_win()?)?;
        if !self.moving.get() && !self.is_pane(current) {
            *self.home.borrow_mut() = Some(origin_here(editor, "")?);
        }
        Ok(())
    }

    /// The user went into a review by themselves: that is where they will come back from.
    fn entered_window(&self, editor: &Rc<Editor>) -> Result<()> {
        editor.later(|editor| {
            for view in editor.stage.views() {
                view.dismiss_if_closed(editor);
            }
        });
        if !self.moving.get()
            && let Some(view) = self.views().into_iter().find(|view| view.is_current(&editor.api))
        {
            if let Some(home) = self.home.borrow_mut().take() {
                *view.origin.borrow_mut() = Some(home);
            }
            editor.later(|editor| editor.stage.tick(editor));
        }
        Ok(())
    }

    /// A proposal that a typed write would accept is in this window.
    pub(super) fn may_be_written(&self, editor: &Rc<Editor>, win: Win) -> bool {
        self.written_in(editor, win).is_some_and(|view| view.takes_writes())
    }

    /// For the rest of this turn a proposal shows as modified, so that a mapping that writes what
    /// is modified writes it.
    pub(super) fn show_unwritten(&self, editor: &Rc<Editor>, win: Win) -> Result<()> {
        match self.written_in(editor, win) {
            Some(view) => view.show_unwritten(editor),
            None => Ok(()),
        }
    }

    /// The turn of the main loop in which the user typed a key in `win` is over.
    pub(super) fn turn_ended(&self, editor: &Rc<Editor>, win: Win, says_write: bool) {
        for view in self.views() {
            view.show_written(editor);
            view.dismiss_if_closed(editor);
        }
        if says_write
            && let Some(view) = self.written_in(editor, win)
            && let Err(error) = view.accept_unmodified_write(editor)
        {
            tracing::warn!("typed write: {error}");
        }
    }

    fn written_in(&self, editor: &Rc<Editor>, win: Win) -> Option<Rc<View>> {
        editor.api.win_buf(win).ok().and_then(|buf| self.view_of_buf(buf))
    }

    /// `:q` in the user's last window means Neovim, whatever waits in tab pages behind: ours close for
    /// the moment, and stand ready again if Neovim stays (for the user's unsaved text).
    fn quit_asked(&self, editor: &Rc<Editor>) -> Result<()> {
        let api = &editor.api;
        let quitting = api.current_win()?;
        let wins: Vec<Win> = api.call("nvim_list_wins", ())?;
        for win in wins {
            let ours = self.is_pane(api.win_buf(win)?);
            // Another window of the user's stays; or it is a pane that is closed.
            if ours == (win == quitting) && (ours || !api.is_floating(win)?) {
                return Ok(());
            }
        }
        for view in self.views() {
            view.step_aside(editor);
        }
        editor.later(|editor| {
            for view in editor.stage.views() {
                if let Err(error) = view.come_back(editor) {
                    tracing::error!("cannot open a review again: {error}");
                    view.reject(editor);
                }
            }
        });
        Ok(())
    }

    /// The panes do not share the room by themselves ('winfixwidth').
    fn resized(&self, editor: &Rc<Editor>) -> Result<()> {
        self.views().iter().try_for_each(|view| view.share_width(editor))
    }

    /// An edited proposal must not refuse `:qa`; the flag comes back if Neovim stays.
    fn exit_asked(&self, editor: &Rc<Editor>) -> Result<()> {
        for view in self.views() {
            let modified: bool = editor.api.option("modified", At::Buf(view.right))?;
            if modified {
                editor.api.set_option("modified", false, At::Buf(view.right))?;
                let buf = view.right;
                editor.later(move |editor| {
                    if editor.stage.view_of_buf(buf).is_some() && editor.api.buf_loaded(buf) {
                        let _ = editor.api.set_option("modified", true, At::Buf(buf));
                    }
                });
            }
        }
        Ok(())
    }
}

/// A tab page may be made behind the user in these modes without disturbing them; in visual mode it
/// would end the selection, at a prompt it would fail.
fn may_open_behind(editor: &Rc<Editor>) -> bool {
    let check = || -> Result<bool> {
        let (mode, blocking) = editor.api.mode()?;
        let command_window: String = editor.api.func("getcmdwintype", ())?;
        let fits = matches!(mode.chars().next(), Some('n' | 'i' | 'c' | 't' | 'R'));
        if !blocking && command_window.is_empty() && fits {
            return Ok(true);
        }
        // A selection that stands, or a user who is away: it comes into view right after.
        Ok(!blocking && command_window.is_empty() && editor.stage.may_come(editor)?)
    };
    check().unwrap_or_else(|error| {
        tracing::warn!("cannot tell the mode: {error}");
        false
    })
}

fn in_command_window(editor: &Editor) -> bool {
    editor.api.func::<String>("getcmdwintype", ()).is_ok_and(|kind| !kind.is_empty())
}

/// The user is in one of the panes and in the middle of something.
fn is_typing_in(editor: &Rc<Editor>, view: &View) -> bool {
    let inserting = editor.api.mode().is_ok_and(|(mode, _)| mode.starts_with(['i', 'R', 'c']));
    view.is_current(&editor.api) && (inserting || editor.quiet() < ARM_AFTER)
}

fn origin_here(editor: &Rc<Editor>, mode: &str) -> Result<Origin> {
    let api = &editor.api;
    let win = api.current_win()?;
    Ok(Origin { win, mode: mode.to_owned(), insert_at: api.cursor(win)? })
}

pub(super) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// What `User` events and `status()` say of a review.
pub(crate) fn describe(editor: &Rc<Editor>, review: &Review) -> Result<Table> {
    let lua = &editor.api.lua;
    let table = editor.api.opts([
        ("id", review.id.0.as_ref().into_lua(lua)?),
        ("origin", review.origin.as_ref().into_lua(lua)?),
        ("kind", review.kind.name().into_lua(lua)?),
        ("editable", review.editable.into_lua(lua)?),
    ])?;
    if let Some(path) = review.kind.path() {
        table.set("path", lua.create_string(path.as_os_str().as_encoded_bytes())?)?;
    }
    let age = review.asked.elapsed().unwrap_or_default().as_secs();
    table.set("age", age)?;
    Ok(table)
}
