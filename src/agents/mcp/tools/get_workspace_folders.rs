//! `getWorkspaceFolders`: the folders the user works in, as the lock file names them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Call, Running, Tool, later, success};
use crate::agents::mcp::dialect::{display, raw_uri};
use crate::agents::mcp::rpc::RpcError;

#[derive(Deserialize, JsonSchema)]
struct Arguments {}

pub(super) fn tool() -> Tool {
    Tool::new::<Arguments>("getWorkspaceFolders", "The folders the user works in", start)
}

fn start(call: Call, _: Map<String, Value>) -> Result<Running, RpcError> {
    later(async move {
        let snapshot = call.session.host().snapshot().await;
        let roots = snapshot.root_spellings();
        let folders = roots.iter().map(|path| {
            json!({
                "name": path.file_name().unwrap_or(path.as_os_str()).to_string_lossy(),
                "uri": raw_uri(path),
                "path": display(path),
            })
        });
        let folders: Vec<Value> = folders.collect();
        let root = roots.first().map(|path| display(path));
        success(&json!({"folders": folders, "rootPath": root}))
    })
}
