//! A proposal in two panes, and what becomes of it.

use std::time::Duration;

use serde_json::json;

use crate::harness::*;

const OLD: &str = "one\ntwo\nthree\n";
const NEW: &str = "one\nTWO\nthree\n";

/// A Neovim with `a.txt` open and `b.txt` beside it.
fn editor() -> Nvim {
    Nvim::builder().file("a.txt", OLD).write("b.txt", "other\n").start()
}

#[test]
fn an_accepted_proposal_comes_back_and_the_editor_writes_nothing() {
    for dialect in [Dialect::Pi, Dialect::Claude] {
        let nvim = editor();
        let before = nvim.snapshot();
        let agent = Client::connect(&nvim, dialect);
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        assert_eq!(nvim.lines(review.left.buf), ["one", "two", "three"]);
        assert_eq!(nvim.lines(review.right.buf), ["one", "TWO", "three"]);
        assert_eq!((review.left.buftype.as_str(), review.left.modifiable), ("nofile", false));
        assert_eq!((review.left.filetype.as_str(), review.right.filetype.as_str()), ("", ""));
        assert!(!review.left.listed && !review.right.listed);
        assert_eq!(nvim.changed_lines(&review.right), [2]);
        pending.assert_unanswered(Duration::from_millis(300));
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
        assert_eq!(nvim.read("a.txt"), OLD.as_bytes(), "the agent writes, not the editor");
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        before.assert_same(&nvim.snapshot(), "after an accept");
    }
}

#[test]
fn a_rejected_proposal_leaves_no_trace() {
    for dialect in [Dialect::Pi, Dialect::Claude] {
        let nvim = editor();
        let before = nvim.snapshot();
        let agent = Client::connect(&nvim, dialect);
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.reject(&review);
        assert_eq!(pending.verdict(), Verdict::Rejected);
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        before.assert_same(&nvim.snapshot(), "after a reject");
    }
}

#[test]
fn what_the_user_changed_in_the_proposal_is_what_the_agent_gets() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.right, "GAmore<Esc>:w<CR>");
    assert_eq!(pending.verdict(), Verdict::Saved("one\nTWO\nthreemore\n".into()));
}

/// Mode and both ends of the selection.
fn selection(nvim: &Nvim) -> serde_json::Value {
    nvim.eval("[mode(), getpos('v')[1:2], getpos('.')[1:2]]")
}

#[test]
fn what_was_selected_is_selected_again_after_the_review() {
    for mode in ["v", "V", "<C-v>"] {
        let nvim = editor();
        let home = nvim.eval("win_getid()");
        let agent = Client::connect(&nvim, Dialect::Claude);
        nvim.input(&format!("gg0l{mode}jl"));
        let before = selection(&nvim);
        nvim.settle(Duration::from_millis(1100));
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.wait_until("the review to come", || nvim.eval("win_getid()") == review.right.win);
        assert_eq!(nvim.mode(), "n", "{mode}");
        assert_eq!(nvim.notifications(), Vec::<String>::new(), "it comes at once");
        nvim.reject(&review);
        assert_eq!(pending.verdict(), Verdict::Rejected);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        assert_eq!((nvim.eval("win_getid()"), selection(&nvim)), (home, before), "{mode}");
    }
}

#[test]
fn a_review_that_opens_behind_leaves_the_selection() {
    let nvim = editor();
    let home = nvim.eval("win_getid()");
    let agent = Client::connect(&nvim, Dialect::Claude);
    let first = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&first);
    nvim.wait_until("the review to come", || nvim.eval("win_getid()") == review.right.win);
    nvim.goto(home.as_i64().unwrap());
    nvim.input("gg0lvj");
    let before = selection(&nvim);
    let second = agent.open_diff(nvim.path("b.txt"), "new\n");
    nvim.shown(&second);
    nvim.settle(Duration::from_millis(200));
    assert_eq!((nvim.eval("win_getid()"), selection(&nvim)), (home, before));
}

