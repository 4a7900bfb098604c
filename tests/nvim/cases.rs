//! What broke for users of comparable plugins, one test a case: windows (D) and file contents (F).
//! The other modules have the rest, by the same ids.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

const OLD: &str = "one\ntwo\nthree\n";
const NEW: &str = "one\nTWO\nthree\n";

fn editor() -> Nvim {
    Nvim::builder().file("a.txt", OLD).write("b.txt", "other\n").write("c.txt", "third\n").start()
}

/// One whole review of `a.txt`; the panes are gone afterwards.
fn round(nvim: &Nvim, agent: &Client, accept: bool) -> Verdict {
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    if accept {
        nvim.accept(&review)
    } else {
        nvim.reject(&review)
    }
    let verdict = pending.verdict();
    agent.close_tab(&pending);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    verdict
}

/// Both ways to end a review leave the layout as it was.
fn both_ways_leave(nvim: &Nvim, agent: &Client, ignored: &[&str], what: &str) {
    for accept in [true, false] {
        let before = nvim.snapshot();
        let verdict = round(nvim, agent, accept);
        assert_eq!(verdict == Verdict::Saved(NEW.into()), accept, "{what}");
        before.assert_same_ignoring(&nvim.snapshot(), ignored, what);
    }
}

#[test]
fn d01_a_terminal_as_the_only_window_is_no_obstacle() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("terminal cat");
    nvim.cmd("only");
    let job = nvim.eval("&channel");
    // A terminal's buffer has as many lines as its window, which a tab line makes lower for a while.
    both_ways_leave(&nvim, &agent, &["registers", "buffers"], "a terminal alone");
    assert_eq!(nvim.lua::<Value>("return vim.fn.jobwait({...}, 0)[1]", json!([job])), json!(-1));
    // A hidden one takes notice of its size when it likes.
    nvim.cmd("bwipeout! | help | only");
    nvim.lua::<Value>(
        "return vim.api.nvim_open_win(vim.api.nvim_create_buf(false, true), false,
           { relative = 'editor', row = 1, col = 1, width = 10, height = 3 })",
        json!([]),
    );
    both_ways_leave(&nvim, &agent, &["registers"], "help and a float");
}

#[test]
fn d02_a_sidebar_keeps_its_buffer_width_and_options() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd(
        "topleft 30vnew | setlocal buftype=nofile nobuflisted winfixwidth filetype=zorkexplorer",
    );
    both_ways_leave(&nvim, &agent, &["registers"], "a sidebar");
}

#[test]
fn d04_windows_with_winfixbuf_are_left_alone() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("setlocal winfixbuf | vsplit | setlocal winfixbuf | split | setlocal winfixbuf");
    both_ways_leave(&nvim, &agent, &["registers"], "three fixed windows");
    assert!(!nvim.messages().contains("E1513"));
}

#[test]
fn d05_the_users_own_diff_survives_the_agents_closing() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("tabnew b.txt | diffthis | vsplit c.txt | diffthis | badd fugitive://x");
    // A tab page takes notice of the tab line only when it is entered.
    nvim.cmd("tabprevious | tabnext");
    let mine = nvim.snapshot();
    let closed = |agent: &Client| {
        agent.tool("closeAllDiffTabs", json!({}))["result"]["content"][0]["text"].clone()
    };
    assert_eq!(closed(&agent), "CLOSED_0_DIFF_TABS");
    mine.assert_same(&nvim.snapshot(), "nothing of ours was open");
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    nvim.shown(&pending);
    assert_eq!(closed(&agent), "CLOSED_1_DIFF_TABS");
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("our panes to go", || nvim.right_panes().is_empty());
    mine.assert_same(&nvim.snapshot(), "after ours was closed");
}

#[test]
fn d07_window_sizes_are_the_same_afterwards() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("botright 6split c.txt | wincmd k | leftabove 30vsplit b.txt | wincmd l");
    for option in ["equalalways", "noequalalways"] {
        nvim.cmd(&format!("set {option}"));
        both_ways_leave(&nvim, &agent, &["registers"], option);
    }
}

#[test]
fn d08_the_user_comes_back_to_where_they_were_and_is_not_moved_if_they_went_on() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("botright vsplit b.txt");
    let middle = nvim.eval("win_getid()").as_i64().unwrap();
    nvim.cmd("botright vsplit c.txt");
    let right = nvim.eval("win_getid()").as_i64().unwrap();
    nvim.goto(middle);
    both_ways_leave(&nvim, &agent, &["registers"], "from the middle window");
    nvim.cmd("tabnew b.txt | tabnew c.txt");
    // A tab page takes notice of the tab line only when it is entered.
    nvim.cmd("tabfirst | tabnext");
    both_ways_leave(&nvim, &agent, &["registers"], "from tab 2 of 3");
    // Decided by a command from another window: that is where the user stays.
    let before = nvim.snapshot();
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.wait_until("it to come into view", || nvim.eval("win_getid()") == review.right.win);
    nvim.cmd("tabfirst");
    nvim.cmd("tabnext");
    nvim.input(":IdeAccept<CR>");
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    before.assert_same_ignoring(&nvim.snapshot(), &["registers"], "by a command elsewhere");
    nvim.goto(middle);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    nvim.shown(&pending);
    nvim.goto(right);
    agent.close_tab(&pending);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    assert_eq!(nvim.eval("win_getid()"), json!(right), "the user had moved on");
}

