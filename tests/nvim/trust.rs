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

/// The user's own keys for "write", and for other things, as a configuration would have them.
const USERS_KEYS: &str = r#"
    local map = vim.keymap.set
    map('n', 'g1', '<Cmd>w<CR>')
    map('n', 'g2', ':w<CR>')
    map('n', 'g3', '<Cmd>update<CR>')
    map('n', 'g4', '<cmd>silent! up<cr>')
    map('n', 'g5', '<Cmd>x<CR>')
    map('n', 'g6', function() vim.cmd.update() end)
    map('n', 'g7', function() vim.cmd.x() end)
    map('n', 'g8', function() vim.cmd('wq') end)
    map('n', 'g9', vim.cmd.update)
    map('n', '<Plug>(save)', '<Cmd>update<CR>')
    map('n', 'ga', '<Plug>(save)', { remap = true })
    map('n', 'gb', function() if vim.bo.modified then vim.cmd('silent update') end end)
    map('i', '<C-s>', '<Esc><Cmd>update<CR>')
    map('n', 'gd', '<Cmd>bdelete<CR>')
    map('n', 'gq', function() vim.cmd.quit() end)
    map('n', 'gw', '<Cmd>wall<CR>')
    map('n', 'gl', function() vim.cmd.bdelete() end)
    map('n', 'gx', '<Cmd>silent! wqall<CR>')
    package.loaded['my.saver'] = {
      one = function() if vim.bo.modified then vim.cmd('silent update') end end,
      every = function() vim.cmd('silent! wall') end,
    }
    map('n', 'gc', function() require('my.saver').one() end)
    map('n', 'ge', '<Cmd>exe "update"<CR>')
    map('n', 'gW', function() vim.cmd.wall() end)
    map('n', 'gE', function() require('my.saver').every() end)
    vim.o.makeprg = 'true'
    map('n', 'gm', '<Cmd>silent make<CR>')
    map('n', 'gM', function() vim.cmd('silent make') end)
"#;

#[test]
fn the_users_own_write_mappings_accept_an_unedited_proposal() {
    let nvim = Nvim::builder().file("a.txt", OLD).after(USERS_KEYS).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let mappings =
        ["g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8", "g9", "ga", "gb", "gc", "ge", "i<C-s>"];
    let typed = [
        ":update<CR>",
        ":exe 'w'<CR>",
        ":lua vim.cmd.w()<CR>",
        "V:IdeAccept<CR>",
        "q:iupdate<Esc><CR>",
        "q:ix<Esc><CR>",
        "q:iwq<CR>",
    ];
    for keys in mappings.into_iter().chain(typed) {
        let (pending, review) = reviewing(&nvim, &agent);
        nvim.keys_in(&review.right, keys);
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()), "{keys}");
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    }
}

