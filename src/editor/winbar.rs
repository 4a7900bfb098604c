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
use crate::review::Kind;
use crate::review::two_panes::Detail;

/// Client text as literal winbar text: control and direction-changing characters become visible.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '%' => out.push_str("%%"),
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
    matches!(u32::from(c), 0xad | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x2069 | 0xfeff)
}

/// Sets the winbars of every window that shows the view.
pub(super) fn draw(editor: &Rc<Editor>, view: &View) {
    let api = &editor.api;
    let set = || -> Result<()> {
        let right = right_bar(editor, view);
        for win in api.wins_of(view.right)? {
            api.set_option("winbar", right.as_str(), At::Win(win))?;
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
    if view.panes().is_some() && view.hunks.borrow().list.len() > 1 {
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

fn right_bar(editor: &Rc<Editor>, view: &View) -> String {
    let mut bar = format!(" %#GangwayAgent#{}%*", literal(&view.review.origin));
    if let Some(panes) = view.panes() {
        bar.push_str(match view.review.kind {
            Kind::Delete { .. } => " %#GangwayWarning#deletes this file%*",
            _ => " proposes",
        });
        if let Kind::Write { path, old_path, .. } = &view.review.kind
            && path != old_path
        {
            let _ = write!(bar, " %#GangwayTitle#{}%*", literal(&editor.short_path(path)));
        }
        let hunks = view.hunks.borrow();
        let _ =
            write!(bar, " %#GangwayAdded#+{}%* %#GangwayRemoved#−{}%*", hunks.added, hunks.removed);
        if hunks.list.len() > 1 && panes.detail != Detail::NoDiff {
            let at = position(editor, view);
            let _ = match at {
                Some(at) => write!(bar, " {} of {}", at + 1, hunks.list.len()),
                None => write!(bar, " {} hunks", hunks.list.len()),
            };
        } else if hunks.list.is_empty() {
            bar.push_str(" %#GangwayNote#no change%*");
        }
        for note in &panes.right_notes {
            if !matches!(view.review.kind, Kind::Delete { .. }) {
                let _ = write!(bar, " · %#GangwayWarning#{}%*", literal(note));
            }
        }
        if !view.review.editable {
            bar.push_str(" · %#GangwayNote#read-only: edits cannot be sent%*");
        }
    } else {
        let _ = write!(bar, " asks · {}", view.review.kind.name());
    }
    let waiting = editor.desk.len();
    if waiting > 1 {
        let _ = write!(bar, " · %#GangwayNote#{} waiting%*", waiting - 1);
    }
    bar.push_str("%<%=");
    bar.push_str(&keys(editor, view));
    bar
}

fn keys(editor: &Rc<Editor>, view: &View) -> String {
    let settings = editor.settings();
    let mut out = String::new();
    let mut key = |key: &Option<String>, what: &str| {
        if let Some(key) = key {
            let shown = literal(&editor.shown_key(key));
            let _ = write!(out, " %#GangwayKey#{shown}%* {what}");
        }
    };
    key(&settings.keys.accept, if view.panes().is_some() { "accept" } else { "allow" });
    key(&settings.keys.reject, if view.panes().is_some() { "reject" } else { "deny" });
    if view.review.can_always {
        key(&settings.keys.always, "always");
    }
    if view.editable() && !view.hunks.borrow().list.is_empty() {
        key(&settings.keys.drop_hunk, "drop hunk");
    }
    out.push(' ');
    out
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
    view.hunks.borrow().at(u32::try_from(line - 1).ok()?, in_new)
}
