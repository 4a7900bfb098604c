//! An agent's end of the connection, speaking as the real ones do.

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::nvim::Nvim;
use super::ws::{self, Frame, Raw};
use super::{PATIENCE, short};

/// Whose protocol is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Pi,
    Claude,
    Opencode,
}

impl Dialect {
    pub fn auth_header(self) -> &'static str {
        match self {
            Dialect::Pi => "x-pi-ide-authorization",
            Dialect::Claude | Dialect::Opencode => "x-claude-code-ide-authorization",
        }
    }

    /// The headers the real client sends with its token.
    pub fn headers(self, token: &str) -> Vec<(String, String)> {
        let mut headers = vec![(self.auth_header().to_owned(), token.to_owned())];
        if self == Dialect::Claude {
            headers.push(("Sec-WebSocket-Protocol".to_owned(), "mcp".to_owned()));
            let offer = "permessage-deflate; client_max_window_bits";
            headers.push(("Sec-WebSocket-Extensions".to_owned(), offer.to_owned()));
            headers.push(("User-Agent".to_owned(), "claude-code/2.1.332 (cli)".to_owned()));
        }
        headers
    }

    fn initialize(self) -> Value {
        match self {
            Dialect::Pi => json!({
                "protocolVersion": "2024-11-05",
                "capabilities": {},
                "clientInfo": { "name": "pi-ide", "version": "0.2.1" },
            }),
            Dialect::Claude => json!({
                "protocolVersion": "2025-11-25",
                "capabilities": { "roots": { "listChanged": true }, "elicitation": {} },
                "clientInfo": { "name": "claude-code", "version": "2.1.332" },
            }),
            Dialect::Opencode => json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": { "name": "opencode", "version": "1.18.33" },
            }),
        }
    }
}

/// The name the real client gives a diff.
pub fn openable_tab(dialect: Dialect, path: &Path) -> String {
    let id: [u8; 3] = rand::random();
    let id = format!("{:02x}{:02x}{:02x}", id[0], id[1], id[2]);
    match dialect {
        Dialect::Pi => format!("pi-edit:call_{id}_0"),
        _ => format!(
            "✻ [Claude Code] {} ({id}) ⧉",
            path.file_name().unwrap_or_default().to_string_lossy()
        ),
    }
}

/// What an `openDiff` came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// `FILE_SAVED` with this text.
    Saved(String),
    /// `DIFF_REJECTED`.
    Rejected,
    /// Anything else: the whole response.
    Other(Value),
}

impl Verdict {
    pub fn of(response: &Value) -> Self {
        let content = &response["result"]["content"];
        let block = |i: usize| content[i]["text"].as_str();
        let plain = response.get("error").is_none() && response["result"]["isError"] != json!(true);
        match (plain, block(0), block(1)) {
            (true, Some("FILE_SAVED"), Some(text)) => Verdict::Saved(text.to_owned()),
            (true, Some("DIFF_REJECTED"), _) => Verdict::Rejected,
            _ => Verdict::Other(response.clone()),
        }
    }
}

/// A notification, and when it came.
#[derive(Debug, Clone)]
pub struct Note {
    pub at: Instant,
    pub method: String,
    pub params: Value,
}

/// The server did not open a WebSocket.
#[derive(Debug, Clone)]
pub struct Refused {
    pub status: Option<u16>,
    pub head: String,
}

#[derive(Default)]
struct Inbox {
    /// Every response by the JSON of its id: a second one is a bug that must be seen.
    responses: HashMap<String, Vec<(Instant, Value)>>,
    notes: Vec<Note>,
    /// Requests of the server to us.
    requests: Vec<Value>,
    pongs: Vec<Vec<u8>>,
    /// What no server may send.
    bad: Vec<String>,
    /// The close frame, if one came: its code (1005 when it had none) and reason.
    close: Option<(u16, String)>,
    /// The connection has ended.
    ended: bool,
}

struct Shared {
    dialect: Dialect,
    cwd: PathBuf,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    writer: Mutex<TcpStream>,
    /// Send pongs, and answer the server's requests.
    polite: bool,
    lenient: AtomicBool,
}