#[test]
fn mappings_that_close_an_unedited_proposal_reject_and_those_for_all_buffers_decide_nothing() {
    let nvim = Nvim::builder().file("a.txt", OLD).after(USERS_KEYS).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    for keys in ["gd", "gq", "gl"] {
        let (pending, review) = reviewing(&nvim, &agent);
        nvim.keys_in(&review.right, keys);
        assert_eq!(pending.verdict(), Verdict::Rejected, "{keys}");
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    }
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "gw");
    pending.assert_unanswered(Duration::from_millis(200));
    nvim.cmd("set autowrite");
    for keys in ["Gox<Esc>gw", "gW", "gE", ":exe 'wall'<CR>", ":lua vim.cmd.wall()<CR>", "gm", "gM"]
    {
        nvim.keys_in(&review.right, keys);
        pending.assert_unanswered(Duration::from_millis(200));
        nvim.dismiss_prompts();
    }
    // Without a key of the user's the same function says nothing, and the pane is as it was.
    nvim.lua::<()>("vim.defer_fn(vim.fn.maparg('g6', 'n', false, true).callback, 10)", json!([]));
    pending.assert_unanswered(Duration::from_millis(200));
    nvim.keys_in(&review.left, "g6");
    pending.assert_unanswered(Duration::from_millis(200));
    nvim.keys_in(&review.right, "g3");
    assert_eq!(pending.verdict(), Verdict::Saved(format!("{NEW}x\n")));
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
fn d41_line_ends_and_encoding_follow_what_the_agent_wrote() {
    let nvim = Nvim::start();
    let _agent = Client::connect(&nvim, Dialect::Claude);
    let write_back = |set: &str, name: &str, open: &str, old: &[u8], new: &[u8], shown: &str| {
        nvim.write(name, old);
        nvim.cmd(&format!("edit {open} {}", nvim.path(name).display()));
        let first = nvim.eval("getline(1)");
        nvim.cmd(set);
        let autoread = nvim.eval("[&g:autoread, &l:autoread]");
        nvim.settle(Duration::from_millis(200));
        nvim.write(name, new);
        nvim.wait_until(&format!("{name} to follow"), || nvim.eval("getline(1)") == shown);
        assert_eq!(nvim.eval("&modified"), 0, "{name}");
        nvim.cmd("silent write!");
        assert_eq!(nvim.read(name), new, "{name}: the user's write changed it");
        nvim.cmd("silent undo");
        assert_eq!(nvim.eval("getline(1)"), first, "{name}: history was lost");
        assert_eq!(nvim.eval("[&g:autoread, &l:autoread]"), autoread, "{name}");
        nvim.cmd("bwipeout!");
    };
    for set in ["set autoread", "set noautoread", "setlocal autoread"] {
        write_back(set, "lf", "", b"a\r\nb\r\n", b"A\nb\n", "A");
        write_back(set, "crlf", "", b"a\nb\n", b"A\r\nb\r\n", "A");
        write_back(set, "utf-8", "", b"caf\xe9\n", "Café\n".as_bytes(), "Café");
        write_back(set, "latin1", "", "café\n".as_bytes(), b"Caf\xe9\n", "Café");
        write_back(set, "no-bom", "", b"\xef\xbb\xbfa\n", b"A\n", "A");
        write_back(set, "utf-16", "", b"\xff\xfea\0\n\0", b"A\n", "A");
        write_back(set, "named", "++enc=cp1250", b"a\xbe\n", b"A\xbe\n", "Aľ");
    }
}

#[test]
fn d41_what_is_written_while_the_command_line_window_is_open_shows_after_it() {
    let nvim = Nvim::builder().tty(24, 80).file("a.txt", OLD).start();
    let buf = nvim.eval("bufnr('a.txt')").as_i64().unwrap();
    let _agent = Client::connect(&nvim, Dialect::Claude);
    nvim.type_keys("q:");
    nvim.wait_until("the command-line window", || nvim.eval("getcmdwintype()") == ":");
    nvim.settle(Duration::from_millis(200));
    nvim.write("a.txt", NEW);
    nvim.settle(Duration::from_millis(300));
    nvim.type_keys(":q\r");
    nvim.wait_until("the buffer to follow", || nvim.lines(buf).join("\n") + "\n" == NEW);
    assert!(!nvim.blocked());
}

#[test]
fn d41_a_write_that_moves_every_line_does_not_hold_neovim_up() {
    let line = |n: usize| format!("{} {}\n", n % 977, "x".repeat(n % 7));
    let old: String = (0..180_000).map(line).collect();
    let new: String = (0..180_000).map(|n| line(n * 48_271 % 180_000)).collect();
    assert!(old.len() < 2 << 20, "larger texts are not compared");
    let nvim = Nvim::builder().file("a.txt", &old).start();
    let _agent = Client::connect(&nvim, Dialect::Claude);
    nvim.settle(Duration::from_millis(300));
    nvim.stall_start();
    nvim.write("a.txt", &new);
    let first = new.lines().nth(1).unwrap();
    nvim.wait_until("the buffer to follow", || nvim.eval("getline(2)") == first);
    let stall = nvim.stall();
    assert!(stall < Duration::from_secs(1), "{stall:?}");
}