/// What the agent gets when the user adds a line to the proposal `one`, `  TWO` of a file that their
/// buffer indents in some way.
fn line_added(nvim: &Nvim) -> Verdict {
    let agent = Client::connect(nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), "one\n  TWO\n");
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.right, "Gox<Esc>:w<CR>");
    let verdict = pending.verdict();
    let messages = nvim.messages();
    assert!(!messages.contains("E121") && !messages.contains("Error"), "{messages}");
    verdict
}

#[test]
fn typed_lines_are_indented_as_in_the_users_own_buffer() {
    for (indentexpr, added) in
        [("v:lnum == 3 ? 4 : 0", "    x"), ("b:not_there", "  x"), ("", "  x")]
    {
        let nvim = Nvim::builder().file("a.txt", "one\n  two\n").start();
        nvim.lua::<()>("vim.bo.indentexpr = ...", json!([indentexpr]));
        let expected = Verdict::Saved(format!("one\n  TWO\n{added}\n"));
        assert_eq!(line_added(&nvim), expected, "{indentexpr:?}");
    }
}

#[test]
fn an_indentexpr_from_a_modeline_is_not_let_out_of_the_sandbox() {
    let text = "one\n  two\nvim: inde=writefile([],'out')\n";
    let nvim = Nvim::builder()
        .before("vim.o.modeline, vim.o.modelineexpr = true, true")
        .file("a.txt", text)
        .start();
    assert_eq!(nvim.eval("&l:indentexpr"), json!("writefile([],'out')"));
    assert_eq!(line_added(&nvim), Verdict::Saved("one\n  TWO\n  x\n".into()));
    assert!(!nvim.path("out").exists());
}

#[test]
fn every_way_to_accept_accepts() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    for keys in [":w<CR>", ":wq<CR>", ":x<CR>", "ZZ", "<localleader>a", ":IdeAccept<CR>"] {
        let keys = keys.replace("<localleader>", "\\");
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.keys_in(&review.right, &keys);
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()), "{keys}");
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    }
}

#[test]
fn d12_every_way_of_closing_rejects_once() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let right = [
        ":q<CR>",
        ":q!<CR>",
        ":close<CR>",
        "<C-w>c",
        "<C-w>q",
        "ZQ",
        ":tabclose<CR>",
        ":bdelete<CR>",
        ":bdelete!<CR>",
        ":bwipeout<CR>",
        ":bwipeout!<CR>",
        ":only<CR>",
        ":tabfirst | tabonly<CR>",
        ":IdeReject<CR>",
        "\\r",
    ];
    let left = [
        ":q<CR>",
        ":q!<CR>",
        ":close<CR>",
        "<C-w>c",
        "<C-w>q",
        ":tabclose<CR>",
        ":bdelete<CR>",
        ":bwipeout<CR>",
        ":only<CR>",
        "\\r",
    ];
    let ways = right.map(|keys| ("right", keys)).into_iter().chain(left.map(|keys| ("left", keys)));
    for (side, keys) in ways {
        let before = nvim.snapshot();
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.keys_in(if side == "left" { &review.left } else { &review.right }, keys);
        assert_eq!(pending.verdict(), Verdict::Rejected, "{keys} in the {side} pane");
        agent.close_tab(&pending);
        nvim.wait_until(&format!("{keys} in the {side} pane: the panes to go"), || {
            nvim.panes().is_empty()
        });
        let after = nvim.snapshot();
        before.assert_same_ignoring(&after, &["registers"], &format!("{keys} in the {side} pane"));
    }
    for keys in [":new | only<CR>", ":%bdelete<CR>"] {
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.keys_in(&review.right, keys);
        assert_eq!(pending.verdict(), Verdict::Rejected, "{keys}");
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    }
}

