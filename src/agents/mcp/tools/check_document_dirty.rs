//! `checkDocumentDirty`: whether an open file has changes that are not saved.

use serde_json::{Map, Value, json};

use super::{Call, OneFile, Running, Tool, arguments, on_file, refusal, success};
use crate::agents::mcp::rpc::{RpcError, ToolResult};

pub(super) fn tool() -> Tool {
    Tool::new::<OneFile>("checkDocumentDirty", "Whether a file has unsaved changes", start)
}

fn start(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: OneFile = arguments(map)?;
    let name = args.file_path.clone();
    on_file(&name, |path| async move {
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