#[test]
fn d14_a_proposal_in_two_windows_is_rejected_when_the_last_one_closes() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    for split in ["split", "tab split"] {
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.goto(review.right.win);
        nvim.settle(ARMED);
        nvim.cmd(split);
        nvim.input(":close<CR>");
        pending.assert_unanswered(Duration::from_millis(300));
        nvim.goto(review.right.win);
        nvim.input(":close<CR>");
        assert_eq!(pending.verdict(), Verdict::Rejected, "{split}");
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    }
}

#[test]
fn d16_the_panes_go_without_the_agents_help_and_every_close_is_answered() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    nvim.wait_until("the panes to go by themselves", || nvim.panes().is_empty());
    for name in [pending.tab.as_str(), pending.tab.as_str(), "no such tab ✻ ⧉", ""] {
        let answer = agent.tool("close_tab", json!({ "tab_name": name }));
        assert_eq!(answer["result"]["content"][0]["text"], "TAB_CLOSED", "{name:?}");
    }
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    let (one, two) = (
        agent.tool_request("close_tab", json!({ "tab_name": pending.tab })),
        agent.tool_request("close_tab", json!({ "tab_name": pending.tab })),
    );
    for answer in [one.wait(), two.wait()] {
        assert_eq!(answer["result"]["content"][0]["text"], "TAB_CLOSED");
    }
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the panes to go", || !nvim.win_exists(review.right.win));
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    nvim.shown(&pending);
    agent.rst();
    nvim.wait_until("the panes to go with the client", || nvim.panes().is_empty());
}

#[test]
fn d17_the_reviews_of_a_client_that_disappears_go_and_the_others_stay() {
    for how in ["rst", "fin", "close"] {
        let nvim = editor();
        let gone = Client::connect(&nvim, Dialect::Pi);
        let stays = Client::connect(&nvim, Dialect::Claude);
        for name in ["a.txt", "b.txt", "c.txt"] {
            let pending = gone.open_diff(nvim.path(name), "from the one that goes\n");
            nvim.shown(&pending);
        }
        let pending = stays.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        let told = nvim.notifications().len();
        match how {
            "rst" => gone.rst(),
            "fin" => gone.fin(),
            _ => gone.close(1000),
        }
        nvim.wait_until(&format!("{how}: its panes to go"), || nvim.right_panes().len() == 1);
        assert_eq!(nvim.status()["reviews"].as_array().unwrap().len(), 1, "{how}");
        pending.assert_unanswered(Duration::from_millis(200));
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()), "{how}");
        let told = nvim.notifications().split_off(told);
        assert!(told.len() <= 1, "{how}: {told:?}");
    }
}

#[test]
fn d19_no_buffer_tab_or_timer_is_left_behind() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let review = |name: &str, accept: bool| {
        let pending = agent.open_diff(nvim.path(name), NEW);
        nvim.wait_until("the panes", || !nvim.right_panes().is_empty());
        nvim.cmd(if accept { "IdeAccept!" } else { "IdeReject!" });
        assert_eq!(pending.verdict() == Verdict::Saved(NEW.into()), accept);
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    };
    let listed = || nvim.eval("len(getbufinfo({'buflisted': 1}))");
    review("a.txt", true);
    nvim.settle(Duration::from_millis(200));
    let (start, listed_at_start) = (nvim.counts(), listed());
    for (name, accept) in [("new.txt", true), ("new.txt", false), ("a.txt", true)] {
        for round in 0..20 {
            review(name, accept);
            if round % 5 == 4 {
                nvim.settle(Duration::from_millis(100));
                let grown = start.grown(&nvim.counts(), 0);
                assert!(grown.is_empty(), "{name}, round {round}: {grown:?}");
                assert_eq!(listed(), listed_at_start, "{name}, round {round}");
            }
        }
    }
}

