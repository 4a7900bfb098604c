//! Who may open a WebSocket, and what the first frames may be.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::ws::{self, Frame, Raw, talk, upgrade_request};
use crate::harness::*;

const BRIEFLY: Duration = Duration::from_millis(1500);

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2024-11-05","#,
    r#""capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#
);

#[test]
fn each_dialect_boards_by_its_lock_file() {
    let nvim = Nvim::start();
    for dialect in [Dialect::Pi, Dialect::Claude, Dialect::Opencode] {
        let agent = Client::connect(&nvim, dialect);
        assert!(agent.ping() < Duration::from_secs(1));
        agent.close(1000);
        agent.wait_closed();
    }
}

#[test]
fn several_agents_are_served_at_once() {
    let nvim = Nvim::start();
    let agents: Vec<Client> = [Dialect::Pi, Dialect::Claude, Dialect::Opencode, Dialect::Claude]
        .map(|dialect| Client::connect(&nvim, dialect))
        .into();
    for agent in &agents {
        assert!(agent.tools().contains(&"openDiff".to_owned()));
    }
    nvim.wait_until("four clients in the status", || {
        nvim.status()["clients"].as_array().is_some_and(|clients| clients.len() == 4)
    });
    drop(agents);
    nvim.wait_until("no client in the status", || nvim.status()["clients"] == json!([]));
}

#[test]
fn t01_a_wrong_token_is_refused_before_the_upgrade() {
    let nvim = Nvim::builder().opts(json!({ "log_level": "debug" })).start();
    for dialect in [Dialect::Pi, Dialect::Claude] {
        let lock = nvim.lock(dialect);
        let (header, token) = (dialect.auth_header(), lock.token.as_str());
        let other = match dialect {
            Dialect::Pi => Dialect::Claude,
            _ => Dialect::Pi,
        };
        let wrong = "x".repeat(token.len());
        let longer = format!("{token}x");
        let upper = token.to_uppercase();
        let huge = "a".repeat(10_240);
        let bearer = format!("Bearer {token}");
        let cases: Vec<(&str, Vec<(&str, &str)>)> = vec![
            ("missing", vec![]),
            ("empty", vec![(header, "")]),
            ("wrong", vec![(header, &wrong)]),
            ("cut short", vec![(header, &token[..token.len() - 1])]),
            ("longer", vec![(header, &longer)]),
            ("in capitals", vec![(header, &upper)]),
            ("10 kB", vec![(header, &huge)]),
            ("as a bearer", vec![("authorization", &bearer)]),
            ("of this dialect in the other's header", vec![(other.auth_header(), token)]),
            (
                "right in one header, wrong in the other",
                vec![(header, token), (other.auth_header(), "wrong")],
            ),
        ];
        for (what, headers) in cases {
            let heard = talk(lock.port, upgrade_request(lock.port, &headers), BRIEFLY);
            let status = heard.status();
            assert!(
                matches!(status, Some(400 | 401 | 403 | 431)),
                "{dialect:?}, token {what}: {status:?}"
            );
            assert!(heard.closed, "{dialect:?}, token {what}: the connection was left open");
        }
        let missing = talk(lock.port, upgrade_request(lock.port, &[]), BRIEFLY);
        assert_eq!(missing.status(), Some(401));
        let query =
            upgrade_request(lock.port, &[]).replace("GET /", &format!("GET /?token={token}"));
        assert_eq!(talk(lock.port, query, BRIEFLY).status(), Some(401), "token in the query");

        let agent = Client::connect(&nvim, dialect);
        agent.ping();
        nvim.settle(Duration::from_millis(200));
        let told = format!("{}{}{:?}", nvim.log(), nvim.messages(), nvim.notifications());
        assert!(!told.contains(token), "the token was told: {told}");
    }
}

#[test]
fn t02_any_origin_header_is_refused() {
    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Claude);
    let token = (Dialect::Claude.auth_header(), lock.token.as_str());
    let own = format!("http://127.0.0.1:{}", lock.port);
    for origin in
        ["https://evil.example", "null", "http://localhost", &own, "vscode-webview://x", ""]
    {
        let request = upgrade_request(lock.port, &[token, ("Origin", origin)]);
        let heard = talk(lock.port, request, BRIEFLY);
        assert_eq!(heard.status(), Some(403), "Origin {origin:?}");
        let text = String::from_utf8_lossy(&heard.bytes).to_lowercase();
        assert!(!text.contains("access-control"), "{text}");
    }
}

