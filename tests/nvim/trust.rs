//! What makes a review trustworthy: only a deliberate act decides, nothing is lost, all is as
//! it was afterwards, and what is on disk is what is shown.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

const OLD: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n";
const NEW: &str = "one\nTWO\nthree\nfour\nfive\nsix\nseven\neight\nNINE\nten\nELEVEN\n";

fn editor() -> Nvim {
    Nvim::builder().file("a.txt", OLD).write("b.txt", "other\n").start()
}

/// An editor with a pending review in view.
fn reviewing(nvim: &Nvim, agent: &Client) -> (Pending, Review) {
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    nvim.goto(review.right.win);
    nvim.settle(ARMED);
    (pending, review)
}

#[test]
fn writing_everything_is_not_a_word_about_the_review() {
    for command in [":wa<CR>", ":silent! wall<CR>", ":bufdo update<CR>", ":windo w<CR>"] {
        let nvim = editor();
        let agent = Client::connect(&nvim, Dialect::Claude);
        let (pending, review) = reviewing(&nvim, &agent);
        nvim.keys_in(&review.right, &format!("Gox<Esc>{command}"));
        pending.assert_unanswered(Duration::from_millis(400));
        nvim.dismiss_prompts();
        nvim.keys_in(&review.right, ":w<CR>");
        assert_eq!(pending.verdict(), Verdict::Saved(format!("{NEW}x\n")), "{command}");
    }
}

#[test]
fn writing_everything_in_other_clothes_is_not_a_word_about_it_either() {
    let nvim = Nvim::builder()
        .file("a.txt", OLD)
        .after("vim.o.autowrite = true vim.cmd('command! WA wall') vim.cmd('command! Mine write')")
        .start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "Gox<Esc>");
    for keys in
        [":WA<CR>", ":exe 'wa'<CR>", ":if 1 | wa | endif<CR>", ":!true<CR>", ":silent! wa | up<CR>"]
    {
        nvim.input(keys);
        nvim.settle(Duration::from_millis(150));
        nvim.dismiss_prompts();
        assert!(!pending.is_answered(), "{keys}");
    }
    nvim.lua::<Value>(
        "vim.defer_fn(function() vim.cmd('silent! normal! :w\\r') end, 50)
         vim.defer_fn(function() vim.api.nvim_feedkeys(':silent! w\\r', 'n', false) end, 100)",
        json!([]),
    );
    pending.assert_unanswered(Duration::from_millis(500));
    nvim.input(":Mine<CR>");
    assert_eq!(
        pending.verdict(),
        Verdict::Saved(format!("{NEW}x\n")),
        "the user's own command counts"
    );
}

#[test]
fn insert_mode_in_a_pane_stays_there_whoever_ends_the_review() {
    for how in ["accept", "withdraw", "vanish"] {
        let nvim = Nvim::builder()
            .file("a.txt", OLD)
            .after("vim.keymap.set('i', '<C-s>', '<Cmd>w<CR>')")
            .start();
        let agent = Client::connect(&nvim, Dialect::Claude);
        let (pending, review) = reviewing(&nvim, &agent);
        nvim.keys_in(&review.right, "Gohello");
        nvim.settle(Duration::from_millis(50));
        match how {
            "accept" => nvim.input("<C-s>"),
            "withdraw" => agent.close_tab(&pending),
            _ => agent.rst(),
        }
        nvim.settle(Duration::from_millis(100));
        if how != "accept" {
            // They are still typing: the keys go on into the pane, not into their file.
            nvim.input("XYZdd");
            nvim.settle(Duration::from_millis(100));
            nvim.input("<Esc>");
        }
        nvim.wait_until(&format!("{how}: the panes to go"), || nvim.panes().is_empty());
        nvim.wait_until(&format!("{how}: normal mode"), || nvim.mode() == "n");
        let own = nvim.eval("getbufline(bufnr('a.txt'), 1, '$')");
        assert_eq!(own, json!(OLD.lines().collect::<Vec<_>>()), "{how}: the user's file");
    }
}

#[test]
fn an_accept_is_on_the_wire_before_a_quit_right_behind_it() {
    for (size, edit) in [(300_000, ""), (2_000_000, "Goedited<Esc>")] {
        let nvim = editor();
        let agent = Client::connect(&nvim, Dialect::Claude);
        let text = "0123456789\n".repeat(size / 11);
        let pending = agent.open_diff(nvim.path("a.txt"), &text);
        let review = nvim.shown(&pending);
        nvim.keys_in(&review.right, edit);
        nvim.settle(Duration::from_millis(100));
        nvim.input(":w|qa<CR>");
        assert!(matches!(pending.verdict(), Verdict::Saved(_)), "{size} bytes");
        nvim.wait_exit(Duration::from_secs(3));
    }
}

