//! Text that an agent suggests at the user's cursor: `getSuggestions` of pi-ide, which Pi answers.
//!
//! Any thread asks, the answer comes on the runtime. Nothing of it is put anywhere here.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::asks::Asked;
use super::rpc::RpcError;
use super::{Dialect, Mcp, lock, session};

/// How long a model may think.
const PATIENCE: Duration = Duration::from_secs(30);
/// Suggestions asked for; pi-ide gives no more.
const MOST: usize = 3;
/// Of one suggestion, in bytes: more is no suggestion.
const LONGEST: usize = 32 << 10;

/// The user's text around the cursor, as pi-ide takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Around {
    pub file_path: String,
    /// Neovim's 'filetype'.
    pub language: String,
    /// The lines before the cursor's and that line up to the cursor, ends as `\n`.
    pub cursor_before: String,
    pub cursor_after: String,
    pub cursor_in_comment: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuggestError {
    #[error("no agent that suggests text is connected (Pi does, after /ide)")]
    NoAgent,
    #[error("the agent cannot suggest anything: {0}")]
    Refused(String),
    #[error("the agent has not suggested anything in {} seconds", PATIENCE.as_secs())]
    Late,
    #[error("the agent has left")]
    Gone,
}

impl Mcp {
    /// Asks the agent that came last of those that suggest text. The future ends with what to put
    /// at the cursor, most likely first, never empty texts; dropping it takes the question back.
    ///
    /// # Errors
    /// See `SuggestError`.
    pub async fn suggest(&self, around: &Around) -> Result<Vec<String>, SuggestError> {
        let mut params = json!(around);
        params["suggestionCount"] = json!(MOST);
        let mut asked = self.ask_one(&params).ok_or(SuggestError::NoAgent)?;
        match tokio::time::timeout(PATIENCE, asked.reply()).await {
            Ok(Some(Ok(result))) => Ok(texts(&result)),
            Ok(Some(Err(RpcError { message, .. }))) => {
                Err(SuggestError::Refused(session::clean(&message)))
            }
            Ok(None) => Err(SuggestError::Gone),
            Err(_) => Err(SuggestError::Late),
        }
    }

    fn ask_one(&self, params: &Value) -> Option<Asked> {
        let peers: Vec<_> = lock(&self.0.sessions).values().rev().cloned().collect();
        let suggests = |client: Option<super::ClientInfo>| {
            client.is_some_and(|client| client.dialect == Dialect::Pi)
        };
        let peer = peers.into_iter().find(|peer| suggests(peer.client()))?;
        Asked::new(peer, "getSuggestions", params)
    }
}

fn texts(result: &Value) -> Vec<String> {
    let given = result.get("suggestions").and_then(Value::as_array);
    let texts = given.into_iter().flatten().filter_map(Value::as_str);
    let texts = texts.filter(|text| text.len() <= LONGEST).map(|text| text.replace("\r\n", "\n"));
    texts.filter(|text| !text.trim().is_empty()).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_that_can_be_suggested_are_taken() {
        let long = "x".repeat(LONGEST + 1);
        let result = json!({"suggestions": ["a\r\nb", "", "  ", 5, null, long, "c", "d", "e"]});
        assert_eq!(texts(&result), ["a\nb", "c", "d"]);
        assert!(texts(&json!({"suggestions": "a"})).is_empty());
        assert!(texts(&json!(null)).is_empty());
    }
}
