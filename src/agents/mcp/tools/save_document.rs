//! `saveDocument`: writes an open file's buffer, as the user's `:write` would.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Call, Running, Tool, absolute, arguments, later, refusal, success};
use crate::agents::mcp::rpc::{RpcError, ToolResult};

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    /// Absolute path of the file.
    file_path: String,
}

pub(super) fn tool() -> Tool {
    Tool::new::<Arguments>("saveDocument", "Save a file that is open in Neovim", start)
}

fn start(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: Arguments = arguments(map)?;
    later(async move {
        let path = match absolute("filePath", &args.file_path) {
            Ok(path) => path,
            Err(why) => return ToolResult::failed(why),
        };
        let host = call.session.host();
        match host.document(&path).await {
            Ok(Some(_)) => {}
            Ok(None) => return refusal(format!("Document not open: {}", args.file_path)),
            Err(error) => return ToolResult::failed(error.to_string()),
        }
        match host.save(&path).await {
            Ok(saved) => success(&json!({
                "filePath": args.file_path,
                "saved": saved,
                "message": if saved { "Document saved" } else { "There was nothing to save" },
            })),
            Err(error) => ToolResult::failed(error.to_string()),
        }
    })
}
