//! What agents are told about the user: the cases of kinds S (selection) and G (diagnostics), with
//! real keys in a real terminal, heard by Pi and by Claude Code at once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::*;

struct Desk {
    nvim: Nvim,
    pi: Client,
    claude: Client,
}

fn desk(text: impl AsRef<[u8]>) -> Desk {
    desk_of(Nvim::builder().file("a.txt", text))
}

fn desk_of(builder: Builder) -> Desk {
    let nvim = builder.tty(24, 80).start();
    let pi = Client::connect(&nvim, Dialect::Pi);
    let claude = Client::connect(&nvim, Dialect::Claude);
    let desk = Desk { nvim, pi, claude };
    let path = desk.nvim.path("a.txt");
    for agent in [&desk.pi, &desk.claude] {
        agent.wait_selection("the file", |s| s["filePath"] == json!(path));
    }
    desk
}

fn place(selection: &Value, end: &str) -> (i64, i64) {
    let at = &selection["selection"][end];
    (at["line"].as_i64().unwrap(), at["character"].as_i64().unwrap())
}

fn is_something(selection: &Value) -> bool {
    selection["text"] != "" && selection["selection"]["isEmpty"] == json!(false)
}

impl Desk {
    /// Normal mode, nothing selected, and both agents know it.
    fn calm(&self) {
        self.nvim.wait_until("normal mode", || {
            self.nvim.input("<C-\\><C-n>");
            self.nvim.mode() == "n"
        });
        self.nvim.cmd("call cursor(1, 1)");
        self.nvim.settle(Duration::from_millis(400));
    }

    /// Types keys; what both agents then come to hear of, as the one selection that it is.
    #[track_caller]
    fn selects(&self, keys: &str, is: impl Fn(&Value) -> bool) -> Value {
        let before = [&self.pi, &self.claude].map(|agent| agent.selections().len());
        self.nvim.type_keys(keys);
        // Claude Code is told more than once in its first seconds, also what was before.
        let [pi, claude] = self.nvim.wait_for(&format!("the selection of {keys:?}"), || {
            let last = [(&self.pi, before[0]), (&self.claude, before[1])].map(|(agent, from)| {
                agent.selections()[from..].iter().rev().find(|s| is(s)).cloned()
            });
            let [Some(pi), Some(claude)] = last else { return None };
            (pi["text"] == claude["text"]).then_some([pi, claude])
        });
        for told in [&pi, &claude] {
            assert!(place(told, "start") <= place(told, "end"), "{keys:?}: {told}");
            let (line, column) = place(told, "end");
            let length = self.nvim.eval(&format!("strutf16len(getline({}))", line + 1));
            assert!(column <= length.as_i64().unwrap(), "{keys:?}: ends behind its line: {told}");
        }
        claude
    }

    fn latest(&self, tool: &str) -> Value {
        self.claude.tool_json(tool, json!({}))
    }
}

#[test]
fn s01_a_quick_selection_is_told_and_stays_until_the_cursor_moves() {
    let desk = desk("alpha beta\ngamma\ndelta\n");
    for (keys, text) in
        [("2GV\x1b", "gamma"), ("wviw\x1b", "beta"), ("ggVG\x1b", "alpha beta\ngamma\ndelta")]
    {
        desk.calm();
        let told = desk.selects(keys, is_something);
        assert_eq!(told["text"].as_str().unwrap().trim_end(), text, "{keys:?}");
        desk.nvim.settle(Duration::from_millis(600));
        for agent in [&desk.pi, &desk.claude] {
            assert!(
                is_something(agent.selections().last().unwrap()),
                "{keys:?}: it was taken back"
            );
        }
    }
    desk.nvim.type_keys("k");
    for agent in [&desk.pi, &desk.claude] {
        desk.nvim.wait_until("nothing to be selected", || {
            !is_something(agent.selections().last().unwrap())
        });
    }
}

#[test]
fn s03_whole_lines_three_to_four_are_those_for_pi_and_two_lines_for_claude() {
    let desk = desk("one\ntwo\nthree\nfour long\nfive\n");
    let whole = |s: &Value| s["text"].as_str().unwrap().trim_end() == "three\nfour long";
    let claude = desk.selects("3GVj", whole);
    let pi = desk.pi.selections().into_iter().rev().find(whole).unwrap();
    let printed = (place(&pi, "start").0 + 1, place(&pi, "end").0 + 1);
    assert_eq!(printed, (3, 4), "as Pi prints them: {pi}");
    let (end, column) = place(&claude, "end");
    let lines = end - place(&claude, "start").0 + 1 - i64::from(column == 0);
    assert_eq!(lines, 2, "as Claude counts them: {claude}");
}

