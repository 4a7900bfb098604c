//! `checkDocumentDirty`: whether an open file has changes that are not saved.

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
    Tool::new::<Arguments>("checkDocumentDirty", "Whether a file has unsaved changes", start)
}

fn start(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: Arguments = arguments(map)?;
    later(async move {
        let path = match absolute("filePath", &args.file_path) {
            Ok(path) => path,
            Err(why) => return ToolResult::failed(why),
        };
        match call.session.host().document(&path).await {
            Ok(Some(document)) => success(&json!({
                "filePath": args.file_path,
                "isDirty": document.modified,
                "isUntitled": document.untitled,
            })),
            Ok(None) => refusal(format!("Document not open: {}", args.file_path)),
            Err(error) => ToolResult::failed(error.to_string()),
        }
    })
}