#[test]
fn texts_come_back_byte_for_byte() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let texts = [
        "",
        "\n",
        "no end",
        "dos\r\nfile\r\n",
        "mixed\r\nends\nhere\r",
        "\u{feff}bom\n",
        "a\0b\n",
        "é漢😀\n",
        "\n\n",
        "tab\t \n",
    ];
    for (i, text) in texts.into_iter().enumerate() {
        let path = nvim.write(format!("{i}.txt"), "before\n");
        let pending = agent.open_diff(path, text);
        let review = nvim.shown(&pending);
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved(text.into()));
        agent.close_tab(&pending);
    }
}

#[test]
fn a_file_that_does_not_exist_yet_is_reviewed_against_nothing() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending = agent.open_diff(nvim.path("new folder/new.txt"), NEW);
    let review = nvim.shown(&pending);
    assert_eq!(nvim.lines(review.left.buf), [""]);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    assert!(!nvim.path("new folder").exists());
}

#[test]
fn an_agent_withdraws_only_its_own() {
    let nvim = editor();
    let (one, two) =
        (Client::connect(&nvim, Dialect::Claude), Client::connect(&nvim, Dialect::Claude));
    let first = one.open_diff_as("same name", nvim.path("a.txt"), "first\n");
    let first_review = nvim.shown(&first);
    let second = two.open_diff_as("same name", nvim.path("b.txt"), "second\n");
    let second_review = nvim.shown(&second);
    let answer = one.tool("closeAllDiffTabs", json!({}));
    assert_eq!(answer["result"]["content"][0]["text"], "CLOSED_1_DIFF_TABS");
    assert_eq!(first.verdict(), Verdict::Rejected);
    second.assert_unanswered(Duration::from_millis(300));
    nvim.wait_until("the first one's panes to go", || !nvim.win_exists(first_review.right.win));
    one.tool("close_tab", json!({ "tab_name": "same name" }));
    second.assert_unanswered(Duration::from_millis(300));
    nvim.accept(&second_review);
    assert_eq!(second.verdict(), Verdict::Saved("second\n".into()));
}

#[test]
fn a_cancelled_request_is_withdrawn_and_never_answered() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    nvim.shown(&pending);
    agent.notify(
        "notifications/cancelled",
        json!({ "requestId": pending.id, "reason": "changed my mind" }),
    );
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    pending.assert_unanswered(Duration::from_millis(300));
}

#[test]
fn the_reviews_of_an_agent_that_vanishes_go_with_it() {
    let nvim = editor();
    for how in ["rst", "fin", "close"] {
        let agent = Client::connect(&nvim, Dialect::Pi);
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        nvim.shown(&pending);
        match how {
            "rst" => agent.rst(),
            "fin" => agent.fin(),
            _ => agent.close(1000),
        }
        nvim.wait_until(&format!("{how}: the panes to go"), || nvim.panes().is_empty());
        nvim.wait_until(&format!("{how}: the review to go"), || {
            nvim.status()["reviews"] == json!([])
        });
    }
}

#[test]
fn leaving_neovim_answers_what_is_pending_before_the_socket_closes() {
    for command in ["qa!", "qa", "wqa", "cquit"] {
        let nvim = editor();
        let agents = [Client::connect(&nvim, Dialect::Pi), Client::connect(&nvim, Dialect::Claude)];
        let pending = agents.each_ref().map(|agent| agent.open_diff(nvim.path("a.txt"), NEW));
        for pending in &pending {
            nvim.shown(pending);
        }
        let exit = nvim.quit(command);
        assert_eq!(exit.signal, None);
        assert!(exit.took < Duration::from_secs(1), "{command} took {:?}", exit.took);
        for pending in &pending {
            assert_eq!(pending.verdict(), Verdict::Rejected, "{command}");
        }
    }
}

