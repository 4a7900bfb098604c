//! `saveDocument`: writes an open file's buffer, as the user's `:write` would.

use serde_json::{Map, Value, json};

use super::{Call, OneFile, Running, Tool, arguments, on_file, refusal, success};
use crate::agents::mcp::rpc::{RpcError, ToolResult};

pub(super) fn tool() -> Tool {
    Tool::new::<OneFile>("saveDocument", "Save a file that is open in Neovim", start)
}

fn start(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: OneFile = arguments(map)?;
    let name = args.file_path.clone();
    on_file(&name, |path| async move {
        match call.session.host().save(&path).await {
            Ok(Some(saved)) => success(&json!({
                "filePath": args.file_path,
                "saved": saved,
                "message": if saved { "Document saved" } else { "There was nothing to save" },
            })),
            Ok(None) => refusal(format!("Document not open: {}", args.file_path)),
            Err(error) => ToolResult::failed(error.to_string()),
        }
    })
}
