//! A server with a fake editor, and clients that can also misbehave.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use gangway::agents::mcp::{ClientEvent, Family, Mcp};
use gangway::agents::{BoxFuture, Document, Host, HostError, OpenFile, Opened};
use gangway::context::{
    ActiveFile, Diagnostic, Position, Range, Root, Selection, Severity, Snapshot,
};
use gangway::review::desk::Desk;
use gangway::review::{Review, ReviewId, Verdict};
use gangway::server::auth::header;
use gangway::server::{Credentials, Limits, Server, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

pub const PATIENCE: Duration = Duration::from_secs(10);

/// The editor, as far as agents can see it.
pub struct FakeHost {
    pub snapshots: watch::Sender<Arc<Snapshot>>,
    /// Neovim's thread is busy: nothing answers.
    pub busy: AtomicBool,
    pub documents: Mutex<HashMap<PathBuf, Document>>,
    pub opened: Mutex<Vec<OpenFile>>,
    /// What the user has made of every proposal.
    pub edited: Mutex<Option<Arc<str>>>,
}

impl FakeHost {
    async fn wait(&self) {
        if self.busy.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

impl Host for FakeHost {
    fn snapshot(&self) -> BoxFuture<'_, Arc<Snapshot>> {
        Box::pin(async {
            self.wait().await;
            self.snapshots.borrow().clone()
        })
    }

    fn open_file(&self, what: OpenFile) -> BoxFuture<'_, Result<Option<Opened>, HostError>> {
        Box::pin(async move {
            assert!(!what.path.ends_with("panic"), "asked to");
            if what.path.ends_with("refused") {
                return Err(HostError::Refused("no such window".into()));
            }
            let found = what.start_text.as_deref() == Some("here");
            self.opened.lock().unwrap().push(what);
            let found = found.then_some((Position::new(1, 0), Position::new(1, 4)));
            Ok(Some(Opened { language: "rust".into(), line_count: 7, found }))
        })
    }

    fn save<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Option<bool>, HostError>> {
        Box::pin(async {
            let mut documents = self.documents.lock().unwrap();
            Ok(documents.get_mut(path).map(|document| std::mem::take(&mut document.modified)))
        })
    }

    fn document<'a>(
        &'a self,
        path: &'a Path,
    ) -> BoxFuture<'a, Result<Option<Document>, HostError>> {
        Box::pin(async { Ok(self.documents.lock().unwrap().get(path).copied()) })
    }

    fn encodings<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async { vec!["latin1".into()] })
    }

    fn edited<'a>(&'a self, _: &'a ReviewId) -> BoxFuture<'a, Option<Arc<str>>> {
        Box::pin(async { self.edited.lock().unwrap().clone() })
    }
}

pub fn diagnostic(line: u32, severity: Severity, message: &str) -> Diagnostic {
    let range = Range { start: Position::new(line, 0), end: Position::new(line, 2) };
    Diagnostic { range, severity, message: message.into(), source: None, code: None }
}

/// A snapshot of a user at `line` of `path`, with a selection from there to the end of `end`.
pub fn at(path: &str, line: u32, selected: Option<(u32, u32, &str)>) -> Snapshot {
    let selection = selected.map(|(end, column, text)| Selection {
        range: Range { start: Position::new(line, 0), end: Position::new(end, column) },
        text: text.into(),
        truncated: false,
    });
    Snapshot {
        sharing: true,
        active: Some(ActiveFile {
            path: path.into(),
            language: "text".into(),
            modified: false,
            cursor: Position::new(line, 0),
            selection,
        }),
        roots: vec![Root { path: "/work".into(), real: "/real/work".into() }],
        ..Snapshot::default()
    }
}

pub struct Rig {
    pub server: Option<Server>,
    pub mcp: Mcp,
    pub desk: Desk,
    pub host: Arc<FakeHost>,
    pub credentials: Credentials,
    pub events: Arc<Mutex<Vec<ClientEvent>>>,
    pub port: u16,
    /// Where Copilot CLI goes.
    pub socket: Option<PathBuf>,
    pub dir: tempfile::TempDir,
}

