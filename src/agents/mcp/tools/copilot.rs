//! The tools of GitHub Copilot CLI; names and shapes are those of its VS Code extension.
//!
//! Only `get_selection` and `get_diagnostics` are offered to the model. `open_diff` waits for the
//! user, but has no way to return a text: the agent writes its own, so the review is read-only.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Call, Outcome, Running, Tool, arguments, at_once, get_diagnostics, later, open_diff};
use crate::agents::mcp::dialect::{SelectionChanged, Shown};
use crate::agents::mcp::rpc::{RpcError, ToolResult};
use crate::review::{Verdict, Withdrawal};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Deserialize, JsonSchema)]
struct OpenDiff {
    /// Absolute path of the file; it need not exist.
    original_file_path: String,
    /// The whole proposed content.
    new_file_contents: String,
    /// Names this diff for `close_diff`.
    tab_name: String,
}

#[derive(Deserialize, JsonSchema)]
struct CloseDiff {
    /// The `tab_name` that `open_diff` was called with.
    tab_name: String,
}

#[derive(Deserialize, JsonSchema)]
struct SessionName {
    /// What the user calls the session.
    #[allow(dead_code)]
    name: String,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new::<Nothing>("get_vscode_info", "What editor this is", info),
        Tool::new::<Nothing>(
            "get_selection",
            "The file the user is in and the text selected there",
            selection,
        ),
        get_diagnostics::tool("get_diagnostics"),
        Tool::new::<OpenDiff>(
            "open_diff",
            "Show a proposed change side by side and wait until the user accepts or rejects it",
            open_diff,
        ),
        Tool::new::<CloseDiff>("close_diff", "Close a diff by its name", close_diff),
        Tool::new::<SessionName>("update_session_name", "Name this session", name),
    ]
}

fn info(_: Call, _: Map<String, Value>) -> Result<Running, RpcError> {
    at_once(ToolResult::json(&json!({
        "appName": "Neovim",
        "ideName": "Neovim",
        "version": env!("CARGO_PKG_VERSION"),
        "processId": std::process::id(),
    })))
}

/// The answer of `get_selection`: `selection_changed`, and that it is no old one.
#[derive(Serialize)]
struct Current {
    #[serde(flatten)]
    selection: SelectionChanged,
    current: bool,
}

fn selection(call: Call, _: Map<String, Value>) -> Result<Running, RpcError> {
    later(async move {
        let snapshot = call.session.host().snapshot().await;
        let shown = Shown::of(&snapshot);
        let selection = shown.map(|shown| call.session.dialect().shown(&shown));
        ToolResult::json(&selection.map(|selection| Current { selection, current: true }))
    })
}

fn open_diff(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: OpenDiff = arguments(map)?;
    let owed = call.session.owed().one_more();
    let room = call.session.book_diff(call.seq, &args.tab_name, args.new_file_contents.len());
    Ok(Box::pin(async move {
        let _owed = owed;
        let (path, name) = (args.original_file_path, args.tab_name.clone());
        let question = open_diff::Question {
            old_path: ("original_file_path", path.clone()),
            path: ("original_file_path", path.clone()),
            new: args.new_file_contents.into(),
            name: args.tab_name,
            editable: false,
        };
        match open_diff::ask(&call, room, question).await {
            Ok(verdict) => answer(&name, &path, &verdict.await),
            Err(why) => Outcome::Result(ToolResult::failed(why)),
        }
    }))
}

fn answer(tab_name: &str, path: &str, verdict: &Verdict) -> Outcome {
    let (result, trigger, word) = match verdict {
        Verdict::Withdrawn(Withdrawal::Cancelled) => return Outcome::Silent,
        Verdict::Accept { .. } | Verdict::AlwaysAllow => {
            ("SAVED", "accepted_via_button", "accepted")
        }
        Verdict::Reject | Verdict::Dismissed => ("REJECTED", "rejected_via_button", "rejected"),
        Verdict::Withdrawn(Withdrawal::Closed) => ("REJECTED", "closed_via_tool", "closed"),
        Verdict::Withdrawn(Withdrawal::OwnerLost) => ("REJECTED", "client_disconnected", "closed"),
    };
    Outcome::Result(ToolResult::json(&json!({
        "success": true,
        "result": result,
        "trigger": trigger,
        "tab_name": tab_name,
        "message": format!("The changes of {path} were {word}"),
    })))
}

fn close_diff(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let CloseDiff { tab_name } = arguments(map)?;
    let closed = call.session.close_diffs(Some(&tab_name), Withdrawal::Closed);
    let already_closed = closed == 0;
    let message = if already_closed { "There is no such diff" } else { "The diff is closed" };
    at_once(ToolResult::json(&json!({
        "success": true,
        "already_closed": already_closed,
        "tab_name": tab_name,
        "message": message,
    })))
}

fn name(_: Call, _: Map<String, Value>) -> Result<Running, RpcError> {
    at_once(ToolResult::json(&json!({"success": true})))
}
