//! The question that has no file: a command to run, a tool to call.
//!
//! Neovim's thread only. One read-only pane in a tab page of its own; each argument on its own
//! line, with control and direction-changing characters made visible, so that what is allowed is
//! what was read. Nothing is decided by `<CR>`.

use std::rc::Rc;
use std::sync::Arc;

use super::Editor;
use super::api::{Api, At, Buf, Result};
use super::diff_view::{open_tab, pane, plain_window};
use super::view::{Built, Place};
use crate::review::{Kind, Review, is_invisible};

pub(super) fn build(
    editor: &Rc<Editor>,
    review: &Arc<Review>,
    made: &mut Vec<Buf>,
) -> Result<Built> {
    let api = &editor.api;
    let buf = pane(api, made, &question(review), "nofile")?;
    let right_name = format!("gangway://{}/{}", editor.next_serial(), review.kind.name());
    api.call::<()>("nvim_buf_set_name", (buf, right_name.as_str()))?;
    let place = open_window(api, buf)?;
    Ok(Built { right: buf, right_name, left_name: String::new(), left: None, place })
}

pub(super) fn open_window(api: &Api, buf: Buf) -> Result<Place> {
    let win = open_tab(api, buf)?;
    plain_window(api, win)?;
    for (name, value) in [("winfixbuf", true), ("wrap", true), ("number", false)] {
        api.set_option(name, value, At::Win(win))?;
    }
    Ok(Place { tab: api.win_tab(win)?, right_win: win, left_win: None })
}

/// The text of the pane.
fn question(review: &Review) -> String {
    let mut lines = Vec::new();
    match &review.kind {
        Kind::Command { program, args, cwd } => {
            lines.push(format!("{} wants to run", visible(&review.origin)));
            lines.push(String::new());
            lines.push(format!("  program   {}", visible(program)));
            for (index, arg) in args.iter().enumerate() {
                lines.push(format!("  arg {:<5} {}", index + 1, quoted(arg)));
            }
            if let Some(cwd) = cwd {
                lines.push(format!("  in        {}", visible(&cwd.to_string_lossy())));
            }
        }
        Kind::Tool { target, description } => {
            lines.push(format!("{} wants to call", visible(&review.origin)));
            lines.push(String::new());
            lines.push(format!("  {}", visible(target)));
            lines.push(String::new());
            lines.extend(description.lines().map(|line| format!("  {}", visible(line))));
        }
        Kind::Write { .. } | Kind::Delete { .. } => {}
    }
    if let Ok(age) = review.asked.elapsed()
        && age.as_secs() > 60
    {
        lines.push(String::new());
        lines.push(format!("  asked {} minutes ago", age.as_secs() / 60));
    }
    lines.push(String::new());
    lines.push("  Closing this window leaves the question to the agent's own terminal.".into());
    lines.join("\n")
}

/// One line, with everything that does not show made to show.
fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let text = match c {
                '\n' => "\\n".into(),
                '\t' => "\\t".into(),
                '\r' => "\\r".into(),
                c if c.is_control() || is_invisible(c) => format!("<{:x}>", u32::from(c)),
                c => c.to_string(),
            };
            text.chars().collect::<Vec<_>>()
        })
        .collect()
}

/// Like `visible`; an argument that is empty or has blanks is put between quotation marks.
fn quoted(arg: &str) -> String {
    let shown = visible(arg);
    if shown.is_empty() || shown.chars().any(char::is_whitespace) {
        format!("“{shown}”")
    } else {
        shown
    }
}