impl Rig {
    pub async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    pub async fn with(limits: Limits) -> Self {
        let credentials = Credentials::generate(Family::ALL).unwrap();
        let start = Snapshot { sharing: true, ..Snapshot::default() };
        let host = Arc::new(FakeHost {
            snapshots: watch::Sender::new(Arc::new(start)),
            busy: AtomicBool::new(false),
            documents: Mutex::default(),
            opened: Mutex::default(),
            edited: Mutex::default(),
        });
        let desk = Desk::default();
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        let mcp = Mcp::new(desk.clone(), host.snapshots.subscribe(), host.clone(), move |event| {
            heard.lock().unwrap().push(event);
        });
        let dir = tempfile::tempdir().unwrap();
        let (server, socket, port) = (None, None, 0);
        let mut rig = Self { server, mcp, desk, host, credentials, events, port, socket, dir };
        rig.start(None, limits).await;
        rig
    }

    pub async fn start(&mut self, port_hint: Option<u16>, limits: Limits) {
        let config = ServerConfig { port_hint, credentials: self.credentials.clone(), limits };
        let mcp = self.mcp.clone();
        let serve = move |link| {
            let mcp = mcp.clone();
            async move { mcp.serve(link).await }
        };
        let server = Server::start(config, serve).await.unwrap();
        self.port = server.port();
        self.server = Some(server);
    }

    pub fn open_socket(&mut self) {
        let path = gangway::server::place_for_socket(&[self.dir.path()], "gangway-test").unwrap();
        self.server.as_mut().unwrap().listen_unix(&path).unwrap();
        self.socket = Some(path);
    }

    pub async fn stop(&mut self) {
        self.server.take().unwrap().stop(Duration::from_millis(500)).await;
    }

    pub fn secret(&self, family: Family) -> &str {
        self.credentials.token(family).unwrap().secret()
    }

    pub fn show(&self, snapshot: Snapshot) {
        self.host.snapshots.send_replace(Arc::new(snapshot));
    }

    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Waits until `count` reviews are pending; they come oldest first.
    pub async fn reviews(&self, count: usize) -> Vec<Arc<Review>> {
        let desk = self.desk.clone();
        until("reviews on the desk", || {
            let pending = desk.pending();
            (pending.len() == count).then(|| pending.into_iter().map(|(r, _)| r).collect())
        })
        .await
    }

    pub fn accept(&self, review: &Review, text: &str) {
        assert!(self.desk.decide(&review.id, Verdict::Accept { text: text.into() }));
    }

    /// An upgraded connection that has said nothing yet.
    pub async fn connect(&self, family: Family) -> Client {
        self.connect_on(TcpSocket::new_v4().unwrap(), family).await
    }

    /// A client whose kernel takes next to nothing for it.
    pub async fn connect_narrow(&self, family: Family) -> Client {
        self.connect_with_buffer(4096, family).await
    }

