//! Who comes in and who does not.

use std::time::Duration;

use gangway::agents::mcp::Family;
use gangway::server::Limits;
use gangway::server::auth::header;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::{Rig, frame, read_frame, read_head, read_out};

const PI: &str = "x-pi-ide-authorization";
const CLAUDE: &str = "x-claude-code-ide-authorization";

async fn status(rig: &Rig, request: &str) -> u16 {
    let mut tcp = rig.raw().await;
    tcp.write_all(request.as_bytes()).await.unwrap();
    let answer = String::from_utf8(read_out(&mut tcp).await).unwrap();
    assert!(!answer.to_ascii_lowercase().contains("access-control"), "{answer}");
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_its_one_right_token_gets_401_and_is_closed() {
    let rig = Rig::new().await;
    let (pi, claude) = (rig.secret(Family::Pi), rig.secret(Family::Claude));
    let (longer, long) = (format!("{pi}x"), "a".repeat(10_240));
    let upper = format!("{}Z", &pi.to_uppercase()[..35]);
    let wrong: [&[(&str, &str)]; 11] = [
        &[],
        &[(PI, "")],
        &[(PI, &upper)],
        &[(PI, &pi[..35])],
        &[(PI, &longer)],
        &[(PI, &long)],
        &[(PI, claude)],
        &[(PI, pi), (CLAUDE, "wrong")],
        &[(PI, pi), (CLAUDE, claude)],
        &[(PI, pi), (PI, pi)],
        &[("authorization", &format!("Bearer {pi}"))],
    ];
    for headers in wrong {
        assert_eq!(status(&rig, &rig.upgrade(headers)).await, 401, "{headers:?}");
    }
    let query = rig.upgrade(&[]).replace("GET / ", &format!("GET /?token={pi}&{PI}={pi} "));
    assert_eq!(status(&rig, &query).await, 401);
    let huge = rig.upgrade(&[(PI, &"a".repeat(1 << 20))]);
    let mut tcp = rig.raw().await;
    // It may close before it has read all of that.
    let _ = tcp.write_all(huge.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = tcp.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 1"), "accepted");
    assert_eq!(rig.mcp.client_count(), 0);
    rig.client(Family::Pi).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_and_other_names_of_this_machine_get_403() {
    let rig = Rig::new().await;
    let token = (PI, rig.secret(Family::Pi));
    for origin in ["https://evil.example", "null", "http://localhost", "vscode-webview://x"] {
        assert_eq!(status(&rig, &rig.upgrade(&[token, ("Origin", origin)])).await, 403);
    }
    for host in ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost"] {
        let host = format!("Host: {host}\r\n");
        let right = format!("Host: 127.0.0.1:{}\r\n", rig.port);
        let request = rig.upgrade(&[token]).replace(&right, &host);
        assert_eq!(status(&rig, &request).await, 403, "{host}");
    }
    let local = format!("Host: LocalHost:{}\r\n", rig.port);
    let request =
        rig.upgrade(&[token]).replace("Host: 127.0.0.1", "X: ").replace("X: ", "X: y\r\n");
    assert_eq!(status(&rig, &request).await, 400, "a broken header");
    let right = format!("Host: 127.0.0.1:{}\r\n", rig.port);
    let mut tcp = rig.raw().await;
    tcp.write_all(rig.upgrade(&[token]).replace(&right, &local).as_bytes()).await.unwrap();
    assert!(read_head(&mut tcp).await.starts_with("HTTP/1.1 101"));
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_gets_4xx_with_a_token_and_without() {
    let rig = Rig::new().await;
    for method in ["GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "TRACE", "FOO"] {
        for token in [rig.secret(Family::Pi), "wrong"] {
            let request = format!(
                "{method} / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\n{PI}: {token}\r\n\r\n",
                rig.port
            );
            let status = status(&rig, &request).await;
            assert!((400..500).contains(&status), "{method}: {status}");
            assert_eq!(status == 401, token == "wrong", "{method}: {status}");
        }
    }
    let elsewhere = rig.upgrade(&[(PI, rig.secret(Family::Pi))]).replace("GET / ", "GET /mcp ");
    assert_eq!(status(&rig, &elsewhere).await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_subprotocol_is_echoed_only_when_offered_and_no_extension_ever() {
    let rig = Rig::new().await;
    let token = (CLAUDE, rig.secret(Family::Claude));
    let mut tcp = rig.raw().await;
    let offer = [
        token,
        ("Sec-WebSocket-Protocol", "x, mcp"),
        ("Sec-WebSocket-Extensions", "permessage-deflate; client_max_window_bits"),
        ("User-Agent", "claude-code/2.1.332 (cli)"),
    ];
    tcp.write_all(rig.upgrade(&offer).as_bytes()).await.unwrap();
    let head = read_head(&mut tcp).await.to_ascii_lowercase();
    assert!(head.contains("sec-websocket-protocol: mcp\r\n"), "{head}");
    assert!(!head.contains("sec-websocket-extensions"), "{head}");
    let mut tcp = rig.raw().await;
    tcp.write_all(rig.upgrade(&[token]).as_bytes()).await.unwrap();
    let head = read_head(&mut tcp).await.to_ascii_lowercase();
    assert!(!head.contains("sec-websocket-protocol"), "{head}");
    // The example key of RFC 6455 is not this one, but the rule is: base64(sha1(key + GUID)).
    assert!(head.contains("sec-websocket-accept: "), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_case_split_headers_and_an_early_frame_are_fine() {
    let rig = Rig::new().await;
    let name = header(Family::Pi).as_str().to_uppercase();
    let mut request = rig
        .upgrade(&[(&name, rig.secret(Family::Pi))])
        .replace("Upgrade: websocket", "uPGRADE: WebSocket")
        .replace("Connection: Upgrade", "CONNECTION: keep-alive, Upgrade")
        .into_bytes();
    let ping = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"}).to_string();
    request.extend(frame(0x80, 1, ping.as_bytes()));
    let mut tcp = rig.raw().await;
    tcp.set_nodelay(true).unwrap();
    for part in request.chunks(request.len() / 5 + 1) {
        tcp.write_all(part).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(read_head(&mut tcp).await.starts_with("HTTP/1.1 101"));
    let (opcode, payload) = read_frame(&mut tcp).await;
    assert_eq!((opcode, payload), (1, br#"{"jsonrpc":"2.0","id":7,"result":{}}"#.to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_leave_no_trace_and_do_not_take_the_places_of_agents() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let path = rig.file("a.txt", "one\n");
    let diff = client.ask_diff(&path, "two\n", "t").await;
    let review = rig.reviews(1).await.remove(0);
    for _ in 0..300 {
        drop(rig.raw().await);
    }
    let hello = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".repeat(50);
    for _ in 0..20 {
        for noise in [&b"\r\n\r\n"[..], &[0; 100], b"SSH-2.0-x\r\n", &hello, b"GET / HTTP/1.1\r\n"]
        {
            let mut tcp = rig.raw().await;
            let _ = tcp.write_all(noise).await;
        }
    }
    assert_eq!(rig.mcp.client_count(), 1);
    assert_eq!(rig.events.lock().unwrap().len(), 1);
    rig.accept(&review, "two\n");
    let answer = client.answer(&diff).await;
    assert_eq!(super::support::texts(&answer), ["FILE_SAVED", "two\n"]);
    rig.client(Family::Pi).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_come_to_the_point_is_put_out() {
    let limits = Limits { handshake: Duration::from_millis(400), ..Limits::default() };
    let rig = Rig::with(limits).await;
    let mut idle = rig.raw().await;
    let mut slow = rig.raw().await;
    let begun = std::time::Instant::now();
    slow.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
    read_out(&mut slow).await;
    read_out(&mut idle).await;
    assert!(begun.elapsed() > Duration::from_millis(100), "at once");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_however_many_shut_nobody_out() {
    // Nobody is put out for being slow in this test.
    let limits = Limits { handshake: Duration::from_secs(600), strangers: 4, ..Limits::default() };
    let rig = Rig::with(limits).await;
    let mut first = rig.raw().await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        let mut one = rig.raw().await;
        one.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
        silent.push(one);
    }
    let agent = rig.client(Family::Pi).await;
    // The oldest had to go for it; an agent that is in stays in.
    read_out(&mut first).await;
    for _ in 0..40 {
        silent.push(rig.raw().await);
    }
    rig.client(Family::Claude).await;
    assert_eq!(rig.mcp.client_count(), 2);
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_agents_than_there_are_places_are_told_so() {
    let rig = Rig::with(Limits { sessions: 1, ..Limits::default() }).await;
    let first = rig.client(Family::Pi).await;
    let request = rig.upgrade(&[(PI, rig.secret(Family::Pi))]);
    assert_eq!(status(&rig, &request).await, 503);
    first.reset();
    super::support::until("the place", || (rig.mcp.client_count() == 0).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    rig.client(Family::Pi).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_has_the_same_port_and_tokens_and_a_taken_port_is_no_obstacle() {
    let mut rig = Rig::new().await;
    let port = rig.port;
    rig.client(Family::Pi).await;
    rig.stop().await;
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
    rig.start(Some(port), Limits::default()).await;
    assert_eq!(rig.port, port);
    rig.client(Family::Pi).await;
    let other = Rig::new().await;
    rig.stop().await;
    rig.start(Some(other.port), Limits::default()).await;
    assert_ne!(rig.port, other.port);
    rig.client(Family::Pi).await;
}