#[test]
fn s03_an_empty_last_line_is_in_the_selection_for_every_agent() {
    let desk = desk("one\n\nthree\n\n\nsix\n\n");
    for (keys, text, lines) in [
        ("ggVj", "one\n\n", (1, 2)),
        ("3GVjj", "three\n\n\n", (3, 5)),
        ("2GV", "\n", (2, 2)),
        ("2GV\x1b", "\n", (2, 2)),
        ("ggvj", "one\n\n", (1, 2)),
        ("4Gvk", "three\n\n", (3, 4)),
        ("2Gv", "\n", (2, 2)),
        ("GV", "\n", (7, 7)),
        ("GVk", "six\n\n", (6, 7)),
        ("Gv5G", "\nsix\n", (5, 7)),
        ("gg\x16j", "o\n", (1, 2)),
    ] {
        desk.calm();
        let same = |s: &Value| s["text"] == text && s["selection"]["isEmpty"] == json!(false);
        let claude = desk.selects(keys, same);
        let (first, (end, column)) = (place(&claude, "start").0, place(&claude, "end"));
        let count = end - first + 1 - i64::from(column == 0);
        assert_eq!((first + 1, first + count), lines, "{keys:?}, as Claude counts: {claude}");
        let pi = desk.pi.selections().into_iter().rev().find(same).unwrap();
        let printed = (place(&pi, "start").0 + 1, place(&pi, "end").0 + 1);
        assert_eq!(printed, lines, "{keys:?}, as Pi prints them: {pi}");
    }
}

#[test]
fn s05_reversed_and_block_selections_are_what_was_highlighted() {
    let desk = desk("abcdef\n\tghi é😀\nmn\nopqrst\n");
    for (keys, text) in [
        ("2GVk", "abcdef\n\tghi é😀"),
        ("gg$vb", "abcdef"),
        ("gg0v$o", "abcdef\n"),
        ("jjl\x16klo", ""),
        ("l\x16jjjll", ""),
        ("4G$\x16kkkhh", ""),
        ("ll\x16j$", ""),
        ("4Gl\x16k$o", ""),
        ("vjj\x1bgggv", ""),
        ("2G$vh\x07", ""),
    ] {
        desk.calm();
        let told = desk.selects(keys, is_something);
        // The rest came while the selection was being made.
        desk.nvim.settle(Duration::from_millis(300));
        let told = desk.pi.selections().into_iter().next_back().unwrap_or(told);
        if !text.is_empty() {
            assert_eq!(told["text"], text, "{keys:?}");
        }
        // The yank is what counts; from select mode it is typed in visual mode.
        desk.nvim.type_keys(if keys.ends_with('\x07') { "\x07y" } else { "y" });
        desk.nvim.wait_until("normal mode", || desk.nvim.mode() == "n");
        let yanked: String = desk.nvim.lua("return vim.fn.getreg('\"')", ());
        let told = told["text"].as_str().unwrap();
        assert_eq!(told.trim_end_matches('\n'), yanked.trim_end_matches('\n'), "{keys:?}");
    }
}

#[test]
fn s07_the_last_file_and_its_selection_stay_told_wherever_the_user_looks() {
    let desk = desk("alpha beta\ngamma\n");
    desk.selects("viw\x1b", |s| s["text"] == "alpha");
    desk.nvim.settle(Duration::from_millis(300));
    let before = [&desk.pi, &desk.claude].map(|agent| agent.selections().len());
    let path = json!(desk.nvim.path("a.txt"));
    for leave in [
        "botright split | terminal cat",
        "startinsert",
        "doautocmd FocusLost",
        "lua local b = vim.api.nvim_create_buf(false, true); vim.bo[b].buftype = 'prompt'; \
         vim.api.nvim_open_win(b, true, { relative = 'editor', row = 1, col = 1, width = 9, height = 2 })",
    ] {
        desk.nvim.cmd(leave);
        desk.nvim.settle(Duration::from_millis(400));
        for tool in ["getLatestSelection", "getCurrentSelection"] {
            let told = desk.latest(tool);
            assert_eq!(
                (&told["filePath"], &told["text"]),
                (&path, &json!("alpha")),
                "{leave}: {tool}"
            );
        }
        for (agent, from) in [(&desk.pi, before[0]), (&desk.claude, before[1])] {
            for told in &agent.selections()[from..] {
                assert_eq!((&told["filePath"], &told["text"]), (&path, &json!("alpha")), "{leave}");
            }
        }
    }
    // Who comes now is told without a key press.
    let late = Client::connect(&desk.nvim, Dialect::Pi);
    late.wait_selection("the selection", |s| s["text"] == "alpha");
    desk.nvim.input("<C-\\><C-n>");
    desk.nvim.cmd("silent fclose!");
    desk.nvim.cmd("silent only! | bwipeout! a.txt");
    desk.nvim.wait_until("the wiped file to be forgotten", || {
        late.selections().last().is_some_and(|s| !is_something(s) && s["filePath"] != path)
    });
}