    pub async fn connect_with_buffer(&self, bytes: u32, family: Family) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(bytes).unwrap();
        self.connect_on(socket, family).await
    }

    async fn connect_on(&self, socket: TcpSocket, family: Family) -> Client {
        let tcp = socket.connect(([127, 0, 0, 1], self.port).into()).await.unwrap();
        let mut request = format!("ws://127.0.0.1:{}/", self.port).into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert(header(family), self.secret(family).parse().unwrap());
        // As most clients: no limit on what they take.
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let handshake = tokio_tungstenite::client_async_with_config(request, tcp, Some(config));
        let (socket, _) = handshake.await.unwrap();
        Client { socket, family, notes: Vec::new(), others: Vec::new(), next: 0 }
    }

    /// A client that has gone through its family's usual handshake.
    pub async fn client(&self, family: Family) -> Client {
        let mut client = self.connect(family).await;
        client.initialize().await;
        client
    }

    pub async fn raw(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    pub fn upgrade(&self, headers: &[(&str, &str)]) -> String {
        let host = format!("127.0.0.1:{}", self.port);
        let mut out = format!("GET / HTTP/1.1\r\nHost: {host}\r\n");
        out += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n";
        out += "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n";
        for (name, value) in headers {
            out += &format!("{name}: {value}\r\n");
        }
        out + "\r\n"
    }

    /// The raw connection right behind a successful upgrade.
    pub async fn upgraded(&self, family: Family) -> TcpStream {
        let mut tcp = self.raw().await;
        let token = (header(family), self.secret(family).to_owned());
        let request = self.upgrade(&[(token.0.as_str(), &token.1)]);
        tcp.write_all(request.as_bytes()).await.unwrap();
        assert!(read_head(&mut tcp).await.starts_with("HTTP/1.1 101"));
        tcp
    }
}

