//! What an agent can call, one file a tool; those of Gemini CLI and of Copilot CLI, which know only
//! a few, together in one each.
//!
//! A tool is started in the order in which its call came (arguments are checked, diffs are booked
//! or closed) and then runs as a task of its own. Its JSON schema is made from its argument type,
//! and the same schema checks the arguments, so that an error can name the field.

mod check_document_dirty;
mod close_all_diff_tabs;
mod close_tab;
mod copilot;
mod gemini;
mod get_current_selection;
mod get_diagnostics;
mod get_open_editors;
mod get_workspace_folders;
mod open_diff;
mod open_file;
mod save_document;

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::dialect::Family;
use super::rpc::{self, RpcError, ToolResult};
use super::session::Session;
use crate::agents::BoxFuture;
pub use open_diff::Arguments as OpenDiffArguments;

/// How a call ended.
pub(super) enum Outcome {
    Result(ToolResult),
    /// Taken back by the caller: no response is due.
    Silent,
}

pub(super) type Running = BoxFuture<'static, Outcome>;

/// A started call: the session it belongs to and its number there.
struct Call {
    session: Arc<Session>,
    seq: u64,
}

type Start = fn(Call, Map<String, Value>) -> Result<Running, RpcError>;

pub(super) struct Tool {
    name: &'static str,
    description: &'static str,
    schema: Value,
    start: Start,
}

impl Tool {
    /// `start` gets arguments that its own schema has checked.
    fn new<A: JsonSchema + DeserializeOwned + 'static>(
        name: &'static str,
        description: &'static str,
        start: Start,
    ) -> Self {
        Self { name, description, schema: schema_of::<A>(), start }
    }

    /// Checks the arguments and starts the call.
    pub(super) fn start(
        &self,
        session: &Arc<Session>,
        seq: u64,
        arguments: Map<String, Value>,
    ) -> Result<Running, RpcError> {
        check(&self.schema, &arguments).map_err(RpcError::params)?;
        (self.start)(Call { session: Arc::clone(session), seq }, arguments)
    }
}

static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    vec![
        open_diff::tool(),
        close_tab::tool(),
        close_all_diff_tabs::tool(),
        get_diagnostics::tool("getDiagnostics"),
        get_open_editors::tool("getOpenEditors"),
        get_open_editors::tool("getOpenEditorTabs"),
        get_current_selection::tool("getCurrentSelection"),
        get_current_selection::tool("getLatestSelection"),
        get_workspace_folders::tool(),
        open_file::tool(),
        check_document_dirty::tool(),
        save_document::tool(),
    ]
});

static GEMINI: LazyLock<Vec<Tool>> = LazyLock::new(gemini::tools);
static COPILOT: LazyLock<Vec<Tool>> = LazyLock::new(copilot::tools);

fn of(family: Family) -> &'static [Tool] {
    match family {
        Family::Pi | Family::Claude => &TOOLS,
        Family::Gemini | Family::Qwen => &GEMINI,
        Family::Copilot => &COPILOT,
        Family::Amp => &[],
    }
}

pub(super) fn find(family: Family, name: &str) -> Option<&'static Tool> {
    of(family).iter().find(|tool| tool.name == name)
}

/// What `tools/list` shows; `diffs`: whether the user wants to be asked here.
pub(super) fn listing(family: Family, diffs: bool) -> Vec<Value> {
    let show = |tool: &Tool| {
        json!({
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.schema,
        })
    };
    let wanted = |tool: &&Tool| diffs || tool.name != "openDiff";
    of(family).iter().filter(wanted).map(show).collect()
}

/// A plain `{"type":"object","properties":{…},"required":[…]}`. Claude Code asks for the list
/// again and again when `properties` is missing or no object.
fn schema_of<A: JsonSchema>() -> Value {
    let settings = SchemaSettings::default().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<A>();
    let mut properties = match schema.get("properties") {
        Some(Value::Object(map)) => map.clone(),
        _ => Map::new(),
    };
    for property in properties.values_mut().filter_map(Value::as_object_mut) {
        // Optional fields may be null as well, which is nobody's business.
        let plain = property
            .get("type")
            .and_then(Value::as_array)
            .and_then(|types| types.iter().find(|name| name.as_str() != Some("null")).cloned());
        if let Some(plain) = plain {
            property.insert("type".into(), plain);
        }
        property.remove("default");
    }
    let required = schema.get("required").cloned().unwrap_or_else(|| json!([]));
    json!({"type": "object", "properties": properties, "required": required})
}

