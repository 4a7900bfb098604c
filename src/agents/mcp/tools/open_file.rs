//! `openFile`: opens a file as if the user had, and selects a text in it where one is given.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Call, Running, Tool, arguments, on_file, success};
use crate::agents::OpenFile;
use crate::agents::mcp::rpc::{RpcError, ToolResult};

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Arguments {
    /// Absolute path of the file.
    file_path: String,
    /// Ignored: Neovim has no preview tabs.
    #[allow(dead_code)]
    preview: Option<bool>,
    /// Literal text at which the selection starts.
    start_text: Option<String>,
    /// Literal text behind which the selection ends, searched after the start.
    end_text: Option<String>,
    /// Extend the selection to the end of the line.
    select_to_end_of_line: Option<bool>,
    /// Go there (the default), or only load the file.
    make_frontmost: Option<bool>,
}

pub(super) fn tool() -> Tool {
    Tool::new::<Arguments>("openFile", "Open a file in Neovim, and select a text in it", start)
}

fn start(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: Arguments = arguments(map)?;
    let name = args.file_path.clone();
    on_file(&name, |path| async move {
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let start_text = some(args.start_text);
        let searched = start_text.is_some();
        let make_frontmost = args.make_frontmost.unwrap_or(true);
        let what = OpenFile {
            path,
            start_text,
            end_text: some(args.end_text),
            line: None,
            select_to_end_of_line: args.select_to_end_of_line.unwrap_or(false),
            make_frontmost,
        };
        let opened = match call.session.host().open_file(what).await {
            Ok(opened) => opened,
            Err(error) => return ToolResult::failed(error.to_string()),
        };
        let path = &args.file_path;
        let Some(opened) = opened else {
            // Neither what it is nor what is in it.
            return ToolResult::texts([format!("Opened {path}")]);
        };
        if !make_frontmost {
            return success(&json!({
                "filePath": path,
                "languageId": opened.language,
                "lineCount": opened.line_count,
            }));
        }
        ToolResult::texts([match (searched, opened.found) {
            (true, Some(_)) => format!("Opened {path} and selected the text"),
            (true, None) => format!("Opened {path}, but the text is not in it"),
            (false, _) => format!("Opened {path}"),
        }])
    })
}
