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
use crate::review::Kind;
use crate::review::two_panes::Detail;

/// Columns from which a pane's winbar can say everything.
const ROOMY: i64 = 64;

/// Below this an agent's name is cut to its first word, so that the keys stay.
const NARROW: i64 = 48;

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

/// Characters that would let a name look like another one.
pub(super) fn is_invisible(c: char) -> bool {
    matches!(
        u32::from(c),
        0xad | 0x61c
            | 0x115f..=0x1160
            | 0x180e
            | 0x200b..=0x200f
            | 0x2028..=0x202e
            | 0x2060..=0x2069
            | 0x3164
            | 0xfeff
            | 0xe0000..=0xe007f
    )
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

/// In a narrow pane the remarks give way first; the keys that decide are always there.
fn right_bar(editor: &Rc<Editor>, view: &View, width: i64) -> String {
    let roomy = width >= ROOMY;
    let origin: String = if width >= NARROW {
        view.review.origin.to_string()
    } else {
        view.review.origin.split([' ', '-']).next().unwrap_or_default().chars().take(8).collect()
    };
    let mut bar = format!(" %#GangwayAgent#{}%*", literal(&origin));
    if let Some(panes) = view.panes() {
        bar.push_str(match view.review.kind {
            Kind::Delete { .. } if roomy => " %#GangwayWarning#deletes this file%*%<",
            Kind::Delete { .. } => " %#GangwayWarning#DELETES%*%<",
            _ if roomy => " proposes%<",
            _ => "%<",
        });
        if let Kind::Write { path, old_path, .. } = &view.review.kind
            && path != old_path
        {
            let _ = write!(bar, " %#GangwayTitle#{}%*", literal(&editor.short_path(path)));
        }
        bar.push_str(&counts(editor, view, panes.detail));
        for note in &panes.right_notes {
            if !matches!(view.review.kind, Kind::Delete { .. }) {
                let _ = write!(bar, " · %#GangwayWarning#{}%*", literal(note));
            }
        }
        if !view.review.editable {
            bar.push_str(" · %#GangwayNote#read-only%*");
        }
    } else {
        let _ = write!(bar, " asks · {}", view.review.kind.name());
    }
    let waiting = editor.desk.len();
    if waiting > 1 {
        let _ = write!(bar, " · %#GangwayNote#{} waiting%*", waiting - 1);
    }
    bar.push_str("%=");
    // What stands before the first cut must stay readable.
    let fixed = origin.chars().count() + if width >= NARROW { 12 } else { 4 };
    let room = usize::try_from(width).unwrap_or(0).saturating_sub(fixed);
    bar.push_str(&keys(editor, view, room));
    bar
}

/// "+12 −3 2 of 5".
fn counts(editor: &Rc<Editor>, view: &View, detail: Detail) -> String {
    let Some(hunks) = view.hunks.borrow().clone() else {
        return " %#GangwayNote#counting…%*".into();
    };
    let (added, removed) = (hunks.added, hunks.removed);
    let mut text = format!(" %#GangwayAdded#+{added}%* %#GangwayRemoved#−{removed}%*");
    let all = hunks.list.len();
    if all == 0 {
        text = " %#GangwayNote#no change%*".into();
    } else if all > 1 && detail != Detail::NoDiff {
        let _ = match position(editor, view) {
            Some(at) => write!(text, " {} of {all}", at + 1),
            None => write!(text, " {all} hunks"),
        };
    }
    text
}

/// The keys with the longest labels that fit into `room` columns.
fn keys(editor: &Rc<Editor>, view: &View, room: usize) -> String {
    let settings = editor.settings();
    let keys = &settings.keys;
    let always = view.review.can_always;
    let changes = view.hunks.borrow().as_ref().is_none_or(|hunks| !hunks.list.is_empty());
    let drop = view.editable() && changes;
    let (yes, no) = if view.panes().is_some() { ("accept", "reject") } else { ("allow", "deny") };
    let variants: [Vec<(&Key, &str)>; 5] = [
        vec![
            (&keys.accept, yes),
            (&keys.reject, no),
            (if always { &keys.always } else { &None }, "always"),
            (if drop { &keys.drop_hunk } else { &None }, "drop hunk"),
        ],
        vec![
            (&keys.accept, yes),
            (&keys.reject, no),
            (if always { &keys.always } else { &None }, "always"),
        ],
        vec![(&keys.accept, yes), (&keys.reject, no)],
        vec![(&keys.accept, "yes"), (&keys.reject, "no")],
        vec![(&keys.accept, "+"), (&keys.reject, "−")],
    ];
    let mut shown = String::new();
    for variant in variants {
        let mut columns = 1;
        shown.clear();
        for (key, label) in variant.iter().filter_map(|(key, label)| Some((key.as_ref()?, label))) {
            let key = editor.shown_key(key);
            columns += key.chars().count() + label.chars().count() + 2;
            let _ = write!(shown, " %#GangwayKey#{}%* {label}", literal(&key));
        }
        shown.push(' ');
        if columns <= room {
            break;
        }
    }
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