#[test]
fn d21_a_decorated_proposal_closes_without_taking_neovim_along() {
    let nvim = Nvim::builder()
        .tty(24, 80)
        .before(
            "local ns = vim.api.nvim_create_namespace('deco')
             vim.api.nvim_set_decoration_provider(ns, {
               on_win = function() return true end,
               on_line = function(_, _, buf, row)
                 pcall(vim.api.nvim_buf_set_extmark, buf, ns, row, 0,
                   { ephemeral = true, virt_text = { { '*', 'Title' } }, virt_text_pos = 'overlay' })
               end })",
        )
        .start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("split | terminal cat");
    for i in 0..4 {
        let text = "# Title\n\n- a\n- b\n\n```lua\nx = 1\n```\n";
        let pending = agent.open_diff(nvim.path(format!("new{i}.md")), text);
        nvim.wait_until("the panes", || !nvim.right_panes().is_empty());
        nvim.settle(Duration::from_millis(150));
        nvim.decide(&agent, &pending, i % 2 == 0);
    }
    assert!(nvim.running());
}

#[test]
fn d22_a_new_file_can_be_rejected_and_proposed_again() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let path = nvim.path("dir with blank/new.py");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let before = nvim.snapshot();
    for (tab, accept) in [
        ("the same tab", false),
        ("the same tab", false),
        ("another", false),
        ("the same tab", true),
    ] {
        let pending = agent.open_diff_as(tab, &path, "print(1)\n");
        let review = nvim.shown(&pending);
        if accept {
            nvim.accept(&review)
        } else {
            nvim.reject(&review)
        }
        assert_eq!(pending.verdict() == Verdict::Saved("print(1)\n".into()), accept);
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        assert!(!path.exists(), "only the agent writes");
        before.assert_same_ignoring(&nvim.snapshot(), &["registers"], "after a new file");
    }
}

/// Everything about a file, and the folder it is in, that a write would change.
fn trace_of(path: &std::path::Path) -> (std::time::SystemTime, u64, Vec<u8>, Vec<String>) {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path).unwrap();
    let beside = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let mut names: Vec<String> =
        beside.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    (meta.modified().unwrap(), meta.ino(), std::fs::read(path).unwrap(), names)
}

#[test]
fn d28_the_agent_writes_the_file_and_the_editor_never_touches_it() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let path = nvim.path("a.txt");
    let before = trace_of(&path);
    for edit in ["", "Goedited<Esc>"] {
        for keys in [":w<CR>", ":x<CR>", ":wq<CR>", "\\a"] {
            let pending = agent.open_diff(&path, NEW);
            let review = nvim.shown(&pending);
            nvim.keys_in(&review.right, &format!("{edit}{keys}"));
            assert!(matches!(pending.verdict(), Verdict::Saved(_)), "{edit}{keys}");
            nvim.settle(Duration::from_millis(100));
            assert_eq!(trace_of(&path), before, "{edit}{keys}");
            agent.close_tab(&pending);
            nvim.wait_until("the panes to go", || nvim.panes().is_empty());
            assert_eq!(trace_of(&path), before, "{edit}{keys}, after the panes have gone");
        }
    }
}

#[test]
fn d30_no_language_server_hears_of_a_proposal_and_it_is_highlighted_all_the_same() {
    let nvim = Nvim::builder()
        .after(
            "_G.opened = {}
             vim.cmd('syntax on | filetype on')
             vim.api.nvim_create_autocmd('FileType', { pattern = 'lua', callback = function(ev)
               table.insert(_G.opened, vim.api.nvim_buf_get_name(ev.buf)) end })",
        )
        .write("a.lua", "local x = 1\n")
        .start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending = agent.open_diff(nvim.path("a.lua"), "local x = 2\n");
    let review = nvim.shown(&pending);
    let code = "local b = ... return vim.bo[b].syntax == 'lua' or vim.treesitter.highlighter.active[b] ~= nil";
    nvim.wait_until("highlighting", || nvim.lua(code, json!([review.right.buf])));
    assert_eq!(nvim.lua::<Vec<String>>("return _G.opened", json!([])), Vec::<String>::new());
}

#[test]
fn d32_maps_and_options_of_the_file_are_as_before() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let keys = ["\\a", "\\r", "\\x", "ZZ", "]c", "u"];
    nvim.lua::<Value>(
        "for _, key in ipairs(...) do
           vim.keymap.set('n', key, function() return 'x' end, { buffer = 0, expr = true })
           vim.keymap.set('n', key, ':echo 1<cr>')
         end",
        json!([keys]),
    );
    nvim.cmd("setlocal wrap foldmethod=indent foldlevel=7 noscrollbind signcolumn=yes | vsplit");
    let before = nvim.snapshot_with_keys(&keys);
    for accept in [true, false] {
        round(&nvim, &agent, accept);
        let after = nvim.snapshot_with_keys(&keys);
        before.assert_same_ignoring(&after, &["registers"], "maps and options");
    }
}

