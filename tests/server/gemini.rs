//! Gemini CLI and Qwen Code: MCP over HTTP, diffs that end in notifications.

use std::time::Duration;

use gangway::agents::mcp::{ClientEvent, Family};
use gangway::context::{OpenFile, Position, Snapshot};
use gangway::review::{Kind, Verdict};
use gangway::server::Limits;
use serde_json::{Value, json};

use super::http::{Agent, Answer, pause};
use super::support::{Rig, at, failure, until};

const BOTH: [Family; 2] = [Family::Gemini, Family::Qwen];

async fn propose(agent: &mut Agent, path: &str, text: &str) {
    let answer = agent.tool("openDiff", json!({"filePath": path, "newContent": text})).await;
    assert_eq!(answer["result"], json!({"content": []}), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recorded_handshake_of_both() {
    let rig = Rig::new().await;
    for (family, version, name) in
        [(Family::Gemini, "2025-06-18", "Gemini CLI"), (Family::Qwen, "2025-11-25", "Qwen Code")]
    {
        let mut agent = Agent::new(&rig, family);
        let result = agent.initialize(version).await;
        assert_eq!(result["protocolVersion"], version);
        assert_eq!(result["serverInfo"]["name"], "gangway.nvim");
        assert_eq!(agent.notify("notifications/initialized", json!({})).await, 202);
        let mut stream = agent.listen().await;
        assert_eq!(stream.header("mcp-session-id"), agent.session);
        let tools = agent.call("tools/list", json!({})).await;
        let tools = tools["result"]["tools"].as_array().unwrap();
        let names: Vec<&Value> = tools.iter().map(|tool| &tool["name"]).collect();
        assert_eq!(names, ["openDiff", "closeDiff"]);
        assert_eq!(tools[0]["inputSchema"]["required"], json!(["filePath", "newContent"]));
        // The state that was there before, though nothing changes.
        let update = stream.note("ide/contextUpdate").await;
        assert_eq!(update, json!({"workspaceState": {"openFiles": []}}));
        let client = rig.mcp.clients().pop().unwrap();
        assert_eq!((client.name.as_str(), client.family), (name, family));
        assert_eq!(agent.delete().await, 200);
        until("the end of the session", || rig.mcp.clients().is_empty().then_some(())).await;
        assert!(stream.event().await.is_none(), "the stream ends with its session");
    }
    let events = rig.events.lock().unwrap();
    assert_eq!(events.len(), 4);
    assert!(matches!(events[3], ClientEvent::Disconnected(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_user_is_at_comes_as_open_files() {
    let rig = Rig::new().await;
    let (_agent, mut stream) = Agent::ready(&rig, Family::Gemini).await;
    stream.note("ide/contextUpdate").await;
    let file = |path: &str, last_visited| OpenFile {
        path: path.into(),
        language: "text".into(),
        active: false,
        visible: true,
        modified: false,
        last_visited,
        cursor: Position::default(),
    };
    let mut state = at("/work/a.txt", 4, Some((5, 2, "selected")));
    state.files = vec![file("/work/a.txt", 1700), file("/work/b.txt", 1600)];
    rig.show(state);
    assert_eq!(
        stream.note("ide/contextUpdate").await,
        json!({"workspaceState": {"openFiles": [
            {"path": "/work/a.txt", "timestamp": 1700, "isActive": true,
             "cursor": {"line": 5, "character": 1}, "selectedText": "selected"},
            {"path": "/work/b.txt", "timestamp": 1600}]}})
    );
    let mut long = at("/work/a.txt", 0, Some((1, 0, &"é😀".repeat(20_000))));
    long.diagnostics.insert("/work/a.txt".into(), [].into());
    rig.show(long);
    let update = stream.note("ide/contextUpdate").await;
    let text = update["workspaceState"]["openFiles"][0]["selectedText"].as_str().unwrap();
    assert_eq!(text.encode_utf16().count(), 16_384);
    rig.show(Snapshot { sharing: false, ..Snapshot::default() });
    let update = stream.note("ide/contextUpdate").await;
    assert_eq!(update, json!({"workspaceState": {"openFiles": []}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_edited_and_rejected() {
    let rig = Rig::new().await;
    let path = rig.file("a b.txt", "one\n");
    for family in BOTH {
        let (mut agent, mut stream) = Agent::ready(&rig, family).await;
        propose(&mut agent, &path, "two\n").await;
        let review = rig.reviews(1).await.remove(0);
        assert_eq!(&*review.origin, family.agent());
        assert!(review.editable);
        let Kind::Write { new, .. } = &review.kind else { panic!() };
        assert_eq!(&**new, "two\n");
        assert_eq!(rig.mcp.clients()[0].pending, 1);
        rig.accept(&review, "two\n");
        let accepted = stream.note("ide/diffAccepted").await;
        assert_eq!(accepted, json!({"filePath": path, "content": "two\n"}));

        propose(&mut agent, &path, "two\n").await;
        rig.accept(&rig.reviews(1).await[0], "edited\r\né\n");
        let accepted = stream.note("ide/diffAccepted").await;
        assert_eq!(accepted["content"], "edited\r\né\n");

        for verdict in [Verdict::Reject, Verdict::Dismissed] {
            propose(&mut agent, &path, "two\n").await;
            assert!(rig.desk.decide(&rig.reviews(1).await[0].id, verdict));
            let rejected = stream.note("ide/diffRejected").await;
            assert_eq!(rejected, json!({"filePath": path}));
        }
        agent.delete().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_that_is_answered_in_the_terminal_is_closed_as_quietly_as_asked() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let (mut agent, mut stream) = Agent::ready(&rig, Family::Gemini).await;
    for suppress in [json!(true), json!(false), json!(null)] {
        propose(&mut agent, &path, "two\n").await;
        rig.reviews(1).await;
        let arguments = json!({"filePath": path, "suppressNotification": suppress});
        let answer = agent.tool("closeDiff", arguments).await;
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"content": null}));
        rig.reviews(0).await;
        if suppress != json!(true) {
            assert_eq!(stream.note("ide/diffRejected").await, json!({"filePath": path}));
        }
    }
    // Of the first one nothing was heard.
    rig.show(at("/work/z", 1, None));
    let next = stream.event().await.unwrap();
    assert_eq!(next["method"], "ide/contextUpdate", "{next}");
    let other = agent.tool("closeDiff", json!({"filePath": "/never/opened"})).await;
    assert!(other["result"].get("isError").is_none(), "{other}");
}

/// A yes in Gemini's terminal takes what `closeDiff` answers, and the proposal when that is nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_user_typed_into_the_pane_is_the_answer_when_the_diff_is_closed() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    for family in BOTH {
        let (mut agent, _stream) = Agent::ready(&rig, family).await;
        // An empty text is none to these clients.
        for (typed, told) in [("mine\n", "mine\n"), ("", "\n")] {
            propose(&mut agent, &path, "two\n").await;
            rig.reviews(1).await;
            *rig.host.edited.lock().unwrap() = Some(typed.into());
            let arguments = json!({"filePath": path, "suppressNotification": true});
            let answer = agent.tool("closeDiff", arguments.clone()).await;
            let text = answer["result"]["content"][0]["text"].as_str().unwrap();
            assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"content": told}));
            rig.reviews(0).await;
            // There is nothing left to be asked about.
            let again = agent.tool("closeDiff", arguments).await;
            let text = again["result"]["content"][0]["text"].as_str().unwrap();
            assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"content": null}));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_proposal_is_accepted_as_one_empty_line_and_an_empty_one_as_it_is() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let (mut agent, mut stream) = Agent::ready(&rig, Family::Gemini).await;
    for (proposed, told) in [("two\n", "\n"), ("", "")] {
        propose(&mut agent, &path, proposed).await;
        rig.accept(&rig.reviews(1).await[0], "");
        assert_eq!(stream.note("ide/diffAccepted").await["content"], told);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_shown_is_an_error_and_the_agent_asks_in_its_terminal() {
    let rig = Rig::new().await;
    let (mut agent, _stream) = Agent::ready(&rig, Family::Gemini).await;
    for (path, named) in
        [("rel.txt", "filePath"), ("/dev/zero", "device"), ("/x\0y", "NUL"), ("/tmp/", "directory")]
    {
        let answer = agent.tool("openDiff", json!({"filePath": path, "newContent": ""})).await;
        assert!(failure(&answer).contains(named), "{answer}");
    }
    let answer = agent.tool("openDiff", json!({"filePath": "/x"})).await;
    assert_eq!(answer["error"]["message"], "newContent is missing");
    let answer = agent.tool("getDiagnostics", json!({})).await;
    assert_eq!(answer["error"]["code"], -32602, "not one of its tools");
    assert_eq!(agent.call("server/discover", json!({})).await["error"]["code"], -32601);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_rejects_before_the_stream_ends() {
    let mut rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let mut agents = Vec::new();
    for family in BOTH {
        let (mut agent, stream) = Agent::ready(&rig, family).await;
        propose(&mut agent, &path, "two\n").await;
        agents.push((agent, stream));
    }
    rig.reviews(2).await;
    let begun = std::time::Instant::now();
    let stopping = tokio::spawn(async move {
        rig.stop().await;
        rig
    });
    for (_, mut stream) in agents {
        assert_eq!(stream.note("ide/diffRejected").await, json!({"filePath": path}));
        while stream.event().await.is_some() {}
    }
    let rig = stopping.await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(450), "{:?}", begun.elapsed());
    assert!(rig.desk.is_empty());
    assert_eq!(rig.mcp.client_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_dies_takes_its_reviews_along_and_one_that_is_back_soon_keeps_them() {
    let absence = Duration::from_millis(400);
    let rig = Rig::with(Limits { absence, ..Limits::default() }).await;
    let path = rig.file("a.txt", "one\n");
    let (mut agent, stream) = Agent::ready(&rig, Family::Gemini).await;
    propose(&mut agent, &path, "two\n").await;
    let review = rig.reviews(1).await.remove(0);
    drop(stream);
    pause(100).await;
    // Decided while nobody listens: the next stream tells.
    rig.accept(&review, "two\n");
    pause(100).await;
    let mut stream = agent.listen().await;
    assert_eq!(stream.note("ide/diffAccepted").await["content"], "two\n");
    propose(&mut agent, &path, "three\n").await;
    rig.reviews(1).await;
    drop(stream);
    rig.reviews(0).await;
    until("the end of the session", || (rig.mcp.client_count() == 0).then_some(())).await;
    assert_eq!(agent.ask("ping", json!({})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_stream_takes_over_and_a_silent_one_is_kept_alive() {
    let keep_alive = Duration::from_millis(50);
    let rig = Rig::with(Limits { keep_alive, ..Limits::default() }).await;
    let (agent, mut first) = Agent::ready(&rig, Family::Qwen).await;
    first.note("ide/contextUpdate").await;
    assert_eq!(first.event().await, Some(json!("keep-alive")));
    let mut second = agent.listen().await;
    while first.event().await.is_some() {}
    rig.show(at("/work/z", 1, None));
    second.note("ide/contextUpdate").await;
}

/// A client that is stopped reads nothing: the server keeps the latest for it, not everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_gets_answers_and_later_the_latest() {
    let rig = Rig::new().await;
    let (mut agent, mut stream) = Agent::ready(&rig, Family::Gemini).await;
    let text = "x".repeat(16_000);
    for line in 0..20 {
        rig.show(at("/work/a", line, Some((line, 9, &text))));
        pause(20).await;
    }
    assert_eq!(agent.call("ping", json!({})).await["result"], json!({}));
    rig.show(at("/work/last", 1, None));
    loop {
        let update = stream.note("ide/contextUpdate").await;
        if update["workspaceState"]["openFiles"][0]["path"] == "/work/last" {
            break;
        }
    }
}

async fn status(agent: &Agent, head: &str) -> u16 {
    let answer: Answer = agent.raw(head, b"").await;
    assert!(!answer.head.to_ascii_lowercase().contains("access-control"), "{}", answer.head);
    answer.status
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_right_token_in_the_right_place_and_no_browser() {
    let rig = Rig::new().await;
    let agent = Agent::new(&rig, Family::Gemini);
    let gemini = rig.secret(Family::Gemini);
    let with = |authorization: String| Agent { authorization, ..agent.clone() };
    for wrong in [
        String::new(),
        "Bearer".into(),
        "Bearer wrong".into(),
        gemini.into(),
        format!("Nonce {gemini}"),
        format!("Bearer {gemini}x"),
        format!("Bearer {}", rig.secret(Family::Pi)),
        format!("Bearer {}", rig.secret(Family::Copilot)),
        format!("Nonce {}", rig.secret(Family::Copilot)),
        format!("Bearer {}", rig.secret(Family::Amp)),
    ] {
        let other = with(wrong.clone());
        for method in ["POST", "GET", "DELETE", "OPTIONS"] {
            assert_eq!(status(&other, &other.head(method, Some(0))).await, 401, "{wrong}");
        }
    }
    let query = agent.head("GET", None).replace("/mcp", &format!("/mcp?auth={gemini}"));
    assert_eq!(status(&agent, &query).await, 401);
    let post = agent.head("POST", Some(0));
    for origin in ["https://evil.example", "null", "http://localhost"] {
        let head = post.replace("\r\n\r\n", &format!("\r\norigin: {origin}\r\n\r\n"));
        assert_eq!(status(&agent, &head).await, 403, "{origin}");
    }
    for host in ["evil.example", "127.0.0.1", "host.docker.internal"] {
        let head = post.replace(&format!("127.0.0.1:{}", rig.port), host);
        assert_eq!(status(&agent, &head).await, 403, "{host}");
    }
    for path in ["/", "/mcp/", "/sse", "/mcp/x"] {
        let head = post.replace("/mcp", path);
        assert_eq!(status(&agent, &head).await, 404, "{path}");
    }
    assert_eq!(rig.mcp.client_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_get_their_status() {
    let rig = Rig::new().await;
    let (agent, _stream) = Agent::ready(&rig, Family::Gemini).await;
    let nobody = Agent { session: None, ..agent.clone() };
    let ping = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
    let answer = nobody.post(&ping).await;
    assert_eq!(answer.status, 400);
    let answer = answer.json().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-32000)));
    for method in ["GET", "DELETE"] {
        assert_eq!(status(&nobody, &nobody.head(method, None)).await, 400, "{method}");
    }
    let discover = json!({"jsonrpc": "2.0", "id": "d", "method": "server/discover"});
    let answer = nobody.post(&discover).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json().await["error"]["code"], -32601);
    let unknown = Agent { session: Some("no-such".into()), ..agent.clone() };
    assert_eq!(unknown.post(&ping).await.status, 404);
    // A session is not known to another family's token.
    let other = Agent { session: agent.session.clone(), ..Agent::new(&rig, Family::Qwen) };
    assert_eq!(other.post(&ping).await.status, 404);
    assert_eq!(status(&agent, &agent.head("PUT", Some(0))).await, 405);
    let head = agent.head("POST", Some(2)).replace("application/json\r\ncontent", "x\r\ncontent");
    assert_eq!(agent.raw(&head, b"{}").await.status, 415);
    let head = agent.head("GET", None).replace("text/event-stream", "text/html");
    assert_eq!(status(&agent, &head).await, 406);
    let answer = agent.raw(&agent.head("POST", Some(3)), b"\xff{}").await;
    assert_eq!(answer.status, 400);
    for (body, code) in [("{", -32700), ("[]", -32600), ("5", -32600), (r#"{"id":1}"#, -32600)] {
        let answer = agent.raw(&agent.head("POST", Some(body.len())), body.as_bytes()).await;
        assert_eq!(answer.json().await["error"]["code"], code, "{body}");
    }
    assert_eq!(agent.post(&ping).await.json().await["result"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_megabytes_pass_and_more_than_the_limit_does_not() {
    let rig = Rig::new().await;
    let path = rig.file("big.txt", "");
    let (mut agent, mut stream) = Agent::ready(&rig, Family::Gemini).await;
    let text = "0123456789abcde\n".repeat(655_360);
    propose(&mut agent, &path, &text).await;
    rig.accept(&rig.reviews(1).await[0], &text);
    let accepted = stream.note("ide/diffAccepted").await;
    assert_eq!(accepted["content"].as_str().map(str::len), Some(text.len()));
    let answer = agent.raw(&agent.head("POST", Some((64 << 20) + 1)), b"{").await;
    assert_eq!(answer.status, 413);
    assert_eq!(agent.call("ping", json!({})).await["result"], json!({}));
}
