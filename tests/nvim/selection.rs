//! What agents learn about where the user is.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

fn range(selection: &Value) -> [i64; 4] {
    let number = |end: &str, what: &str| selection["selection"][end][what].as_i64().unwrap();
    [
        number("start", "line"),
        number("start", "character"),
        number("end", "line"),
        number("end", "character"),
    ]
}

fn is_empty(selection: &Value) -> bool {
    selection["text"] == "" && selection["selection"]["isEmpty"] == json!(true)
}

#[test]
fn pi_learns_the_present_state_right_after_initialize() {
    let nvim = Nvim::builder().file("a.txt", "one\ntwo\n").start();
    nvim.settle(Duration::from_millis(600));
    let connected = Instant::now();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let selection =
        agent.wait_selection("the file", |s| s["filePath"] == json!(nvim.path("a.txt")));
    assert!(is_empty(&selection), "{selection}");
    assert!(connected.elapsed() < Duration::from_millis(500), "{:?}", connected.elapsed());
    assert_eq!(selection["fileUrl"], json!(format!("file://{}", nvim.path("a.txt").display())));
}

#[test]
fn claude_is_told_when_it_listens() {
    let nvim = Nvim::builder().file("a.txt", "one\ntwo\n").start();
    nvim.settle(Duration::from_millis(600));
    let agent = Client::connect(&nvim, Dialect::Claude);
    let listed = Instant::now(); // connect() ends with tools/list
    agent.wait_selection("the file", |s| s["filePath"] == json!(nvim.path("a.txt")));
    std::thread::sleep(Duration::from_millis(1200).saturating_sub(listed.elapsed()));
    let heard = agent.notes().into_iter().any(|note| {
        // Earlier it is dropped.
        note.method == "selection_changed" && note.at > listed + Duration::from_millis(190)
    });
    assert!(heard, "nothing came after Claude began to listen");
}

