//! Every tool an agent may call, in the shape its dialect expects.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

const TOOLS: [&str; 12] = [
    "checkDocumentDirty",
    "closeAllDiffTabs",
    "close_tab",
    "getCurrentSelection",
    "getDiagnostics",
    "getLatestSelection",
    "getOpenEditorTabs",
    "getOpenEditors",
    "getWorkspaceFolders",
    "openDiff",
    "openFile",
    "saveDocument",
];

fn uri(path: &std::path::Path) -> String {
    format!("file://{}", path.display())
}

fn text(response: &Value) -> &str {
    response["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

/// Two findings in the current buffer.
fn diagnose(nvim: &Nvim) {
    nvim.lua::<Value>(
        "vim.diagnostic.set(vim.api.nvim_create_namespace('test'), 0, {
           { lnum = 0, col = 0, end_col = 3, message = 'boom', severity = 1, source = 'test' },
           { lnum = 1, col = 0, message = 'hmm', severity = 2 },
         })",
        (),
    );
}

#[test]
fn every_tool_is_listed_with_a_schema_of_an_object() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let mut names = agent.tools();
    names.sort();
    assert!(TOOLS.iter().all(|tool| names.contains(&(*tool).to_owned())), "{names:?}");
    let list = agent.call("tools/list", json!({}));
    for tool in list["result"]["tools"].as_array().unwrap() {
        let schema = &tool["inputSchema"];
        assert_eq!(schema["type"], "object", "{tool}");
        // An empty list instead of an empty object makes Claude ask again and again.
        assert!(schema.get("properties").is_none_or(Value::is_object), "{tool}");
        assert!(tool["description"].as_str().is_some_and(|d| !d.is_empty()), "{tool}");
    }
}

#[test]
fn the_version_an_agent_asks_for_is_answered_when_it_is_known() {
    let nvim = Nvim::start();
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let agent = Client::builder(&nvim, Dialect::Claude).silent().connect();
        let params = json!({
            "protocolVersion": asked,
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        });
        let response = agent.call("initialize", params);
        assert_eq!(response["result"]["protocolVersion"], answered, "asked for {asked}");
        assert!(response["result"]["capabilities"]["tools"].is_object(), "{response}");
        assert!(response["result"]["serverInfo"]["name"].is_string(), "{response}");
    }
}

#[test]
fn what_there_is_none_of_is_an_empty_list() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    assert_eq!(agent.call("prompts/list", json!({}))["result"]["prompts"], json!([]));
    assert_eq!(agent.call("resources/list", json!({}))["result"]["resources"], json!([]));
    assert_eq!(agent.call("ping", json!({}))["result"], json!({}));
}

#[test]
fn g02_each_dialect_gets_diagnostics_in_its_own_shape() {
    let nvim = Nvim::builder().file("a é.txt", "one\ntwo\n").start();
    diagnose(&nvim);
    let path = nvim.path("a é.txt");
    for args in [json!({}), json!({ "uri": uri(&path) })] {
        let pi = Client::connect(&nvim, Dialect::Pi).tool_json("getDiagnostics", args.clone());
        let items = pi.as_object().unwrap_or_else(|| panic!("Pi wants an object: {pi}"));
        assert_eq!(items.len(), 1, "{pi}");
        let (key, found) = items.iter().next().unwrap();
        assert!(key.starts_with("file:///"), "{key}");
        check(found);

        let claude = Client::connect(&nvim, Dialect::Claude).tool_json("getDiagnostics", args);
        let [file] =
            &claude.as_array().unwrap_or_else(|| panic!("Claude wants an array: {claude}"))[..]
        else {
            panic!("one file: {claude}")
        };
        // Claude compares without decoding.
        assert_eq!(file["uri"], uri(&path));
        check(&file["diagnostics"]);
    }

    fn check(items: &Value) {
        let told: Vec<_> = items
            .as_array()
            .unwrap()
            .iter()
            .map(|item| (item["severity"].as_str().unwrap(), item["message"].as_str().unwrap()))
            .collect();
        assert_eq!(told, [("Error", "boom"), ("Warning", "hmm")]);
        let start = json!({ "line": 0, "character": 0 });
        assert_eq!(items[0]["range"]["start"], start);
        assert_eq!(items[0]["range"]["end"], json!({ "line": 0, "character": 3 }));
    }
}

#[test]
fn diagnostics_of_an_unknown_file_are_none_and_no_error() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let answer = agent.tool("getDiagnostics", json!({ "uri": uri(&nvim.path("not yet.txt")) }));
    assert!(answer["error"].is_null() && answer["result"]["isError"] != json!(true), "{answer}");
}

#[test]
fn diagnostics_are_answered_while_a_prompt_holds_neovim() {
    let nvim = Nvim::builder().tty(20, 60).file("a.txt", "one\ntwo\n").start();
    diagnose(&nvim);
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.settle(Duration::from_millis(700));
    nvim.cmd_nowait("echo \"one\\ntwo\\nthree\"");
    nvim.wait_until("the hit-enter prompt", || nvim.blocked());
    let began = std::time::Instant::now();
    agent.tool("getDiagnostics", json!({}));
    assert!(began.elapsed() < Duration::from_millis(700), "{:?}", began.elapsed());
    assert!(agent.ping() < Duration::from_millis(200));
    nvim.dismiss_prompts();
}