/// How an agent connects. Made by [`Client::builder`].
#[must_use]
pub struct ClientBuilder {
    dialect: Dialect,
    cwd: PathBuf,
    port: u16,
    headers: Vec<(String, String)>,
    initialize: bool,
    listens: bool,
    polite: bool,
    receive_buffer: Option<usize>,
}

impl ClientBuilder {
    /// One more header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// These headers and no others, not even the token.
    pub fn headers(mut self, headers: &[(&str, &str)]) -> Self {
        self.headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        self
    }

    /// Where the agent works, which is what it answers to `roots/list`.
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = cwd.into();
        self
    }

    /// Stays silent after the handshake.
    pub fn silent(mut self) -> Self {
        self.initialize = false;
        self
    }

    /// Never reads what the server sends, and leaves it little room.
    pub fn deaf(mut self) -> Self {
        self.initialize = false;
        self.listens = false;
        self.receive_buffer = Some(4096);
        self
    }

    /// Answers neither pings nor requests nor a close.
    pub fn rude(mut self) -> Self {
        self.polite = false;
        self
    }

    #[track_caller]
    pub fn connect(self) -> Client {
        match self.try_connect() {
            Ok(client) => client,
            Err(refused) => panic!("the handshake was refused: {}", refused.head.trim_end()),
        }
    }

    pub fn try_connect(self) -> Result<Client, Refused> {
        let mut raw = Raw::connect_with(self.port, self.receive_buffer);
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let head = raw.upgrade(&headers);
        let status = ws::status(head.as_bytes());
        if status != Some(101) {
            return Err(Refused { status, head });
        }
        check_head(&head, &headers);
        let stream = raw.stream;
        stream.set_read_timeout(None).unwrap();
        let shared = Arc::new(Shared {
            dialect: self.dialect,
            cwd: self.cwd,
            inbox: Mutex::default(),
            changed: Condvar::new(),
            writer: Mutex::new(stream.try_clone().unwrap()),
            polite: self.polite,
            lenient: AtomicBool::new(false),
        });
        let reader = self.listens.then(|| {
            let shared = shared.clone();
            std::thread::spawn(move || read(stream, &shared))
        });
        let client = Client { head, shared, reader: Mutex::new(reader), next: AtomicU64::new(0) };
        if self.initialize {
            client.initialize();
        }
        Ok(client)
    }
}

/// What the real clients insist on.
#[track_caller]
fn check_head(head: &str, sent: &[(&str, &str)]) {
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (n, value) = line.split_once(':')?;
            n.trim().eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let offered = sent
        .iter()
        .any(|(n, v)| n.eq_ignore_ascii_case("sec-websocket-protocol") && v.contains("mcp"));
    assert_eq!(header("sec-websocket-accept").as_deref(), Some(ws::EXPECTED_ACCEPT), "in {head}");
    assert_eq!(
        header("sec-websocket-protocol").as_deref(),
        offered.then_some("mcp"),
        "the subprotocol in {head}"
    );
    assert_eq!(
        header("sec-websocket-extensions"),
        None,
        "this client speaks no extension, but {head}"
    );
}

/// A connected agent. When it is dropped, it must not have got two answers to one request, an
/// answer to none, or anything malformed; else the test fails.
pub struct Client {
    /// The head of the server's handshake response.
    pub head: String,
    shared: Arc<Shared>,
    reader: Mutex<Option<JoinHandle<()>>>,
    next: AtomicU64,
}

impl Client {
    pub fn builder(nvim: &Nvim, dialect: Dialect) -> ClientBuilder {
        let lock = nvim.lock(dialect);
        Self::to(lock.port, &lock.token, dialect).cwd(&nvim.cwd)
    }

    /// To a Neovim of which nothing is known but its lock file.
    pub fn to(port: u16, token: &str, dialect: Dialect) -> ClientBuilder {
        ClientBuilder {
            dialect,
            cwd: "/".into(),
            port,
            headers: dialect.headers(token),
            initialize: true,
            listens: true,
            polite: true,
            receive_buffer: None,
        }
    }

