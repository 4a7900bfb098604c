//! Start, stop, and what is left behind.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::*;

fn mode(path: &std::path::Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn lock_files_appear_at_start_and_vanish_at_exit() {
    let nvim = Nvim::start();
    let pi = nvim.lock(Dialect::Pi);
    let claude = nvim.lock(Dialect::Claude);
    assert_eq!(pi.port, claude.port);
    assert_ne!(pi.token, claude.token, "each credential names its dialect");
    for lock in [&pi, &claude] {
        assert_eq!(lock.json["pid"], json!(nvim.pid()));
        assert_eq!(lock.json["transport"], "ws");
        let folders = lock.json["workspaceFolders"].as_array().unwrap();
        assert!(folders.contains(&json!(nvim.cwd)), "{folders:?}");
        let name = lock.json["ideName"].as_str().unwrap();
        assert!(name.contains("work"), "a name that tells two Neovims apart: {name}");
    }
    let exit = nvim.quit("qa!");
    assert_eq!((exit.code, exit.signal), (Some(0), None));
    assert!(exit.took < Duration::from_secs(1), "leaving took {:?}", exit.took);
    assert!(!pi.path.exists() && !claude.path.exists());
}

#[test]
fn l01_lock_files_are_private_from_the_first_instant() {
    let nvim = Nvim::builder().before("vim.uv.fs_mkdir(vim.env.HOME .. '/.claude', 493)").start();
    for dialect in [Dialect::Pi, Dialect::Claude] {
        let lock = nvim.lock(dialect);
        assert_eq!(mode(&lock.path), 0o600);
        assert_eq!(mode(lock.path.parent().unwrap()), 0o700);
        let strangers: Vec<_> = std::fs::read_dir(lock.path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| *path != lock.path)
            .collect();
        assert!(strangers.is_empty(), "left behind: {strangers:?}");
    }
}

#[test]
fn l05_the_agents_own_directories_are_respected() {
    let folder = tempfile::tempdir().unwrap();
    let (pi, claude) = (folder.path().join("p i/$x[1]"), folder.path().join("c"));
    let nvim =
        Nvim::builder().env("PI_IDE_LOCK_DIR", &pi).env("CLAUDE_CONFIG_DIR", &claude).start();
    let locks = [nvim.lock(Dialect::Pi), nvim.lock(Dialect::Claude)];
    assert_eq!(locks[0].path.parent(), Some(&*pi));
    assert_eq!(locks[1].path.parent(), Some(&*claude.join("ide")));
    nvim.quit("qa!");
    assert!(locks.iter().all(|lock| !lock.path.exists()));
}

#[test]
fn l13_both_kinds_of_lock_file_come_and_go_together() {
    let nvim = Nvim::start();
    let first = nvim.lock(Dialect::Pi);
    nvim.cmd("IdeStop");
    nvim.wait_no_locks();
    assert_eq!(nvim.status()["running"], json!(false));
    nvim.cmd("IdeStart");
    let again = nvim.lock(Dialect::Pi);
    assert_eq!(nvim.lock(Dialect::Claude).port, again.port);
    assert_eq!(
        (again.port, again.token),
        (first.port, first.token),
        "agents find a restarted server again"
    );
}

#[test]
fn starting_and_stopping_fifty_times_leaves_nothing() {
    let nvim = Nvim::start();
    nvim.lock(Dialect::Pi);
    let round = || {
        nvim.cmd("IdeStop");
        nvim.wait_no_locks();
        nvim.cmd("IdeStart");
        let agent = Client::connect(&nvim, Dialect::Pi);
        agent.close(1000);
        agent.wait_closed();
    };
    (0..5).for_each(|_| round());
    let before = nvim.counts();
    (0..50).for_each(|_| round());
    nvim.settle(Duration::from_millis(500));
    let after = nvim.counts();
    assert_eq!(before.grown(&after, 2), Vec::<String>::new());
    let grown = after.get("rss_kib") - before.get("rss_kib");
    assert!(grown < 20_000, "{grown} KiB more");
}

#[test]
fn a_stop_in_the_middle_of_reviews_is_forgotten_at_the_next_start() {
    let nvim = Nvim::builder().file("a.txt", "one\ntwo\n").start();
    nvim.edit("a.txt");
    // A stop that comes at any moment: proposals shown, on their way, and just decided.
    for moment in 0..6u64 {
        let agent = Client::connect(&nvim, Dialect::Claude);
        let asked: Vec<_> = (0..3)
            .map(|n| agent.open_diff(nvim.path("a.txt"), &format!("one\n{n} of {moment}\n")))
            .collect();
        if moment == 0 {
            nvim.shown(&asked[2]);
        } else {
            nvim.settle(Duration::from_millis(8 * moment));
        }
        nvim.cmd("IdeStop");
        for pending in &asked {
            assert_eq!(pending.verdict(), Verdict::Rejected);
        }
        nvim.wait_no_locks();
        assert!(nvim.right_panes().is_empty());
        nvim.cmd("IdeStart");
        nvim.lock(Dialect::Claude);
    }
    // Reviews come into view as ever, and what the agent writes is shown.
    let agent = Client::connect(&nvim, Dialect::Claude);
    let text = "one\nafter the stop\n";
    let pending = agent.open_diff(nvim.path("a.txt"), text);
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(text.into()));
    nvim.write("a.txt", text);
    agent.close_tab(&pending);
    let buf = nvim.eval("bufnr('a.txt')").as_i64().unwrap();
    nvim.wait_until("the buffer follows", || nvim.lines(buf) == ["one", "after the stop"]);
}

