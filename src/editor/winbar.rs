//! The line above each pane: who asks for what, how much changes, and the keys that decide.
//!
//! Neovim's thread only. Whatever comes from a client is text: control characters are shown, `%` is
//! doubled, and nothing of it is ever evaluated.

use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;

use super::Editor;
use super::api::{At, Result};
use super::view::View;
use crate::config::Key;
use crate::review::two_panes::Detail;
use crate::review::{Kind, is_invisible};

/// Client text as literal winbar text.
pub(super) fn literal(text: &str) -> String {
    visible(text).replace('%', "%%")
}

/// Client text on one line: control and direction-changing characters become visible.
pub(super) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => out.push(' '),
            '\n' => out.push('⏎'),
            c if c.is_control() || is_invisible(c) => {
                let _ = write!(out, "<{:x}>", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// Sets the winbars of every window that shows the view.
pub(super) fn draw(editor: &Rc<Editor>, view: &View) {
    let api = &editor.api;
    let set = || -> Result<()> {
        for win in api.wins_of(view.right)? {
            let width: i64 = api.call("nvim_win_get_width", win)?;
            api.set_option("winbar", right_bar(editor, view, width), At::Win(win))?;
        }
        if let Some(left) = view.left {
            let bar = left_bar(editor, view);
            for win in api.wins_of(left)? {
                api.set_option("winbar", bar.as_str(), At::Win(win))?;
            }
        }
        Ok(())
    };
    if let Err(error) = set() {
        tracing::debug!("winbar: {error}");
    }
}

/// The cursor moved in a pane: "2 of 5" may have changed.
pub(super) fn moved(editor: &Rc<Editor>, view: &View) {
    if view.panes().is_some()
        && view.hunks.borrow().as_ref().is_some_and(|hunks| hunks.list.len() > 1)
    {
        draw(editor, view);
    }
}

fn left_bar(editor: &Rc<Editor>, view: &View) -> String {
    let Some(panes) = view.panes() else { return String::new() };
    let path = match &view.review.kind {
        Kind::Write { old_path, .. } => old_path.as_path(),
        other => other.path().unwrap_or(Path::new("")),
    };
    let mut bar =
        format!(" %#GangwayTitle#%<{}%* %#GangwayNote#on disk", literal(&editor.short_path(path)));
    let mut notes = panes.left_notes.clone();
    if editor.has_unsaved_changes(path) {
        notes.push("your buffer has unsaved changes".into());
    }
    for note in notes {
        let _ = write!(bar, " · {}", literal(&note));
    }
    bar.push_str("%*");
    bar
}

/// A stretch of winbar text and the columns it takes.
#[derive(Debug, Clone, Default)]
struct Piece {
    text: String,
    columns: usize,
}

impl Piece {
    fn push(&mut self, group: &str, text: &str) -> &mut Self {
        self.columns += text.chars().count();
        let text = text.replace('%', "%%");
        let _ = match group {
            "" => write!(self.text, "{text}"),
            group => write!(self.text, "%#{group}#{text}%*"),
        };
        self
    }

    fn append(&mut self, other: &Self) {
        self.text.push_str(&other.text);
        self.columns += other.columns;
    }
}

/// How much of the right winbar is said, fullest first: of the head (agent and counts) and of the
/// keys. What does not fit gives way as a whole, so that nothing is cut in the middle.
const LAYOUTS: [(Head, usize); 10] = [
    (Head::Sentence, 0),
    (Head::Full, 0),
    (Head::Full, 1),
    (Head::Full, 2),
    (Head::Short, 2),
    (Head::Tight, 2),
    (Head::Tight, 3),
    (Head::Counts, 3),
    (Head::Counts, 4),
    (Head::Agent, 4),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Head {
    /// "Claude Code proposes +6 −2 1 of 2"
    Sentence,
    /// "Claude Code +6 −2 1 of 2"
    Full,
    /// "Claude +6 −2 1 of 2"
    Short,
    /// "Claude +6 −2 1/2"
    Tight,
    /// "Claude +6 −2"
    Counts,
    /// "Claude"
    Agent,
}

/// The fullest layout that fits. Remarks go before the keys that decide do; that there were some is
/// still to be seen.
fn right_bar(editor: &Rc<Editor>, view: &View, width: i64) -> String {
    let width = usize::try_from(width).unwrap_or(0);
    let notes = notes(editor, view);
    let mut cut = Piece::default();
    if notes.columns > 0 {
        cut.push("GangwayWarning", " …");
    }
    let fits = |notes: &Piece| {
        LAYOUTS.into_iter().find_map(|(level, labels)| {
            let mut left = head(editor, view, level);
            left.append(notes);
            let keys = keys(editor, view, labels);
            (left.columns + keys.columns <= width).then(|| format!("{}%={}", left.text, keys.text))
        })
    };
    fits(&notes).or_else(|| fits(&cut)).or_else(|| fits(&Piece::default())).unwrap_or_else(|| {
        let (level, labels) = LAYOUTS[LAYOUTS.len() - 1];
        format!("{}%<%={}", head(editor, view, level).text, keys(editor, view, labels).text)
    })
}

fn head(editor: &Rc<Editor>, view: &View, level: Head) -> Piece {
    let mut head = Piece::default();
    let origin: String = if level <= Head::Full {
        view.review.origin.to_string()
    } else {
        view.review.origin.split([' ', '-']).next().unwrap_or_default().chars().take(8).collect()
    };
    head.push("", " ").push("GangwayAgent", &visible(&origin));
    let Some(panes) = view.panes() else {
        if level <= Head::Short {
            head.push("", &format!(" asks · {}", view.review.kind.name()));
        }
        return head;
    };
    if let Kind::Delete { .. } = view.review.kind {
        let word = if level == Head::Sentence { " deletes this file" } else { " DELETES" };
        head.push("GangwayWarning", word);
    } else if level == Head::Sentence {
        head.push("GangwayNote", " proposes");
    }
    if level < Head::Agent {
        count_lines(editor, view, panes.detail, level, &mut head);
    }
    head
}

/// "+12 −3 2 of 5".
fn count_lines(editor: &Rc<Editor>, view: &View, detail: Detail, level: Head, head: &mut Piece) {
    let Some(hunks) = view.hunks.borrow().clone() else {
        head.push("GangwayNote", " counting…");
        return;
    };
    let all = hunks.list.len();
    if all == 0 {
        head.push("GangwayNote", " no change");
        return;
    }
    head.push("", " ").push("GangwayAdded", &format!("+{}", hunks.added));
    head.push("", " ").push("GangwayRemoved", &format!("−{}", hunks.removed));
    if all > 1 && detail != Detail::NoDiff && level < Head::Counts {
        let place = match (position(editor, view), level) {
            (Some(at), Head::Tight) => format!(" {}/{all}", at + 1),
            (Some(at), _) => format!(" {} of {all}", at + 1),
            (None, Head::Tight) => String::new(),
            (None, _) => format!(" {all} hunks"),
        };
        head.push("GangwayNote", &place);
    }
}

/// What else there is to know before deciding.
fn notes(editor: &Rc<Editor>, view: &View) -> Piece {
    let mut notes = Piece::default();
    let Some(panes) = view.panes() else { return waiting(editor, notes) };
    if let Kind::Write { path, old_path, .. } = &view.review.kind {
        if path != old_path {
            notes.push("", " · ");
            notes.push("GangwayTitle", &visible(&editor.short_path(path)));
        }
        for note in &panes.right_notes {
            notes.push("", " · ").push("GangwayWarning", &visible(note));
        }
    }
    if !view.review.editable {
        notes.push("", " · ").push("GangwayNote", "read-only");
    }
    waiting(editor, notes)
}

fn waiting(editor: &Rc<Editor>, mut notes: Piece) -> Piece {
    let waiting = editor.desk.len();
    if waiting > 1 {
        notes.push("", " · ").push("GangwayNote", &format!("{} waiting", waiting - 1));
    }
    notes
}

/// The keys that decide, with labels from the longest (0) to the shortest (4).
fn keys(editor: &Rc<Editor>, view: &View, labels: usize) -> Piece {
    let settings = editor.settings();
    let keys = &settings.keys;
    let changes = view.hunks.borrow().as_ref().is_none_or(|hunks| !hunks.list.is_empty());
    let (yes, no) = match (labels, view.panes().is_some()) {
        (0..=2, true) => ("accept", "reject"),
        (0..=2, false) => ("allow", "deny"),
        (3, _) => ("yes", "no"),
        _ => ("+", "−"),
    };
    let mut shown = Piece::default();
    let mut show = |key: &Key, label: &str| {
        if let Some(key) = key {
            shown.push("", " ").push("GangwayKey", &visible(&editor.shown_key(key)));
            shown.push("", &format!(" {label}"));
        }
    };
    show(&keys.accept, yes);
    show(&keys.reject, no);
    if view.review.can_always && labels <= 1 {
        show(&keys.always, "always");
    }
    if view.editable() && changes && labels == 0 {
        show(&keys.drop_hunk, "drop hunk");
    }
    shown.push("", " ");
    shown
}

/// 0-based hunk the cursor is at, while the view is the current one.
fn position(editor: &Rc<Editor>, view: &View) -> Option<usize> {
    let api = &editor.api;
    let win = api.current_win().ok()?;
    let buf = api.win_buf(win).ok()?;
    let in_new = buf == view.right;
    if !in_new && Some(buf) != view.left {
        return None;
    }
    let (line, _) = api.cursor(win).ok()?;
    view.hunks.borrow().as_ref()?.at(u32::try_from(line - 1).ok()?, in_new)
}