#[test]
fn s09_special_buffers_are_never_told_as_files() {
    let opts = json!({ "agents": { "aivyx": { "enabled": true }, "rivumi": { "enabled": true } } });
    let builder = Nvim::builder().opts(opts).before(
        // Without netrw a folder is a buffer like that of a file.
        "vim.fn.mkdir('.rivumi/ide', 'p') vim.fn.mkdir('folder') vim.g.loaded_netrwPlugin, vim.g.loaded_netrw = 1, 1",
    );
    let desk = desk_of(builder.after("vim.o.hidden = true").file("a.txt", "one\ntwo\nthree\n"));
    let (nvim, path) = (&desk.nvim, desk.nvim.path("a.txt"));
    let url = format!("file://{}", path.display());
    let state: String = nvim.lua("return vim.env.XDG_STATE_HOME", ());
    let context_of = || -> Option<Value> {
        let dir =
            std::fs::read_dir(std::path::Path::new(&state).join("aivyx-coder/editor-context"));
        let text = std::fs::read(dir.ok()?.next()?.ok()?.path()).ok()?;
        serde_json::from_slice(&text).ok()
    };
    let only_the_file = |wherever: &str| {
        nvim.input("<C-\\><C-n>gg");
        nvim.settle(Duration::from_millis(150));
        nvim.input("G$");
        nvim.settle(Duration::from_millis(300));
        for agent in [&desk.pi, &desk.claude] {
            for told in agent.selections() {
                assert_eq!(told["filePath"], json!(path), "{wherever}");
            }
        }
        for tool in ["getOpenEditors", "getOpenEditorTabs"] {
            let tabs = desk.claude.tool_json(tool, json!({}))["tabs"].clone();
            let told: Vec<_> = tabs.as_array().unwrap().iter().map(|tab| &tab["uri"]).collect();
            assert_eq!(told, [&json!(url)], "{wherever}: {tool}");
        }
        let current = desk.latest("getCurrentSelection");
        assert_eq!(current["filePath"], json!(path), "{wherever}");
        let open = nvim.wait_for("the snapshot", || {
            let text = std::fs::read(nvim.path(".rivumi/ide/open-files.json")).ok()?;
            let open: Value = serde_json::from_slice(&text).ok()?;
            open["files"].as_array().is_some_and(|files| !files.is_empty()).then_some(open)
        });
        assert_eq!(open["files"].as_array().unwrap().len(), 1, "{wherever}: {open}");
        let file = nvim.wait_for("aivyx's context", context_of)["file"].clone();
        assert_eq!(file, "a.txt", "{wherever}");
    };
    only_the_file("in the file");
    let pending = desk.claude.open_diff(&path, "one\nTWO\n");
    let review = nvim.shown(&pending);
    for pane in [&review.right, &review.left] {
        nvim.goto(pane.win);
        only_the_file("in a pane");
    }
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    for enter in [
        "help",
        "call setqflist([{ 'text': 'x', 'lnum': 1, 'filename': '/nowhere/q.txt' }]) | copen",
        "terminal cat",
        "new | setlocal buftype=nofile filetype=zork | file Explorer",
        "edit .",
        "badd folder",
        "enew | file oil:///tmp/",
        "enew | file fugitive:///x/.git//0/a",
        "enew | file /dev/stdin",
        "enew",
        "new | setlocal buftype=prompt",
    ] {
        nvim.cmd(&format!("silent {enter}"));
        only_the_file(enter);
        nvim.cmd("silent! only!");
        nvim.edit("a.txt");
        nvim.cmd("silent! %argdelete | call setqflist([])");
        nvim.lua::<Value>(
            "for _, b in ipairs(vim.api.nvim_list_bufs()) do
               if b ~= vim.api.nvim_get_current_buf() then
                 vim.api.nvim_buf_delete(b, { force = true })
               end
             end",
            (),
        );
    }
}

