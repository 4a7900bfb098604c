//! JSON-RPC 2.0 as these agents use it: one message in a text frame, no batches.
//!
//! Pure, any thread. Parsing never recurses deeper than the message's own envelope and keeps an id
//! as the bytes it came in, so that it is echoed exactly: Claude Code counts from 0, Pi sends
//! UUID strings, others what they like.

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub const PARSE_ERROR: i32 = -32700;
pub const INVALID_REQUEST: i32 = -32600;
pub const METHOD_NOT_FOUND: i32 = -32601;
pub const INVALID_PARAMS: i32 = -32602;
pub const INTERNAL_ERROR: i32 = -32603;

/// A request's id, byte for byte as the peer wrote it: a number, a string or null.
#[derive(Debug, Clone)]
pub struct Id(Box<RawValue>);

impl Id {
    /// What errors carry whose request could not be told.
    #[must_use]
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// The id as a value: two spellings of one string are one id. `None` for a number that is too
    /// large to be one here.
    #[must_use]
    pub fn value(&self) -> Option<Value> {
        serde_json::from_str(self.0.get()).ok()
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        let value = self.value();
        self.0.get() == other.0.get() || (value.is_some() && value == other.value())
    }
}

/// The `error` member of a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    pub code: i32,
    pub message: String,
}

impl RpcError {
    #[must_use]
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    #[must_use]
    pub fn params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }
}

/// One message of the peer.
#[derive(Debug)]
pub enum Incoming {
    Request {
        id: Id,
        method: String,
        params: Params,
    },
    /// Never answered, whatever it says.
    Notification {
        method: String,
        params: Params,
    },
    /// Answers a request of ours, or nothing we know.
    Response {
        id: Option<Id>,
        result: Option<Value>,
        error: Option<RpcError>,
    },
    /// To be answered with this error.
    Invalid {
        id: Id,
        error: RpcError,
    },
}

/// The `params` member, not looked into yet. Absent and null are the same.
#[derive(Debug, Default)]
pub struct Params(Option<Box<RawValue>>);

impl Params {
    /// The named parameters; empty when there are none. Of a repeated key the last one counts.
    ///
    /// # Errors
    /// -32602 for a list, a bare value, or more nesting than any real call has (128).
    pub fn object(&self) -> Result<Map<String, Value>, RpcError> {
        let Some(raw) = &self.0 else { return Ok(Map::new()) };
        let parsed = serde_json::from_str::<Value>(raw.get());
        // JavaScript writes half of a surrogate pair where a string was cut in an emoji.
        match parsed.or_else(|_| serde_json::from_str(&mend_surrogates(raw.get()))) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(Value::Null) => Ok(Map::new()),
            Ok(other) => {
                Err(RpcError::params(format!("params must be an object, not {}", name_of(&other))))
            }
            Err(error) => Err(RpcError::params(format!("params: {error}"))),
        }
    }
}

/// Escapes of half surrogate pairs become `\ufffd`; everything else stays as it is.
fn mend_surrogates(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = match (unit(rest), rest.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                out.push_str("\\ufffd");
                rest = &rest[6..];
                continue;
            }
            // The escaped character belongs to its backslash.
            _ => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out.push_str(rest);
    out
}

/// The code unit of the `\uXXXX` that `text` starts with.
fn unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

