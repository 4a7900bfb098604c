//! Amp's messages: one member says what kind a message is, one in that what it is about.
//!
//! Pure, any thread. Lines and UTF-16 columns count from 0, ends are exclusive, like a snapshot's.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::agents::mcp::Dialect;
use crate::agents::mcp::dialect::{Shown, file_url};
use crate::context::{Diagnostic, Range, Snapshot};

/// `clientRequest`.
pub(super) struct Request {
    /// Comes back as it is.
    pub(super) id: Value,
    pub(super) ask: Ask,
}

pub(super) enum Ask {
    /// To be echoed.
    Ping(Value),
    /// A path or a `file://` uri.
    Diagnostics(String),
    Open(String),
    Wrong(String),
    Unknown,
}

/// `None` for everything that is no request.
pub(super) fn request(text: &str) -> Option<Request> {
    let mut message: Map<String, Value> = serde_json::from_str(text).ok()?;
    let Some(Value::Object(mut request)) = message.remove("clientRequest") else { return None };
    let id = request.remove("id").filter(|id| !id.is_null())?;
    let mut about = |name: &str| request.remove(name).filter(|value| !value.is_null());
    let text = |mut value: Value, field: &str| match value.get_mut(field).map(Value::take) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(format!("{field} must be a string")),
    };
    let ask = if let Some(mut ping) = about("ping") {
        Ask::Ping(ping.get_mut("message").map(Value::take).unwrap_or_default())
    } else if let Some(value) = about("getDiagnostics") {
        text(value, "path").map_or_else(Ask::Wrong, Ask::Diagnostics)
    } else if let Some(value) = about("openURI") {
        text(value, "uri").map_or_else(Ask::Wrong, Ask::Open)
    } else {
        Ask::Unknown
    };
    Some(Request { id, ask })
}

pub(super) enum Reply {
    /// The method's name and its result.
    Ok(&'static str, Value),
    Error(i32, String),
}

impl Reply {
    pub(super) fn ok(method: &'static str, result: &Value) -> Self {
        Reply::Ok(method, result.clone())
    }

    pub(super) fn text(self, id: &Value) -> String {
        let (name, value) = match self {
            Reply::Ok(method, result) => (method, result),
            Reply::Error(code, message) => ("error", json!({"code": code, "message": message})),
        };
        json!({"serverResponse": {"id": id, name: value}}).to_string()
    }
}

fn notification(name: &str, value: &Value) -> String {
    json!({"serverNotification": {name: value}}).to_string()
}

pub(super) fn metadata() -> String {
    notification("pluginMetadata", &json!({"version": env!("CARGO_PKG_VERSION")}))
}

pub(super) fn visible_files(snapshot: &Snapshot) -> String {
    let files = snapshot.files.iter().filter(|file| file.visible && snapshot.sharing);
    let uris: Vec<String> = files.filter_map(|file| file_url(&file.path)).collect();
    notification("visibleFilesDidChange", &json!({"uris": uris}))
}

/// The selection, else the cursor as an empty one. Nothing in the workspace folder when there is
/// nothing to be seen: that makes it forget what it was told before.
pub(super) fn selection(snapshot: &Snapshot) -> String {
    let params = match Shown::of(snapshot) {
        Some(shown) => json!({
            "uri": file_url(&shown.path),
            "selections": [{"range": range(shown.range), "content": &*shown.text}],
        }),
        None => {
            let root = snapshot.roots.first().and_then(|root| file_url(&root.path));
            json!({"uri": root.unwrap_or_default(), "selections": []})
        }
    };
    notification("selectionDidChange", &params)
}

fn range(range: Range) -> Value {
    json!({
        "startLine": range.start.line,
        "startCharacter": range.start.character,
        "endLine": range.end.line,
        "endCharacter": range.end.character,
    })
}

/// One file of a `getDiagnostics` answer; `text` is where its lines are quoted from.
pub(super) fn entry(path: &Path, list: &[Diagnostic], text: &str) -> Value {
    let lines: Vec<&str> = text.lines().collect();
    let diagnostics: Vec<Value> = list
        .iter()
        .map(|diagnostic| {
            let Range { start, end } = diagnostic.range;
            let line = usize::try_from(start.line).ok().and_then(|line| lines.get(line));
            json!({
                "range": range(diagnostic.range),
                "severity": Dialect::Amp.severity(diagnostic.severity),
                "description": diagnostic.message,
                "lineContent": line.copied().unwrap_or_default(),
                "startOffset": start.character,
                "endOffset": end.character,
            })
        })
        .collect();
    json!({"uri": file_url(path), "diagnostics": diagnostics})
}
