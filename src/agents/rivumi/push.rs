//! The WebSocket push of Rivumi's own VS Code extension: connect, send one `ide_context`, close.
//!
//! Off unless the user gives a URL, and with a trap: on single-session servers the end of **any**
//! connection ends the shared conversation, on newer ones the push makes a session of its own.
//! The files are the real channel. Runs on tokio.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;
use url::{Host, Url};

use super::snapshots::Payload;

/// For the whole push, from connecting to closing.
pub const LIMIT: Duration = Duration::from_secs(1);

/// `agents.rivumi.websocket_url`, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushUrl(Url);

#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("took longer than one second")]
    Timeout,
    #[error(transparent)]
    Socket(#[from] tokio_tungstenite::tungstenite::Error),
}

impl PushUrl {
    /// `ws://` on this machine only: the server knows no authentication, and the text of
    /// diagnostics would cross the network in the clear. The error is a sentence for the user.
    pub fn parse(url: &str) -> Result<Self, String> {
        let url = Url::parse(url.trim()).map_err(|error| format!("is not a URL: {error}"))?;
        if url.scheme() != "ws" {
            return Err(format!("must start with ws://, not {}:", url.scheme()));
        }
        let here = match url.host() {
            Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
            Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
            Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
            None => false,
        };
        if here { Ok(Self(url)) } else { Err("must name this machine (127.0.0.1)".to_owned()) }
    }
}

/// The one message, or `None` where there is nothing to say: the server refuses an empty context.
#[must_use]
pub fn message(payload: &Payload) -> Option<String> {
    if *payload == Payload::nothing() {
        return None;
    }
    let (diagnostics, open_files) = (payload.diagnostics.trim_end(), payload.open_files.trim_end());
    // Both are JSON already.
    Some(format!(
        "{{\"type\":\"ide_context\",\"diagnostics\":{diagnostics},\"open_files\":{open_files}}}"
    ))
}

/// Sends `message` and closes. Gives up after `LIMIT`.
pub async fn push(url: &PushUrl, message: String) -> Result<(), PushError> {
    let pushed = tokio::time::timeout(LIMIT, async {
        let (mut socket, _) = connect_async(url.0.as_str()).await?;
        socket.send(Message::text(message)).await?;
        socket.close(None).await?;
        // Reads until the server closes too: dropping a socket with unread data could reset the
        // connection before the server has our message.
        while socket.next().await.is_some_and(|message| message.is_ok()) {}
        Ok(())
    });
    pushed.await.unwrap_or(Err(PushError::Timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_pushed_to() {
        for url in [
            "ws://127.0.0.1:8788/v1/conversation/attach",
            "ws://localhost:1/x",
            "ws://[::1]:8788/v1/conversation/attach",
        ] {
            assert!(PushUrl::parse(url).is_ok(), "{url}");
        }
        for (url, why) in [
            ("", "not a URL"),
            ("http://127.0.0.1/", "ws://"),
            ("wss://127.0.0.1/", "ws://"),
            ("ws://example.org/", "this machine"),
            ("ws://127.0.0.1.example.org/", "this machine"),
        ] {
            let error = PushUrl::parse(url).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn the_message_is_the_files_in_one_object() {
        assert_eq!(message(&Payload::nothing()), None);
        let payload = Payload {
            open_files: "{\"files\":[{\"path\":\"a\"}]}\n".to_owned(),
            ..Payload::nothing()
        };
        let json: serde_json::Value = serde_json::from_str(&message(&payload).unwrap()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({ "type": "ide_context", "diagnostics": { "diagnostics": [] },
                "open_files": { "files": [{ "path": "a" }] } })
        );
    }
}
