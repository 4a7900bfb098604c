//! `close_tab`: takes back the diffs this connection gave a name. Claude Code calls it twice after
//! every diff, and while one is pending when the user has answered in the terminal.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Call, Running, Tool, arguments, at_once};
use crate::agents::mcp::rpc::{RpcError, ToolResult};
use crate::review::Withdrawal;

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// The `tab_name` that `openDiff` was called with.
    tab_name: String,
}

pub(super) fn tool() -> Tool {
    Tool::new::<Arguments>("close_tab", "Close a diff that this connection opened", start)
}

fn start(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: Arguments = arguments(map)?;
    call.session.close_diffs(Some(&args.tab_name), Withdrawal::Closed);
    at_once(ToolResult::texts(["TAB_CLOSED"]))
}