    /// Finds the lock file, shakes hands, and initializes as the real client does.
    #[track_caller]
    pub fn connect(nvim: &Nvim, dialect: Dialect) -> Self {
        Self::builder(nvim, dialect).connect()
    }

    pub fn dialect(&self) -> Dialect {
        self.shared.dialect
    }

    /// `initialize` and what the real client sends right after it; returns the server's result.
    #[track_caller]
    pub fn initialize(&self) -> Value {
        let response = self.call("initialize", self.dialect().initialize());
        assert!(response["result"].is_object(), "initialize: {response}");
        if self.dialect() != Dialect::Pi {
            self.notify("notifications/initialized", Value::Null);
        }
        if self.dialect() == Dialect::Claude {
            self.notify("ide_connected", json!({ "pid": std::process::id() }));
            self.call("tools/list", json!({}));
        }
        response["result"].clone()
    }

    // ---------------------------------------------------------------------------------- requests

    /// The next id, as the real client makes it: a number from 0, or for Pi a UUID.
    fn next_id(&self) -> Value {
        match self.dialect() {
            Dialect::Pi => {
                json!(uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string())
            }
            _ => json!(self.next.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Sends a request.
    pub fn request(&self, method: &str, params: Value) -> Pending {
        self.request_with_id(self.next_id(), method, params)
    }

    pub fn request_with_id(&self, id: Value, method: &str, params: Value) -> Pending {
        let what = params["name"].as_str().unwrap_or(method).to_owned();
        let pending = self.expect(id.clone(), &what);
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        pending
    }

    /// Waits for responses to an id that the test sends by itself.
    pub fn expect(&self, id: Value, what: &str) -> Pending {
        self.shared.inbox().responses.entry(id.to_string()).or_default();
        Pending {
            shared: self.shared.clone(),
            id,
            what: what.to_owned(),
            path: PathBuf::new(),
            text: String::new(),
            tab: String::new(),
        }
    }

    /// Sends a request and waits for the whole response.
    #[track_caller]
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.request(method, params).wait()
    }

    pub fn notify(&self, method: &str, params: Value) {
        let mut message = json!({ "jsonrpc": "2.0", "method": method });
        if !params.is_null() {
            message["params"] = params;
        }
        self.send(&message);
    }

    /// Calls a tool without waiting.
    pub fn tool_request(&self, name: &str, args: Value) -> Pending {
        let mut params = json!({ "name": name, "arguments": args });
        if self.dialect() == Dialect::Claude {
            params["_meta"] = json!({ "progressToken": rand::random::<u32>() });
        }
        self.request("tools/call", params)
    }

    /// Calls a tool and waits for the whole response.
    #[track_caller]
    pub fn tool(&self, name: &str, args: Value) -> Value {
        self.tool_request(name, args).wait()
    }

    /// Calls a tool and parses the JSON in its one text block.
    #[track_caller]
    pub fn tool_json(&self, name: &str, args: Value) -> Value {
        let response = self.tool(name, args);
        let text = response["result"]["content"][0]["text"].as_str();
        let text = text.unwrap_or_else(|| panic!("{name} gave no text: {response}"));
        serde_json::from_str(text)
            .unwrap_or_else(|e| panic!("{name} gave no JSON ({e}): {}", short(text)))
    }

    /// The names of the tools on offer.
    #[track_caller]
    pub fn tools(&self) -> Vec<String> {
        let response = self.call("tools/list", json!({}));
        let tools = response["result"]["tools"]
            .as_array()
            .unwrap_or_else(|| panic!("tools/list: {response}"))
            .clone();
        tools.iter().map(|t| t["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Proposes a text for a file.
    pub fn open_diff(&self, path: impl AsRef<Path>, text: &str) -> Pending {
        let tab = openable_tab(self.dialect(), path.as_ref());
        self.open_diff_as(&tab, path, text)
    }

    /// Proposes under a tab name of the test's choice.
    pub fn open_diff_as(&self, tab: &str, path: impl AsRef<Path>, text: &str) -> Pending {
        let path = path.as_ref();
        let args = json!({
            "old_file_path": path,
            "new_file_path": path,
            "new_file_contents": text,
            "tab_name": tab,
        });
        Pending {
            path: path.to_owned(),
            text: text.to_owned(),
            tab: tab.to_owned(),
            ..self.tool_request("openDiff", args)
        }
    }

    /// What the real client does when a diff is over: `close_tab`, twice for Claude.
    #[track_caller]
    pub fn close_tab(&self, pending: &Pending) {
        let times = if self.dialect() == Dialect::Claude { 2 } else { 1 };
        let calls: Vec<Pending> = (0..times)
            .map(|_| self.tool_request("close_tab", json!({ "tab_name": pending.tab })))
            .collect();
        for call in calls {
            let response = call.wait();
            assert!(response["result"].is_object(), "close_tab: {response}");
        }
    }

    /// Drops what was answered to a request, so that a flood of them does not fill the memory. A
    /// second answer is still noticed.
    pub fn forget(&self, pending: &Pending) {
        self.shared.inbox().responses.remove(&pending.id.to_string());
    }

    // --------------------------------------------------------------------------------- what came

    /// All notifications so far.
    pub fn notes(&self) -> Vec<Note> {
        self.shared.inbox().notes.clone()
    }

    /// The parameters of all `selection_changed` notifications so far.
    pub fn selections(&self) -> Vec<Value> {
        self.notes()
            .into_iter()
            .filter(|n| n.method == "selection_changed")
            .map(|n| n.params)
            .collect()
    }

    /// Waits for a `selection_changed` that fits.
    #[track_caller]
    pub fn wait_selection(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let found = self.shared.wait(PATIENCE, |inbox| {
            inbox
                .notes
                .iter()
                .filter(|n| n.method == "selection_changed")
                .find(|n| fits(&n.params))
                .map(|n| n.params.clone())
        });
        found.unwrap_or_else(|| {
            let all = self.selections();
            let last: Vec<String> =
                all.iter().rev().take(3).map(|s| short(&s.to_string())).collect();
            panic!("no selection_changed with {what}; {} came, the last: {last:#?}", all.len())
        })
    }

    /// Requests the server made.
    pub fn requests(&self) -> Vec<Value> {
        self.shared.inbox().requests.clone()
    }

    /// Sends a ping and returns how long the pong took.
    #[track_caller]
    pub fn ping(&self) -> Duration {
        let payload: [u8; 8] = rand::random();
        let began = Instant::now();
        self.send_frame(&Frame::new(ws::PING, payload));
        let pong = self
            .shared
            .wait(PATIENCE, |inbox| inbox.pongs.iter().any(|p| p[..] == payload).then_some(()));
        assert!(pong.is_some(), "no pong within {PATIENCE:?}; {}", self.shared.state());
        began.elapsed()
    }

    // -------------------------------------------------------------------------------- raw frames

    pub fn send(&self, message: &Value) {
        self.send_text(&message.to_string());
    }

    pub fn send_text(&self, text: &str) {
        self.send_frame(&Frame::text(text));
    }

    pub fn send_frame(&self, frame: &Frame) {
        self.send_bytes(&frame.encode());
    }

    /// Bytes as they are. A connection the server has closed is no error here: the test sees it by
    /// other means.
    pub fn send_bytes(&self, bytes: &[u8]) {
        let _ = self.shared.writer.lock().unwrap().write_all(bytes);
    }

    // ----------------------------------------------------------------------------------- leaving

    /// Does not look at double answers and malformed frames at the end.
    pub fn lenient(&self) {
        self.shared.lenient.store(true, Ordering::Relaxed);
    }

    /// A proper goodbye: a close frame, and the end of the connection.
    pub fn close(&self, code: u16) {
        self.send_frame(&Frame::close(code, ""));
        self.shared.wait(PATIENCE, |inbox| inbox.ended.then_some(()));
        let _ = self.shared.writer.lock().unwrap().shutdown(Shutdown::Both);
    }

    /// The process is gone: the system closes the connection.
    pub fn fin(&self) {
        let _ = self.shared.writer.lock().unwrap().shutdown(Shutdown::Both);
    }

    /// The connection breaks: a TCP reset.
    pub fn rst(self) {
        self.lenient();
        let stream = self.shared.writer.lock().unwrap().try_clone().unwrap();
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        // The reading thread holds the socket too; this ends it without a packet, so that the last
        // close is a real one.
        let _ = stream.shutdown(Shutdown::Read);
        if let Some(reader) = self.reader.lock().unwrap().take() {
            let _ = reader.join();
        }
    }

    /// Waits until the connection has ended; the code and reason of the close frame, if there was
    /// one.
    #[track_caller]
    pub fn wait_closed(&self) -> Option<(u16, String)> {
        let ended = self.shared.wait(PATIENCE, |inbox| inbox.ended.then(|| inbox.close.clone()));
        ended.unwrap_or_else(|| panic!("the connection was still open after {PATIENCE:?}"))
    }

    pub fn is_closed(&self) -> bool {
        self.shared.inbox().ended
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.shared.writer.lock().unwrap().shutdown(Shutdown::Both);
        if std::thread::panicking() || self.shared.lenient.load(Ordering::Relaxed) {
            return;
        }
        let inbox = self.shared.inbox();
        let twice: Vec<String> = inbox
            .responses
            .values()
            .filter(|responses| responses.len() > 1)
            .map(|responses| {
                let all: Vec<&Value> = responses.iter().map(|(_, response)| response).collect();
                short(&json!(all).to_string())
            })
            .collect();
        let bad = inbox.bad.clone();
        drop(inbox);
        assert!(twice.is_empty(), "requests that were answered more than once: {twice:#?}");
        assert!(bad.is_empty(), "the server sent what no server may: {bad:#?}");
    }
}

/// A request whose answer may still come.
pub struct Pending {
    shared: Arc<Shared>,
    pub id: Value,
    what: String,
    /// Of an `openDiff`: the file.
    pub path: PathBuf,
    /// Of an `openDiff`: the text proposed.
    pub text: String,
    /// Of an `openDiff`: the tab name.
    pub tab: String,
}

impl Pending {
    /// All responses so far.
    pub fn answers(&self) -> Vec<Value> {
        let inbox = self.shared.inbox();
        let responses = inbox.responses.get(&self.id.to_string()).into_iter().flatten();
        responses.map(|(_, response)| response.clone()).collect()
    }

    /// When the response had come in.
    pub fn answered_at(&self) -> Option<Instant> {
        Some(self.shared.inbox().responses.get(&self.id.to_string())?.first()?.0)
    }

    pub fn is_answered(&self) -> bool {
        !self.answers().is_empty()
    }

    /// Waits for the response.
    #[track_caller]
    pub fn wait(&self) -> Value {
        self.wait_within(PATIENCE)
    }

    #[track_caller]
    pub fn wait_within(&self, limit: Duration) -> Value {
        let key = self.id.to_string();
        let answer =
            self.shared.wait(limit, |inbox| Some(inbox.responses.get(&key)?.first()?.1.clone()));
        answer.unwrap_or_else(|| {
            panic!(
                "no answer to {} (id {}) within {limit:?}; {}",
                self.what,
                self.id,
                self.shared.state()
            )
        })
    }

    /// Waits for the user's verdict on an `openDiff`.
    #[track_caller]
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.wait())
    }

    #[track_caller]
    pub fn verdict_within(&self, limit: Duration) -> Verdict {
        Verdict::of(&self.wait_within(limit))
    }

    /// Panics if an answer comes within `time`.
    #[track_caller]
    pub fn assert_unanswered(&self, time: Duration) {
        std::thread::sleep(time);
        let answers = self.answers();
        assert!(answers.is_empty(), "{} was answered: {answers:?}", self.what);
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until the inbox holds what `find` looks for.
    fn wait<T>(&self, limit: Duration, mut find: impl FnMut(&Inbox) -> Option<T>) -> Option<T> {
        let end = Instant::now() + limit;
        let mut inbox = self.inbox();
        loop {
            if let Some(found) = find(&inbox) {
                return Some(found);
            }
            let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            inbox = self.changed.wait_timeout(inbox, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn state(&self) -> String {
        let inbox = self.inbox();
        match (&inbox.close, inbox.ended) {
            (Some(close), _) => format!("the connection was closed with {close:?}"),
            (None, true) => "the connection has ended without a close frame".to_owned(),
            (None, false) => "the connection is open".to_owned(),
        }
    }

    fn update(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.inbox());
        self.changed.notify_all();
    }

    fn answer(&self, frame: &Frame) {
        if self.polite {
            let _ = self.writer.lock().unwrap().write_all(&frame.encode());
        }
    }

    fn take(&self, at: Instant, message: Value) {
        if message.get("method").is_none() {
            let key = message["id"].to_string();
            return self.update(|inbox| match inbox.responses.get_mut(&key) {
                Some(responses) => responses.push((at, message)),
                None => inbox
                    .bad
                    .push(format!("a response to nothing: {}", short(&message.to_string()))),
            });
        }
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        match message.get("id") {
            None => self.update(|inbox| {
                inbox.notes.push(Note { at, method, params: message["params"].clone() });
            }),
            // A model thinks about it: the test answers.
            Some(_) if method == "getSuggestions" => {
                self.update(|inbox| inbox.requests.push(message.clone()));
            }
            Some(id) => {
                let unknown = json!({ "error": { "code": -32601, "message": "Method not found" } });
                let mut reply = match (self.dialect, method.as_str()) {
                    (Dialect::Pi, _) => unknown,
                    (_, "ping") => json!({ "result": {} }),
                    (Dialect::Claude, "roots/list") => {
                        let uri = format!("file://{}", self.cwd.display());
                        json!({ "result": { "roots": [{ "uri": uri }] } })
                    }
                    _ => unknown,
                };
                reply["jsonrpc"] = json!("2.0");
                reply["id"] = id.clone();
                self.update(|inbox| inbox.requests.push(message.clone()));
                self.answer(&Frame::text(&reply.to_string()));
            }
        }
    }
}

fn read(stream: TcpStream, shared: &Shared) {
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let mut message = Vec::new();
    while let Some(frame) = ws::read_frame(&mut reader) {
        if frame.masked || frame.rsv != 0 {
            shared.update(|inbox| inbox.bad.push(format!("masked or reserved bits: {frame:?}")));
            break;
        }
        match frame.opcode {
            ws::TEXT | ws::CONTINUATION => {
                message.extend(frame.payload);
                if frame.fin {
                    let (at, whole) = (Instant::now(), std::mem::take(&mut message));
                    match serde_json::from_slice(&whole) {
                        Ok(Value::Array(batch)) => {
                            batch.into_iter().for_each(|m| shared.take(at, m))
                        }
                        Ok(value) => shared.take(at, value),
                        Err(e) => {
                            let text = short(&String::from_utf8_lossy(&whole));
                            shared.update(|inbox| inbox.bad.push(format!("no JSON ({e}): {text}")));
                        }
                    }
                }
            }
            ws::PING => shared.answer(&Frame::new(ws::PONG, frame.payload)),
            ws::PONG => shared.update(|inbox| inbox.pongs.push(frame.payload)),
            ws::CLOSE => {
                let code =
                    frame.payload.get(..2).map_or(1005, |b| u16::from_be_bytes([b[0], b[1]]));
                let reason = String::from_utf8_lossy(frame.payload.get(2..).unwrap_or_default())
                    .into_owned();
                shared.update(|inbox| inbox.close = Some((code, reason)));
                shared.answer(&Frame::new(ws::CLOSE, frame.payload.get(..2).unwrap_or_default()));
            }
            other => shared.update(|inbox| inbox.bad.push(format!("a frame with opcode {other}"))),
        }
    }
    shared.update(|inbox| inbox.ended = true);
}