#[test]
fn writes_that_nobody_typed_decide_nothing() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "Gox<Esc>");
    nvim.settle(Duration::from_millis(100));
    nvim.cmd("write");
    nvim.lua::<()>("vim.defer_fn(function() vim.cmd('silent! write') end, 20)", json!([]));
    pending.assert_unanswered(Duration::from_millis(300));
}

#[test]
fn d26_an_autosave_in_the_right_pane_does_not_accept() {
    let nvim = Nvim::builder()
        .file("a.txt", OLD)
        .after(
            "vim.cmd('autocmd InsertLeave,TextChanged,CursorHold * ++nested silent! update')
             vim.o.updatetime = 50",
        )
        .start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "Goedited<Esc>");
    pending.assert_unanswered(Duration::from_millis(500));
    nvim.keys_in(&review.right, ":w<CR>");
    assert_eq!(pending.verdict(), Verdict::Saved(format!("{NEW}edited\n")));
}

#[test]
fn the_users_own_write_mappings_count_as_typed() {
    for map in ["<Cmd>w<CR>", ":w<CR>"] {
        let nvim = Nvim::builder()
            .file("a.txt", OLD)
            .after(&format!("vim.keymap.set('n', 'gs', '{map}')"))
            .start();
        let agent = Client::connect(&nvim, Dialect::Pi);
        let (pending, review) = reviewing(&nvim, &agent);
        nvim.keys_in(&review.right, "gs");
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()), "{map}");
    }
}

#[test]
fn a_copy_of_the_proposal_decides_nothing() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    let copy = nvim.path("copy.txt");
    nvim.keys_in(&review.right, &format!(":w {}<CR>", copy.display()));
    nvim.wait_until("the copy", || std::fs::read(&copy).is_ok_and(|text| text == NEW.as_bytes()));
    nvim.keys_in(&review.right, &format!(":w {}<CR>", copy.display()));
    nvim.dismiss_prompts();
    pending.assert_unanswered(Duration::from_millis(200));
    assert_eq!(nvim.right_panes().len(), 1);
}

#[test]
fn quitting_is_refused_for_the_users_own_unsaved_text_and_never_for_a_proposal() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "Goedited<Esc>");
    let own = nvim.eval("bufnr('a.txt')").as_i64().unwrap();
    nvim.set_lines(own, &["mine"]);
    nvim.input(":qa<CR>");
    nvim.settle(Duration::from_millis(300));
    nvim.dismiss_prompts();
    assert!(nvim.running(), "the user's own text was given up");
    assert!(nvim.lua::<bool>("return vim.bo[...].modified", json!([review.right.buf])));
    pending.assert_unanswered(Duration::from_millis(100));
    nvim.lua::<()>("vim.bo[...].modified = false", json!([own]));
    nvim.goto(review.right.win);
    nvim.input(":qa<CR>");
    let exit = nvim.wait_exit(Duration::from_secs(3));
    assert_eq!(exit.code, Some(0));
    assert_eq!(pending.verdict(), Verdict::Rejected);
}

#[test]
fn hunks_can_be_jumped_to_dropped_and_brought_back() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    let line = || nvim.eval("line('.')").as_i64().unwrap();
    assert_eq!(line(), 2, "it opens at the first difference");
    nvim.keys_in(&review.right, "]c");
    assert_eq!(line(), 9);
    nvim.keys_in(&review.right, "]c");
    assert_eq!(line(), 11);
    nvim.keys_in(&review.right, "[c\\x");
    nvim.settle(Duration::from_millis(100));
    assert_eq!(nvim.lines(review.right.buf)[8], "nine");
    nvim.keys_in(&review.left, "2G\\x");
    nvim.settle(Duration::from_millis(100));
    assert_eq!(nvim.lines(review.right.buf)[1], "two");
    nvim.keys_in(&review.left, "u");
    assert_eq!(nvim.lines(review.right.buf)[1], "TWO", "undo works from the left pane");
    nvim.keys_in(&review.right, "uuuuuu");
    assert_eq!(nvim.lines(review.right.buf).len(), 11, "the first u never empties the proposal");
    nvim.keys_in(&review.right, "2G\\x:w<CR>");
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.replace("TWO", "two")));
}