#[test]
fn d24_text_the_user_has_not_saved_survives_reviews_and_the_agents_write() {
    let nvim = editor();
    let buf = nvim.eval("bufnr('a.txt')").as_i64().unwrap();
    nvim.set_lines(buf, &["mine"]);
    nvim.cmd("set columns=160");
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending = agent.open_diff(nvim.path("a.txt"), NEW);
    let review = nvim.shown(&pending);
    let bar: String = nvim.lua("return vim.wo[...].winbar", json!([review.left.win]));
    assert!(bar.contains("your buffer has unsaved changes"), "{bar}");
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    agent.close_tab(&pending);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    assert_eq!(nvim.lines(buf), ["mine"]);
    assert_eq!(nvim.read("a.txt"), OLD.as_bytes());
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
fn r10_a_panic_anywhere_leaves_neovim_running_with_one_message_and_a_backtrace_in_the_log() {
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

/// Ways to quit Neovim's last ordinary window.
const QUITS: [&str; 6] = [":q<CR>", ":q!<CR>", ":wq<CR>", ":x<CR>", "ZZ", "ZQ"];

#[test]
fn quitting_the_last_window_of_the_users_leaves_neovim_and_rejects() {
    for (index, keys) in QUITS.into_iter().enumerate() {
        let nvim = editor();
        let home = nvim.eval("win_getid()").as_i64().unwrap();
        let agent = Client::connect(&nvim, Dialect::Pi);
        let (pending, review) = reviewing(&nvim, &agent);
        if index % 2 == 0 {
            nvim.keys_in(&review.right, "Goedited<Esc>");
        }
        nvim.goto(home);
        nvim.input(keys);
        let exit = nvim.wait_exit(Duration::from_secs(3));
        assert_eq!((exit.code, exit.signal), (Some(0), None), "{keys}");
        assert_eq!(pending.verdict(), Verdict::Rejected, "{keys}");
        assert_eq!(nvim.read("a.txt"), OLD.as_bytes());
    }
}

#[test]
fn a_quit_that_is_refused_for_unsaved_text_leaves_the_review_and_its_edits_in_place() {
    let nvim = editor();
    let home = nvim.eval("win_getid()").as_i64().unwrap();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "Goedited<Esc>");
    nvim.goto(home);
    let mine = nvim.eval("bufadd('mine.txt')").as_i64().unwrap();
    nvim.cmd("call bufload('mine.txt') | call setbufvar('mine.txt', '&buflisted', 1)");
    nvim.set_lines(mine, &["unsaved"]);
    nvim.input(":q<CR>");
    nvim.settle(Duration::from_millis(300));
    nvim.dismiss_prompts();
    assert!(nvim.running(), "the user's own text was given up");
    pending.assert_unanswered(Duration::from_millis(200));
    let panes = nvim.panes();
    assert_eq!(panes.len(), 2, "the review stands ready again");
    assert_eq!(nvim.lines(review.right.buf).last().unwrap(), "edited");
    let right = nvim.right_panes().remove(0);
    nvim.goto(right.win);
    nvim.settle(ARMED);
    nvim.keys_in(&right, ":w<CR>");
    assert_eq!(pending.verdict(), Verdict::Saved(format!("{NEW}edited\n")));
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    assert_eq!(nvim.lines(mine), ["unsaved"]);
}

#[test]
fn quitting_one_of_several_windows_is_only_that() {
    let nvim = editor();
    let home = nvim.eval("win_getid()").as_i64().unwrap();
    nvim.cmd("split b.txt");
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, _review) = reviewing(&nvim, &agent);
    nvim.goto(home);
    nvim.input(":q<CR>");
    nvim.wait_until("the window to close", || !nvim.win_exists(home));
    pending.assert_unanswered(Duration::from_millis(200));
    assert_eq!(nvim.panes().len(), 2);
}