/// The first thing wrong with the arguments, naming the field. Unknown fields are ignored.
fn check(schema: &Value, arguments: &Map<String, Value>) -> Result<(), String> {
    let required: Vec<&str> = match &schema["required"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for name in &required {
        if !arguments.contains_key(*name) {
            return Err(format!("{name} is missing"));
        }
    }
    let Value::Object(properties) = &schema["properties"] else { return Ok(()) };
    for (name, property) in properties {
        let Some(value) = arguments.get(name) else { continue };
        if value.is_null() && !required.contains(&name.as_str()) {
            continue;
        }
        let (fits, wanted) = match property["type"].as_str() {
            Some("string") => (value.is_string(), "a string"),
            Some("boolean") => (value.is_boolean(), "a boolean"),
            Some("integer") => (value.is_u64() || value.is_i64(), "a whole number"),
            _ => (true, ""),
        };
        if !fits {
            return Err(format!("{name} must be {wanted}, not {}", rpc::name_of(value)));
        }
    }
    Ok(())
}

/// The arguments as their type; `check` has found nothing wrong with them.
fn arguments<A: DeserializeOwned>(map: Map<String, Value>) -> Result<A, RpcError> {
    serde_json::from_value(Value::Object(map)).map_err(|error| RpcError::params(error.to_string()))
}

/// A call that is answered from what is at hand.
fn at_once(result: ToolResult) -> Result<Running, RpcError> {
    Ok(Box::pin(std::future::ready(Outcome::Result(result))))
}

/// A call that has to wait for something.
fn later(future: impl Future<Output = ToolResult> + Send + 'static) -> Result<Running, RpcError> {
    Ok(Box::pin(async move { Outcome::Result(future.await) }))
}

/// The same for a call about one file: `work` gets its path, or the call fails with what is wrong
/// with the name.
fn on_file<F: Future<Output = ToolResult> + Send + 'static>(
    name: &str,
    work: impl FnOnce(PathBuf) -> F,
) -> Result<Running, RpcError> {
    match absolute("filePath", name) {
        Ok(path) => later(work(path)),
        Err(why) => later(std::future::ready(ToolResult::failed(why))),
    }
}

/// The arguments of a tool that needs nothing but a file.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct OneFile {
    /// Absolute path of the file.
    file_path: String,
}

/// An answer in the official extension's manner: `success`, and the rest beside it.
fn success<T: Serialize>(value: &T) -> ToolResult {
    let mut value = serde_json::to_value(value).unwrap_or_default();
    if let Value::Object(map) = &mut value {
        map.insert("success".into(), true.into());
    }
    ToolResult::json(&value)
}

/// `{"success": false, "message": …}`: the question was fine, the answer is no.
fn refusal(message: impl Into<String>) -> ToolResult {
    ToolResult::json(&json!({"success": false, "message": message.into()}))
}

/// The file an agent names, or a sentence that says what is wrong with the name.
fn absolute(field: &str, path: &str) -> Result<PathBuf, String> {
    let shown = path.escape_debug();
    if path.contains('\0') {
        return Err(format!("{field} holds a NUL character: {shown}"));
    }
    if !Path::new(path).is_absolute() {
        return Err(format!("{field} must be an absolute path, not \"{shown}\""));
    }
    Ok(path.into())
}

/// The paths a `file://` uri may mean, the likeliest first: agents write it raw or percent-encoded,
/// and some leave the host or the scheme out. Empty for other schemes.
pub(in crate::agents) fn paths_of(uri: &str) -> Vec<PathBuf> {
    let scheme = uri.split_once(':').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("file"));
    let path = scheme.map_or(uri, |(_, rest)| match rest.strip_prefix("//") {
        Some(rest) => rest.strip_prefix("localhost").filter(|p| p.starts_with('/')).unwrap_or(rest),
        None => rest,
    });
    if !path.starts_with('/') {
        return Vec::new();
    }
    let mut out = vec![PathBuf::from(path)];
    let decoded = PathBuf::from(percent_decode(path));
    if decoded != out[0] {
        out.push(decoded);
    }
    out
}