#[test]
fn the_winbar_counts_what_changes() {
    let nvim = editor();
    nvim.cmd("set columns=160");
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (_pending, review) = reviewing(&nvim, &agent);
    let bar = || -> String {
        nvim.lua(
            "return vim.api.nvim_eval_statusline(vim.wo[...].winbar, {winid = ..., maxwidth = 200}).str",
            json!([review.right.win]),
        )
    };
    let first = bar();
    assert!(first.contains("Pi proposes +3 −2 1 of 3"), "{first}");
    nvim.keys_in(&review.right, "2G\\x");
    nvim.wait_until("the count to follow", || bar().contains("+2 −1"));
}

#[test]
fn d41_buffers_show_what_the_agent_wrote_and_keep_their_history() {
    for autoread in ["autoread", "noautoread"] {
        let nvim = editor();
        nvim.cmd(&format!("set hidden {autoread}"));
        let buf = nvim.eval("bufnr('a.txt')").as_i64().unwrap();
        nvim.cmd("normal! Gomine");
        nvim.cmd("silent write");
        let agent = Client::connect(&nvim, Dialect::Claude);
        for (round, rename) in [false, true].into_iter().enumerate() {
            let text = format!("round {round}\n").repeat(round + 2);
            let pending = agent.open_diff(nvim.path("a.txt"), &text);
            let review = nvim.shown(&pending);
            nvim.accept(&review);
            assert_eq!(pending.verdict(), Verdict::Saved(text.clone()));
            agent.close_tab(&pending);
            nvim.settle(Duration::from_millis(300));
            if rename {
                nvim.write("new~", &text);
                std::fs::rename(nvim.path("new~"), nvim.path("a.txt")).unwrap();
            } else {
                nvim.write("a.txt", &text);
            }
            nvim.wait_until("the buffer to follow", || nvim.lines(buf).join("\n") + "\n" == text);
        }
        nvim.cmd("silent undo");
        nvim.cmd("silent undo");
        assert_eq!(nvim.lines(buf).last().unwrap(), "mine", "{autoread}: history was lost");
        assert!(!nvim.blocked());
    }
}

#[test]
fn text_the_user_has_not_saved_survives_the_agents_write_and_asks_when_saved() {
    let nvim = editor();
    let buf = nvim.eval("bufnr('a.txt')").as_i64().unwrap();
    nvim.set_lines(buf, &["mine"]);
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    assert_eq!(nvim.lines(review.left.buf).join("\n") + "\n", OLD, "the left pane is the disk");
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    nvim.write("a.txt", NEW);
    agent.close_tab(&pending);
    nvim.settle(Duration::from_millis(500));
    assert_eq!(nvim.lines(buf), ["mine"]);
    assert!(!nvim.blocked(), "a prompt came by itself");
    nvim.cmd_nowait("checktime");
    nvim.settle(Duration::from_millis(200));
    assert!(!nvim.blocked(), "the change was already taken note of");
}

#[test]
fn the_left_pane_follows_the_disk_while_the_review_waits() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    let changed = OLD.replace("five", "FIVE");
    nvim.write("a.txt", &changed);
    nvim.wait_until("the left pane to follow", || {
        nvim.lines(review.left.buf).join("\n") + "\n" == changed
    });
    assert_eq!(nvim.changed_lines(&review.right), [2, 5, 9, 11]);
    std::fs::remove_file(nvim.path("a.txt")).unwrap();
    nvim.wait_until("the left pane to follow", || nvim.lines(review.left.buf) == [""]);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
}

#[test]
fn a_session_saved_during_a_review_restores_without_it() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (_pending, _review) = reviewing(&nvim, &agent);
    let session = nvim.path("session.vim");
    nvim.cmd(&format!("mksession! {}", session.display()));
    let other = Nvim::start();
    other.cmd(&format!("source {}", session.display()));
    other.wait_until("our tab page to go", || other.eval("tabpagenr('$')") == json!(1));
    let names: Vec<String> = other
        .lua("return vim.tbl_map(vim.api.nvim_buf_get_name, vim.api.nvim_list_bufs())", json!([]));
    assert!(names.iter().all(|name| !name.contains("gangway://")), "{names:?}");
    assert!(names.iter().any(|name| name.ends_with("a.txt")), "{names:?}");
}