#[test]
fn d34_the_cursor_stays_on_its_text_when_lines_are_inserted_above() {
    let text: String = (1..=500).map(|i| format!("line {i}\n")).collect();
    let nvim = Nvim::builder().file("big.txt", &text).start();
    nvim.lua::<Value>("vim.fn.winrestview({ lnum = 250, col = 3, topline = 241 })", json!([]));
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("normal! m'");
    nvim.edit("other.txt");
    nvim.edit("big.txt");
    nvim.lua::<Value>("vim.fn.winrestview({ lnum = 250, col = 3, topline = 241 })", json!([]));
    let whereabouts = || nvim.eval("[winsaveview(), bufname('#'), getjumplist()]");
    let before = whereabouts();
    for accept in [false, true] {
        let pending = agent.open_diff(nvim.path("big.txt"), &format!("{text}more\n"));
        nvim.decide(&agent, &pending, accept);
        assert_eq!(whereabouts(), before, "accepted: {accept}");
    }
    let more: String = (0..20).map(|i| format!("new {i}\n")).collect();
    let new = text.replace("line 100\n", &format!("line 100\n{more}"));
    let pending = agent.open_diff(nvim.path("big.txt"), &new);
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    pending.verdict();
    nvim.write("big.txt", &new);
    agent.close_tab(&pending);
    nvim.wait_until("the reload", || nvim.eval("line('$')") == json!(520));
    assert_eq!(nvim.eval("getline('.')"), json!("line 250"));
    assert_eq!(nvim.eval("expand('#:t')"), json!("other.txt"));
    assert!(!nvim.eval("string(getjumplist())").to_string().contains("gangway"));
}

#[test]
fn d35_the_same_tab_name_rejects_and_replaces_the_first() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let first = agent.open_diff_as("t", nvim.path("a.txt"), "first\n");
    nvim.shown(&first);
    let second = agent.open_diff_as("t", nvim.path("a.txt"), "second\n");
    assert_eq!(first.verdict(), Verdict::Rejected);
    let review = nvim.shown(&second);
    nvim.wait_until("the first one's panes to go", || nvim.right_panes().len() == 1);
    nvim.accept(&review);
    assert_eq!(second.verdict(), Verdict::Saved("second\n".into()));
}

#[test]
fn d37_five_proposals_at_once_are_five_answers() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending: Vec<Pending> = (0..5)
        .map(|i| {
            let path = nvim.write(format!("{i}.txt"), format!("file {i}\n"));
            agent.open_diff(path, &format!("file {i} new\n"))
        })
        .collect();
    let reviews: Vec<Review> = pending.iter().map(|pending| nvim.shown(pending)).collect();
    assert_eq!(nvim.status()["reviews"].as_array().unwrap().len(), 5);
    nvim.accept(&reviews[1]);
    nvim.accept(&reviews[3]);
    nvim.reject(&reviews[2]);
    assert_eq!(pending[1].verdict(), Verdict::Saved("file 1 new\n".into()));
    assert_eq!(pending[3].verdict(), Verdict::Saved("file 3 new\n".into()));
    assert_eq!(pending[2].verdict(), Verdict::Rejected);
    nvim.keys_in(&reviews[4].right, ":tabclose<CR>");
    assert_eq!(pending[4].verdict(), Verdict::Rejected);
    pending[0].assert_unanswered(Duration::from_millis(200));
    assert_eq!(nvim.status()["reviews"].as_array().unwrap().len(), 1);
    agent.rst();
    nvim.wait_until("the last one to go with its agent", || nvim.panes().is_empty());
    assert_eq!(nvim.status()["reviews"], json!([]));
}

#[test]
fn d39_proposals_are_never_listed_nor_old_files() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let listed = || nvim.eval("len(getbufinfo({'buflisted': 1}))");
    let before = listed();
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    assert_eq!(listed(), before);
    nvim.reject(&review);
    pending.verdict();
    assert_eq!(listed(), before);
    nvim.cmd("wshada!");
    nvim.cmd("rshada!");
    assert!(!nvim.eval("string(v:oldfiles)").to_string().contains("gangway://"));
}

#[test]
fn d43_flags_of_a_read_only_buffer_stay() {
    for (how, expected) in [("flags", [1, 0, 0]), ("mode 0444", [1, 1, 0]), ("nvim -R", [1, 1, 0])]
    {
        let builder = Nvim::builder().file("a.txt", OLD);
        let nvim = if how == "nvim -R" { builder.arg("-R").start() } else { builder.start() };
        match how {
            "flags" => nvim.cmd("setlocal readonly nomodifiable"),
            "mode 0444" => {
                use std::os::unix::fs::PermissionsExt;
                let mode = std::fs::Permissions::from_mode(0o444);
                std::fs::set_permissions(nvim.path("a.txt"), mode).unwrap();
                // The administrator may write it all the same.
                nvim.cmd("edit | setlocal readonly");
            }
            _ => {}
        }
        let agent = Client::connect(&nvim, Dialect::Claude);
        let flags = || nvim.eval("[&readonly, &modifiable, &modified]");
        for accept in [false, true] {
            round(&nvim, &agent, accept);
            assert_eq!(flags(), json!(expected), "{how}");
            assert!(!nvim.blocked(), "{how}");
        }
    }
}

