//! `openDiff`: asks the user about a file's new content and answers with their verdict.
//!
//! The file is looked at off Neovim's thread and never written here: the agent does that. The
//! answers are `FILE_SAVED` with the final text or `DIFF_REJECTED`; never `TAB_CLOSED`, which
//! Claude Code takes for a yes, and never an error to Pi, which would go ahead unreviewed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::{Call, Outcome, Running, Tool, absolute, arguments};
use crate::agents::mcp::rpc::{RpcError, ToolResult};
use crate::files::{self, ReadError};
use crate::review::text::OldText;
use crate::review::{Kind, Proposal, Verdict, Withdrawal};

/// How long a diff waits for an earlier one whose file takes long to read.
const IN_ORDER: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Arguments {
    /// Absolute path of the file as it is; it need not exist.
    pub old_file_path: String,
    /// Absolute path of the file as it will be; differs from the old one for a rename.
    pub new_file_path: String,
    /// The whole proposed content.
    pub new_file_contents: String,
    /// Names this diff for `close_tab`.
    pub tab_name: String,
}

pub(super) fn tool() -> Tool {
    Tool::new::<Arguments>(
        "openDiff",
        "Show a proposed change side by side and wait until the user accepts or rejects it",
        start,
    )
}

fn start(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: Arguments = arguments(map)?;
    let owed = call.session.owed().one_more();
    let room = call.session.book_diff(call.seq, &args.tab_name, args.new_file_contents.len());
    Ok(Box::pin(async move {
        let _owed = owed;
        let name = args.tab_name.clone();
        let question = Question {
            old_path: ("old_file_path", args.old_file_path),
            path: ("new_file_path", args.new_file_path),
            new: args.new_file_contents.into(),
            name: args.tab_name,
            editable: true,
        };
        match ask(&call, room, question).await {
            Ok(verdict) => answer(&name, verdict.await),
            Err(why) => Outcome::Result(call.session.dialect().no_review(&name, &why)),
        }
    }))
}

/// A diff as a tool was asked for it; the paths with the names of their fields.
pub(super) struct Question {
    pub(super) old_path: (&'static str, String),
    pub(super) path: (&'static str, String),
    pub(super) new: Arc<str>,
    pub(super) name: String,
    pub(super) editable: bool,
}

/// Puts the question on the desk, if there was `room` to book it. What comes back ends with the
/// user's verdict; an error is a sentence that says why they cannot be asked.
pub(super) async fn ask(
    call: &Call,
    room: Result<(), String>,
    question: Question,
) -> Result<impl Future<Output = Verdict> + Send + use<>, String> {
    room?;
    let Question { old_path, path, new, name, editable } = question;
    if !call.session.diffs_wanted() {
        return Err("diffs are switched off in Neovim (agents.claude.diffs)".to_owned());
    }
    let old_path = absolute(old_path.0, &old_path.1)?;
    let path = absolute(path.0, &path.1)?;
    let old = read_old(call, &old_path, &path).await?;
    // Files are read side by side; the desk gets the questions in the order they were asked in.
    let patience = Instant::now() + IN_ORDER;
    while call.session.requests().is_behind(call.seq) && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (sender, verdict) = oneshot::channel();
    if let Some(why) = call.session.requests().withdrawn(call.seq) {
        let _ = sender.send(Verdict::Withdrawn(why));
    } else {
        let review = call.session.desk().open(
            Proposal {
                owner: call.session.owner(),
                origin: call.session.origin().into(),
                name: name.into(),
                id: None,
                kind: Kind::Write { path, old_path, old, new: Arc::clone(&new) },
                editable,
                can_always: false,
                asked: SystemTime::now(),
            },
            Box::new(move |verdict| drop(sender.send(verdict))),
        );
        call.session.diff_opened(call.seq, &review.id);
    }
    Ok(async move {
        match verdict.await {
            // Not offered for this review; a yes all the same.
            Ok(Verdict::AlwaysAllow) => Verdict::Accept { text: new },
            Ok(verdict) => verdict,
            Err(_) => Verdict::Reject,
        }
    })
}

fn answer(name: &str, verdict: Verdict) -> Outcome {
    Outcome::Result(match verdict {
        Verdict::Withdrawn(Withdrawal::Cancelled) => return Outcome::Silent,
        Verdict::Accept { text } => ToolResult::texts(["FILE_SAVED", &text]),
        Verdict::Reject
        | Verdict::Dismissed
        | Verdict::AlwaysAllow
        | Verdict::Withdrawn(Withdrawal::Closed | Withdrawal::OwnerLost) => {
            ToolResult::texts(["DIFF_REJECTED", name])
        }
    })
}

enum Looked {
    Old(OldText),
    /// Bytes that are no UTF-8: what they mean depends on the user's settings.
    Encoded(Vec<u8>),
}

async fn read_old(call: &Call, old_path: &Path, path: &Path) -> Result<OldText, String> {
    let (old, new) = (old_path.to_path_buf(), path.to_path_buf());
    let looked = tokio::task::spawn_blocking(move || look(&old, &new)).await;
    match looked.map_err(|_| format!("cannot read {}", old_path.display()))?? {
        Looked::Old(old) => Ok(old),
        Looked::Encoded(bytes) => {
            let encodings = call.session.host().encodings(old_path).await;
            let old = tokio::task::spawn_blocking(move || OldText::from_bytes(bytes, &encodings));
            old.await.map_err(|_| format!("cannot decode {}", old_path.display()))
        }
    }
}

/// What is on disk. A file that is not there yet is fine, wherever its directory is missing.
fn look(old: &PathBuf, new: &PathBuf) -> Result<Looked, String> {
    for path in [old, new] {
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(format!("{} names a directory, not a file", path.display()));
        }
    }
    let fine = |error: &ReadError| error.is_missing();
    if new != old
        && let Err(error) = files::check_plain(new, true)
        && !fine(&error)
    {
        return Err(error.to_string());
    }
    match files::read_plain(old, files::MAX_REVIEWED) {
        Ok(bytes) if OldText::needs_encoding(&bytes) => Ok(Looked::Encoded(bytes)),
        Ok(bytes) => Ok(Looked::Old(OldText::from_bytes(bytes, &[]))),
        Err(error) if fine(&error) => Ok(Looked::Old(OldText::Missing)),
        Err(error) => Err(error.to_string()),
    }
}