/// How long Neovim takes for one key, in the middle of all else: the median of some.
fn latency(nvim: &Nvim) -> Duration {
    let mut times: Vec<Duration> = (0..41)
        .map(|_| {
            let begun = Instant::now();
            nvim.input("l");
            nvim.lua::<Value>("return 1", ());
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn s11_a_flood_of_motions_and_a_deaf_agent_cost_the_user_nothing() {
    let text: String = (0..50_000).map(|i| format!("line {i}\n")).collect();
    let desk = desk_of(
        // This terminal does not say which background it has, and the complaint would end a macro.
        Nvim::builder()
            .before("vim.o.background = 'dark'")
            .file("a.txt", text)
            .write("big.txt", "0123456789abcde\n".repeat(655_360)),
    );
    let nvim = &desk.nvim;
    let more: Vec<Client> = [Dialect::Opencode, Dialect::Claude]
        .map(|dialect| Client::connect(nvim, dialect))
        .into_iter()
        .collect();
    let deaf = Client::builder(nvim, Dialect::Pi).deaf().connect();
    deaf.lenient();
    deaf.send(&json!({ "jsonrpc": "2.0", "id": "0", "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": {},
        "clientInfo": { "name": "pi-ide", "version": "0.2.1" } } }));
    nvim.wait_until("five agents", || nvim.status()["clients"].as_array().unwrap().len() == 5);
    let agents = [&desk.pi, &desk.claude, &more[0], &more[1]];
    let last_is = |what: &str, line: i64| {
        for agent in agents {
            let from = i64::from(agent.dialect() == Dialect::Opencode);
            nvim.wait_until(&format!("the last state, {what}"), || {
                let told = agent.selections();
                told.last().is_some_and(|s| place(s, "end").0 == line + from)
            });
        }
    };

    // `j` held down.
    let before = agents.map(|agent| agent.selections().len());
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        nvim.type_keys("j");
        std::thread::sleep(Duration::from_millis(10));
    }
    let came: Vec<usize> =
        agents.iter().zip(before).map(|(a, b)| a.selections().len() - b).collect();
    let seconds = begun.elapsed().as_secs_f64();
    for count in &came {
        assert!((*count as f64) <= 10.0 * seconds + 2.0, "{came:?} messages in {seconds:.1} s");
        assert!(*count >= 2, "silence while the user moves: {came:?}");
    }
    let line = || nvim.eval("line('.')").as_i64().unwrap() - 1;
    nvim.settle(Duration::from_millis(200));
    last_is("j held", line());

    // A macro of 10 000 motions.
    let before = agents.map(|agent| agent.selections().len());
    nvim.lua::<Value>("vim.fn.setreg('q', 'j')", ());
    let begun = Instant::now();
    nvim.type_keys("gg10000@q");
    // Neovim draws every line of it.
    let ended = poll(Duration::from_secs(60), || (line() == 10_000).then_some(()));
    assert!(ended.is_some(), "the macro is at line {}", line());
    let seconds = begun.elapsed().as_secs_f64();
    last_is("after the macro", 10_000);
    for (agent, before) in agents.iter().zip(before) {
        let came = (agent.selections().len() - before) as f64;
        assert!(came <= 10.0 * seconds + 10.0, "{came} messages in {seconds:.1} s");
    }

    // Everything in 10 MB, again and again: what the deaf one does not take is not kept for it.
    nvim.edit("big.txt");
    let idle = latency(nvim);
    let rounds = |n: usize| {
        for i in 0..n {
            nvim.type_keys(format!("\x1b{}GVG", i + 1));
            nvim.settle(Duration::from_millis(130));
        }
        nvim.lua::<Value>("collectgarbage() collectgarbage()", ());
        nvim.counts().get("rss_kib")
    };
    let first = rounds(15);
    let busy = latency(nvim);
    let second = rounds(45);
    assert!(second - first < 12_000, "memory grows with a deaf agent: {first} -> {second} KiB");
    assert!(busy < idle + Duration::from_millis(25), "one key took {busy:?}, {idle:?} before");
    assert!(desk.pi.ping() < Duration::from_secs(1));
    nvim.type_keys("\x1b");
    last_is("in the big file", 655_359);
}

#[test]
fn s13_sending_means_the_lines_meant_and_says_so_when_nobody_is_there() {
    let text: String = (1..=20).map(|i| format!("line {i}\n")).collect();
    let nvim = Nvim::builder()
        .tty(24, 80)
        .file("a.txt", text)
        .after(
            "vim.keymap.set('x', 'gs', ':<C-u>IdeSend<CR>')
             vim.keymap.set('x', 'gl', function() require('gangway').send() end)
             vim.keymap.set('x', 'gp', '<Plug>(gangway-send)')
             vim.fn.setreg('q', ':11,12IdeSend\\r')
             vim.ui.select = function(items, opts, chosen)
               _G.offered = vim.tbl_map(opts.format_item, items)
               vim.cmd.stopinsert()
               vim.schedule(function() chosen(items[2]) end)
             end",
        )
        .start();
    let path = json!(nvim.path("a.txt"));
    let claude = Client::connect(&nvim, Dialect::Claude);
    let mentions = |agent: &Client| -> Vec<Value> {
        let notes = agent.notes().into_iter().filter(|note| note.method == "at_mentioned");
        notes.map(|note| note.params).collect()
    };
    let calm = || {
        nvim.wait_until("normal mode", || {
            nvim.input("<C-\\><C-n>");
            nvim.mode() == "n"
        });
        nvim.cmd("call cursor(1, 1)");
        nvim.settle(Duration::from_millis(50));
    };
    for (keys, lines) in [
        ("3GVj:IdeSend\r", Some((2, 3))),
        (":8,9IdeSend\r", Some((7, 8))),
        ("6G3:IdeSend\r", Some((5, 7))),
        ("5GVjjgp", Some((4, 6))),
        ("7GVkgp", Some((5, 6))),
        ("9GvjgsG", Some((8, 9))),
        ("4G\x16jlgl", Some((3, 4))),
        ("@q", Some((10, 11))),
        (":5lua require('gangway').send({ line1 = 4, line2 = 2 })\r", Some((1, 3))),
        (":IdeSend\r", None),
    ] {
        calm();
        let before = mentions(&claude).len();
        nvim.type_keys(keys);
        nvim.wait_until(&format!("the mention of {keys:?}"), || mentions(&claude).len() > before);
        let told = mentions(&claude).pop().unwrap();
        let mut wanted = json!({ "filePath": path });
        if let Some((first, last)) = lines {
            wanted["lineStart"] = json!(first);
            wanted["lineEnd"] = json!(last);
        }
        assert_eq!(told, wanted, "{keys:?}");
        nvim.settle(Duration::from_millis(60));
        assert_eq!(mentions(&claude).len(), before + 1, "{keys:?}: more than one");
    }

    // Of two the user says which.
    calm();
    let opencode = Client::connect(&nvim, Dialect::Opencode);
    nvim.type_keys("3GVjgp");
    nvim.wait_until("the mention", || !mentions(&opencode).is_empty());
    let told = &mentions(&opencode)[0];
    assert_eq!((&told["lineStart"], &told["lineEnd"]), (&json!(3), &json!(4)), "it counts from 1");
    assert_eq!(nvim.lua::<usize>("return #_G.offered", ()), 2);

    // Pi knows no such message, and nobody at all is said.
    claude.close(1000);
    opencode.close(1000);
    nvim.wait_until("both to be gone", || nvim.status()["clients"] == json!([]));
    calm();
    nvim.type_keys(":3IdeSend\r");
    let told = |part: &str| nvim.notifications().iter().any(|text| text.contains(part));
    nvim.wait_until("a message", || told("no agent is connected"));
    let pi = Client::connect(&nvim, Dialect::Pi);
    nvim.type_keys(":3IdeSend\r");
    nvim.wait_until("a message", || told("Pi reads your selection by itself"));
    assert!(mentions(&pi).is_empty());
    nvim.cmd("IdeStop");
    nvim.type_keys(":3IdeSend\r");
    nvim.wait_until("a message", || told("not running (:IdeStart)"));
}

#[test]
fn the_lines_of_diagnostics_can_be_sent() {
    let nvim = Nvim::builder().file("a.txt", "1\n2\n3\n4\n5\n6\n7\n").start();
    let claude = Client::connect(&nvim, Dialect::Claude);
    nvim.lua::<Value>(
        "vim.diagnostic.set(vim.api.nvim_create_namespace('d'), 0, {
           { lnum = 1, col = 0, end_lnum = 4, end_col = 0, message = 'a block' },
           { lnum = 3, col = 0, message = 'in it' },
           { lnum = 5, col = 0, end_lnum = 90, end_col = 1, message = 'to behind the end' } })",
        (),
    );
    let sent = || {
        let notes = claude.notes().into_iter().filter(|note| note.method == "at_mentioned");
        notes
            .map(|note| (note.params["lineStart"].clone(), note.params["lineEnd"].clone()))
            .collect::<Vec<_>>()
    };
    for (command, lines) in [
        ("call cursor(3, 1) | IdeSend diagnostics", (1, 3)),
        ("1,2IdeSend diagnostics", (1, 3)),
        ("call cursor(7, 1) | IdeSend diagnostics", (5, 6)),
        ("lua require('gangway').send({ diagnostics = true, line1 = 4, line2 = 6 })", (1, 6)),
    ] {
        let before = sent().len();
        nvim.cmd(command);
        nvim.wait_until(&format!("the mention: {command}"), || sent().len() > before);
        assert_eq!(sent().pop(), Some((json!(lines.0), json!(lines.1))), "{command}");
    }
    let before = sent().len();
    nvim.cmd("call cursor(1, 1) | IdeSend diagnostics");
    nvim.cmd("IdeSend nonsense");
    nvim.settle(Duration::from_millis(100));
    let told = nvim.notifications();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("no diagnostics here"), "{told:?}");
    assert_eq!(sent().len(), before);
    let complete = "return vim.fn.getcompletion('IdeSend ', 'cmdline')";
    assert_eq!(nvim.lua::<Vec<String>>(complete, ()), ["diagnostics"]);
}

