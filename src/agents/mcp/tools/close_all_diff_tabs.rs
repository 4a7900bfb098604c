//! `closeAllDiffTabs`: takes back all diffs of this connection and of no other. Claude Code calls
//! it at the start of every turn.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Call, Running, Tool, at_once};
use crate::agents::mcp::rpc::{RpcError, ToolResult};
use crate::review::Withdrawal;

#[derive(Deserialize, JsonSchema)]
struct Arguments {}

pub(super) fn tool() -> Tool {
    Tool::new::<Arguments>("closeAllDiffTabs", "Close all diffs this connection opened", start)
}

fn start(call: Call, _: Map<String, Value>) -> Result<Running, RpcError> {
    let count = call.session.close_diffs(None, Withdrawal::Closed);
    at_once(ToolResult::texts([format!("CLOSED_{count}_DIFF_TABS")]))
}
