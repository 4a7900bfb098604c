//! Messages of Codex's socket: a length in four bytes, the lowest first, and JSON.
//!
//! Lines and UTF-16 columns count from 0, ends are exclusive, like a snapshot's.

use std::io;
use std::path::Path;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::agents::mcp::dialect::{Shown, cut, display};
use crate::context::{Position, Snapshot};

/// Longer than any message that could be for us, in bytes. Others exist: they are passed over.
const MAX_READ: u64 = 4 << 20;
/// The longest there may be at all.
const MAX_FRAME: u64 = 256 << 20;
/// What Codex keeps of a selected text, in characters.
const SELECTED_TEXT: usize = 40_000;
/// Open files it looks at.
const OPEN_TABS: usize = 100;
/// The version of `ide-context` and of `initialize`.
const VERSION: u64 = 0;

/// The next message; `None` for one that is too long, or no JSON.
pub(super) async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Value>> {
    let length = u64::from(reader.read_u32_le().await?);
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    let mut frame = reader.take(length);
    if length > MAX_READ {
        let skipped = tokio::io::copy(&mut frame, &mut tokio::io::sink()).await?;
        return if skipped == length { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
    }
    let mut bytes = Vec::new();
    frame.read_to_end(&mut bytes).await?;
    if bytes.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&bytes).ok())
}

pub(super) async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    message: &Value,
) -> io::Result<()> {
    let bytes = message.to_string().into_bytes();
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    writer.write_u32_le(length).await?;
    writer.write_all(&bytes).await?;
    writer.flush().await
}

fn unique() -> String {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

/// How a client begins.
pub(super) fn initialize() -> Value {
    json!({
        "type": "request",
        "requestId": unique(),
        "sourceClientId": "initializing-client",
        "version": VERSION,
        "method": "initialize",
        "params": {"clientType": "neovim"},
    })
}

/// A router's answer to that.
pub(super) fn initialized(request: &Value, router: &str, client: &str) -> Value {
    success(request, router, &json!({"clientId": client}))
}

pub(super) fn discovery(request: &Value) -> (String, Value) {
    let id = unique();
    let message = json!({"type": "client-discovery-request", "requestId": id, "request": request});
    (id, message)
}

fn success(request: &Value, handler: &str, result: &Value) -> Value {
    json!({
        "type": "response",
        "requestId": request["requestId"],
        "resultType": "success",
        "method": request["method"],
        "handledByClientId": handler,
        "result": result,
    })
}

pub(super) fn refusal(request: &Value, error: &str) -> Value {
    json!({
        "type": "response",
        "requestId": request["requestId"],
        "resultType": "error",
        "error": error,
    })
}

/// It is the context that is asked for, and of a folder that the user works in here.
pub(super) fn can_answer(request: &Value, snapshot: &Snapshot) -> bool {
    let known = request["method"] == "ide-context"
        && request["version"].as_u64().is_none_or(|version| version == VERSION);
    let asked = request["params"]["workspaceRoot"].as_str().map(Path::new);
    known
        && asked.is_none_or(|asked| {
            let roots = snapshot.root_spellings();
            roots.iter().any(|root| asked.starts_with(root) || root.starts_with(asked))
        })
}

pub(super) fn context_response(request: &Value, handler: &str, snapshot: &Snapshot) -> Value {
    let root = request["params"]["workspaceRoot"].as_str().map(Path::new);
    let context = json!({"type": "broadcast", "ideContext": context(snapshot, root)});
    success(request, handler, &context)
}

/// What the user sees; empty when sharing is off.
fn context(snapshot: &Snapshot, root: Option<&Path>) -> Value {
    let active = Shown::of(snapshot).map(|shown| {
        let mut file = named(&shown.path, root);
        let range = json!({"start": at(shown.range.start), "end": at(shown.range.end)});
        file["activeSelectionContent"] = cut(&shown.text, SELECTED_TEXT).into();
        file["selections"] = json!([range]);
        file["selection"] = range;
        file
    });
    let files = snapshot.files.iter().filter(|_| snapshot.sharing).take(OPEN_TABS);
    let tabs: Vec<Value> = files.map(|file| named(&file.path, root)).collect();
    json!({"activeFile": active, "openTabs": tabs})
}

fn named(path: &Path, root: Option<&Path>) -> Value {
    let below = root.and_then(|root| path.strip_prefix(root).ok());
    json!({
        "label": display(path.file_name().map_or(path, Path::new)),
        "path": display(below.unwrap_or(path)),
        "fsPath": display(path),
    })
}

fn at(position: Position) -> Value {
    json!({"line": position.line, "character": position.character})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{ActiveFile, OpenFile, Root};

    fn snapshot() -> Snapshot {
        Snapshot {
            sharing: true,
            active: Some(ActiveFile {
                path: "/work/src/a.rs".into(),
                language: String::new(),
                modified: false,
                cursor: Position::new(3, 2),
                selection: None,
            }),
            files: vec![OpenFile {
                path: "/other/b.rs".into(),
                language: String::new(),
                active: false,
                visible: false,
                modified: false,
                last_visited: 0,
                cursor: Position::default(),
            }],
            roots: vec![Root { path: "/work".into(), real: "/real/work".into() }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn the_context_names_files_below_the_asked_folder_and_whole() {
        let at = json!({"line": 3, "character": 2});
        let range = json!({"start": at, "end": at});
        assert_eq!(
            context(&snapshot(), Some(Path::new("/work"))),
            json!({"activeFile": {"label": "a.rs", "path": "src/a.rs",
                "fsPath": "/work/src/a.rs", "selection": range, "selections": [range],
                "activeSelectionContent": ""},
                "openTabs": [{"label": "b.rs", "path": "/other/b.rs", "fsPath": "/other/b.rs"}]})
        );
        let hidden = Snapshot { sharing: false, ..snapshot() };
        assert_eq!(context(&hidden, None), json!({"activeFile": null, "openTabs": []}));
    }

    #[test]
    fn only_the_context_of_a_folder_of_ours_is_answered() {
        let can = |request: Value| can_answer(&request, &snapshot());
        let ask = |root: &str| {
            json!({"method": "ide-context", "version": 0,
            "params": {"workspaceRoot": root}})
        };
        assert!(can(ask("/work")) && can(ask("/work/sub")) && can(ask("/real/work")));
        assert!(can(ask("/")) && can(json!({"method": "ide-context"})));
        assert!(!can(ask("/workshop")) && !can(ask("/other")));
        assert!(!can(json!({"method": "ide-context", "version": 1})));
        assert!(!can(json!({"method": "thread-follower-start-turn", "version": 0})));
        assert!(!can(Value::Null));
    }
}
