//! `getOpenEditors` and its older name `getOpenEditorTabs`: the files in listed buffers, the one
//! visited last first.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Call, Running, Tool, later};
use crate::agents::mcp::dialect::raw_uri;
use crate::agents::mcp::rpc::{RpcError, ToolResult};

#[derive(Deserialize, JsonSchema)]
struct Arguments {}

pub(super) fn tool(name: &'static str) -> Tool {
    Tool::new::<Arguments>(name, "The files that are open in Neovim", start)
}

fn start(call: Call, _: Map<String, Value>) -> Result<Running, RpcError> {
    later(async move {
        let snapshot = call.session.host().snapshot().await;
        let tabs = snapshot.files.iter().map(|file| {
            json!({
                "uri": raw_uri(&file.path),
                "isActive": file.active,
                "label": file.path.file_name().unwrap_or_default().to_string_lossy(),
                "languageId": file.language,
                "isDirty": file.modified,
            })
        });
        let tabs: Vec<Value> = tabs.collect();
        ToolResult::json(&json!({"tabs": tabs}))
    })
}