#[test]
fn d45_commands_decide_from_anywhere_and_the_typing_user_is_left_alone() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("tabnew b.txt");
    nvim.input("A typing");
    nvim.settle(Duration::from_millis(200));
    let before = nvim.snapshot();
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    nvim.settle(Duration::from_millis(600));
    let window = |snapshot: &Snapshot| (snapshot.0["window"].clone(), snapshot.0["mode"].clone());
    assert_eq!(window(&nvim.snapshot()), window(&before));
    let told = nvim.notifications();
    assert_eq!(told.iter().filter(|m| m.contains("a.txt")).count(), 1, "{told:?}");
    let statusline: String = nvim.lua("return require('gangway').statusline()", json!([]));
    assert!(statusline.contains('1'), "{statusline:?}");
    nvim.input(" on<Esc>");
    nvim.wait_until("the review to come into view", || {
        nvim.status()["reviews"][0]["seen"] == json!(true)
    });
    assert_eq!(nvim.eval("getbufline(bufnr('b.txt'), 1)"), json!(["other typing on"]));
    nvim.cmd("tabfirst");
    nvim.cmd("IdeAccept");
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    let two = ["b.txt", "c.txt"].map(|name| agent.open_diff(nvim.path(name), "x\n"));
    let id = |pending: &Pending| -> String {
        nvim.shown(pending);
        nvim.wait_for("its id", || {
            let reviews = nvim.status()["reviews"].as_array().unwrap().clone();
            let mine = |r: &&Value| {
                pending.tab.contains(r["path"].as_str()?.rsplit('/').next()?).then_some(())
            };
            let found = reviews.iter().find(|r| mine(r).is_some())?;
            Some(found["id"].as_str()?.to_owned())
        })
    };
    let second = id(&two[1]);
    nvim.cmd(&format!("IdeReject {second}"));
    assert_eq!(two[1].verdict(), Verdict::Rejected);
    two[0].assert_unanswered(Duration::from_millis(100));
}

#[test]
fn f01_only_true_changes_of_a_crlf_file_are_shown() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let path = nvim.write("a.txt", "a\r\nb\r\nc\r\n");
    for (text, changed) in [
        ("a\r\nB\r\nc\r\n", Some(vec![2])),
        ("a\nb\nc\n", None),
        ("a\r\nb\r\nC\r\n", Some(vec![3])),
        ("a\r\nb\r\nc\r\n", Some(vec![])),
    ] {
        let pending = agent.open_diff(&path, text);
        let review = nvim.shown(&pending);
        if let Some(changed) = changed {
            assert_eq!(nvim.changed_lines(&review.right), changed, "{text:?}");
        }
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved(text.into()));
        agent.close_tab(&pending);
    }
}

#[test]
fn f03_an_edited_proposal_ends_as_it_was_proposed() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    for (disk, fixeol) in [("a\nx\n", "fixeol"), ("a\nx", "nofixeol")] {
        let path = nvim.write("a.txt", disk);
        nvim.cmd(&format!("set {fixeol}"));
        for text in ["a\nb", "a\nb\n"] {
            let pending = agent.open_diff(&path, text);
            let review = nvim.shown(&pending);
            nvim.accept(&review);
            assert_eq!(pending.verdict(), Verdict::Saved(text.into()), "{disk:?} {fixeol}");
            agent.close_tab(&pending);
            let pending = agent.open_diff(&path, text);
            let review = nvim.shown(&pending);
            nvim.keys_in(&review.right, "ggA1<Esc>:w<CR>");
            assert_eq!(
                pending.verdict(),
                Verdict::Saved(text.replace('a', "a1")),
                "{disk:?} {fixeol}"
            );
            agent.close_tab(&pending);
        }
    }
}

#[test]
fn f05_a_removed_byte_order_mark_is_seen() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let path = nvim.write("a.txt", "\u{feff}one\ntwo\n");
    let pending = agent.open_diff(&path, "\u{feff}one\nTWO\n");
    let review = nvim.shown(&pending);
    assert_eq!(nvim.changed_lines(&review.right), [2]);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("\u{feff}one\nTWO\n".into()));
    agent.close_tab(&pending);
    let pending = agent.open_diff(&path, "one\ntwo\n");
    let review = nvim.shown(&pending);
    assert_eq!(nvim.changed_lines(&review.right), [1]);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("one\ntwo\n".into()));
}