#[test]
fn who_closed_everything_but_the_review_ends_in_its_file_or_where_they_were_last() {
    for (file, last) in [("a.txt", "a.txt"), ("new.txt", "b.txt")] {
        let nvim = editor();
        nvim.edit("b.txt");
        let agent = Client::connect(&nvim, Dialect::Pi);
        let pending = agent.open_diff(nvim.path(file), NEW);
        let review = nvim.shown(&pending);
        nvim.cmd("set hidden");
        nvim.keys_in(&review.right, ":tabonly<CR>");
        nvim.keys_in(&review.right, ":w<CR>");
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        assert_eq!(nvim.eval("expand('%:t')"), json!(last), "{file}");
        let state =
            "[tabpagenr('$'), winnr('$'), &l:winfixbuf, &l:winfixwidth, &l:diff, &l:winbar]";
        assert_eq!(nvim.eval(state), json!([1, 1, 0, 0, 0, ""]));
        let unnamed = "len(filter(getbufinfo({'buflisted': 1}), {_, b -> b.name == ''}))";
        assert_eq!(nvim.eval(unnamed), json!(0), "an empty buffer was left behind");
    }
}

#[test]
fn handlers_of_the_users_that_throw_are_told_once_and_break_nothing() {
    let nvim = Nvim::builder()
        .file("a.txt", OLD)
        .after(
            "vim.api.nvim_create_autocmd('User', { pattern = 'Gangway*', callback = function()
               error('on purpose') end })
             vim.cmd('autocmd User GangwayReviewOpened let g:x = not_there')
             vim.api.nvim_create_autocmd('User', { pattern = 'GangwayReviewOpened',
               callback = function() vim.g.heard = (vim.g.heard or 0) + 1 print('a word') end })",
        )
        .start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    for round in 1..=3 {
        let (pending, review) = reviewing(&nvim, &agent);
        nvim.accept(&review);
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        assert_eq!(nvim.eval("g:heard"), json!(round), "the handlers after it");
        assert!(!nvim.blocked());
    }
    for event in ["GangwayReviewOpened", "GangwayReviewClosed"] {
        let told = nvim.notifications();
        let told = told.iter().filter(|m| m.contains(event) && m.contains("failed")).count();
        assert_eq!(told, 1, "{event}: {:?}", nvim.notifications());
    }
    let messages = nvim.messages();
    assert!(!messages.contains("traceback") && !messages.contains("Error "), "{messages}");
    assert!(messages.contains("a word"), "what a handler says is not kept from the user");
}

#[test]
fn naming_a_pane_anew_or_writing_a_part_of_it_loses_and_decides_nothing() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    nvim.keys_in(&review.right, "Goedited<Esc>");
    let edited = format!("{NEW}edited\n");
    let names = || -> Vec<String> {
        nvim.lua(
            "return vim.tbl_map(vim.api.nvim_buf_get_name, vim.api.nvim_list_bufs())",
            json!([]),
        )
    };
    let mut before = names();
    before.sort();
    for (keys, copy) in [
        (":file y.txt<CR>", None),
        (":file z.txt | w<CR>", Some("z.txt")),
        (":sav x.txt<CR>", Some("x.txt")),
        (":2w!<CR>", None),
        (":w >><CR>", None),
    ] {
        let said = nvim.notifications().len();
        nvim.keys_in(&review.right, keys);
        nvim.settle(Duration::from_millis(150));
        nvim.dismiss_prompts();
        pending.assert_unanswered(Duration::from_millis(100));
        assert_eq!(nvim.lines(review.right.buf).join("\n") + "\n", edited, "{keys}");
        let mut now = names();
        now.sort();
        assert_eq!(now, before, "{keys}");
        let told = nvim.notifications().len() - said;
        assert!(told >= 1, "{keys} says what happened: {:?}", nvim.notifications());
        if let Some(copy) = copy {
            assert_eq!(nvim.read(copy), edited.as_bytes(), "{keys}");
        }
    }
    assert!(!nvim.path("y.txt").exists());
    nvim.keys_in(&review.right, ":w!<CR>");
    assert_eq!(pending.verdict(), Verdict::Saved(edited));
}

