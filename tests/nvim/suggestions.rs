//! `:IdeSuggest`: an agent goes on with the user's text, and nothing is put in unasked.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

const TEXT: &str = "local function f()\n  return\nend\n";

fn writing() -> (Nvim, Client) {
    let nvim = Nvim::builder().file("a.lua", TEXT).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.wait_until("the agent", || nvim.status()["clients"] != json!([]));
    nvim.input("jA <Cmd>IdeSuggest<CR>");
    (nvim, agent)
}

/// The question that is the `nth` (from 1) this agent was asked.
fn asked(nvim: &Nvim, agent: &Client, nth: usize) -> Value {
    nvim.wait_for("the question", || {
        let questions = agent.requests().into_iter().filter(|r| r["method"] == "getSuggestions");
        questions.collect::<Vec<_>>().get(nth - 1).cloned()
    })
}

fn answer(agent: &Client, question: &Value, texts: &[&str]) {
    let id = &question["id"];
    agent.send(&json!({ "jsonrpc": "2.0", "id": id, "result": { "suggestions": texts } }));
}

/// What is shown at the cursor and below, without the hint; empty when nothing is.
fn shown(nvim: &Nvim) -> String {
    nvim.lua(
        "local ns = vim.api.nvim_get_namespaces().gangway_suggestion
         local out = {}
         for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, ns, 0, -1, { details = true })) do
           for _, line in ipairs({ mark[4].virt_text, unpack(mark[4].virt_lines or {}) }) do
             local text = ''
             for _, chunk in ipairs(line) do
               if chunk[2] == 'GangwaySuggestion' then text = text .. chunk[1] end
             end
             out[#out + 1] = text
           end
         end
         return table.concat(out, '\\n')",
        (),
    )
}

fn wait_shown(nvim: &Nvim, text: &str) {
    nvim.wait_until(&format!("{text:?} at the cursor"), || shown(nvim) == text);
}

fn mapped(nvim: &Nvim) -> bool {
    nvim.lua("return vim.fn.maparg('<Tab>', 'i', false, true).buffer == 1", ())
}

#[test]
fn a_suggestion_is_shown_and_put_in_when_it_is_taken() {
    let (nvim, agent) = writing();
    let question = asked(&nvim, &agent, 1);
    assert_eq!(
        question["params"],
        json!({
            "filePath": nvim.path("a.lua"), "language": "lua", "suggestionCount": 3,
            "cursorBefore": "local function f()\n  return ", "cursorAfter": "\nend",
            "cursorInComment": false
        })
    );
    assert_eq!(shown(&nvim), " …");
    answer(&agent, &question, &["42"]);
    wait_shown(&nvim, "42");
    assert_eq!(nvim.lines(0)[1], "  return ", "nothing is in the buffer yet");
    assert!(mapped(&nvim));
    nvim.input("<Tab>");
    nvim.wait_until("the text", || nvim.lines(0)[1] == "  return 42");
    assert!(!mapped(&nvim));
    nvim.input("<Esc>");
    assert_eq!(nvim.lua::<Vec<i64>>("return vim.api.nvim_win_get_cursor(0)", ()), [2, 10]);
    nvim.input("u");
    nvim.wait_until("one step back", || nvim.lines(0)[1] == "  return ");
    assert!(agent.notes().iter().all(|note| note.method != "request_cancelled"));
}

#[test]
fn several_lines_and_several_suggestions_can_be_seen_before_they_are_taken() {
    let (nvim, agent) = writing();
    nvim.lua::<()>("vim.bo.tabstop = 4", ());
    answer(&agent, &asked(&nvim, &agent, 1), &["1", "{\r\n\ta = \u{1}\n}"]);
    wait_shown(&nvim, "1");
    nvim.input("<M-]>");
    wait_shown(&nvim, "{\n    a = ^A\n}");
    nvim.input("<M-]>");
    wait_shown(&nvim, "1");
    nvim.input("<M-]>");
    nvim.input("<Tab>");
    nvim.wait_until("the text", || nvim.lines(0).len() == 5);
    assert_eq!(nvim.lines(0), ["local function f()", "  return {", "\ta = \u{1}", "}", "end"]);
    assert_eq!(nvim.lua::<Vec<i64>>("return vim.api.nvim_win_get_cursor(0)", ()), [4, 1]);
}