#[test]
fn f07_binary_and_other_encodings_are_shown_for_what_they_are() {
    let nvim = Nvim::start();
    nvim.cmd("set columns=200 fileencodings=ucs-bom,utf-8,cp932,latin1");
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.write("nul.txt", "text\n"), "a\0b\n");
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("a\0b\n".into()));
    for (name, disk, note, first) in [
        ("p.png", &b"\x89PNG\r\n\x1a\n\0\0\0\r"[..], "binary, 12 bytes", "00000000: 8950 4e47"),
        ("latin1.txt", b"caf\xe9\n", "decoded from latin1", "caf\u{e9}"),
        ("sjis.txt", b"\x93\xfa\x96\x7b\n", "decoded from cp932", "\u{65e5}\u{672c}"),
        ("wide.txt", b"\xff\xfeh\0i\0\n\0", "decoded from utf-16le", "hi"),
    ] {
        let path = nvim.write(name, disk);
        let pending = agent.open_diff(&path, "now text\n");
        let review = nvim.shown(&pending);
        let line = nvim.lines(review.left.buf).remove(0);
        assert!(line.starts_with(first), "{name}: {line}");
        let bar: String = nvim.lua("return vim.wo[...].winbar", json!([review.left.win]));
        assert!(bar.contains(note), "{name}: {bar}");
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved("now text\n".into()));
        agent.close_tab(&pending);
    }
}

#[test]
fn f11_links_lead_to_the_buffer_of_their_target_and_stay_links() {
    let nvim = Nvim::builder().write("real.txt", OLD).start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let link = nvim.path("link.txt");
    std::os::unix::fs::symlink("real.txt", &link).unwrap();
    nvim.edit("real.txt");
    let buf = nvim.eval("bufnr('%')").as_i64().unwrap();
    let pending = agent.open_diff(&link, NEW);
    let review = nvim.shown(&pending);
    assert_eq!(nvim.lines(review.left.buf), ["one", "two", "three"]);
    nvim.accept(&review);
    pending.verdict();
    std::fs::write(&link, NEW).unwrap();
    agent.close_tab(&pending);
    nvim.wait_until("the buffer of the target to follow", || nvim.lines(buf)[1] == "TWO");
    assert!(link.is_symlink());
    std::os::unix::fs::symlink("nowhere.txt", nvim.path("dangling.txt")).unwrap();
    let pending = agent.open_diff(nvim.path("dangling.txt"), "x\n");
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("x\n".into()));
    assert!(!nvim.path("nowhere.txt").exists());
    agent.close_tab(&pending);
    // The file is open under the link's name, and the proposal names the target.
    nvim.cmd("bwipeout!");
    nvim.write("real.txt", OLD);
    nvim.edit("link.txt");
    let buf = nvim.eval("bufnr('%')").as_i64().unwrap();
    std::os::unix::fs::symlink(nvim.path("."), nvim.path("folder")).unwrap();
    for name in ["real.txt", "folder/real.txt"] {
        let pending = agent.open_diff(nvim.path(name), NEW);
        let review = nvim.shown(&pending);
        nvim.accept(&review);
        pending.verdict();
        nvim.write("real.txt", NEW);
        agent.close_tab(&pending);
        nvim.wait_until(&format!("{name}: the buffer to follow"), || nvim.lines(buf)[1] == "TWO");
        nvim.write("real.txt", OLD);
        nvim.wait_until("the buffer to follow back", || {
            nvim.cmd("checktime");
            nvim.lines(buf)[1] == "two"
        });
    }
    std::os::unix::fs::symlink("loop.txt", nvim.path("loop.txt")).unwrap();
    let pending = agent.open_diff(nvim.path("loop.txt"), "x\n");
    assert!(matches!(pending.verdict_within(Duration::from_secs(2)), Verdict::Other(_)));
}

#[test]
fn f13_what_is_no_plain_file_is_refused_at_once() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let fifo = nvim.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut paths = vec![nvim.path("."), fifo, "/dev/zero".into(), "rel/x.txt".into()];
    if cfg!(target_os = "linux") {
        paths.push("/proc/self/mem".into());
    }
    for path in paths {
        let pending = agent.open_diff(&path, "x\n");
        let verdict = pending.verdict_within(Duration::from_secs(2));
        assert!(matches!(verdict, Verdict::Other(_)), "{}: {verdict:?}", path.display());
    }
    // Pi takes every error for "go ahead": it is told "rejected", with the reason.
    let pi = Client::connect(&nvim, Dialect::Pi);
    let pending = pi.open_diff("/dev/zero", "x\n");
    assert_eq!(pending.verdict_within(Duration::from_secs(2)), Verdict::Rejected);
}

const FLOAT: &str = "return vim.api.nvim_open_win(vim.api.nvim_create_buf(false, true), false,
  { relative = 'editor', row = 1, col = 50, width = 20, height = 2 })";