#[test]
fn t02_another_host_is_refused() {
    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Claude);
    let token = (Dialect::Claude.auth_header(), lock.token.as_str());
    let port = lock.port;
    let other_port = format!("127.0.0.1:{}", if port == 1 { 2 } else { port - 1 });
    let rebound = format!("evil.example:{port}");
    for host in ["evil.example", &rebound, &other_port, "127.0.0.1.evil.example", "0.0.0.0"] {
        let heard = talk(port, upgrade_request(port, &[token, ("Host", host)]), BRIEFLY);
        assert_eq!(heard.status(), Some(403), "Host {host}");
    }
    let missing = talk(port, upgrade_request(port, &[token, ("Host", "")]), BRIEFLY);
    assert!(matches!(missing.status(), Some(400 | 403)), "no Host: {:?}", missing.status());
    let localhost = format!("localhost:{port}");
    let mut raw = Raw::connect(port);
    let head = raw.upgrade(&[token, ("Host", &localhost)]);
    assert_eq!(ws::status(head.as_bytes()), Some(101), "{head}");
}

#[test]
fn t02_plain_http_gets_nothing() {
    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Pi);
    for method in ["GET", "POST", "OPTIONS", "HEAD", "PUT"] {
        let request = format!(
            "{method} / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\n{}: {}\r\n\r\n",
            lock.port,
            Dialect::Pi.auth_header(),
            lock.token
        );
        let heard = talk(lock.port, request, BRIEFLY);
        assert!(matches!(heard.status(), Some(400..=499)), "{method}: {:?}", heard.status());
        let text = String::from_utf8_lossy(&heard.bytes).to_lowercase();
        assert!(!text.contains("access-control"), "{method}: {text}");
    }
}

#[test]
fn t04_claudes_headers_get_their_subprotocol_and_no_extension() {
    let nvim = Nvim::start();
    // What the answer holds is checked by every handshake of the harness (`check_head`).
    let agent = Client::connect(&nvim, Dialect::Claude);
    assert!(agent.head.to_lowercase().contains("sec-websocket-protocol: mcp"), "{}", agent.head);
    let lock = nvim.lock(Dialect::Claude);
    let token = (Dialect::Claude.auth_header(), lock.token.as_str());
    let bare = Client::builder(&nvim, Dialect::Claude).headers(&[token]).connect();
    assert!(!bare.head.to_lowercase().contains("sec-websocket-protocol"), "{}", bare.head);
}

#[test]
fn t04_headers_in_odd_case_and_in_pieces_are_understood() {
    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Pi);
    let header = Dialect::Pi.auth_header().to_uppercase();
    let request = upgrade_request(lock.port, &[(&header, &lock.token)])
        .replace("Upgrade: websocket", "uPGRADE: WebSocket")
        .replace("Connection: Upgrade", "CONNECTION: keep-alive, Upgrade");
    let mut raw = Raw::connect(lock.port);
    for piece in request.as_bytes().chunks(request.len() / 5 + 1) {
        raw.send(piece);
        std::thread::sleep(Duration::from_millis(50));
    }
    let head = raw.head();
    assert_eq!(ws::status(head.as_bytes()), Some(101), "{head}");
}

#[test]
fn t04_a_frame_right_behind_the_headers_is_not_lost() {
    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Pi);
    let mut bytes =
        upgrade_request(lock.port, &[(Dialect::Pi.auth_header(), &lock.token)]).into_bytes();
    bytes.extend(Frame::text(INITIALIZE).encode());
    let mut raw = Raw::connect(lock.port);
    raw.send(bytes);
    assert_eq!(ws::status(raw.head().as_bytes()), Some(101));
    raw.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let frame = ws::read_frame(&mut raw.stream).expect("an answer");
    let response: Value = serde_json::from_slice(&frame.payload).unwrap();
    assert_eq!(response["id"], json!(7));
    assert_eq!(response["result"]["protocolVersion"], "2024-11-05");
}

#[test]
fn t05_a_message_in_fragments_is_one_message() {
    let nvim = Nvim::start();
    let agent = Client::builder(&nvim, Dialect::Pi).silent().connect();
    let message = INITIALIZE.replace("\"id\":7", "\"id\":\"é漢\"");
    let cut = message.find('漢').unwrap() + 1; // in the middle of a character
    let parts = [
        &message.as_bytes()[..cut],
        &message.as_bytes()[cut..cut + 20],
        &message.as_bytes()[cut + 20..],
    ];
    let pending = agent.expect(json!("é漢"), "initialize");
    for (i, part) in parts.iter().enumerate() {
        let mut frame = Frame::new(if i == 0 { ws::TEXT } else { ws::CONTINUATION }, *part);
        frame.fin = i == 2;
        agent.send_frame(&frame);
        agent.ping();
    }
    assert!(pending.wait()["result"].is_object());
}

