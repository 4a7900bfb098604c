//! Copilot CLI: the same over a Unix socket, with tools of its own.

use std::time::Duration;

use gangway::agents::mcp::{Family, Mention};
use gangway::context::Severity;
use gangway::review::Verdict;
use gangway::server::Limits;
use serde_json::{Value, json};

use super::http::{Agent, pause};
use super::support::{Rig, at, diagnostic, texts};

async fn rig() -> Rig {
    let mut rig = Rig::new().await;
    rig.open_socket();
    rig
}

fn result(answer: &Value) -> Value {
    serde_json::from_str(&texts(answer).concat()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recorded_handshake() {
    let rig = rig().await;
    let mut agent = Agent::new(&rig, Family::Copilot);
    let discover = agent.ask("server/discover", json!({})).await;
    assert_eq!(
        (discover.status, discover.json().await["error"]["code"].clone()),
        (200, json!(-32601))
    );
    let answer = agent.initialize("2025-11-25").await;
    assert_eq!(answer["serverInfo"]["name"], "vscode-copilot-cli");
    assert_eq!(agent.notify("notifications/initialized", json!({})).await, 202);
    let mut stream = agent.listen().await;
    let tools = agent.call("tools/list", json!({})).await;
    let tools = tools["result"]["tools"].as_array().unwrap().clone();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "get_vscode_info",
            "get_selection",
            "get_diagnostics",
            "open_diff",
            "close_diff",
            "update_session_name"
        ]
    );
    rig.show(at("/work/a b.txt", 2, Some((3, 1, "two"))));
    let position = |line, character| json!({"line": line, "character": character});
    let selected = json!({"text": "two", "filePath": "/work/a b.txt",
        "fileUrl": "file:///work/a%20b.txt",
        "selection": {"start": position(2, 0), "end": position(3, 1), "isEmpty": false}});
    assert_eq!(stream.note("selection_changed").await, selected);
    let mut now = result(&agent.tool("get_selection", json!({})).await);
    assert_eq!(now["current"].take(), true);
    now.as_object_mut().unwrap().remove("current");
    assert_eq!(now, selected);
    let named = agent.tool("update_session_name", json!({"name": "fix it"})).await;
    assert_eq!(result(&named), json!({"success": true}));
    let info = result(&agent.tool("get_vscode_info", json!({})).await);
    assert_eq!(info["appName"], "Neovim");
    assert_eq!(rig.mcp.clients()[0].name, "Copilot CLI");
    assert_eq!(agent.delete().await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn diagnostics_in_its_words() {
    let rig = rig().await;
    let mut state = at("/work/a.txt", 0, None);
    let list = [diagnostic(3, Severity::Error, "bad"), diagnostic(4, Severity::Info, "well")];
    state.diagnostics.insert("/work/a.txt".into(), list.into());
    state.diagnostics.insert("/work/clean.txt".into(), [].into());
    rig.show(state);
    let (mut agent, _stream) = Agent::ready(&rig, Family::Copilot).await;
    let all = result(&agent.tool("get_diagnostics", json!({})).await);
    let range = |line| json!({"start": {"line": line, "character": 0}, "end": {"line": line, "character": 2}});
    assert_eq!(
        all,
        json!([{"uri": "file:///work/a.txt", "filePath": "/work/a.txt", "diagnostics": [
            {"message": "bad", "severity": "error", "range": range(3)},
            {"message": "well", "severity": "information", "range": range(4)}]}])
    );
    let one = agent.tool("get_diagnostics", json!({"uri": "file:///work/a.txt"})).await;
    assert_eq!(result(&one), all);
    assert_eq!(result(&agent.tool("get_selection", json!({})).await)["text"], "");
    rig.show(gangway::context::Snapshot::default());
    assert_eq!(result(&agent.tool("get_selection", json!({})).await), Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_waits_for_the_user_and_cannot_be_edited() {
    let rig = rig().await;
    let path = rig.file("a.txt", "one\n");
    for (verdict, expected, trigger) in [
        (Verdict::Accept { text: "two\n".into() }, "SAVED", "accepted_via_button"),
        (Verdict::AlwaysAllow, "SAVED", "accepted_via_button"),
        (Verdict::Reject, "REJECTED", "rejected_via_button"),
    ] {
        let (mut agent, _stream) = Agent::ready(&rig, Family::Copilot).await;
        let asking = tokio::spawn({
            let path = path.clone();
            async move {
                let arguments = json!({"original_file_path": path, "new_file_contents": "two\n",
                    "tab_name": "a.txt (edit)"});
                let answer = agent.tool("open_diff", arguments).await;
                (agent, answer)
            }
        });
        let review = rig.reviews(1).await.remove(0);
        assert!(!review.editable, "its edits would be lost");
        // Long enough for the answer to come as a stream.
        pause(700).await;
        assert!(rig.desk.decide(&review.id, verdict));
        let (agent, answer) = asking.await.unwrap();
        let answer = result(&answer);
        assert_eq!((&answer["success"], &answer["result"]), (&json!(true), &json!(expected)));
        assert_eq!(
            (&answer["trigger"], &answer["tab_name"]),
            (&json!(trigger), &json!("a.txt (edit)"))
        );
        assert!(answer["message"].is_string());
        agent.delete().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn close_diff_and_hanging_up_take_the_question_back() {
    let rig = rig().await;
    let path = rig.file("a.txt", "one\n");
    let (mut agent, _stream) = Agent::ready(&rig, Family::Copilot).await;
    let arguments =
        json!({"original_file_path": path, "new_file_contents": "two\n", "tab_name": "t"});
    let call = json!({"name": "open_diff", "arguments": arguments});
    let asking = tokio::spawn({
        let (mut agent, call) = (Agent { next: 100, ..agent.clone() }, call.clone());
        async move { agent.call("tools/call", call).await }
    });
    rig.reviews(1).await;
    let closed =
        |already: bool| json!({"success": true, "already_closed": already, "tab_name": "t"});
    for already in [false, true] {
        let mut answer = result(&agent.tool("close_diff", json!({"tab_name": "t"})).await);
        assert!(answer.as_object_mut().unwrap().remove("message").unwrap().is_string());
        assert_eq!(answer, closed(already));
    }
    let answer = result(&asking.await.unwrap());
    assert_eq!(
        (&answer["result"], &answer["trigger"]),
        (&json!("REJECTED"), &json!("closed_via_tool"))
    );

    for wait in [0, 700] {
        let asking = tokio::spawn({
            let (mut agent, call) = (Agent { next: 200 + wait, ..agent.clone() }, call.clone());
            async move { agent.call("tools/call", call).await }
        });
        rig.reviews(1).await;
        pause(wait).await;
        asking.abort();
        rig.reviews(0).await;
    }
    assert_eq!(rig.mcp.client_count(), 1, "the session goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_kept_alive_for_as_long_as_people_think() {
    let keep_alive = Duration::from_millis(50);
    let mut rig = Rig::with(Limits { keep_alive, ..Limits::default() }).await;
    rig.open_socket();
    let path = rig.file("a.txt", "one\n");
    let (mut agent, _stream) = Agent::ready(&rig, Family::Copilot).await;
    let arguments =
        json!({"original_file_path": path, "new_file_contents": "two\n", "tab_name": "t"});
    let call = json!({"name": "open_diff", "arguments": arguments});
    let mut answer = agent.ask("tools/call", call).await;
    assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream"));
    for _ in 0..3 {
        assert_eq!(answer.event().await, Some(json!("keep-alive")));
    }
    rig.accept(&rig.reviews(1).await[0], "two\n");
    while answer.event().await.is_some_and(|event| event.is_string()) {}
    assert_eq!(answer.event().await, None);
    let stopping = agent.ask(
        "tools/call",
        json!({"name": "open_diff", "arguments": {
        "original_file_path": path, "new_file_contents": "two\n", "tab_name": "t"}}),
    );
    let mut answer = stopping.await;
    rig.reviews(1).await;
    rig.stop().await;
    loop {
        let event = answer.event().await.expect("no answer before the end");
        if event.is_object() {
            assert_eq!(result(&event)["result"], "REJECTED");
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_put_into_its_prompt() {
    let rig = rig().await;
    let path = rig.file("a.txt", "one\ntwo\nthree\n");
    let (_agent, mut stream) = Agent::ready(&rig, Family::Copilot).await;
    let send = |lines| {
        let mention = Mention { path: path.clone().into(), lines };
        assert_eq!(rig.mcp.mention(None, &mention).unwrap().name, "Copilot CLI");
    };
    send(None);
    let url = format!("file://{path}");
    assert_eq!(
        stream.note("add_file_reference").await,
        json!({"filePath": path, "fileUrl": url, "selection": null, "selectedText": null})
    );
    // It prints the line of the end, so that is the last one and not the one behind.
    send(Some((1, 2)));
    assert_eq!(
        stream.note("add_selection").await,
        json!({"filePath": path, "fileUrl": url, "selectedText": null, "selection": {
            "start": {"line": 1, "character": 0}, "end": {"line": 2, "character": 0}}})
    );
    rig.show(at(&path, 1, Some((2, 6, "two\nthré😀"))));
    send(Some((1, 2)));
    assert_eq!(
        stream.note("add_selection").await,
        json!({"filePath": path, "fileUrl": url, "selectedText": "two\nthré😀", "selection": {
            "start": {"line": 1, "character": 0}, "end": {"line": 2, "character": 6}}})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn its_token_opens_its_own_door_alone() {
    let rig = rig().await;
    let agent = Agent::new(&rig, Family::Copilot);
    let post = |agent: Agent| async move {
        let head = agent.head("POST", Some(0));
        agent.raw(&head, b"").await.status
    };
    assert_eq!(post(Agent { socket: None, ..agent.clone() }).await, 401, "over TCP");
    for wrong in ["Nonce wrong", "", "Bearer x"] {
        assert_eq!(post(Agent { authorization: wrong.into(), ..agent.clone() }).await, 401);
    }
    let gemini = format!("Bearer {}", rig.secret(Family::Gemini));
    assert_eq!(post(Agent { authorization: gemini, ..agent.clone() }).await, 401);
    let origin = agent.head("POST", Some(0)).replace("\r\n\r\n", "\r\norigin: null\r\n\r\n");
    assert_eq!(agent.raw(&origin, b"").await.status, 403);
    let elsewhere = agent.head("POST", Some(0)).replace("/mcp", "/");
    assert_eq!(agent.raw(&elsewhere, b"").await.status, 404);
    // Whatever it calls this end of the socket.
    let host = format!("127.0.0.1:{}", rig.port);
    let named = agent.head("POST", Some(2)).replace(&host, "localhost");
    assert_eq!(agent.raw(&named, b"{}").await.status, 400);
}