#[test]
fn d21_a_notification_over_the_panes_does_not_take_neovim_along() {
    for how in [":w<CR>", ":q!<CR>", "\\r", "withdrawn", "lost"] {
        let nvim = editor();
        let agent = Client::connect(&nvim, Dialect::Pi);
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.goto(review.right.win);
        nvim.settle(ARMED);
        nvim.lua::<Value>(FLOAT, json!([]));
        match how {
            "withdrawn" => agent.close_tab(&pending),
            "lost" => agent.rst(),
            keys => nvim.input(keys),
        }
        nvim.wait_until(&format!("{how}: the panes to go"), || nvim.panes().is_empty());
        assert_eq!(nvim.eval("tabpagenr('$')"), json!(1), "{how}");
    }
    // And when a quit in the user's own window closes them for the moment.
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.goto(review.right.win);
    nvim.lua::<Value>(FLOAT, json!([]));
    nvim.cmd("tabfirst");
    nvim.input(":q<CR>");
    assert_eq!(nvim.wait_exit(Duration::from_secs(4)).code, Some(0));
    assert_eq!(pending.verdict(), Verdict::Rejected);
}

#[test]
fn d41_a_file_that_is_deleted_or_no_file_any_more_leaves_the_buffer_alone() {
    let nvim = editor();
    let _agent = Client::connect(&nvim, Dialect::Pi);
    nvim.edit(nvim.path("a.txt"));
    let buf: i64 = nvim.lua("return vim.api.nvim_get_current_buf()", ());
    let before = nvim.lines(buf);
    nvim.settle(Duration::from_millis(300));
    std::fs::remove_file(nvim.path("a.txt")).unwrap();
    nvim.settle(Duration::from_millis(500));
    assert_eq!(nvim.lines(buf), before, "the last place that has the text");
    nvim.write("a.txt", "again\n");
    nvim.wait_until("the file that is back", || nvim.lines(buf) == ["again"]);
    std::fs::remove_file(nvim.path("a.txt")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(nvim.path("a.txt")).status().unwrap();
    assert!(made.success());
    nvim.settle(Duration::from_millis(500));
    assert_eq!(nvim.lines(buf), ["again"], "and Neovim does not wait for the pipe");
    nvim.write("b.txt", "one\n");
    nvim.cmd("edit b.txt");
}

#[test]
fn d41_what_the_user_has_selected_stays_those_lines_while_the_file_grows() {
    let line = |i: usize| format!("line {i}\n");
    let old: String = (0..40).map(line).collect();
    let new: String = (0..10).map(|i| format!("new {i}\n")).chain([old.clone()]).collect();
    let begin = |keys: &str| {
        let nvim = Nvim::builder().tty(24, 80).file("a.txt", &old).start();
        let agent = Client::connect(&nvim, Dialect::Pi);
        nvim.settle(Duration::from_millis(300));
        nvim.type_keys(keys);
        nvim.settle(Duration::from_millis(100));
        nvim.write("a.txt", &new);
        (nvim, agent)
    };
    for (keys, mode) in [("20GVj", "V"), ("21Gvk0", "v"), ("20G\x16jl", "\x16")] {
        let (nvim, _agent) = begin(keys);
        nvim.wait_until("the new text", || nvim.lines(0).len() == 50);
        assert_eq!(nvim.mode(), mode);
        nvim.type_keys(":\x15");
        nvim.type_keys("'<,'>delete\r");
        nvim.wait_until(keys, || nvim.lines(0).len() == 48);
        let lines = nvim.lines(0);
        assert_eq!((lines[28].as_str(), lines[29].as_str()), ("line 18", "line 21"), "{keys}");
    }
    // An operator that waits for its motion: the reload waits for it, and then the user's edit counts.
    let (nvim, _agent) = begin("20Gd");
    nvim.settle(Duration::from_millis(400));
    nvim.type_keys("d");
    nvim.wait_until("one line less", || nvim.lines(0).len() == 39);
    nvim.settle(Duration::from_millis(300));
    assert_eq!((nvim.lines(0)[18].as_str(), nvim.lines(0)[19].as_str()), ("line 18", "line 20"));
    // Lines that are gone are not selected any more.
    let (nvim, _agent) = begin("20GVj");
    nvim.write("a.txt", "all\nis\nnew\n");
    nvim.wait_until("the new text", || nvim.lines(0) == ["all", "is", "new"]);
    assert_eq!(nvim.mode(), "n");
}

#[test]
fn d12_a_proposal_put_out_of_its_window_is_rejected() {
    let nvim = Nvim::builder().write("b.txt", "b\n").file("a.txt", OLD).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    for keys in [
        ":b! 1<CR>",
        ":setlocal nowinfixbuf<CR>:edit! b.txt<CR>",
        ":noautocmd q<CR>",
        ":noautocmd close<CR>",
        ":noautocmd only<CR>:noautocmd hide<CR>",
        "by a script",
    ] {
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        if keys == "by a script" {
            nvim.lua::<()>(
                "local win = ...
                 vim.wo[win].winfixbuf = false
                 vim.o.eventignore = 'all'
                 vim.api.nvim_win_set_buf(win, 1)
                 vim.o.eventignore = ''",
                (review.right.win,),
            );
        } else {
            nvim.keys_in(&review.right, keys);
        }
        nvim.dismiss_prompts();
        assert_eq!(pending.verdict(), Verdict::Rejected, "{keys}");
        agent.close_tab(&pending);
        nvim.wait_until(&format!("{keys}: the panes to go"), || nvim.panes().is_empty());
        nvim.cmd("silent! tabonly | silent! only");
    }
}

#[test]
fn d14_a_write_and_quit_in_a_second_window_of_the_proposal_accepts() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.right, ":split<CR>:x<CR>");
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
}