#[test]
fn edits_of_an_agent_that_vanished_can_be_found_again() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (_pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "Goprecious<Esc>");
    nvim.settle(Duration::from_millis(100));
    agent.rst();
    let told = || nvim.notifications().iter().any(|m| m.contains("recovered"));
    nvim.wait_until("the user to be told where", told);
    let state: String = nvim.lua("return vim.fn.stdpath('state')", json!([]));
    let dir = std::path::Path::new(&state).join("gangway/recovered");
    let kept = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    assert!(nvim.log().contains(kept.to_str().unwrap()), "the log says where");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), format!("{NEW}precious\n"));
}

#[test]
fn editing_a_pane_anew_brings_the_proposal_back_and_decides_nothing() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "Goedited<Esc>:e!<CR>");
    pending.assert_unanswered(Duration::from_millis(300));
    assert_eq!(nvim.lines(review.right.buf).join("\n") + "\n", NEW);
    nvim.keys_in(&review.left, ":e<CR>");
    pending.assert_unanswered(Duration::from_millis(300));
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
}

#[test]
fn a_pane_closed_behind_everybodys_back_is_a_no() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, ":noautocmd tabclose<CR>");
    nvim.cmd("split");
    assert_eq!(pending.verdict(), Verdict::Rejected);
}

#[test]
fn what_was_never_shown_is_opened_and_not_decided() {
    let nvim =
        Nvim::builder().file("a.txt", OLD).opts(json!({ "review": { "focus": "never" } })).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    nvim.wait_until("it to stand ready", || !nvim.right_panes().is_empty());
    assert_eq!(nvim.eval("tabpagenr()"), json!(1), "focus = never leaves the user alone");
    nvim.cmd("IdeAccept");
    pending.assert_unanswered(Duration::from_millis(300));
    assert_ne!(nvim.eval("tabpagenr()"), json!(1), "it was opened instead");
    nvim.cmd("IdeAccept");
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    let unseen = agent.open_diff(nvim.path("a.txt"), NEW);
    nvim.wait_until("it to stand ready", || !nvim.right_panes().is_empty());
    nvim.cmd("IdeReject!");
    assert_eq!(unseen.verdict(), Verdict::Rejected, "! decides it unseen, on purpose");
}

#[test]
fn a_panic_anywhere_leaves_neovim_running_with_one_message_and_a_backtrace_in_the_log() {
    for door in ["function", "autocmd", "job", "task", "worker"] {
        let nvim = editor();
        let agent = Client::connect(&nvim, Dialect::Pi);
        nvim.cmd(&format!("silent! lua require('gangway.native').load()._panic('{door}')"));
        nvim.wait_until(&format!("{door}: the log to say so"), || {
            let log = nvim.log();
            // The release library is stripped: its frames have numbers and few names.
            log.contains("panic: on purpose at src/plugin/exports.rs") && log.contains("\n   4: ")
        });
        let (pending, review) = reviewing(&nvim, &agent);
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()), "after a panic in a {door}");
        let said = nvim.notifications().iter().filter(|m| m.contains("internal error")).count();
        assert!(said <= 1, "{door}: {:?}", nvim.notifications());
    }
}

#[test]
fn hundreds_of_reviews_leave_nothing_behind() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let round = |i: usize| {
        let pending = agent.open_diff(nvim.path("a.txt"), &format!("{NEW}{i}\n"));
        nvim.wait_until("the panes", || !nvim.right_panes().is_empty());
        match i % 3 {
            0 => nvim.cmd("IdeAccept!"),
            1 => nvim.cmd("IdeReject!"),
            _ => agent.close_tab(&pending),
        }
        pending.verdict();
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    };
    // Neovim loads this, with an autocommand of its own, at the first highlighting.
    nvim.lua::<Value>("return pcall(require, 'vim.treesitter.query')", json!([]));
    (0..10).for_each(round);
    nvim.settle(Duration::from_millis(300));
    let before = nvim.counts();
    (0..200).for_each(round);
    nvim.settle(Duration::from_millis(300));
    nvim.lua::<()>("collectgarbage() collectgarbage()", json!([]));
    let grown = before.grown(&nvim.counts(), 0);
    assert!(grown.is_empty(), "{grown:?}");
}

#[test]
fn a_key_that_cannot_be_mapped_leaves_no_half_opened_review() {
    let nvim = Nvim::builder()
        .file("a.txt", OLD)
        .opts(json!({ "review": { "keys": { "accept": "x".repeat(80) } } }))
        .start();
    let before = nvim.snapshot();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    assert_eq!(pending.verdict(), Verdict::Rejected, "never an error, which Pi takes for a yes");
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    before.assert_same(&nvim.snapshot(), "after a review that could not be opened");
}
