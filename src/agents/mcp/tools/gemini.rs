//! `openDiff` and `closeDiff` as Gemini CLI and Qwen Code call them.
//!
//! `openDiff` is answered as soon as the diff is there; how it ends is a notification, however
//! long the user takes. A diff is named after its file. When the user answers in the agent's own
//! prompt, `closeDiff` comes, mostly with the wish to hear no more of it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Call, Outcome, Running, Tool, arguments, later, open_diff};
use crate::agents::mcp::rpc::{RpcError, ToolResult};
use crate::agents::mcp::session::Session;
use crate::review::{Verdict, Withdrawal};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct OpenDiff {
    /// Absolute path of the file; it need not exist.
    file_path: String,
    /// The whole proposed content.
    new_content: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct CloseDiff {
    /// The `filePath` that `openDiff` was called with.
    file_path: String,
    /// Close it without a notification about how it ended.
    suppress_notification: Option<bool>,
}

/// Parameters of `ide/diffAccepted` and, without content, of `ide/diffRejected`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ended<'a> {
    /// Exactly as it was asked.
    file_path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

pub(super) fn tools() -> Vec<Tool> {
    let open = "Show a proposed change side by side; a notification tells how it ended";
    let close = "Close the diff of a file";
    vec![
        Tool::new::<OpenDiff>("openDiff", open, open_diff),
        Tool::new::<CloseDiff>("closeDiff", close, close_diff),
    ]
}

fn open_diff(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: OpenDiff = arguments(map)?;
    let owed = call.session.owed().one_more();
    let room = call.session.book_diff(call.seq, &args.file_path, args.new_content.len());
    let nothing = args.new_content.is_empty();
    Ok(Box::pin(async move {
        let question = open_diff::Question {
            old_path: ("filePath", args.file_path.clone()),
            path: ("filePath", args.file_path.clone()),
            new: args.new_content.into(),
            name: args.file_path.clone(),
            editable: true,
        };
        let verdict = match open_diff::ask(&call, room, question).await {
            Ok(verdict) => verdict,
            Err(why) => return Outcome::Result(ToolResult::failed(why)),
        };
        let session = Arc::clone(&call.session);
        // Ends with the session at the latest: that takes all its questions back.
        tokio::spawn(async move {
            let verdict = verdict.await;
            ended(&session, &args.file_path, nothing, verdict).await;
            drop(owed);
        });
        Outcome::Result(ToolResult::default())
    }))
}

async fn ended(session: &Session, file_path: &str, nothing: bool, verdict: Verdict) {
    match verdict {
        Verdict::Accept { text } => {
            let content = if nothing { &text } else { some(&text) };
            let params = Ended { file_path, content: Some(content) };
            session.notify("ide/diffAccepted", &params).await;
        }
        Verdict::Withdrawn(Withdrawal::Cancelled) => {}
        Verdict::Reject
        | Verdict::Dismissed
        | Verdict::AlwaysAllow
        | Verdict::Withdrawn(Withdrawal::Closed | Withdrawal::OwnerLost) => {
            session.notify("ide/diffRejected", &Ended { file_path, content: None }).await;
        }
    }
}

/// The agent has had its answer elsewhere. If that was a yes, Gemini takes the text we return, so
/// the user's edits are read before the pane goes; without any it takes its own proposal. Qwen Code
/// (0.24.4) has gone on with its own by then.
fn close_diff(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: CloseDiff = arguments(map)?;
    let silent = args.suppress_notification.unwrap_or(false);
    let why = if silent { Withdrawal::Cancelled } else { Withdrawal::Closed };
    call.session.requests().withdraw(Some(&args.file_path), why);
    let review = call.session.diff_named(&args.file_path);
    later(async move {
        let Some(id) = review else { return ToolResult::json(&json!({"content": null})) };
        let edited = call.session.host().edited(&id).await;
        call.session.desk().withdraw_one(call.session.owner(), &id, why);
        ToolResult::json(&json!({"content": edited.as_deref().map(some)}))
    })
}

/// The client takes an empty text for none and would write its own proposal. One empty line is
/// what the pane showed.
fn some(text: &str) -> &str {
    if text.is_empty() { "\n" } else { text }
}