#[test]
fn t07_a_bad_frame_closes_with_its_code_and_hurts_nobody_else() {
    let nvim = Nvim::start();
    let other = Client::connect(&nvim, Dialect::Claude);
    let frame = |opcode: u8, payload: &[u8]| Frame::new(opcode, payload);
    let mut rsv = frame(ws::TEXT, b"{}");
    rsv.rsv = 4;
    let mut fragmented_ping = frame(ws::PING, b"x");
    fragmented_ping.fin = false;
    let mut unmasked = frame(ws::TEXT, b"{}");
    unmasked.masked = false;
    let mut open_end = frame(ws::TEXT, b"{");
    open_end.fin = false;
    let twice = [open_end.encode(), frame(ws::TEXT, b"{}").encode()].concat();
    let cases: Vec<(&str, Vec<u8>, u16)> = vec![
        ("an unknown opcode", frame(3, b"x").encode(), 1002),
        ("an unknown control opcode", frame(11, b"").encode(), 1002),
        ("a reserved bit", rsv.encode(), 1002),
        ("a long ping", frame(ws::PING, &[b'x'; 126]).encode(), 1002),
        ("a fragmented ping", fragmented_ping.encode(), 1002),
        ("an unmasked frame", unmasked.encode(), 1002),
        ("a close of one byte", frame(ws::CLOSE, b"\x03").encode(), 1002),
        ("a continuation of nothing", frame(ws::CONTINUATION, b"x").encode(), 1002),
        ("a message inside a message", twice, 1002),
        ("text that is no UTF-8", frame(ws::TEXT, b"{\"a\":\"\xc3\x28\"}").encode(), 1007),
    ];
    for (what, bytes, code) in cases {
        let agent = Client::connect(&nvim, Dialect::Pi);
        agent.send_bytes(&bytes);
        assert_eq!(agent.wait_closed().map(|(code, _)| code), Some(code), "{what}");
        assert!(other.ping() < Duration::from_secs(1), "{what}: another client");
    }
    let mut absurd = frame(ws::TEXT, b"{}");
    absurd.declared = Some(1 << 40);
    let agent = Client::connect(&nvim, Dialect::Pi);
    agent.send_frame(&absurd);
    assert_eq!(agent.wait_closed().map(|(code, _)| code), Some(1009), "an absurd length");
}

#[test]
fn t12_bare_probes_go_unnoticed() {
    let nvim = Nvim::builder().write("a.txt", "one\n").start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), "ONE\n");
    let review = nvim.shown(&pending);
    let port = nvim.lock(Dialect::Pi).port;
    let (fds, told) = (nvim.counts().get("fds"), nvim.messages());
    for _ in 0..300 {
        drop(Raw::connect(port));
    }
    let hello = [&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], &[7; 500]].concat();
    let probes: [&[u8]; 6] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &hello,
        b"\r\n\r\n",
        &[0; 100],
        b"SSH-2.0-x\r\n",
    ];
    for probe in probes {
        talk(port, probe, Duration::from_millis(100));
    }
    nvim.wait_until("the descriptors of the probes to be closed", || {
        nvim.counts().get("fds") <= fds + 3
    });
    assert_eq!(nvim.messages(), told);
    assert_eq!(nvim.status()["clients"].as_array().map(Vec::len), Some(1));
    assert!(!pending.is_answered());
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("ONE\n".into()));
}

#[test]
fn t14_ids_are_echoed_with_their_type() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    for id in
        [json!(1000), json!(""), json!(1.5), json!(1u64 << 53), json!(-3), json!("é😀"), json!("0")]
    {
        let pending = agent.request_with_id(id.clone(), "tools/list", json!({}));
        let response = pending.wait();
        assert_eq!(response["id"], id);
        assert!(response["result"].is_object(), "{response}");
    }
}

#[test]
fn t14_errors_have_their_codes_and_the_connection_stays() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let code = |pending: Pending| pending.wait()["error"]["code"].clone();
    assert_eq!(code(agent.request("no/such", json!({}))), json!(-32601));
    assert_eq!(
        code(agent.request("tools/call", json!({ "name": "noSuchTool", "arguments": {} }))),
        json!(-32602)
    );
    assert_eq!(
        code(
            agent.request(
                "tools/call",
                json!({ "name": "openDiff", "arguments": { "tab_name": 3 } })
            )
        ),
        json!(-32602)
    );

    let null = agent.expect(Value::Null, "what is no request");
    agent.send_text("{ this is no JSON");
    assert_eq!(code(null), json!(-32700));
    agent.notify("no/such/notification", json!({}));
    agent.send(
        &json!({ "jsonrpc": "2.0", "method": "tools/call", "params": { "name": "noSuchTool" } }),
    );
    assert!(agent.tools().len() >= 12);
    agent.lenient(); // several responses to `null` are right
}
