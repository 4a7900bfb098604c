//! `getDiagnostics`: what Neovim reports about one file, or about all that are open.
//!
//! Claude Code gives up on the feature after three slow answers, and Pi waits for one before every
//! turn, so the answer is what is known now. Files and entries are ordered worst first.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Call, Running, Tool, arguments, by_another_name, later, paths_of};
use crate::agents::mcp::dialect::{Dialect, WireRange, display, raw_uri};
use crate::agents::mcp::rpc::{RpcError, ToolResult};
use crate::context::{Code, Diagnostic, Severity, Snapshot};

/// Entries in one answer. What is left out is said in a last entry of its own.
const MAX_ENTRIES: usize = 10_000;
/// How long it may take to find out that two names are of one file.
const PATIENCE: Duration = Duration::from_millis(200);
/// Where that last entry stands; no file has this name.
const REST: &str = "gangway:not-listed";

#[derive(Deserialize, JsonSchema)]
struct Arguments {
    /// The file to report on, as a file:// uri; all open files when left out.
    uri: Option<String>,
}

pub(super) fn tool(name: &'static str) -> Tool {
    Tool::new::<Arguments>(
        name,
        "Errors, warnings and hints that Neovim shows for open files",
        start,
    )
}

fn start(call: Call, map: Map<String, Value>) -> Result<Running, RpcError> {
    let args: Arguments = arguments(map)?;
    later(async move {
        let snapshot = call.session.host().snapshot().await;
        let dialect = call.session.dialect();
        let Some(uri) = args.uri else {
            let found = snapshot.diagnostics.iter().filter(|(_, list)| !list.is_empty());
            let files = found.map(|(path, list)| (raw_uri(path), &**list)).collect();
            return answer(dialect, files);
        };
        let path = open_file(&snapshot, &uri).await;
        let list = path.and_then(|path| snapshot.diagnostics.get(&path));
        // Echoed as asked: Claude Code compares letter by letter.
        answer(dialect, list.map(|list| (uri, &**list)).into_iter().collect())
    })
}

async fn open_file(snapshot: &Snapshot, uri: &str) -> Option<PathBuf> {
    let asked = paths_of(uri);
    if let Some(path) = asked.iter().find(|path| snapshot.diagnostics.contains_key(*path)) {
        return Some(path.clone());
    }
    let open: Vec<PathBuf> = snapshot.diagnostics.keys().cloned().collect();
    let search = move || open.into_iter().find(by_another_name(&asked, |open, it| open == it));
    // A file system may hang; a late answer is as bad as none.
    let searched = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(search)).await;
    searched.ok()?.ok().flatten()
}

#[derive(Serialize)]
struct Entry<'a> {
    message: &'a str,
    severity: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<WireCode<'a>>,
    range: WireRange,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WireCode<'a> {
    Number(i64),
    Text(&'a str),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_path: Option<String>,
    diagnostics: Vec<Entry<'a>>,
}

fn entry(dialect: Dialect, diagnostic: &Diagnostic) -> Entry<'_> {
    Entry {
        message: &diagnostic.message,
        severity: dialect.severity(diagnostic.severity),
        source: diagnostic.source.as_deref(),
        code: diagnostic.code.as_ref().map(|code| match code {
            Code::Number(number) => WireCode::Number(*number),
            Code::Text(text) => WireCode::Text(text),
        }),
        range: dialect.range(diagnostic.range),
    }
}

/// An open file without findings is there with an empty list; one that is not open is not there.
fn answer(dialect: Dialect, mut files: Vec<(String, &[Diagnostic])>) -> ToolResult {
    let worst = |list: &[Diagnostic]| list.iter().map(|d| d.severity).min();
    files.sort_by_key(|(_, list)| (list.is_empty(), worst(list)));
    let mut quota = quota(&files);
    let left_out =
        files.iter().map(|(_, list)| list.len()).sum::<usize>() - quota.iter().sum::<usize>();
    let mut out: Vec<File<'_>> = Vec::with_capacity(files.len() + 1);
    for (uri, list) in files {
        let mut sorted: Vec<&Diagnostic> = list.iter().collect();
        sorted.sort_by_key(|diagnostic| diagnostic.severity);
        sorted.retain(|diagnostic| {
            let quota = &mut quota[rank(diagnostic.severity)];
            let listed = *quota > 0;
            *quota -= usize::from(listed);
            listed
        });
        let diagnostics = sorted.into_iter().map(|d| entry(dialect, d)).collect::<Vec<_>>();
        if !diagnostics.is_empty() || list.is_empty() {
            let file_path = paths_of(&uri).pop().filter(|_| dialect == Dialect::Copilot);
            let file_path = file_path.as_deref().map(display);
            out.push(File { uri, file_path, diagnostics });
        }
    }
    let message = format!("{left_out} more are not listed; these are the most severe");
    if left_out > 0 {
        let note = Entry {
            message: &message,
            severity: dialect.severity(Severity::Info),
            source: Some("gangway.nvim"),
            code: None,
            range: dialect.range(crate::context::Range::default()),
        };
        out.push(File { uri: REST.into(), file_path: None, diagnostics: vec![note] });
    }
    if dialect.diagnostics_by_uri() {
        ToolResult::json(&ByUri(&out))
    } else {
        ToolResult::json(&out)
    }
}