#[test]
fn open_editors_are_the_files_and_nothing_else() {
    let nvim = Nvim::builder().write("b.lua", "x\n").file("a.txt", "one\n").start();
    nvim.edit("b.lua");
    nvim.set_lines(0, &["dirty"]);
    nvim.cmd("split | terminal cat");
    nvim.cmd("new | setlocal buftype=nofile");
    nvim.cmd("help");
    let agent = Client::connect(&nvim, Dialect::Claude);
    for tool in ["getOpenEditors", "getOpenEditorTabs"] {
        let answer = agent.tool_json(tool, json!({}));
        let mut tabs =
            answer["tabs"].as_array().unwrap_or_else(|| panic!("{tool}: {answer}")).clone();
        tabs.sort_by_key(|tab| tab["uri"].as_str().unwrap().to_owned());
        let told: Vec<_> =
            tabs.iter().map(|tab| (&tab["uri"], &tab["label"], &tab["isDirty"])).collect();
        let (a, b) = (json!(uri(&nvim.path("a.txt"))), json!(uri(&nvim.path("b.lua"))));
        assert_eq!(
            told,
            [(&a, &json!("a.txt"), &json!(false)), (&b, &json!("b.lua"), &json!(true))],
            "{tool}"
        );
        assert!(tabs.iter().all(|tab| tab["isActive"].is_boolean()), "{answer}");
    }
}

#[test]
fn workspace_folders_are_told() {
    let nvim = Nvim::start();
    let answer =
        Client::connect(&nvim, Dialect::Claude).tool_json("getWorkspaceFolders", json!({}));
    assert_eq!(answer["success"], json!(true));
    assert_eq!(answer["folders"][0]["path"], json!(nvim.cwd));
    assert_eq!(answer["folders"][0]["uri"], json!(uri(&nvim.cwd)));
    assert_eq!(answer["folders"][0]["name"], "work");
    assert_eq!(answer["rootPath"], json!(nvim.cwd));
}

#[test]
fn dirty_documents_are_told_and_saved_on_request() {
    let nvim = Nvim::builder().file("a b [1].txt", "one\n").start();
    let path = nvim.path("a b [1].txt");
    let agent = Client::connect(&nvim, Dialect::Claude);
    let dirty = || agent.tool_json("checkDocumentDirty", json!({ "filePath": path }));
    assert_eq!(dirty()["success"], json!(true));
    assert_eq!(dirty()["isDirty"], json!(false));
    nvim.set_lines(0, &["changed"]);
    assert_eq!(dirty()["isDirty"], json!(true));
    let saved = agent.tool_json("saveDocument", json!({ "filePath": path }));
    assert_eq!(saved["success"], json!(true), "{saved}");
    assert_eq!(dirty()["isDirty"], json!(false));
    assert_eq!(nvim.read("a b [1].txt"), b"changed\n");
}

#[test]
fn open_file_shows_the_file_and_selects_the_text() {
    let nvim = Nvim::builder().write("a 1.txt", "alpha\nbeta gamma\ndelta\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let path = nvim.path("a 1.txt");
    let args = json!({
        "filePath": path,
        "startText": "gamma",
        "endText": "delta",
        "makeFrontmost": true,
    });
    let answer = agent.tool("openFile", args);
    assert!(answer["error"].is_null() && answer["result"]["isError"] != json!(true), "{answer}");
    assert_eq!(
        nvim.lua::<String>("return vim.api.nvim_buf_get_name(0)", ()),
        path.to_str().unwrap()
    );
    assert_eq!(nvim.eval("line('.') >= 2 && line('.') <= 3"), json!(1));
    nvim.write("b.txt", "x\n");
    agent.tool("openFile", json!({ "filePath": nvim.path("b.txt"), "makeFrontmost": false }));
    assert_eq!(
        nvim.lua::<String>("return vim.api.nvim_buf_get_name(0)", ()),
        path.to_str().unwrap()
    );
}

#[test]
fn closing_what_is_not_there_is_answered_all_the_same() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    for tab in ["no such tab ✻ ⧉", ""] {
        assert_eq!(text(&agent.tool("close_tab", json!({ "tab_name": tab }))), "TAB_CLOSED");
    }
    assert_eq!(text(&agent.tool("closeAllDiffTabs", json!({}))), "CLOSED_0_DIFF_TABS");
}

#[test]
fn selections_are_there_on_request() {
    let nvim = Nvim::builder().file("a.txt", "alpha beta\ngamma\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.input("wviw");
    agent.wait_selection("the word", |s| s["text"] == "beta");
    for tool in ["getCurrentSelection", "getLatestSelection"] {
        let answer = agent.tool_json(tool, json!({}));
        assert_eq!(answer["text"], "beta", "{tool}: {answer}");
        assert_eq!(answer["filePath"], json!(nvim.path("a.txt")), "{tool}");
        assert_eq!(answer["selection"]["start"], json!({ "line": 0, "character": 6 }), "{tool}");
    }
}