/// "a string", "a number" … for error messages.
#[must_use]
pub fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The members of a message, unparsed. Of a repeated key the last one counts, like everywhere.
#[derive(Default)]
struct Envelope<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for Envelope<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Envelope<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON-RPC message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut out = Envelope::default();
                while let Some(key) = map.next_key::<String>()? {
                    let slot = match key.as_str() {
                        "jsonrpc" => &mut out.jsonrpc,
                        "id" => &mut out.id,
                        "method" => &mut out.method,
                        "params" => &mut out.params,
                        "result" => &mut out.result,
                        "error" => &mut out.error,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *slot = Some(map.next_value()?);
                }
                Ok(out)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// Reads one message. `{"id": null}` is a request whose id is null; only a missing id makes a
/// notification.
#[must_use]
pub fn parse(text: &str) -> Incoming {
    let invalid = |id, code, message: &str| Incoming::Invalid {
        id,
        error: RpcError::new(code, message.to_owned()),
    };
    let envelope: Envelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(_) if serde_json::from_str::<IgnoredAny>(text).is_err() => {
            return invalid(Id::null(), PARSE_ERROR, "not JSON");
        }
        Err(_) if text.trim_start().starts_with('[') => {
            return invalid(Id::null(), INVALID_REQUEST, "batches are not supported");
        }
        Err(_) => return invalid(Id::null(), INVALID_REQUEST, "a message is a JSON object"),
    };
    let id = match envelope.id {
        None => None,
        Some(raw)
            if raw.get().starts_with(['"', 'n', '-', '0', '1', '2', '3', '4', '5', '6'])
                || raw.get().starts_with(['7', '8', '9']) =>
        {
            Some(Id(raw.to_owned()))
        }
        Some(_) => {
            return invalid(Id::null(), INVALID_REQUEST, "id must be a string or a number");
        }
    };
    let method = envelope.method.map(|raw| serde_json::from_str::<String>(raw.get()));
    let is_response = envelope.result.is_some() || envelope.error.is_some();
    let reply_to = || id.clone().unwrap_or_else(Id::null);
    match method {
        None if is_response => {
            let result = envelope.result.and_then(|raw| serde_json::from_str(raw.get()).ok());
            let error = envelope.error.and_then(|raw| serde_json::from_str(raw.get()).ok());
            Incoming::Response { id, result, error }
        }
        None => invalid(reply_to(), INVALID_REQUEST, "method is missing"),
        Some(Err(_)) => invalid(reply_to(), INVALID_REQUEST, "method must be a string"),
        // Missing is forgiven: an answer is worth more than a lesson.
        Some(Ok(_)) if envelope.jsonrpc.is_some_and(|v| v.get() != "\"2.0\"") => {
            invalid(reply_to(), INVALID_REQUEST, "jsonrpc must be \"2.0\"")
        }
        Some(Ok(method)) => {
            let params = Params(envelope.params.map(ToOwned::to_owned));
            match id {
                Some(id) => Incoming::Request { id, method, params },
                None => Incoming::Notification { method, params },
            }
        }
    }
}

/// The id of the request that a message of ours answers; `None` when it answers none.
#[must_use]
pub fn answers(text: &str) -> Option<Id> {
    let envelope: Envelope<'_> = serde_json::from_str(text).ok()?;
    envelope.id.filter(|_| envelope.method.is_none()).map(|raw| Id(raw.to_owned()))
}

#[derive(Serialize)]
struct Message<'a, T> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

impl<T> Default for Message<'_, T> {
    fn default() -> Self {
        let (id, method, params, result, error) = (None, None, None, None, None);
        Self { jsonrpc: "2.0", id, method, params, result, error }
    }
}

fn write<T: Serialize>(message: &Message<'_, T>) -> String {
    // Plain structs and strings: there is nothing in them that JSON could not say.
    serde_json::to_string(message).unwrap_or_default()
}

/// A successful response.
#[must_use]
pub fn result<T: Serialize>(id: &Id, result: &T) -> String {
    write(&Message { id: Some(&id.0), result: Some(result), ..Message::default() })
}

/// An error response.
#[must_use]
pub fn error(id: &Id, error: &RpcError) -> String {
    write::<()>(&Message { id: Some(&id.0), error: Some(error), ..Message::default() })
}

#[must_use]
pub fn notification<T: Serialize>(method: &str, params: &T) -> String {
    write(&Message { method: Some(method), params: Some(params), ..Message::default() })
}

/// A request of ours; `id` comes back in the response.
#[must_use]
pub fn request<T: Serialize>(id: &str, method: &str, params: &T) -> String {
    let id = serde_json::value::to_raw_value(id).ok();
    let (id, method) = (id.as_deref(), Some(method));
    write(&Message { id, method, params: Some(params), ..Message::default() })
}

/// One block of a tool's answer; these agents read text alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    #[serde(rename = "type")]
    pub kind: String,
    pub text: String,
}