fn rank(severity: Severity) -> usize {
    severity as usize - 1
}

/// How many of each severity are listed: the worst first, until `MAX_ENTRIES` are reached.
fn quota(files: &[(String, &[Diagnostic])]) -> [usize; 4] {
    let mut quota = [0; 4];
    for diagnostic in files.iter().flat_map(|(_, list)| *list) {
        quota[rank(diagnostic.severity)] += 1;
    }
    let mut room = MAX_ENTRIES;
    for count in &mut quota {
        *count = room.min(*count);
        room -= *count;
    }
    quota
}

/// `{uri: [entry, …], …}` in the given order.
struct ByUri<'a>(&'a [File<'a>]);

impl Serialize for ByUri<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|file| (&file.uri, &file.diagnostics)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{Position, Range};
    use serde_json::json;

    fn diagnostic(line: u32, severity: Severity, message: &str) -> Diagnostic {
        Diagnostic {
            range: Range { start: Position::new(line, 1), end: Position::new(line, 3) },
            severity,
            message: message.into(),
            source: None,
            code: None,
        }
    }

    fn value(dialect: Dialect, files: Vec<(String, &[Diagnostic])>) -> Value {
        let result = answer(dialect, files);
        assert_eq!(result.content.len(), 1);
        serde_json::from_str(&result.content[0].text).unwrap()
    }

    #[test]
    fn each_dialect_gets_its_shape_and_words() {
        let mut list =
            [diagnostic(4, Severity::Info, "i"), diagnostic(0, Severity::Error, "boom \0 é\n")];
        list[1].source = Some("rustc".into());
        list[1].code = Some(Code::Text("E1".into()));
        list[0].code = Some(Code::Number(7));
        let range = |line| {
            json!({"start": {"line": line, "character": 1},
            "end": {"line": line, "character": 3}})
        };
        let files = || vec![("file:///a b".to_owned(), &list[..])];
        assert_eq!(
            value(Dialect::Claude, files()),
            json!([{"uri": "file:///a b", "diagnostics": [
                {"message": "boom \0 é\n", "severity": "Error", "source": "rustc", "code": "E1",
                 "range": range(0)},
                {"message": "i", "severity": "Info", "code": 7, "range": range(4)}]}])
        );
        assert_eq!(
            value(Dialect::Pi, files()),
            json!({"file:///a b": [
                {"message": "boom \0 é\n", "severity": "Error", "source": "rustc", "code": "E1",
                 "range": range(0)},
                {"message": "i", "severity": "Information", "code": 7, "range": range(4)}]})
        );
    }

    #[test]
    fn open_and_clean_is_told_from_not_open() {
        let clean = || vec![("file:///a".to_owned(), &[][..])];
        assert_eq!(
            value(Dialect::Claude, clean()),
            json!([{"uri": "file:///a", "diagnostics": []}])
        );
        assert_eq!(value(Dialect::Claude, vec![]), json!([]));
        assert_eq!(value(Dialect::Pi, clean()), json!({"file:///a": []}));
        assert_eq!(value(Dialect::Pi, vec![]), json!({}));
    }

    #[test]
    fn errors_come_first_and_what_does_not_fit_is_said() {
        let many: Vec<_> = (0..MAX_ENTRIES as u32 + 500)
            .map(|line| diagnostic(line, Severity::Warning, "w"))
            .chain([diagnostic(3, Severity::Error, "the one")])
            .collect();
        let few = [diagnostic(1, Severity::Hint, "h")];
        let files = vec![("file:///few".to_owned(), &few[..]), ("file:///many".into(), &many[..])];
        let value = value(Dialect::Claude, files);
        assert_eq!(value.as_array().unwrap().len(), 2, "a file without room is left out");
        assert_eq!(value[0]["diagnostics"].as_array().unwrap().len(), MAX_ENTRIES);
        assert_eq!(value[0]["diagnostics"][0]["message"], "the one");
        let note = value[1]["diagnostics"][0]["message"].as_str().unwrap();
        assert_eq!((&value[1]["uri"], note.split(' ').next()), (&json!(REST), Some("502")));
    }
}