/// The agent and Neovim may call one file by two names: tells whether an open file `is` what was
/// asked for, by where symbolic links lead. Asks the file system.
pub(in crate::agents) fn by_another_name(
    asked: &[PathBuf],
    is: impl Fn(&Path, &Path) -> bool,
) -> impl FnMut(&PathBuf) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let asked = asked.iter().find_map(|path| real(path));
    move |open| {
        let Some(asked) = &asked else { return false };
        is(open, asked) || real(open).is_some_and(|open| is(&open, asked))
    }
}

/// `%XX` becomes that byte; a percent sign that starts no such thing stays. Bytes that are no
/// UTF-8 leave the text as it was.
fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                out.push(byte);
                rest = &tail[2..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::dialect::{file_url, raw_uri};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn schemas_are_plain_objects() {
        for tool in Family::ALL.into_iter().flat_map(|family| listing(family, true)) {
            let schema = tool["inputSchema"].as_object().unwrap();
            let keys: Vec<&String> = schema.keys().collect();
            assert_eq!(keys, ["properties", "required", "type"], "{tool}");
            for (field, property) in schema["properties"].as_object().unwrap() {
                assert!(property["type"].is_string(), "{field} of {tool}");
                assert!(property["description"].is_string(), "{field} of {tool}");
            }
        }
    }

    #[test]
    fn the_diff_schema_is_what_agents_send() {
        let schema = &find(Family::Claude, "openDiff").unwrap().schema;
        let required: Vec<&str> =
            schema["required"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        assert_eq!(required, ["old_file_path", "new_file_path", "new_file_contents", "tab_name"]);
    }

    #[test]
    fn an_error_names_the_field_and_what_is_wrong_with_it() {
        let check = |name: &str, value: Value| {
            let Value::Object(map) = value else { panic!() };
            check(&find(Family::Claude, name).unwrap().schema, &map)
        };
        let wrong = |name, value| check(name, value).unwrap_err();
        assert_eq!(wrong("close_tab", json!({})), "tab_name is missing");
        assert_eq!(
            wrong("close_tab", json!({"tab_name": null})),
            "tab_name must be a string, not null"
        );
        assert_eq!(
            wrong("getDiagnostics", json!({"uri": 5})),
            "uri must be a string, not a number"
        );
        check("getDiagnostics", json!({"uri": null, "more": [1]})).unwrap();
        assert_eq!(
            wrong("openFile", json!({"filePath": "/a", "preview": "x"})),
            "preview must be a boolean, not a string"
        );
    }

    #[test]
    fn uris_are_read_raw_and_encoded_and_without_a_scheme() {
        let paths = |uri| {
            let paths = paths_of(uri);
            paths.iter().map(|p| p.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(paths("file:///a/new file é.txt"), ["/a/new file é.txt"]);
        assert_eq!(paths("file:///a/b%20c"), ["/a/b%20c", "/a/b c"]);
        assert_eq!(paths("/a/100%.txt"), ["/a/100%.txt"]);
        assert_eq!(paths("file://localhost/a"), ["/a"]);
        assert_eq!(paths("file:/a/file:b"), ["/a/file:b"]);
        assert_eq!(paths("FILE:///a"), ["/a"]);
        assert_eq!(paths("/file:/a"), ["/file:/a"]);
        assert_eq!(paths("file:///a/%ff"), ["/a/%ff"]);
        for other in ["", "a.txt", "_claude_fs_right:/a", "https://x/y", "file://host", "file:a"] {
            assert!(paths(other).is_empty(), "{other}");
        }
    }

    #[test]
    fn fuzz_uri_every_path_is_found_by_either_spelling_of_its_uri() {
        crate::fuzz::run("uri", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            prop_assert!(paths_of(&text).iter().all(|path| path.is_absolute()));
            prop_assert!(paths_of(&text).len() <= 2);
            let path = PathBuf::from(format!("/{text}"));
            prop_assert_eq!(&paths_of(&raw_uri(&path))[0], &path);
            // A proper URL is normal: it keeps neither `.` nor doubled slashes.
            if let Some(url) = file_url(&path) {
                let again = paths_of(&url).pop().and_then(|path| file_url(&path));
                prop_assert_eq!(again.as_deref(), Some(&*url), "{:?}", path);
            }
            Ok(())
        });
    }
}