#[test]
fn setup_twice_is_as_good_as_once() {
    let nvim = Nvim::builder().after("require('gangway').setup({ auto_start = 'always' })").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    assert_eq!(nvim.locks(Dialect::Claude).len(), 1);
    let before = nvim.counts();
    nvim.lua::<Value>("require('gangway').setup({ auto_start = 'always' })", ());
    nvim.settle(Duration::from_millis(300));
    assert_eq!(before.grown(&nvim.counts(), 1), Vec::<String>::new());
    nvim.lock(Dialect::Claude);
    agent.ping();
}

#[test]
fn u01_headless_runs_start_nothing() {
    let nvim = Nvim::builder().no_setup().after("require('gangway').setup({})").start();
    nvim.settle(Duration::from_millis(500));
    assert!(nvim.locks(Dialect::Pi).is_empty() && nvim.locks(Dialect::Claude).is_empty());
    assert_eq!(nvim.messages(), "");
}

#[test]
fn with_a_terminal_ui_it_starts_by_itself() {
    let nvim = Nvim::builder().tty(24, 80).no_setup().after("require('gangway').setup({})").start();
    nvim.lock(Dialect::Pi);
    nvim.lock(Dialect::Claude);
}

#[test]
fn ide_start_alone_works_without_setup() {
    let nvim = Nvim::builder().no_setup().start();
    assert!(nvim.locks(Dialect::Pi).is_empty());
    nvim.cmd("IdeStart");
    Client::connect(&nvim, Dialect::Pi).ping();
}

#[test]
fn u03_loading_inside_a_coroutine_does_no_harm() {
    let nvim = Nvim::builder()
        .no_setup()
        .after(
            "coroutine.wrap(function() require('gangway').setup({ auto_start = 'always' }) end)()
             vim.schedule(function()
               for _ = 1, 10 do collectgarbage() end
               for _ = 1, 200 do coroutine.create(function() end) end
               collectgarbage()
             end)",
        )
        .start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.lua::<Value>("for _ = 1, 50 do collectgarbage() end", ());
    agent.ping();
}

#[test]
fn u05_a_terminated_neovim_removes_its_lock_files() {
    for signal in [Signal::TERM, Signal::HUP] {
        let nvim = Nvim::start();
        let lock = nvim.lock(Dialect::Pi);
        nvim.kill(signal);
        assert!(!lock.path.exists(), "{signal:?}");
    }
}

#[test]
fn l03_what_a_killed_neovim_left_is_removed_by_the_next() {
    let dead = Nvim::start();
    let left = dead.lock(Dialect::Pi);
    dead.kill(Signal::KILL);
    assert!(left.path.exists());
    let living = Nvim::builder().home(&dead.home).start();
    let lock = living.lock(Dialect::Pi);
    living.wait_until("the dead one's lock file to vanish", || {
        lock.path == left.path || !left.path.exists()
    });
}