/// What `getDiagnostics` says of `a.txt`, to Claude Code: the messages, or `None` when it is not
/// known there.
fn findings(agent: &Client, nvim: &Nvim) -> Option<Vec<String>> {
    let uri = format!("file://{}", nvim.path("a.txt").display());
    let told = agent.tool_json("getDiagnostics", json!({ "uri": uri }));
    let file = told.as_array().unwrap().first()?;
    let items = file["diagnostics"].as_array().unwrap();
    Some(items.iter().map(|item| item["message"].as_str().unwrap().to_owned()).collect())
}

#[test]
fn g01_a_file_that_is_not_open_is_not_clean() {
    let nvim = Nvim::builder().write("a.txt", "one\n").start();
    let claude = Client::connect(&nvim, Dialect::Claude);
    let pi = Client::connect(&nvim, Dialect::Pi);
    let uri = format!("file://{}", nvim.path("a.txt").display());
    let of_pi = || pi.tool_json("getDiagnostics", json!({ "uri": uri }));
    assert_eq!(findings(&claude, &nvim), None, "never opened");
    assert_eq!(of_pi(), json!({}));
    nvim.cmd("badd a.txt");
    assert_eq!(findings(&claude, &nvim), None, "not loaded");
    nvim.edit("a.txt");
    assert_eq!(findings(&claude, &nvim), Some(vec![]), "open, without any source");
    assert_eq!(of_pi(), json!({ (uri.as_str()): [] }));
    let set = "vim.diagnostic.set(vim.api.nvim_create_namespace('d'), 0, ...)";
    nvim.lua::<Value>(set, (json!([{ "lnum": 0, "col": 0, "message": "m" }]),));
    assert_eq!(findings(&claude, &nvim), Some(vec!["m".to_owned()]));
    nvim.lua::<Value>(set, (json!([]),));
    assert_eq!(findings(&claude, &nvim), Some(vec![]), "no findings");
    nvim.cmd("enew | bdelete a.txt");
    assert_eq!(findings(&claude, &nvim), None, "closed again");
}

