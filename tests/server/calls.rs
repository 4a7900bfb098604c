//! JSON-RPC over the wire, and every tool that is not a diff.

use std::time::Duration;

use gangway::agents::mcp::{ClientEvent, Dialect, Family, Mention, MentionError};
use gangway::agents::{Document, OpenFile};
use gangway::context::{OpenFile as Listed, Position, Severity, Snapshot};
use serde_json::{Value, json};

use super::support::{Rig, at, diagnostic, failure, until};

#[tokio::test(flavor = "multi_thread")]
async fn initialize_answers_known_versions_and_offers_the_newest_to_strangers() {
    let rig = Rig::new().await;
    let mut client = rig.connect(Family::Claude).await;
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2030-01-01", "2025-11-25"),
    ] {
        let result = client.introduce("claude-code", asked).await;
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            result,
            json!({"protocolVersion": answered, "capabilities": {"tools": {}},
                "serverInfo": {"name": "gangway.nvim", "version": version}})
        );
    }
    assert_eq!(client.call("ping", json!({})).await["result"], json!({}));
    assert_eq!(client.call("prompts/list", json!({})).await["result"], json!({"prompts": []}));
    assert_eq!(client.call("resources/list", json!({})).await["result"], json!({"resources": []}));
    let tools = client.call("tools/list", json!({})).await["result"]["tools"].clone();
    let names: Vec<&str> =
        tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    for name in [
        "openDiff",
        "close_tab",
        "closeAllDiffTabs",
        "getDiagnostics",
        "getOpenEditors",
        "getOpenEditorTabs",
        "getCurrentSelection",
        "getLatestSelection",
        "getWorkspaceFolders",
        "openFile",
        "checkDocumentDirty",
        "saveDocument",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_every_type_come_back_as_they_were() {
    let rig = Rig::new().await;
    let mut client = rig.connect(Family::Pi).await;
    for id in ["0", "\"\"", "\"0\"", "1.5", "-3", "9007199254740993", "1e300", "\"é😀\"", "null"]
    {
        client.send(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).await;
        use futures_util::StreamExt;
        let answer = client.socket.next().await.unwrap().unwrap().into_text().unwrap();
        assert_eq!(answer.as_str(), format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_their_codes_and_the_connection_stays() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let deep_call = format!(
        r#"{{"id":1,"method":"tools/call","params":{{"name":"openDiff","arguments":{{"tab_name":{deep}}}}}}}"#
    );
    let cases: Vec<(&str, i64, Value)> = vec![
        ("this is not JSON", -32700, json!(null)),
        ("", -32700, json!(null)),
        (r#"{"jsonrpc":"2.0","id":1,"#, -32700, json!(null)),
        ("5", -32600, json!(null)),
        ("null", -32600, json!(null)),
        ("[]", -32600, json!(null)),
        (&deep, -32600, json!(null)),
        (r#"[{"jsonrpc":"2.0","id":300,"method":"ping"}]"#, -32600, json!(null)),
        (r#"{"id":{}}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":106}"#, -32600, json!(106)),
        (r#"{"jsonrpc":"2.0","id":107,"method":5}"#, -32600, json!(107)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, -32601, json!(1)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#, -32601, json!(1)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":7}"#, -32602, json!(1)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#, -32602, json!(1)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}"#, -32602, json!(1)),
        (r#"{"id":1,"method":"tools/call","params":{"name":{}}}"#, -32602, json!(1)),
        (r#"{"id":1,"method":"tools/call","params":{"name":"none"}}"#, -32602, json!(1)),
        (r#"{"id":1,"method":"tools/call","params":{"name":"openDiff"}}"#, -32602, json!(1)),
        (
            r#"{"id":1,"method":"tools/call","params":{"name":"openDiff","arguments":null}}"#,
            -32602,
            json!(1),
        ),
        (
            r#"{"id":1,"method":"tools/call","params":{"name":"close_tab","arguments":[1]}}"#,
            -32602,
            json!(1),
        ),
        (&deep_call, -32602, json!(1)),
    ];
    for (text, code, id) in cases {
        client.send(text).await;
        let answer = client.answer(&id).await;
        assert_eq!(answer["error"]["code"], code, "{text}: {answer}");
        assert!(answer.get("result").is_none());
    }
    for silent in [
        r#"{"jsonrpc":"2.0","method":"no/such/notification"}"#,
        r#"{"jsonrpc":"2.0","method":"tools/call","params":5}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":999}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":555,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":556,"error":{"code":1,"message":"x"}}"#,
    ] {
        client.send(silent).await;
    }
    client.send(r#"{"jsonrpc":"2.0","id":200,"id":201,"method":"ping"}"#).await;
    client.answer(&json!(201)).await;
    let heard = client.listen(Duration::from_millis(100)).await;
    assert!(heard.iter().all(|message| message["method"] == "roots/list"), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_types_are_named() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let good = json!({"old_file_path": "/a", "new_file_path": "/a", "new_file_contents": "x",
        "tab_name": "t"});
    for field in ["old_file_path", "new_file_path", "new_file_contents", "tab_name"] {
        for wrong in [json!(5), json!({}), json!(true), json!(null)] {
            let mut arguments = good.clone();
            arguments[field] = wrong;
            let answer = client.tool("openDiff", arguments).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(field), "{answer}");
        }
        let mut arguments = good.clone();
        arguments.as_object_mut().unwrap().remove(field);
        let answer = client.tool("openDiff", arguments).await;
        assert_eq!(answer["error"]["message"], format!("{field} is missing"));
    }
    rig.reviews(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_known_by_what_they_say() {
    let rig = Rig::new().await;
    let quiet = rig.connect(Family::Claude).await;
    assert_eq!(rig.mcp.client_count(), 0, "not introduced yet");
    let mut claude = rig.client(Family::Claude).await;
    let asked = claude.answer_roots(json!([{"uri": "file:///work/sub dir"}])).await;
    assert_eq!(asked, 1);
    let pi = rig.client(Family::Pi).await;
    let mut opencode = rig.connect(Family::Claude).await;
    opencode.introduce("opencode", "2025-11-25").await;
    let mut other = rig.connect(Family::Claude).await;
    other.introduce("some\nagent", "2025-11-25").await;
    let clients = until("four clients and the root", || {
        let clients = rig.mcp.clients();
        (clients.len() == 4 && !clients[0].roots.is_empty()).then_some(clients)
    })
    .await;
    let names: Vec<&str> = clients.iter().map(|client| client.name.as_str()).collect();
    assert_eq!(names, ["Claude Code", "Pi", "opencode", "someagent"]);
    assert_eq!(clients[0].roots, [std::path::Path::new("/work/sub dir")]);
    assert_eq!(clients[0].pid, Some(4242));
    assert_eq!(clients[0].version.as_deref(), Some("1.2.3"));
    assert_eq!(clients[2].dialect, Dialect::Opencode);
    pi.reset();
    drop((quiet, claude, opencode, other));
    until("everybody's end", || (rig.mcp.client_count() == 0).then_some(())).await;
    let events = rig.events.lock().unwrap();
    let gone = events.iter().filter(|event| matches!(event, ClientEvent::Disconnected(_)));
    assert_eq!((events.len(), gone.count()), (8, 4));
}

impl super::support::Client {
    /// Answers the pending `roots/list`; returns how many there were.
    async fn answer_roots(&mut self, roots: Value) -> usize {
        let heard = self.listen(Duration::from_millis(100)).await;
        let asked: Vec<_> = heard.iter().filter(|m| m["method"] == "roots/list").collect();
        for request in &asked {
            let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": {"roots": roots}});
            self.send(answer.to_string()).await;
        }
        asked.len()
    }
}

fn with_diagnostics() -> Snapshot {
    let mut snapshot = at("/work/a.txt", 0, None);
    let list = [diagnostic(1, Severity::Warning, "hmm"), diagnostic(0, Severity::Error, "boom")];
    snapshot.diagnostics.insert("/work/new file é.txt".into(), list.into());
    snapshot.diagnostics.insert("/work/clean.txt".into(), [].into());
    snapshot
}

#[tokio::test(flavor = "multi_thread")]
async fn diagnostics_in_both_shapes() {
    let rig = Rig::new().await;
    rig.show(with_diagnostics());
    let entries = json!([
        {"message": "boom", "severity": "Error",
         "range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 2}}},
        {"message": "hmm", "severity": "Warning",
         "range": {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 2}}},
    ]);
    let raw = "file:///work/new file é.txt";
    let encoded = "file:///work/new%20file%20%C3%A9.txt";
    let mut claude = rig.client(Family::Claude).await;
    let mut pi = rig.client(Family::Pi).await;
    assert_eq!(
        claude.json("getDiagnostics", json!({})).await,
        json!([{"uri": raw, "diagnostics": entries}])
    );
    assert_eq!(pi.json("getDiagnostics", json!({})).await, json!({raw: entries}));
    for uri in [raw, encoded, "/work/new file é.txt"] {
        assert_eq!(
            claude.json("getDiagnostics", json!({"uri": uri})).await,
            json!([{"uri": uri, "diagnostics": entries}]),
            "echoed as asked"
        );
        assert_eq!(pi.json("getDiagnostics", json!({"uri": uri})).await, json!({uri: entries}));
    }
    let clean = "file:///work/clean.txt";
    assert_eq!(
        claude.json("getDiagnostics", json!({"uri": clean})).await,
        json!([{"uri": clean, "diagnostics": []}])
    );
    assert_eq!(pi.json("getDiagnostics", json!({"uri": clean})).await, json!({clean: []}));
    for unknown in ["file:///work/never.txt", "_claude_fs_right:/work/clean.txt", "", "x"] {
        let asked = json!({"uri": unknown});
        assert_eq!(claude.json("getDiagnostics", asked.clone()).await, json!([]));
        assert_eq!(pi.json("getDiagnostics", asked).await, json!({}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_found_by_its_other_name() {
    let rig = Rig::new().await;
    let real = rig.file("real.txt", "x");
    let link = rig.dir.path().join("link.txt");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let mut snapshot = at(&real, 0, None);
    let list = [diagnostic(0, Severity::Error, "boom")];
    snapshot.diagnostics.insert(real.into(), list.into());
    rig.show(snapshot);
    let mut claude = rig.client(Family::Claude).await;
    let uri = format!("file://{}", link.display());
    let answer = claude.json("getDiagnostics", json!({"uri": uri})).await;
    assert_eq!(
        (&answer[0]["uri"], &answer[0]["diagnostics"][0]["message"]),
        (&json!(uri), &json!("boom"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_diagnostics_are_answered_quickly() {
    let rig = Rig::new().await;
    let mut snapshot = at("/work/a.txt", 0, None);
    for file in 0..20 {
        let list: Vec<_> =
            (0..1000).map(|line| diagnostic(line, Severity::Hint, "a hint")).collect();
        snapshot.diagnostics.insert(format!("/work/{file}.txt").into(), list.into());
    }
    let error = [diagnostic(0, Severity::Error, "the one that counts")];
    snapshot.diagnostics.insert("/work/z.txt".into(), error.into());
    rig.show(snapshot);
    let mut pi = rig.client(Family::Pi).await;
    let begun = std::time::Instant::now();
    let texts = pi.texts("getDiagnostics", json!({})).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(texts[0].starts_with("{\"file:///work/z.txt\":[{\"message\":\"the one that counts\""));
    let by_uri: serde_json::Map<String, Value> = serde_json::from_str(&texts[0]).unwrap();
    let count: usize = by_uri.values().map(|list| list.as_array().unwrap().len()).sum();
    assert_eq!(count, 10_001);
    let note = by_uri["gangway:not-listed"][0]["message"].as_str().unwrap();
    assert!(note.starts_with("10001 more"), "{note}");
}

#[tokio::test(flavor = "multi_thread")]
async fn editors_selection_and_folders() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let nothing = client.json("getCurrentSelection", json!({})).await;
    assert_eq!(nothing["success"], false);
    let mut snapshot = at("/work/a b.txt", 2, Some((3, 9, "three\nfour long")));
    snapshot.files = vec![Listed {
        path: "/work/a b.txt".into(),
        language: "text".into(),
        active: true,
        visible: true,
        modified: true,
        last_visited: 5,
        cursor: Position::new(2, 0),
    }];
    rig.show(snapshot);
    let tabs = json!({"tabs": [{"uri": "file:///work/a b.txt", "isActive": true,
        "label": "a b.txt", "languageId": "text", "isDirty": true}]});
    for name in ["getOpenEditors", "getOpenEditorTabs"] {
        assert_eq!(client.json(name, json!({})).await, tabs);
    }
    for name in ["getCurrentSelection", "getLatestSelection"] {
        assert_eq!(
            client.json(name, json!({})).await,
            json!({"success": true, "text": "three\nfour long", "filePath": "/work/a b.txt",
                "fileUrl": "file:///work/a%20b.txt", "selection": {
                    "start": {"line": 2, "character": 0}, "end": {"line": 3, "character": 9},
                    "isEmpty": false}})
        );
    }
    assert_eq!(
        client.json("getWorkspaceFolders", json!({})).await,
        json!({"success": true, "rootPath": "/work", "folders": [
            {"name": "work", "uri": "file:///work", "path": "/work"},
            {"name": "work", "uri": "file:///real/work", "path": "/real/work"}]})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn open_file_passes_everything_on() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let asked = json!({"filePath": "/work/$x [1].txt", "preview": false, "startText": "here",
        "endText": "there", "selectToEndOfLine": true, "makeFrontmost": false});
    assert_eq!(
        client.json("openFile", asked).await,
        json!({"success": true, "filePath": "/work/$x [1].txt", "languageId": "rust",
            "lineCount": 7})
    );
    assert_eq!(
        rig.host.opened.lock().unwrap()[0],
        OpenFile {
            path: "/work/$x [1].txt".into(),
            start_text: Some("here".into()),
            end_text: Some("there".into()),
            line: None,
            select_to_end_of_line: true,
            make_frontmost: false,
        }
    );
    let said = |start: &str| json!({"filePath": "/work/a", "startText": start});
    let texts = client.texts("openFile", said("here")).await;
    assert_eq!(texts, ["Opened /work/a and selected the text"]);
    let texts = client.texts("openFile", said("nowhere")).await;
    assert_eq!(texts, ["Opened /work/a, but the text is not in it"]);
    assert_eq!(client.texts("openFile", said("")).await, ["Opened /work/a"]);
    let refused = client.tool("openFile", json!({"filePath": "/refused"})).await;
    assert_eq!(failure(&refused), "no such window");
    for path in ["rel/x", "~/x", "", "/nul\0"] {
        let refused = client.tool("openFile", json!({"filePath": path})).await;
        assert!(failure(&refused).contains("filePath"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_checked_and_saved() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let path = json!({"filePath": "/work/a.txt"});
    for name in ["checkDocumentDirty", "saveDocument"] {
        assert_eq!(
            client.json(name, path.clone()).await,
            json!({"success": false, "message": "Document not open: /work/a.txt"})
        );
    }
    let document = Document { modified: true, untitled: false };
    rig.host.documents.lock().unwrap().insert("/work/a.txt".into(), document);
    let dirty = json!({"success": true, "filePath": "/work/a.txt", "isDirty": true,
        "isUntitled": false});
    assert_eq!(client.json("checkDocumentDirty", path.clone()).await, dirty);
    let saved = client.json("saveDocument", path.clone()).await;
    assert_eq!((&saved["success"], &saved["saved"]), (&json!(true), &json!(true)));
    let again = client.json("saveDocument", path.clone()).await;
    assert_eq!((&again["success"], &again["saved"]), (&json!(true), &json!(false)));
    assert_eq!(client.json("checkDocumentDirty", path).await["isDirty"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_call_is_answered_and_harms_nothing_else() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let answer = client.tool("openFile", json!({"filePath": "/work/panic"})).await;
    assert!(failure(&answer).contains("internal error"), "{answer}");
    assert_eq!(client.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn mentions_go_to_the_one_that_is_meant() {
    let rig = Rig::new().await;
    let mention = Mention { path: "/work/a.txt".into(), lines: Some((2, 3)) };
    assert_eq!(rig.mcp.mention(None, &mention), Err(MentionError::NoClients));
    let pi = rig.client(Family::Pi).await;
    assert_eq!(rig.mcp.mention(None, &mention), Err(MentionError::Unsupported("Pi".into())));
    let mut claude = rig.client(Family::Claude).await;
    let sent = rig.mcp.mention(None, &mention).unwrap();
    assert_eq!(sent.name, "Claude Code");
    assert_eq!(
        claude.note("at_mentioned").await,
        json!({"filePath": "/work/a.txt", "lineStart": 2, "lineEnd": 3})
    );
    let mut opencode = rig.connect(Family::Claude).await;
    opencode.introduce("opencode", "2025-11-25").await;
    let Err(MentionError::Several(list)) = rig.mcp.mention(None, &mention) else { panic!() };
    assert_eq!(list.len(), 2);
    rig.mcp.mention(Some(list[1].id), &mention).unwrap();
    assert_eq!(
        opencode.note("at_mentioned").await,
        json!({"filePath": "/work/a.txt", "lineStart": 3, "lineEnd": 4})
    );
    drop(claude);
    until("its end", || (rig.mcp.client_count() == 2).then_some(())).await;
    assert_eq!(rig.mcp.mention(Some(list[0].id), &mention), Err(MentionError::Gone));
    drop(pi);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_taken_back_is_not_answered_not_even_at_the_end() {
    let mut rig = Rig::new().await;
    rig.host.busy.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut client = rig.client(Family::Pi).await;
    let taken_back = client.ask_tool("getOpenEditors", json!({})).await;
    let other = client.ask_tool("getOpenEditors", json!({})).await;
    client.notify("notifications/cancelled", json!({"requestId": taken_back})).await;
    client.call("ping", json!({})).await;
    let stopping = tokio::spawn(async move { rig.stop().await });
    let (heard, _) = client.until_closed().await;
    let answered: Vec<&Value> = heard.iter().map(|message| &message["id"]).collect();
    assert_eq!(answered, [&other]);
    stopping.await.unwrap();
}