#[test]
fn an_autocommand_that_accepts_when_windows_close_gives_one_verdict() {
    let nvim = Nvim::builder()
        .file("a.txt", OLD)
        .after("vim.cmd('autocmd WinClosed * silent! IdeAccept')")
        .start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    for _ in 0..3 {
        let (pending, review) = reviewing(&nvim, &agent);
        nvim.keys_in(&review.right, ":q<CR>");
        // The user's own command, by the user's own rule: it comes before the closing's "no".
        assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    }
    assert_eq!(nvim.status()["reviews"], json!([]));
}

#[test]
fn a_name_with_control_characters_is_shown_for_what_it_is_everywhere() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let path = nvim.write("a\u{202e}txt\u{1b}[31m\nb", "old\n");
    let pending = agent.open_diff(&path, "new\n");
    let review = nvim.shown(&pending);
    for pane in [&review.left, &review.right] {
        let name: String = nvim.lua("return vim.api.nvim_buf_get_name(...)", json!([pane.buf]));
        let raw = |c: char| c.is_control() || c == '\u{202e}';
        assert!(!name.contains(raw) && name.contains("<202e>"), "{name:?}");
    }
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("new\n".into()));
}

#[test]
fn options_of_the_users_about_window_sizes_leave_room_for_both_panes() {
    for set in [
        "winwidth=70",
        "winwidth=70 winminwidth=20",
        "winheight=999",
        "winwidth=50 winminwidth=50",
        "noequalalways",
    ] {
        let nvim = Nvim::builder().tty(24, 80).file("a.txt", OLD).start();
        nvim.cmd(&format!("set {set}"));
        let agent = Client::connect(&nvim, Dialect::Pi);
        let (pending, review) = reviewing(&nvim, &agent);
        let sizes = || -> Vec<(i64, i64)> {
            [&review.left, &review.right]
                .map(|pane| {
                    let size = "return { vim.fn.winwidth(...), vim.fn.winheight(...) }";
                    nvim.lua(size, json!([pane.win]))
                })
                .into()
        };
        for pane in [&review.left, &review.right] {
            nvim.goto(pane.win);
            let roomy = sizes().iter().all(|(width, height)| *width >= 38 && *height >= 8);
            assert!(roomy, "{set}: {:?}", sizes());
        }
        nvim.resize(24, 121);
        nvim.wait_until(&format!("{set}: the room to be shared anew"), || {
            let sizes = sizes();
            sizes[0].0 >= 60 && sizes[1].0 >= 60
        });
        nvim.reject(&review);
        assert_eq!(pending.verdict(), Verdict::Rejected);
    }
}

#[test]
fn marks_of_line_ends_follow_the_disk() {
    let nvim = Nvim::start();
    let path = nvim.write("a.txt", "one\ntwo\nthree\n");
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(&path, "one\nTWO\nthree\n");
    let review = nvim.shown(&pending);
    let marks = || -> Vec<(i64, String)> {
        nvim.lua(
            "local space = vim.api.nvim_get_namespaces().gangway_line_ends
             local marks = vim.api.nvim_buf_get_extmarks(..., space, 0, -1, { details = true })
             return vim.tbl_map(function(m) return { m[2], m[4].virt_text[1][1] } end, marks)",
            json!([review.left.buf]),
        )
    };
    assert_eq!(marks(), []);
    nvim.write("a.txt", "one\ntwo\r\nthree");
    nvim.wait_until("the marks to come", || {
        marks() == [(1, "other line end".into()), (2, "no newline at end of file".into())]
    });
    nvim.write("a.txt", "one\ntwo\nthree\n");
    nvim.wait_until("the marks to go", || marks().is_empty());
}

#[test]
fn no_way_back_in_time_empties_the_proposal() {
    let nvim = editor();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    for keys in
        [":earlier 1d<CR>", ":undo 0<CR>", "g-g-g-", "10u", "U", "Gox<Esc>:earlier 100f<CR>"]
    {
        nvim.keys_in(&review.right, keys);
        nvim.settle(Duration::from_millis(50));
        nvim.dismiss_prompts();
        assert_eq!(nvim.lines(review.right.buf).join("\n") + "\n", NEW, "{keys}");
    }
    pending.assert_unanswered(Duration::from_millis(100));
    nvim.keys_in(&review.right, ":w<CR>");
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
}