#[test]
fn g04_what_is_known_is_told_at_once_and_nothing_is_invented() {
    // A language server that needs half a second after each change.
    let server = "
      vim.lsp.start({ name = 'slow', root_dir = vim.fn.getcwd(), cmd = function(dispatchers)
        local closing = false
        return {
          request = function(method, params, callback)
            local result = method == 'initialize'
              and { capabilities = { textDocumentSync = { openClose = true, change = 1 } } } or vim.NIL
            callback(nil, result)
            return true, 1
          end,
          notify = function(method, params)
            if method ~= 'textDocument/didOpen' and method ~= 'textDocument/didChange' then return true end
            local version = params.textDocument.version
            vim.defer_fn(function()
              local at = { line = 0, character = 0 }
              dispatchers.notification('textDocument/publishDiagnostics', {
                uri = params.textDocument.uri,
                diagnostics = { { range = { start = at, ['end'] = at }, message = 'of ' .. version,
                  severity = 1 } } })
            end, 500)
            return true
          end,
          is_closing = function() return closing end,
          terminate = function() closing = true end,
        }
      end })";
    let nvim = Nvim::builder().file("a.txt", "one\ntwo\n").start();
    let claude = Client::connect(&nvim, Dialect::Claude);
    nvim.lua::<Value>(server, ());
    assert_eq!(findings(&claude, &nvim), Some(vec![]), "nothing is known yet");
    nvim.wait_until("its first word", || findings(&claude, &nvim) == Some(vec!["of 0".into()]));
    nvim.stall_start();
    nvim.cmd("call setline(1, 'changed')");
    let asked = Instant::now();
    assert_eq!(findings(&claude, &nvim), Some(vec!["of 0".into()]), "what is known");
    assert!(asked.elapsed() < Duration::from_millis(400), "{:?}", asked.elapsed());
    nvim.wait_until("what it says of the change", || {
        findings(&claude, &nvim).is_some_and(|told| told.len() == 1 && told[0] != "of 0")
    });
    assert!(nvim.stall() < Duration::from_millis(400), "{:?}", nvim.stall());
    // Neovim itself cannot answer: it sleeps.
    nvim.cmd_nowait("sleep 1500m | call setline(1, 'x')");
    nvim.cmd_nowait("lua local t = vim.uv.hrtime() while vim.uv.hrtime() - t < 1e9 do end");
    let asked = Instant::now();
    assert_eq!(findings(&claude, &nvim).map(|told| told.len()), Some(1));
    assert!(asked.elapsed() < Duration::from_millis(700), "{:?}", asked.elapsed());
    nvim.wait_until("Neovim to be back", || nvim.try_lua("return 1", ()).is_ok());
}

#[test]
fn g04_diagnostics_stay_within_a_text_that_has_become_shorter() {
    let nvim = Nvim::builder().file("a.txt", "long enough\n".repeat(100)).start();
    let pi = Client::connect(&nvim, Dialect::Pi);
    nvim.lua::<Value>(
        "vim.diagnostic.set(vim.api.nvim_create_namespace('d'), 0, {
           { lnum = 90, col = 5, end_lnum = 95, end_col = 8, message = 'far down' } })",
        (),
    );
    let range = || {
        let told = pi.tool_json("getDiagnostics", json!({}));
        let item = told.as_object().unwrap().values().next().unwrap()[0].clone();
        let at = |end: &str| {
            (item["range"][end]["line"].clone(), item["range"][end]["character"].clone())
        };
        (at("start"), at("end"))
    };
    assert_eq!(range(), ((json!(90), json!(5)), (json!(95), json!(8))));
    nvim.cmd("noautocmd call deletebufline('%', 11, '$') | noautocmd call setline(10, 'é')");
    let (start, end) = range();
    assert_eq!((start.0, end.0), (json!(9), json!(9)), "the last line");
    assert!(end.1.as_i64() <= Some(1), "within it: {}", end.1);
}