#[test]
fn a_selection_is_told_in_utf16_with_its_end_after_the_last_character() {
    let nvim = Nvim::builder().file("a.txt", "é😀x y\nnext\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.input("lvl");
    let selection = agent.wait_selection("two characters", |s| s["text"] == "😀x");
    assert_eq!(range(&selection), [0, 1, 0, 4]);
    nvim.input("<Esc>V");
    let selection = agent.wait_selection("the line", |s| {
        s["text"].as_str().is_some_and(|text| text.trim_end() == "é😀x y")
    });
    assert_eq!(range(&selection)[..2], [0, 0]);
}

#[test]
fn s01_a_quick_selection_counts_until_the_cursor_moves() {
    let nvim = Nvim::builder().file("a.txt", "alpha beta\ngamma\ndelta\n").start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.settle(Duration::from_millis(500));
    nvim.input("2GV<Esc>");
    let gamma = |s: &Value| s["text"].as_str().is_some_and(|text| text.trim_end() == "gamma");
    agent.wait_selection("the line", gamma);
    nvim.settle(Duration::from_millis(600));
    assert!(gamma(agent.selections().last().unwrap()), "it was replaced without a move");
    nvim.input("k");
    agent.wait_selection("nothing selected in the first line", |s| is_empty(s) && range(s)[0] == 0);
}

#[test]
fn a_selection_outlasts_a_restart_until_the_user_moves() {
    let nvim = Nvim::builder().file("a.txt", "alpha beta\ngamma\ndelta\n").start();
    let first = |text: &str| {
        let agent = Client::connect(&nvim, Dialect::Pi);
        let told = agent.wait_selection("the file", |s| s["filePath"] == json!(nvim.path("a.txt")));
        assert_eq!(told["text"], text);
    };
    nvim.input("2GV<Esc>");
    nvim.settle(Duration::from_millis(400));
    first("gamma");
    for (keys, text) in [("", "gamma"), ("k", "")] {
        nvim.cmd("IdeStop");
        nvim.input(keys);
        nvim.cmd("IdeStart");
        nvim.wait_until("the lock file", || !nvim.locks(Dialect::Pi).is_empty());
        first(text);
    }
}

#[test]
fn claude_code_and_opencode_come_by_one_lock_file_and_each_hears_its_own_dialect() {
    let nvim = Nvim::builder().file("a.txt", "one\ntwo\nthree\n").start();
    assert_eq!(nvim.lock(Dialect::Claude).token, nvim.lock(Dialect::Opencode).token);
    let claude = Client::connect(&nvim, Dialect::Claude);
    let opencode = Client::connect(&nvim, Dialect::Opencode);
    nvim.input("jviw");
    let two = |s: &Value| s["text"] == "two";
    let first = |agent: &Client| range(&agent.wait_selection("the word", two))[0];
    assert_eq!((first(&claude), first(&opencode)), (1, 2), "opencode counts from one");

    // Each is mentioned a line as it counts, and only the one that is meant.
    let clients = nvim.status()["clients"].clone();
    let id = |name: &str| {
        let found = clients.as_array().unwrap().iter().find(|client| client["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {clients}"))["id"].clone()
    };
    let mentions = |agent: &Client| {
        let notes = agent.notes().into_iter().filter(|note| note.method == "at_mentioned");
        notes.map(|note| note.params["lineStart"].clone()).collect::<Vec<_>>()
    };
    for name in ["Claude Code", "opencode"] {
        let send = "require('gangway').send({ line1 = 3, line2 = 3, client = ... })";
        nvim.lua::<Value>(send, (id(name),));
    }
    nvim.wait_until("both mentions", || {
        [&claude, &opencode].iter().all(|a| !mentions(a).is_empty())
    });
    assert_eq!((mentions(&claude), mentions(&opencode)), (vec![json!(2)], vec![json!(3)]));

    // The one that goes takes nothing of the other's along.
    let asked = claude.open_diff(nvim.path("a.txt"), "one\nTWO\nthree\n");
    let review = nvim.shown(&asked);
    opencode.close(1000);
    nvim.wait_until("opencode to be gone", || {
        nvim.status()["clients"].as_array().is_some_and(|clients| clients.len() == 1)
    });
    nvim.accept(&review);
    assert_eq!(asked.verdict(), Verdict::Saved("one\nTWO\nthree\n".into()));
}

#[test]
fn s07_in_a_terminal_the_last_file_stays_reported() {
    let nvim = Nvim::builder().file("a.txt", "alpha beta\ngamma\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.input("viw<Esc>");
    agent.wait_selection("the word", |s| s["text"] == "alpha");
    nvim.settle(Duration::from_millis(400));
    let before = agent.selections().len();
    nvim.cmd("botright split | terminal cat");
    nvim.input("i");
    nvim.settle(Duration::from_millis(600));
    for selection in &agent.selections()[before..] {
        assert_eq!(selection["text"], "alpha", "{selection}");
    }
    let latest = agent.tool_json("getLatestSelection", json!({}));
    assert_eq!(latest["text"], "alpha", "{latest}");
}

#[test]
fn s11_a_flood_of_motions_is_a_trickle_of_messages() {
    let nvim = Nvim::builder().file("a.txt", "line\n".repeat(5000)).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.settle(Duration::from_millis(500));
    let before = agent.selections().len();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        nvim.input("j");
        std::thread::sleep(Duration::from_millis(10));
    }
    nvim.settle(Duration::from_millis(600));
    let came = agent.selections().len() - before;
    assert!((3..=50).contains(&came), "{came} messages in 2 s");
    let row = nvim.eval("line('.')").as_i64().unwrap();
    assert_eq!(range(agent.selections().last().unwrap())[0], row - 1, "the last state arrives");
}

#[test]
fn an_excluded_file_is_told_to_nobody() {
    let nvim = Nvim::builder().file(".env", "SECRET=hunter2\n").write("a.txt", "x\n").start();
    let agents = [Client::connect(&nvim, Dialect::Pi), Client::connect(&nvim, Dialect::Claude)];
    nvim.input("V");
    nvim.settle(Duration::from_millis(900));
    for agent in &agents {
        let told = format!(
            "{:?}{}{}{}",
            agent.notes(),
            agent.tool("getCurrentSelection", json!({})),
            agent.tool("getOpenEditors", json!({})),
            agent.tool("getDiagnostics", json!({})),
        );
        assert!(!told.contains(".env") && !told.contains("hunter2"), "{told}");
    }
}