pub async fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn read_head(tcp: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tcp.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// All that comes until the server closes; panics if it does not.
pub async fn read_out(tcp: &mut TcpStream) -> Vec<u8> {
    let mut out = Vec::new();
    let read = tokio::time::timeout(PATIENCE, tcp.read_to_end(&mut out)).await;
    read.expect("the connection stays open").unwrap();
    out
}

/// A masked frame; `flags` are FIN (0x80) and the reserved bits.
pub fn frame(flags: u8, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![flags | opcode];
    match payload.len() {
        n @ 0..126 => out.push(0x80 | n as u8),
        n @ 126..65536 => {
            out.push(0x80 | 126);
            out.extend((n as u16).to_be_bytes());
        }
        n => {
            out.push(0x80 | 127);
            out.extend((n as u64).to_be_bytes());
        }
    }
    let mask = [1, 2, 3, 4];
    out.extend(mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    out
}

/// The next frame of the server: opcode and payload.
pub async fn read_frame(tcp: &mut TcpStream) -> (u8, Vec<u8>) {
    let first = tcp.read_u8().await.unwrap();
    let length = match tcp.read_u8().await.unwrap() {
        126 => u64::from(tcp.read_u16().await.unwrap()),
        127 => tcp.read_u64().await.unwrap(),
        short => u64::from(short),
    };
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    tcp.read_exact(&mut payload).await.unwrap();
    (first & 0xf, payload)
}

/// An agent.
pub struct Client {
    pub socket: WebSocketStream<TcpStream>,
    pub family: Family,
    /// Notifications and requests of the server that came while something else was waited for.
    pub notes: Vec<Value>,
    /// Responses nobody has waited for yet.
    pub others: Vec<Value>,
    next: u64,
}

impl Client {
    pub async fn initialize(&mut self) -> Value {
        match self.family {
            Family::Pi => self.introduce("pi-ide", "2024-11-05").await,
            _ => {
                let result = self.introduce("claude-code", "2025-11-25").await;
                self.notify("notifications/initialized", json!({})).await;
                self.notify("ide_connected", json!({"pid": 4242})).await;
                result
            }
        }
    }

    pub async fn introduce(&mut self, name: &str, version: &str) -> Value {
        let params = json!({"protocolVersion": version, "capabilities": {"roots": {}},
            "clientInfo": {"name": name, "version": "1.2.3"}});
        self.call("initialize", params).await["result"].clone()
    }

    pub async fn send(&mut self, text: impl Into<String>) {
        self.socket.send(Message::text(text.into())).await.unwrap();
    }

    pub async fn notify(&mut self, method: &str, params: Value) {
        let text = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        self.send(text).await;
    }

    /// Sends a request and returns its id, of the kind the family uses.
    pub async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = match self.family {
            Family::Pi => json!(format!("uuid-{}", self.next)),
            _ => json!(self.next),
        };
        self.next += 1;
        let text = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(text.to_string()).await;
        id
    }

    /// The next JSON message; `None` when the connection is closed.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            match self.socket.next().await? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The response to `id`.
    pub async fn answer(&mut self, id: &Value) -> Value {
        if let Some(at) = self.others.iter().position(|other| other["id"] == *id) {
            return self.others.remove(at);
        }
        loop {
            let next = tokio::time::timeout(PATIENCE, self.next()).await;
            let message = next.expect("no answer").expect("closed instead of an answer");
            if message.get("method").is_some() {
                self.notes.push(message);
            } else if message["id"] == *id {
                return message;
            } else {
                self.others.push(message);
            }
        }
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params).await;
        self.answer(&id).await
    }

    pub async fn ask_tool(&mut self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": name, "arguments": arguments})).await
    }

    pub async fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.ask_tool(name, arguments).await;
        self.answer(&id).await
    }

    /// The texts of a successful call's blocks.
    pub async fn texts(&mut self, name: &str, arguments: Value) -> Vec<String> {
        texts(&self.tool(name, arguments).await)
    }

    /// The JSON in a successful call's only block.
    pub async fn json(&mut self, name: &str, arguments: Value) -> Value {
        let texts = self.texts(name, arguments).await;
        assert_eq!(texts.len(), 1);
        serde_json::from_str(&texts[0]).unwrap()
    }

    pub async fn ask_diff(&mut self, path: &str, text: &str, tab: &str) -> Value {
        let arguments = json!({"old_file_path": path, "new_file_path": path,
            "new_file_contents": text, "tab_name": tab});
        self.ask_tool("openDiff", arguments).await
    }

    /// The next notification of that name.
    pub async fn note(&mut self, method: &str) -> Value {
        if let Some(at) = self.notes.iter().position(|note| note["method"] == method) {
            return self.notes.remove(at)["params"].clone();
        }
        loop {
            let next = tokio::time::timeout(PATIENCE, self.next()).await;
            let message = next.expect("no notification").expect("closed");
            if message["method"] == method {
                return message["params"].clone();
            }
            self.others.push(message);
        }
    }

    /// Everything that comes within `time`, and what was put aside before.
    pub async fn listen(&mut self, time: Duration) -> Vec<Value> {
        let mut heard = std::mem::take(&mut self.notes);
        heard.append(&mut self.others);
        let _ = tokio::time::timeout(time, async {
            while let Some(message) = self.next().await {
                heard.push(message);
            }
            std::future::pending::<()>().await;
        })
        .await;
        heard
    }

    /// Everything until the server closes, and its close code.
    pub async fn until_closed(&mut self) -> (Vec<Value>, Option<u16>) {
        let mut heard = Vec::new();
        let closed = async {
            while let Some(message) = self.socket.next().await {
                match message {
                    Ok(Message::Text(text)) => heard.push(serde_json::from_str(&text).unwrap()),
                    Ok(Message::Close(frame)) => return frame.map(|frame| frame.code.into()),
                    Ok(_) => {}
                    Err(_) => return None,
                }
            }
            None
        };
        let code = tokio::time::timeout(PATIENCE, closed).await.expect("it stays open");
        (heard, code)
    }

    /// Vanishes without a word.
    pub fn reset(self) {
        let tcp = self.socket.into_inner();
        tcp.set_zero_linger().unwrap();
    }
}

pub fn texts(response: &Value) -> Vec<String> {
    assert!(response.get("error").is_none(), "{response}");
    assert!(response["result"].get("isError").is_none(), "{response}");
    blocks(response)
}

/// The sentence of a tool error.
pub fn failure(response: &Value) -> String {
    assert_eq!(response["result"]["isError"], true, "{response}");
    blocks(response).concat()
}

fn blocks(response: &Value) -> Vec<String> {
    let content = response["result"]["content"].as_array().unwrap();
    content
        .iter()
        .map(|block| {
            assert_eq!(block["type"], "text");
            block["text"].as_str().unwrap().to_owned()
        })
        .collect()
}