#[test]
fn g06_odd_findings_are_valid_json_for_both_and_none_is_of_a_pane_or_an_unnamed_buffer() {
    let nvim = Nvim::builder().file("a.txt", "one\ntwo\n").start();
    let (claude, pi) =
        (Client::connect(&nvim, Dialect::Claude), Client::connect(&nvim, Dialect::Pi));
    let pending = claude.open_diff(nvim.path("a.txt"), "one\nTWO\n");
    let review = nvim.shown(&pending);
    nvim.lua::<Value>(
        r"local file, pane = ...
          local ns, off = vim.api.nvim_create_namespace('odd'), vim.api.nvim_create_namespace('off')
          local loop = {} loop.loop = loop
          pcall(vim.diagnostic.set, ns, file, {
            { lnum = 0, col = 0, message = 'number', severity = 1, code = 42 },
            { lnum = 0, col = 0, message = 'table', severity = 1, code = { value = 'x' } },
            { lnum = 0, col = 0, message = 'no severity' },
            { lnum = 0, col = 0, message = 'two\nlines', severity = 3, source = 's' },
            { lnum = 1, col = 0, message = 'nul \0 bad \255', severity = 4, code = 'a\0\254' },
            { lnum = 1, col = 99, end_lnum = 0, end_col = 1, message = 'reversed', severity = 2 },
          })
          vim.diagnostic.set(off, file, { { lnum = 0, col = 0, message = 'hidden', severity = 1 } })
          if vim.diagnostic.hide then vim.diagnostic.hide(off, file) end
          pcall(vim.diagnostic.set, vim.api.nvim_create_namespace('cyclic'), file,
            { { lnum = 0, col = 0, message = 'cyclic', severity = 1, user_data = loop } })
          local unnamed = vim.api.nvim_create_buf(true, false)
          for _, buf in ipairs({ pane, unnamed }) do
            vim.diagnostic.set(ns, buf, { { lnum = 0, col = 0, message = 'elsewhere', severity = 1 } })
          end",
        (nvim.eval("bufnr('a.txt')"), review.right.buf),
    );
    for agent in [&claude, &pi] {
        // Every frame was checked to be UTF-8 and JSON by the client itself.
        let told = agent.tool_json("getDiagnostics", json!({}));
        let files: Vec<&Value> = match &told {
            Value::Object(map) => map.values().collect(),
            list => list.as_array().unwrap().iter().map(|file| &file["diagnostics"]).collect(),
        };
        assert_eq!(files.len(), 1, "{told}");
        let items = files[0].as_array().unwrap();
        let messages: Vec<&str> =
            items.iter().map(|item| item["message"].as_str().unwrap()).collect();
        for message in
            ["number", "table", "no severity", "two\nlines", "nul \0 bad \u{FFFD}", "reversed"]
        {
            assert!(messages.contains(&message), "{message:?} in {messages:?}");
        }
        assert!(!messages.contains(&"elsewhere"), "{messages:?}");
        for item in items {
            let severity = item["severity"].as_str().unwrap();
            assert!(
                ["Error", "Warning", "Information", "Info", "Hint"].contains(&severity),
                "{item}"
            );
            assert!(item["code"].is_null() || item["code"].is_i64() || item["code"].is_string());
            assert!(item["source"].is_null() || item["source"].is_string(), "{item}");
            let at = |end: &str| {
                let at = &item["range"][end];
                (at["line"].as_i64().unwrap(), at["character"].as_i64().unwrap())
            };
            assert!(at("start") <= at("end") && at("end").0 <= 1 && at("end").1 <= 3, "{item}");
        }
    }
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
}

#[test]
fn g_twenty_thousand_findings_are_answered_promptly_errors_first_with_a_note_of_the_rest() {
    let nvim = Nvim::builder().file("a.txt", "a line of text\n".repeat(20_000)).start();
    let claude = Client::connect(&nvim, Dialect::Claude);
    nvim.lua_within::<Value>(
        Duration::from_secs(30),
        "local items = {}
         for i = 1, 20000 do
           items[i] = { lnum = i - 1, col = 2, end_col = 6, severity = i % 4 + 1, message = 'no ' .. i }
         end
         vim.diagnostic.config({ virtual_text = false, underline = false, signs = false })
         vim.diagnostic.set(vim.api.nvim_create_namespace('d'), 0, items)",
        (),
    );
    nvim.settle(Duration::from_secs(1));
    let mut took: Vec<Duration> = (0..5)
        .map(|_| {
            let asked = Instant::now();
            let pending = claude.tool_request("getDiagnostics", json!({}));
            pending.wait();
            pending.answered_at().unwrap() - asked
        })
        .collect();
    took.sort_unstable();
    // 200 ms with a release build on a quiet machine; see `make bench`.
    assert!(took[2] < Duration::from_secs(1), "{took:?}");
    let told = claude.tool_json("getDiagnostics", json!({}));
    let items = told[0]["diagnostics"].as_array().unwrap();
    assert_eq!(items.len(), 10_000);
    assert!(items[..5000].iter().all(|item| item["severity"] == "Error"));
    assert!(items[5000..].iter().all(|item| item["severity"] == "Warning"));
    let rest = told[1]["diagnostics"][0]["message"].as_str().unwrap();
    assert!(rest.starts_with("10000 more"), "{rest}");
}