#[test]
fn what_is_typed_goes_on_with_it_or_ends_it() {
    let (nvim, agent) = writing();
    answer(&agent, &asked(&nvim, &agent, 1), &["value()", "var"]);
    wait_shown(&nvim, "value()");
    nvim.input("va");
    wait_shown(&nvim, "lue()");
    nvim.input("r");
    // The first does not fit any more, and of the other nothing is left.
    wait_shown(&nvim, "");
    assert!(!mapped(&nvim));
    assert_eq!(nvim.lines(0)[1], "  return var");
    nvim.input("<Cmd>IdeSuggest<CR>");
    answer(&agent, &asked(&nvim, &agent, 2), &["iable"]);
    wait_shown(&nvim, "iable");
    nvim.input("<C-]>");
    wait_shown(&nvim, "");
    nvim.input("<Cmd>IdeSuggest<CR>");
    answer(&agent, &asked(&nvim, &agent, 3), &["iable"]);
    wait_shown(&nvim, "iable");
    nvim.input("<Esc>");
    wait_shown(&nvim, "");
    assert_eq!(nvim.lines(0)[1], "  return var");
    assert!(!nvim.lua::<bool>(
        "return pcall(vim.api.nvim_get_autocmds, { group = 'gangway_suggestion' })",
        ()
    ));
}

#[test]
fn a_question_that_is_of_no_use_any_more_is_taken_back() {
    let (nvim, agent) = writing();
    let question = asked(&nvim, &agent, 1);
    nvim.input("x");
    nvim.wait_until("it to be taken back", || {
        let mut notes = agent.notes().into_iter();
        notes.any(|note| note.method == "request_cancelled" && note.params["id"] == question["id"])
    });
    let cancelled = json!({ "code": -32800, "message": "Request cancelled" });
    agent.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "error": cancelled }));
    answer(&agent, &question, &["too late"]);
    nvim.settle(Duration::from_millis(100));
    assert_eq!(shown(&nvim), "");
    assert_eq!(nvim.notifications(), Vec::<String>::new());
    assert_eq!(nvim.lines(0)[1], "  return x");
}

#[test]
fn why_there_is_no_suggestion_is_said_once() {
    let (nvim, agent) = writing();
    let said = |what: &str| {
        nvim.wait_until(what, || {
            nvim.notifications().last().is_some_and(|said| said.contains(what))
        });
        assert_eq!(shown(&nvim), "");
    };
    let question = asked(&nvim, &agent, 1);
    let error = json!({ "code": -32603, "message": "no model\u{202e}\n" });
    agent.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "error": error }));
    said("cannot suggest anything: no model");
    nvim.input("<Cmd>IdeSuggest<CR>");
    answer(&agent, &asked(&nvim, &agent, 2), &["", " "]);
    said("has no suggestion");
    nvim.input("<Cmd>IdeSuggest<CR>");
    asked(&nvim, &agent, 3);
    agent.rst();
    said("has left");
    let claude = Client::connect(&nvim, Dialect::Claude);
    nvim.input("<Cmd>IdeSuggest<CR>");
    said("no agent that suggests text is connected");
    assert_eq!(claude.requests().iter().filter(|r| r["method"] == "getSuggestions").count(), 0);
    nvim.input("<Esc>:IdeSuggest<CR>");
    said("ask in insert mode");
    nvim.input(":help<CR>:setlocal modifiable noreadonly<CR>i<Cmd>IdeSuggest<CR>");
    said("this is no file");
    nvim.cmd("IdeStop");
    nvim.input("<Esc>:quit<CR>i<Cmd>PiSuggest<CR>");
    said("not running");
    assert_eq!(nvim.notifications().len(), 7);
}

#[test]
fn a_private_file_is_not_asked_about() {
    let nvim = Nvim::builder().file(".env", "KEY=\n").start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.wait_until("the agent", || nvim.status()["clients"] != json!([]));
    let refused = |count: usize| {
        nvim.wait_until("a message", || nvim.notifications().len() == count);
        assert!(nvim.notifications()[count - 1].contains("is kept from agents"));
    };
    nvim.input("A<Cmd>IdeSuggest<CR>");
    refused(1);
    nvim.edit(nvim.path("open.txt"));
    nvim.cmd("IdeShare off");
    let said = nvim.notifications().len();
    nvim.input("i<Cmd>IdeSuggest<CR>");
    refused(said + 1);
    assert_eq!(agent.requests(), Vec::<Value>::new());
}

#[test]
fn the_users_own_keys_come_back() {
    let nvim = Nvim::builder()
        .opts(json!({ "suggestion": { "keys": { "take": "<C-l>", "next": false } } }))
        .file("a.txt", "one\n")
        .start();
    nvim.lua::<()>(
        "vim.keymap.set('i', '<C-l>', function() vim.g.mine = true end, { buffer = 0 })
         vim.keymap.set('i', '<C-]>', 'global')",
        (),
    );
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.wait_until("the agent", || nvim.status()["clients"] != json!([]));
    nvim.input("A<Cmd>IdeSuggest<CR>");
    answer(&agent, &asked(&nvim, &agent, 1), &[" two"]);
    wait_shown(&nvim, " two");
    nvim.input("<C-l>");
    nvim.wait_until("the text", || nvim.lines(0)[0] == "one two");
    nvim.input("<C-l><C-]>");
    nvim.wait_until("both maps", || {
        nvim.lua::<bool>("return vim.g.mine == true", ()) && nvim.lines(0)[0] == "one twoglobal"
    });
}