#[test]
fn what_an_agent_writes_and_leaves_at_once_is_shown() {
    let nvim = editor();
    for text in [NEW, OLD] {
        let agent = Client::connect(&nvim, Dialect::Pi);
        let pending = agent.open_diff(nvim.path("a.txt"), text);
        let review = nvim.shown(&pending);
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved(text.into()));
        nvim.write("a.txt", text);
        drop(agent);
        let lines: Vec<&str> = text.lines().collect();
        nvim.wait_until("the buffer to show the file", || nvim.lines(1) == lines);
    }
}

#[test]
fn stopping_answers_what_is_pending() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    nvim.shown(&pending);
    nvim.cmd("IdeStop");
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
}

#[test]
fn two_proposals_for_one_file_are_both_answerable() {
    let nvim = editor();
    let (pi, claude) =
        (Client::connect(&nvim, Dialect::Pi), Client::connect(&nvim, Dialect::Claude));
    let one = pi.open_diff(nvim.path("a.txt"), "from pi\n");
    let two = claude.open_diff(nvim.path("a.txt"), "from claude\n");
    let (first, second) = (nvim.shown(&one), nvim.shown(&two));
    nvim.reject(&second);
    assert_eq!(two.verdict(), Verdict::Rejected);
    nvim.accept(&first);
    assert_eq!(one.verdict(), Verdict::Saved("from pi\n".into()));
}

#[test]
fn a_real_terminal_shows_both_panes_and_takes_the_keys() {
    let nvim = Nvim::builder().tty(30, 100).file("a.txt", OLD).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.wait_for_text("TWO");
    let row = nvim.screen_find("TWO").unwrap().0;
    let line = nvim.screen_text().lines().nth(usize::from(row)).unwrap().to_owned();
    assert!(line.find("two") < line.find("TWO"), "disk on the left, proposal on the right: {line}");
    nvim.goto(review.right.win);
    nvim.settle(ARMED);
    nvim.type_slowly(":w\r", Duration::from_millis(20));
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
}

#[test]
fn who_reviews_in_the_terminal_gets_no_diff_and_claude_code_keeps_its_prompt() {
    let nvim = Nvim::builder()
        .file("a.txt", OLD)
        .opts(json!({ "agents": { "claude": { "diffs": false } } }))
        .start();
    let claude = Client::connect(&nvim, Dialect::Claude);
    assert!(!claude.tools().contains(&"openDiff".to_owned()));
    let pending = claude.open_diff(nvim.path("a.txt"), NEW);
    assert!(matches!(pending.verdict(), Verdict::Other(_)), "{:?}", pending.answers());
    assert!(nvim.panes().is_empty());
    let pi = Client::connect(&nvim, Dialect::Pi);
    let pending = pi.open_diff(nvim.path("a.txt"), NEW);
    nvim.shown(&pending);
}

#[test]
fn a_whole_rewrite_of_a_large_file_does_not_hold_neovim_up() {
    let text = |seed: u32| -> String {
        let mut state = seed;
        let mut word = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            format!("{:x}", state >> 8)
        };
        (0..6000).map(|_| (0..7).map(|_| word()).collect::<Vec<_>>().join(" ") + "\n").collect()
    };
    let nvim = Nvim::builder().tty(30, 100).file("a.txt", text(1)).start();
    let diffopt = nvim.eval("&diffopt");
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.stall_start();
    let pending = agent.open_diff(nvim.path("a.txt"), &text(2));
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.right, "G<C-u><C-u>gg");
    nvim.settle(Duration::from_millis(300));
    // Neovim 0.12 took 10 s for the marks within lines.
    let stall = nvim.stall();
    assert!(stall < Duration::from_secs(2), "{stall:?}");
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    assert_eq!(nvim.eval("&diffopt"), diffopt);
}