#[test]
fn l09_roots_are_told_alike_by_lock_files_and_tools_and_follow_the_user() {
    let nvim = Nvim::builder().write("repo/.git/HEAD", "x").write("repo/sub/a.txt", "x\n").start();
    let real = nvim.cwd.canonicalize().unwrap();
    std::os::unix::fs::symlink(real.join("repo"), real.join("link")).unwrap();
    for dir in ["tab", "win", "lsp"] {
        std::fs::create_dir_all(real.join("repo/sub").join(dir)).unwrap();
    }
    let claude = Client::connect(&nvim, Dialect::Claude);
    let folders = |lock: &Lock| -> Vec<String> {
        serde_json::from_value(lock.json["workspaceFolders"].clone()).unwrap()
    };
    let (pi_before, claude_before) = (nvim.lock(Dialect::Pi), nvim.lock(Dialect::Claude));
    let become_roots = |what: &str, wanted: &[&str]| {
        let wanted: Vec<String> = wanted
            .iter()
            .map(|dir| real.join(dir).display().to_string().trim_end_matches('/').to_owned())
            .collect();
        for (dialect, before) in [(Dialect::Pi, &pi_before), (Dialect::Claude, &claude_before)] {
            nvim.wait_until(&format!("{what}: {wanted:?}"), || {
                let now = nvim.locks(dialect);
                // What matters most leads.
                let now = now.first().map(folders).unwrap_or_default();
                now.first() == wanted.first() && wanted.iter().all(|dir| now.contains(dir))
            });
            let now = nvim.lock(dialect);
            assert_eq!((now.port, &now.token), (before.port, &before.token), "{what}");
        }
        let told = claude.tool_json("getWorkspaceFolders", json!({}));
        let told: Vec<String> = told["folders"]
            .as_array()
            .unwrap()
            .iter()
            .map(|folder| folder["path"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(told, folders(&nvim.lock(Dialect::Claude)), "{what}");
    };
    become_roots("at start", &[""]);
    nvim.cmd("cd repo/sub");
    become_roots("in a repository", &["repo/sub", "repo"]);
    nvim.cmd("tabnew | tcd tab | tabprevious");
    become_roots("a tab page elsewhere", &["repo/sub", "repo", "repo/sub/tab"]);
    nvim.cmd("split | lcd win | wincmd p");
    become_roots("a window elsewhere", &["repo/sub", "repo", "repo/sub/win"]);
    nvim.cmd("tabonly | only");
    nvim.lua::<Value>(
        "vim.cmd.edit('a.txt')
         vim.lsp.start({ name = 'x', root_dir = vim.fn.getcwd() .. '/lsp', cmd = function()
           return {
             request = function(_, _, done) done(nil, { capabilities = {} }) return true, 1 end,
             notify = function() return true end,
             is_closing = function() return false end,
             terminate = function() end,
           }
         end })",
        (),
    );
    become_roots("a language server's", &["repo/sub", "repo", "repo/sub/lsp"]);
    nvim.cmd("cd ../.. | set autochdir | edit repo/sub/a.txt");
    become_roots("autochdir", &["", "repo"]);
    nvim.cmd("set noautochdir");
    for (root, wanted) in [
        ("'LINK/sub'", vec!["link/sub", "repo/sub"]),
        ("function() return { 'LINK', 'LINK/sub/tab' } end", vec!["link", "repo", "link/sub/tab"]),
        ("function() return 'LINK/sub' end", vec!["link/sub", "repo/sub"]),
        ("'auto'", vec![""]),
    ] {
        nvim.cmd(&format!("cd {}", real.display()));
        let root = root.replace("LINK", real.join("link").to_str().unwrap());
        let setup = format!(
            "require('gangway').setup({{ auto_start = 'always', context = {{ root = {root} }} }})"
        );
        nvim.lua::<Value>(&setup, ());
        nvim.wait_until("a lock file", || nvim.locks(Dialect::Claude).len() == 1);
        let wanted: Vec<String> = wanted
            .iter()
            .map(|dir| real.join(dir).display().to_string().trim_end_matches('/').to_owned())
            .collect();
        nvim.wait_until(&format!("{root}: {wanted:?}"), || {
            nvim.locks(Dialect::Claude).first().is_some_and(|lock| {
                let now = folders(lock);
                wanted.iter().all(|dir| now.contains(dir)) && now[0] == wanted[0]
            })
        });
        assert_eq!(nvim.lock(Dialect::Claude).port, claude_before.port, "{root}");
    }
    claude.lenient();
}
