//! A client of MCP's streamable HTTP that sees every byte: over TCP as Gemini CLI and Qwen Code
//! come, over a Unix socket as Copilot CLI does.

use std::path::PathBuf;
use std::time::Duration;

use gangway::agents::mcp::Family;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::support::{PATIENCE, Rig};

pub trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

/// The beginning of an answer; the rest of it is still to be read.
pub struct Answer {
    pub status: u16,
    pub head: String,
    wire: Box<dyn Wire>,
    /// Of the body, read but not used.
    buffer: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<String> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    }

    async fn more(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.wire.read_buf(&mut self.buffer)).await;
        read.expect("the answer stops in the middle").is_ok_and(|read| read > 0)
    }

    /// The whole body.
    pub async fn body(mut self) -> String {
        if let Some(length) = self.header("content-length") {
            let length: usize = length.parse().unwrap();
            while self.buffer.len() < length {
                assert!(self.more().await, "cut short");
            }
        } else {
            while self.more().await {}
            let mut out = Vec::new();
            while let Some(chunk) = self.chunk() {
                out.extend(chunk);
            }
            return String::from_utf8(out).unwrap();
        }
        String::from_utf8(self.buffer).unwrap()
    }

    pub async fn json(self) -> Value {
        let body = self.body().await;
        serde_json::from_str(&body).unwrap_or_else(|_| panic!("no JSON: {body}"))
    }

    /// One whole chunk, if it is there. Empty ones are the end.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.buffer.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&self.buffer[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let end = line + 2 + size;
        (self.buffer.len() >= end + 2).then(|| {
            let chunk = self.buffer[line + 2..end].to_vec();
            self.buffer.drain(..end + 2);
            chunk
        })
    }

    /// The next event's message, or a comment as a string; `None` when the stream has ended.
    pub async fn event(&mut self) -> Option<Value> {
        loop {
            if let Some(chunk) = self.chunk() {
                if chunk.is_empty() {
                    return None;
                }
                // The server puts each event into a chunk of its own.
                let text = String::from_utf8(chunk).unwrap();
                if let Some(comment) = text.strip_prefix(": ") {
                    return Some(json!(comment.trim_end()));
                }
                let data = text.strip_prefix("event: message\ndata: ").unwrap();
                return Some(serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// The parameters of the next notification of that name.
    pub async fn note(&mut self, method: &str) -> Value {
        loop {
            let event = self.event().await.expect("the stream has ended");
            if event["method"] == method {
                return event["params"].clone();
            }
        }
    }
}

/// Where a family's agents go, and with what.
#[derive(Clone)]
pub struct Agent {
    pub port: u16,
    pub socket: Option<PathBuf>,
    pub authorization: String,
    pub session: Option<String>,
    pub next: u64,
}

impl Agent {
    pub fn new(rig: &Rig, family: Family) -> Self {
        let scheme = if family == Family::Copilot { "Nonce" } else { "Bearer" };
        Self {
            port: rig.port,
            socket: rig.socket.clone().filter(|_| family == Family::Copilot),
            authorization: format!("{scheme} {}", rig.secret(family)),
            session: None,
            next: 0,
        }
    }

    /// With its handshake done, and its stream.
    pub async fn ready(rig: &Rig, family: Family) -> (Self, Answer) {
        let mut agent = Self::new(rig, family);
        agent.initialize("2025-06-18").await;
        let stream = agent.listen().await;
        assert_eq!(agent.notify("notifications/initialized", json!({})).await, 202);
        (agent, stream)
    }

    pub async fn wire(&self) -> Box<dyn Wire> {
        match &self.socket {
            Some(path) => Box::new(UnixStream::connect(path).await.unwrap()),
            None => Box::new(TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()),
        }
    }

    /// As the client that was recorded: these headers, in lower case.
    pub fn head(&self, method: &str, length: Option<usize>) -> String {
        let mut head = format!(
            "{method} /mcp HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nconnection: keep-alive\r\n\
             accept: application/json, text/event-stream\r\nsec-fetch-mode: cors\r\n\
             authorization: {}\r\n",
            self.port, self.authorization
        );
        if let Some(session) = &self.session {
            head += &format!("mcp-session-id: {session}\r\nmcp-protocol-version: 2025-06-18\r\n");
        }
        if let Some(length) = length {
            head += &format!("content-type: application/json\r\ncontent-length: {length}\r\n");
        }
        head + "\r\n"
    }

    pub async fn raw(&self, head: &str, body: &[u8]) -> Answer {
        let mut wire = self.wire().await;
        wire.write_all(head.as_bytes()).await.unwrap();
        // It may be turned away before it is read.
        let _ = wire.write_all(body).await;
        let mut answer = Answer { status: 0, head: String::new(), wire, buffer: Vec::new() };
        let end = loop {
            if let Some(end) = answer.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break end;
            }
            assert!(answer.more().await, "no answer");
        };
        answer.head = String::from_utf8(answer.buffer.drain(..end + 4).collect()).unwrap();
        answer.status = answer.head.split(' ').nth(1).unwrap().parse().unwrap();
        answer
    }

    pub async fn post(&self, message: &Value) -> Answer {
        let body = message.to_string();
        self.raw(&self.head("POST", Some(body.len())), body.as_bytes()).await
    }

    pub async fn listen(&self) -> Answer {
        let answer = self.raw(&self.head("GET", None), b"").await;
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream"));
        answer
    }

    pub async fn initialize(&mut self, version: &str) -> Value {
        let answer = self
            .post(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                "protocolVersion": version, "capabilities": {},
                "clientInfo": {"name": "streamable-http-client", "version": "1.0.0"}}}))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
        self.session = answer.header("mcp-session-id");
        let answer = answer.json().await;
        assert_eq!(answer["id"], 0);
        answer["result"].clone()
    }

    pub async fn notify(&self, method: &str, params: Value) -> u16 {
        self.post(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await.status
    }

    /// Asks and returns the answer's beginning.
    pub async fn ask(&mut self, method: &str, params: Value) -> Answer {
        self.next += 1;
        let next = self.next;
        self.post(&json!({"jsonrpc": "2.0", "id": next, "method": method, "params": params})).await
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.ask(method, params).await;
        assert_eq!(answer.status, 200, "{}", answer.head);
        if answer.header("content-type").as_deref() == Some("application/json") {
            return answer.json().await;
        }
        loop {
            let event = answer.event().await.expect("no answer");
            if event.is_object() {
                return event;
            }
        }
    }

    pub async fn tool(&mut self, name: &str, arguments: Value) -> Value {
        self.call("tools/call", json!({"name": name, "arguments": arguments})).await
    }

    pub async fn delete(&self) -> u16 {
        self.raw(&self.head("DELETE", None), b"").await.status
    }
}

pub async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