#[test]
fn d16_a_review_taken_back_while_the_command_line_window_is_open_goes_after_it() {
    let nvim = Nvim::builder().tty(24, 80).file("a.txt", OLD).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.goto(review.right.win);
    nvim.settle(ARMED);
    nvim.type_keys("q:");
    nvim.wait_until("the window", || nvim.eval("getcmdwintype()") == json!(":"));
    agent.close_tab(&pending);
    nvim.settle(Duration::from_millis(500));
    nvim.type_keys(":q\r");
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    assert_eq!(nvim.eval("tabpagenr('$')"), json!(1));
}

#[test]
fn d16_a_sidebar_that_opens_itself_everywhere_does_not_keep_the_tab_page() {
    let nvim = Nvim::builder()
        .file("a.txt", OLD)
        .after(
            "vim.api.nvim_create_autocmd('TabEnter', { callback = vim.schedule_wrap(function()
               vim.cmd('topleft 20vnew | setlocal buftype=nofile bufhidden=wipe winfixwidth')
               vim.cmd('wincmd p')
             end) })",
        )
        .start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.settle(Duration::from_millis(200));
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("our tab page to go", || nvim.eval("tabpagenr('$')") == json!(1));
}

#[test]
fn d39_a_session_with_all_options_restores_without_our_tab_page() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.goto(review.right.win);
    nvim.cmd("set sessionoptions+=options,localoptions,globals,resize,winpos");
    let session = nvim.path("session.vim");
    nvim.cmd(&format!("mksession! {}", session.display()));
    nvim.reject(&review);
    let again = Nvim::builder().home(&nvim.home).cwd(&nvim.cwd).start();
    again.cmd(&format!("silent! source {}", session.display()));
    again.wait_until("our tab page to go", || again.eval("tabpagenr('$')") == json!(1));
    let names: Vec<String> =
        again.lua("return vim.tbl_map(vim.api.nvim_buf_get_name, vim.api.nvim_list_bufs())", ());
    assert!(names.iter().all(|name| !name.contains("gangway://")), "{names:?}");
    // The panes of a review that is there stay.
    let agent = Client::connect(&again, Dialect::Pi);
    let pending = agent.open_diff(again.path("a.txt"), NEW);
    again.shown(&pending);
    again.cmd("doautocmd SessionLoadPost");
    again.settle(Duration::from_millis(100));
    pending.assert_unanswered(Duration::from_millis(100));
    assert_eq!(again.panes().len(), 2);
}

#[test]
fn d34_a_window_whose_cursor_is_in_its_first_row_is_scrolled_as_before() {
    let text: String = (0..300).map(|i| format!("line {i}\n")).collect();
    let nvim = Nvim::builder().tty(24, 80).write("b.txt", OLD).file("a.txt", text).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.cmd("normal! 200Gzt");
    nvim.settle(Duration::from_millis(200));
    let topline = || nvim.eval("line('w0')");
    assert_eq!(topline(), json!(200));
    for keys in [":w<CR>", ":q!<CR>", "\\r"] {
        let pending = agent.open_diff(nvim.path("b.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.keys_in(&review.right, keys);
        pending.wait();
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        nvim.settle(Duration::from_millis(200));
        assert_eq!(topline(), json!(200), "{keys}");
    }
}

#[test]
fn d05_the_users_own_diff_keeps_scrolling_sideways_however_the_review_ends() {
    for keys in [":q!<CR>", ":w<CR>", ":tabclose<CR>"] {
        let nvim =
            Nvim::builder().write("b.txt", "b\n").write("c.txt", "c\n").file("a.txt", OLD).start();
        let agent = Client::connect(&nvim, Dialect::Pi);
        nvim.cmd("edit b.txt | diffthis | vsplit c.txt | diffthis");
        let before = nvim.eval("&scrollopt");
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.keys_in(&review.right, keys);
        pending.wait();
        nvim.wait_until("the panes to go", || nvim.right_panes().is_empty());
        nvim.settle(Duration::from_millis(100));
        assert_eq!(nvim.eval("&scrollopt"), before, "{keys}");
    }
}