#[test]
fn long_lines_that_differ_do_not_hold_neovim_up() {
    let text = |of: &str| -> String {
        let paragraph = |n: usize| format!("{n} {}\n", format!("{of} words ").repeat(70 + n));
        let part = |n: usize| (0..18).map(paragraph).collect::<String>() + &format!("same {n}\n");
        (0..4).map(part).collect()
    };
    let nvim = Nvim::builder().tty(60, 160).file("a.md", text("old")).start();
    nvim.cmd("set diffopt+=linematch:50");
    let diffopt = nvim.eval("&diffopt");
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.stall_start();
    let pending = agent.open_diff(nvim.path("a.md"), &text("new"));
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.right, "G]c[cgg");
    nvim.settle(Duration::from_millis(300));
    // Aligning them took Neovim 2 s and more.
    let stall = nvim.stall();
    assert!(stall < Duration::from_secs(1), "{stall:?}");
    // The user's word counts, also while it is pending.
    nvim.cmd("set diffopt+=icase");
    let theirs = nvim.eval("&diffopt");
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    assert_eq!(nvim.eval("&diffopt"), theirs);
    nvim.cmd(&format!("set diffopt={}", diffopt.as_str().unwrap()));
    let pending = agent.open_diff(nvim.path("a.md"), &text("new"));
    let review = nvim.shown(&pending);
    assert_ne!(nvim.eval("&diffopt"), diffopt);
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("diffopt to come back", || nvim.eval("&diffopt") == diffopt);
}

#[test]
fn nothing_that_undoes_empties_the_proposal() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    for text in [NEW, "one\n", ""] {
        let pending = agent.open_diff(nvim.path("a.txt"), text);
        let review = nvim.shown(&pending);
        let shown = nvim.lines(review.right.buf);
        nvim.keys_in(&review.right, "u");
        for keys in ["u", "U", "GU", "5u", "g-", ":undo 0<CR>", ":earlier 10f<CR>", ":e!<CR>", "U"]
        {
            nvim.input(keys);
            nvim.settle(Duration::from_millis(20));
            assert_eq!(nvim.lines(review.right.buf), shown, "{keys}");
        }
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved(text.into()));
        agent.close_tab(&pending);
    }
}

#[test]
fn a_review_works_in_a_neovim_that_is_only_for_reading() {
    for flag in ["-R", "-M"] {
        let nvim = Nvim::builder().arg(flag).file("a.txt", OLD).start();
        let agent = Client::connect(&nvim, Dialect::Claude);
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        let review = nvim.shown(&pending);
        nvim.keys_in(&review.right, r"\a");
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()), "nvim {flag}");
    }
}

#[test]
fn a_handler_of_option_changes_that_throws_keeps_nobody_from_deciding() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.lua::<()>(
        "vim.api.nvim_create_autocmd('OptionSet', { callback = function() error('boom') end })",
        (),
    );
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.right, r"\a");
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
}

#[test]
fn windows_squeezed_to_a_line_come_back_to_the_row() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.edit("b.txt");
    nvim.cmd("copen | wincmd p | pedit a.txt");
    let before = nvim.snapshot();
    for accept in [true, false] {
        let pending = agent.open_diff(nvim.path("a.txt"), NEW);
        nvim.decide(&agent, &pending, accept);
        before.assert_same(&nvim.snapshot(), "beside a preview and a quickfix window");
    }
}

#[test]
fn a_split_of_a_pane_that_shows_another_file_is_an_ordinary_window_afterwards() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let scrollopt = nvim.eval("&scrollopt");
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.right, ":split<CR>:setlocal nowinfixbuf<CR>");
    nvim.edit("b.txt");
    let win = nvim.eval("win_getid()");
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the panes to go", || nvim.right_panes().is_empty());
    let shown: (String, bool, String, String) = nvim.lua(
        "local win = ...
         local of = vim.wo[win]
         return { vim.fs.basename(vim.api.nvim_buf_get_name(vim.api.nvim_win_get_buf(win))), of.diff, of.winbar, of.foldmethod }",
        (win,),
    );
    assert_eq!(shown, ("b.txt".into(), false, String::new(), "manual".into()));
    assert_eq!(nvim.eval("&scrollopt"), scrollopt);
}