#[test]
fn a_click_on_a_pane_its_winbar_or_the_line_between_decides_nothing() {
    let nvim = Nvim::builder().tty(24, 80).file("a.txt", OLD).start();
    nvim.cmd("set mouse=a");
    let agent = Client::connect(&nvim, Dialect::Pi);
    let (pending, review) = reviewing(&nvim, &agent);
    for (row, col) in
        [(1, 5), (1, 45), (1, 60), (1, 75), (5, 5), (5, 60), (5, 39), (22, 10), (22, 60)]
    {
        for button in ["left", "middle"] {
            let press = json!([button, "press", "", 0, row, col]);
            nvim.call("nvim_input_mouse", press);
            nvim.call("nvim_input_mouse", json!([button, "release", "", 0, row, col]));
            nvim.settle(Duration::from_millis(20));
            nvim.input("<Esc>");
        }
    }
    pending.assert_unanswered(Duration::from_millis(200));
    assert_eq!(nvim.panes().len(), 2);
    assert_eq!(nvim.lines(review.right.buf).join("\n") + "\n", NEW);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
}

#[test]
fn a_link_that_leads_elsewhere_meanwhile_harms_neither_file() {
    let nvim = Nvim::builder().write("one.txt", OLD).write("two.txt", "the other\n").start();
    let link = nvim.path("link.txt");
    std::os::unix::fs::symlink("one.txt", &link).unwrap();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(&link, NEW);
    let review = nvim.shown(&pending);
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("two.txt", &link).unwrap();
    nvim.settle(Duration::from_millis(300));
    pending.assert_unanswered(Duration::from_millis(100));
    assert_eq!(nvim.lines(review.right.buf).join("\n") + "\n", NEW);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    assert_eq!(nvim.read("one.txt"), OLD.as_bytes());
    assert_eq!(nvim.read("two.txt"), b"the other\n");
}

#[test]
fn pings_are_answered_and_the_winbar_says_so_while_something_huge_is_reviewed() {
    let lines = |word: &str| -> String { (0..200_000).map(|i| format!("{word} {i}\n")).collect() };
    let long = |word: &str| -> String { word.repeat(5_000_000 / word.len()) };
    for (what, old, new, note) in [
        ("200 000 changed lines", lines("old"), lines("new"), "+200000"),
        ("a line of 5 MB", long("old "), long("new "), "too large for diff colours"),
    ] {
        let nvim = Nvim::builder().write("big.txt", &old).start();
        nvim.cmd("set columns=200");
        let agent = Client::connect(&nvim, Dialect::Pi);
        let pending = agent.open_diff(nvim.path("big.txt"), &new);
        let mut slowest = Duration::ZERO;
        let shown = poll(Duration::from_secs(60), || {
            slowest = slowest.max(agent.ping());
            let seen: bool = nvim.lua_within(
                Duration::from_secs(60),
                "for _, buf in ipairs(vim.api.nvim_list_bufs()) do
                   if vim.bo[buf].buftype == 'acwrite' then return true end end return false",
                json!([]),
            );
            seen.then_some(())
        });
        assert!(shown.is_some(), "{what}: never shown");
        assert!(slowest < Duration::from_secs(1), "{what}: a pong took {slowest:?}");
        let bar = || -> String {
            nvim.lua_within(
                Duration::from_secs(60),
                "for _, win in ipairs(vim.api.nvim_list_wins()) do
                   local buf = vim.api.nvim_win_get_buf(win)
                   if vim.bo[buf].buftype == 'acwrite' then return vim.wo[win].winbar end end
                 return ''",
                json!([]),
            )
        };
        let said = poll(Duration::from_secs(60), || bar().contains(note).then_some(()));
        assert!(said.is_some(), "{what}: {}", bar());
        nvim.cmd("IdeAccept!");
        let verdict = pending.verdict_within(Duration::from_secs(60));
        assert!(matches!(&verdict, Verdict::Saved(text) if *text == new), "{what}");
    }
}
