//! Amp: its own envelope, and its token in the query.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use gangway::agents::mcp::{ClientEvent, Family, Mention, MentionError};
use gangway::context::{OpenFile, Position, Severity, Snapshot};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::support::{PATIENCE, Rig, at, diagnostic, read_out, until};

struct Amp {
    socket: WebSocketStream<TcpStream>,
    others: Vec<Value>,
}

impl Amp {
    async fn connect(rig: &Rig) -> Self {
        let tcp = rig.raw().await;
        let uri = format!("ws://localhost:{}/?auth={}", rig.port, rig.secret(Family::Amp));
        let (socket, _) = tokio_tungstenite::client_async(uri, tcp).await.unwrap();
        Self { socket, others: Vec::new() }
    }

    async fn next(&mut self) -> Value {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.socket.next()).await.unwrap();
            if let Message::Text(text) = next.expect("closed").unwrap() {
                return serde_json::from_str(&text).unwrap();
            }
        }
    }

    async fn ask(&mut self, request: Value) -> Value {
        let message = json!({"clientRequest": request}).to_string();
        self.socket.send(Message::text(message)).await.unwrap();
        loop {
            let next = self.next().await;
            if let Some(response) = next.get("serverResponse") {
                return response.clone();
            }
            self.others.push(next);
        }
    }

    async fn note(&mut self, name: &str) -> Value {
        loop {
            let next =
                if self.others.is_empty() { self.next().await } else { self.others.remove(0) };
            if let Some(note) = next["serverNotification"].get(name) {
                return note.clone();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_told_who_we_are_and_what_the_user_sees() {
    let rig = Rig::new().await;
    let mut amp = Amp::connect(&rig).await;
    assert_eq!(amp.note("pluginMetadata").await, json!({"version": env!("CARGO_PKG_VERSION")}));
    assert_eq!(amp.note("visibleFilesDidChange").await, json!({"uris": []}));
    let client = rig.mcp.clients().remove(0);
    assert_eq!((client.name.as_str(), client.family), ("Amp", Family::Amp));
    let file = |path: &str, visible| OpenFile {
        path: path.into(),
        language: "text".into(),
        active: false,
        visible,
        modified: false,
        last_visited: 1,
        cursor: Position::default(),
    };
    let mut state = at("/work/a b.txt", 2, Some((3, 4, "two lines")));
    state.files = vec![file("/work/a b.txt", true), file("/work/hidden.txt", false)];
    rig.show(state);
    assert_eq!(
        amp.note("visibleFilesDidChange").await,
        json!({"uris": ["file:///work/a%20b.txt"]})
    );
    assert_eq!(
        amp.note("selectionDidChange").await,
        json!({"uri": "file:///work/a%20b.txt", "selections": [{"content": "two lines",
            "range": {"startLine": 2, "startCharacter": 0, "endLine": 3, "endCharacter": 4}}]})
    );
    let hidden = Snapshot { sharing: false, ..at("/work/x", 0, None) };
    rig.show(hidden);
    assert_eq!(amp.note("visibleFilesDidChange").await, json!({"uris": []}));
    assert_eq!(
        amp.note("selectionDidChange").await,
        json!({"uri": "file:///work", "selections": []})
    );
    let mention = Mention { path: "/work/x".into(), lines: None };
    let refused = rig.mcp.mention(None, &mention);
    assert_eq!(refused, Err(MentionError::Unsupported("Amp".into())));
    amp.socket.close(None).await.unwrap();
    until("the end", || rig.mcp.clients().is_empty().then_some(())).await;
    let events = rig.events.lock().unwrap();
    assert!(matches!(&events[..], [ClientEvent::Connected(_), ClientEvent::Disconnected(_)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_asks_is_answered_in_its_envelope() {
    let rig = Rig::new().await;
    let path = rig.file("a b.txt", "one\ntwo\n");
    let mut state = at(&path, 0, None);
    let list = [diagnostic(1, Severity::Error, "bad"), diagnostic(9, Severity::Hint, "far")];
    state.diagnostics.insert(path.clone().into(), list.into());
    state
        .diagnostics
        .insert("/elsewhere/b.txt".into(), [diagnostic(0, Severity::Error, "no")].into());
    rig.show(state);
    let mut amp = Amp::connect(&rig).await;
    let ping = amp.ask(json!({"id": "p-1", "ping": {"message": "hello"}})).await;
    assert_eq!(ping, json!({"id": "p-1", "ping": {"message": "hello"}}));
    let uri = format!("file://{}", path.replace(' ', "%20"));
    let entry = |line: u32, severity: &str, description: &str, content: &str| {
        json!({"range": {"startLine": line, "startCharacter": 0, "endLine": line,
            "endCharacter": 2}, "severity": severity, "description": description,
            "lineContent": content, "startOffset": 0, "endOffset": 2})
    };
    let found = json!({"entries": [{"uri": uri, "diagnostics": [
        entry(1, "error", "bad", "two"), entry(9, "hint", "far", "")]}]});
    // By all the names that other agents may use as well.
    let (link, folder) = (format!("{path}.link"), format!("{path}.folder"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    std::os::unix::fs::symlink(rig.dir.path(), &folder).unwrap();
    for asked in [&path, rig.dir.path().to_str().unwrap(), &uri, &link, &folder] {
        let answer = amp.ask(json!({"id": 2, "getDiagnostics": {"path": asked}})).await;
        assert_eq!(answer, json!({"id": 2, "getDiagnostics": found}));
    }
    let part = &path[..path.len() - 2];
    let answer = amp.ask(json!({"id": 2, "getDiagnostics": {"path": part}})).await;
    assert_eq!(answer["getDiagnostics"]["entries"], json!([]), "a part of a name is no folder");

    let answer = amp.ask(json!({"id": 3, "openURI": {"uri": format!("{uri}#L2")}})).await;
    assert_eq!(answer, json!({"id": 3, "openURI": {"success": true}}));
    let opened = rig.host.opened.lock().unwrap().remove(0);
    assert_eq!((opened.path.to_str(), opened.line), (Some(path.as_str()), Some(1)));
    for wrong in ["https://example.com/", "file:///no/such/file", "file:///dev/zero"] {
        let answer = amp.ask(json!({"id": 4, "openURI": {"uri": wrong}})).await;
        assert_eq!(answer["openURI"]["success"], false, "{answer}");
        assert!(answer["openURI"]["message"].is_string(), "{answer}");
    }
    let answer = amp.ask(json!({"id": 5, "openURI": {}})).await;
    assert_eq!(answer["error"], json!({"code": -32602, "message": "uri must be a string"}));
    let answer = amp.ask(json!({"id": 6, "editFile": {"path": path}})).await;
    assert_eq!(answer["error"]["code"], -32601);
    for noise in ["no JSON", "[]", "{}", r#"{"clientRequest":5}"#, r#"{"clientRequest":{}}"#] {
        amp.socket.send(Message::text(noise)).await.unwrap();
    }
    assert_eq!(
        amp.ask(json!({"id": 0, "ping": {}})).await,
        json!({"id": 0, "ping": {"message": null}})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn its_token_is_taken_from_the_query_and_no_other_is() {
    let rig = Rig::new().await;
    let amp = rig.secret(Family::Amp);
    let status = async |request: String| {
        let mut tcp = rig.raw().await;
        tcp.write_all(request.as_bytes()).await.unwrap();
        let answer = String::from_utf8(read_out(&mut tcp).await).unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let target = |query: &str| rig.upgrade(&[]).replace("GET / ", &format!("GET /{query} "));
    for query in ["", "?auth=", "?auth=wrong", "?token=x", &format!("?AUTH={amp}")] {
        assert_eq!(status(target(query)).await, 401, "{query}");
    }
    for family in Family::ALL.into_iter().filter(|family| *family != Family::Amp) {
        let query = format!("?auth={}", rig.secret(family));
        assert_eq!(status(target(&query)).await, 401, "{family:?}");
    }
    assert_eq!(status(target(&format!("?auth={amp}&auth={amp}"))).await, 401);
    let bearer = format!("Bearer {amp}");
    assert_eq!(status(rig.upgrade(&[("Authorization", &bearer)])).await, 401);
    let right = target(&format!("?auth={amp}"));
    let origin = right.replace("\r\n\r\n", "\r\nOrigin: null\r\n\r\n");
    assert_eq!(status(origin).await, 403);
    let host = right.replace("Host: 127.0.0.1", "Host: evil.example");
    assert_eq!(status(host).await, 403);
    assert_eq!(status(target(&format!("mcp?auth={amp}"))).await, 404);
    assert_eq!(rig.mcp.client_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_closes_it_at_once() {
    let mut rig = Rig::new().await;
    let mut amp = Amp::connect(&rig).await;
    amp.note("selectionDidChange").await;
    let begun = std::time::Instant::now();
    rig.stop().await;
    assert!(begun.elapsed() < Duration::from_millis(300), "{:?}", begun.elapsed());
    while let Some(Ok(_)) = amp.socket.next().await {}
}