/// The result of `tools/call`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ToolResult {
    #[serde(default)]
    pub content: Vec<Block>,
    #[serde(rename = "isError", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl ToolResult {
    /// Text blocks, in order.
    #[must_use]
    pub fn texts<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Self {
        let block = |text: S| Block { kind: "text".into(), text: text.into() };
        Self { content: texts.into_iter().map(block).collect(), is_error: false }
    }

    /// One block whose text is JSON, as the official extension answers.
    #[must_use]
    pub fn json<T: Serialize>(value: &T) -> Self {
        Self::texts([serde_json::to_string(value).unwrap_or_default()])
    }

    /// The call went wrong; `sentence` says why.
    #[must_use]
    pub fn failed(sentence: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::texts([sentence.into()]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reply(text: &str) -> String {
        match parse(text) {
            Incoming::Request { id, method, .. } => result(&id, &method),
            Incoming::Invalid { id, error: e } => error(&id, &e),
            Incoming::Notification { method, .. } => format!("notification {method}"),
            Incoming::Response { .. } => "response".into(),
        }
    }

    #[test]
    fn ids_come_back_byte_for_byte() {
        for id in ["0", "\"\"", "1.5", "1e400", "9007199254740993", "-3", "\"\\u00e9\"", "null"] {
            let answer = reply(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#));
            assert_eq!(answer, format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"m"}}"#));
        }
    }

    #[test]
    fn two_spellings_of_one_id_are_equal_and_types_are_not_mixed() {
        let id = |text: &str| Id(RawValue::from_string(text.into()).unwrap());
        assert_eq!(id(r#""\u00e9""#), id("\"é\""));
        assert_ne!(id("0"), id("\"0\""));
        assert_ne!(id("1e400"), id("1e500"));
        assert_ne!(id("1e400"), Id::null());
    }

    #[test]
    fn what_is_wrong_gets_its_code_and_what_is_no_request_gets_nothing() {
        let code = |text: &str| match parse(text) {
            Incoming::Invalid { error, .. } => error.code,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(code("this is not JSON"), PARSE_ERROR);
        assert_eq!(code(r#"{"id":1"#), PARSE_ERROR);
        for text in [
            "5",
            "null",
            "[]",
            r#"[{"jsonrpc":"2.0","id":3,"method":"ping"}]"#,
            r#"{"id":106}"#,
            "{}",
            r#"{"id":1,"method":5}"#,
            r#"{"id":{},"method":"m"}"#,
            r#"{"id":{}}"#,
            r#"{"id":true,"method":"m"}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#,
        ] {
            assert_eq!(code(text), INVALID_REQUEST, "{text}");
        }
        assert_eq!(reply(r#"{"method":"m"}"#), "notification m");
        assert_eq!(reply(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#), "response");
        assert_eq!(reply(r#"{"jsonrpc":"2.0","id":5,"error":{"code":1}}"#), "response");
        assert!(reply(r#"{"id":107,"method":5}"#).contains("\"id\":107"));
    }

    #[test]
    fn deep_nesting_and_repeated_keys_are_survived() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(reply(&deep).contains("-32600"));
        let text = format!(r#"{{"id":1,"id":2,"method":"m","params":{{"a":{deep}}},"x":{deep}}}"#);
        let Incoming::Request { id, params, .. } = parse(&text) else { panic!("no request") };
        assert_eq!(id.value(), Some(json!(2)));
        assert_eq!(params.object().unwrap_err().code, INVALID_PARAMS);
        assert!(reply(&"{\"a\":".repeat(50_000)).contains("-32700"));
    }

    #[test]
    fn absent_and_null_params_are_empty_and_lists_are_refused() {
        let params = |text: &str| match parse(text) {
            Incoming::Request { params, .. } => params.object(),
            other => panic!("{other:?}"),
        };
        assert!(params(r#"{"id":1,"method":"m"}"#).unwrap().is_empty());
        assert!(params(r#"{"id":1,"method":"m","params":null}"#).unwrap().is_empty());
        let error = params(r#"{"id":1,"method":"m","params":[]}"#).unwrap_err();
        assert_eq!(error.message, "params must be an object, not a list");
        let last = params(r#"{"id":1,"method":"m","params":{"a":1,"a":2}}"#).unwrap();
        assert_eq!(last["a"], 2);
    }

    #[test]
    fn half_a_surrogate_pair_becomes_a_replacement_character() {
        let text = r#"{"id":1,"method":"m","params":{"a":"\\ud800 \ud83d \ud83d\ude00 \udc00x"}}"#;
        let Incoming::Request { params, .. } = parse(text) else { panic!("no request") };
        assert_eq!(params.object().unwrap()["a"], "\\ud800 \u{fffd} 😀 \u{fffd}x");
    }
}
