//! Leaving Neovim: under a second whatever goes on, with every answer given and nothing left behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

const LIMIT: Duration = Duration::from_secs(1);

/// What goes on while the user leaves.
#[derive(Debug, Clone, Copy)]
enum While {
    AnAgentIsIdle,
    AnAgentDoesNotRead,
    ReviewsWait,
    ABigAnswerIsOnItsWay,
    AgentsKeepAsking,
    AnotherPluginIsSlow,
}

const ALL: [While; 6] = [
    While::AnAgentIsIdle,
    While::AnAgentDoesNotRead,
    While::ReviewsWait,
    While::ABigAnswerIsOnItsWay,
    While::AgentsKeepAsking,
    While::AnotherPluginIsSlow,
];

/// Starts a Neovim, leaves it, and returns how long that took.
fn leave(what: While, turn: usize) -> Duration {
    let slow = "vim.api.nvim_create_autocmd('VimLeavePre', { callback = function() vim.uv.sleep(300) end })";
    let builder = Nvim::builder().write("a.txt", "one\n").write("b.txt", "one\n");
    let nvim = match (what, turn % 2) {
        (While::AnotherPluginIsSlow, 0) => builder.before(slow),
        (While::AnotherPluginIsSlow, _) => builder.after(slow),
        _ => builder,
    }
    .start();
    let locks = [nvim.lock(Dialect::Pi), nvim.lock(Dialect::Claude)];
    let agent = Client::connect(&nvim, Dialect::Pi);
    // What a command says to the shell stays what it is.
    let (command, code) = [("qa!", 0), ("cquit 7", 7)][turn / 2 % 2];
    let exit = match what {
        While::AnAgentIsIdle | While::AnotherPluginIsSlow => nvim.quit(command),
        While::AnAgentDoesNotRead => {
            let deaf = Client::builder(&nvim, Dialect::Claude).deaf().connect();
            for id in 0..400 {
                deaf.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" }));
            }
            deaf.lenient();
            nvim.quit(command)
        }
        While::ReviewsWait => {
            let pending: Vec<Pending> = ["a.txt", "b.txt", "new.txt"]
                .iter()
                .map(|name| agent.open_diff(nvim.path(name), "two\n"))
                .collect();
            nvim.wait_until("three reviews", || nvim.right_panes().len() == 3);
            let exit = nvim.quit(command);
            for pending in pending {
                assert_eq!(pending.verdict(), Verdict::Rejected, "answered before the end");
            }
            exit
        }
        While::ABigAnswerIsOnItsWay => {
            let deaf = Client::builder(&nvim, Dialect::Claude).deaf().connect();
            deaf.open_diff(nvim.path("a.txt"), &"a line of twenty by\n".repeat(1_000_000));
            nvim.accept_unread();
            deaf.lenient();
            nvim.quit(command)
        }
        While::AgentsKeepAsking => {
            let stop = AtomicBool::new(false);
            let agents = [Dialect::Pi, Dialect::Claude, Dialect::Opencode]
                .map(|d| Client::connect(&nvim, d));
            std::thread::scope(|scope| {
                for agent in &agents {
                    agent.lenient();
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) && !agent.is_closed() {
                            agent.tool_request("getOpenEditors", json!({}));
                            agent.request("tools/list", json!({}));
                            std::thread::sleep(Duration::from_micros(200));
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(100));
                let exit = nvim.quit(command);
                stop.store(true, Ordering::Relaxed);
                exit
            })
        }
    };
    let told = || format!("{what:?}, turn {turn}: {exit:?}");
    assert_eq!((exit.code, &exit.signal), (Some(code), &None), "{}", told());
    assert!(exit.took < LIMIT, "{}", told());
    for lock in locks {
        let dir = lock.path.parent().unwrap();
        let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(left.is_empty(), "{}: {left:?}", told());
    }
    let core = |name: &str| name.starts_with("core");
    let files = std::fs::read_dir(&nvim.cwd).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!files.into_iter().any(|name| core(&name.to_string_lossy())), "{}", told());
    exit.took
}

fn leave_often(times: usize) {
    let mut took: Vec<(Duration, While)> = Vec::new();
    for turn in 0..times {
        let what = ALL[turn % ALL.len()];
        took.push((leave(what, turn / ALL.len()), what));
    }
    took.sort_by_key(|(took, _)| *took);
    println!(
        "{times} of {times} under {LIMIT:?}; median {:?}, slowest {:?}",
        took[times / 2].0,
        took[times - 1]
    );
}

#[test]
fn leaving_takes_less_than_a_second_whatever_goes_on() {
    leave_often(10);
}

#[test]
#[ignore = "takes minutes"]
fn leaving_two_hundred_times_takes_less_than_a_second_each() {
    leave_often(200);
}

#[test]
fn stopping_and_leaving_are_quick_with_many_reviews() {
    for leaves in [false, true] {
        let nvim = Nvim::start();
        let agent = Client::connect(&nvim, Dialect::Pi);
        let pending: Vec<Pending> =
            (0..150).map(|n| agent.open_diff(nvim.path(format!("{n}.txt")), "new\n")).collect();
        let tabs = || nvim.lua::<usize>("return #vim.api.nvim_list_tabpages()", ());
        nvim.wait_until("all of them", || tabs() == pending.len() + 1);
        let took = if leaves {
            nvim.quit("qa!").took
        } else {
            let began = std::time::Instant::now();
            nvim.cmd("IdeStop");
            assert_eq!(tabs(), 1);
            began.elapsed()
        };
        assert!(took < LIMIT, "{took:?}, leaves: {leaves}");
        for pending in pending {
            assert_eq!(pending.verdict(), Verdict::Rejected);
        }
    }
}

#[test]
fn leaving_past_our_handler_answers_what_is_pending_all_the_same() {
    let throws = |event: &str| {
        format!(
            "vim.api.nvim_create_autocmd('{event}', {{ callback = function() error('x') end }})"
        )
    };
    let stuck = "lua require('gangway.native').load()._panic('stuck') vim.cmd('noautocmd qa!')";
    for (before, leave) in [
        (String::new(), "noautocmd qa!"),
        (String::new(), stuck),
        (String::new(), "set eventignore=all | qa!"),
        (String::new(), "lua os.exit(0)"),
        (throws("QuitPre"), "lua vim.cmd('qa!')"),
        (throws("ExitPre"), "lua vim.cmd('qa!')"),
        (throws("VimLeavePre"), "lua vim.cmd('qa!')"),
    ] {
        let nvim = Nvim::builder().before(&before).write("a.txt", "one\n").start();
        let locks = [nvim.lock(Dialect::Pi), nvim.lock(Dialect::Claude)];
        let agents = [Dialect::Pi, Dialect::Claude].map(|d| Client::connect(&nvim, d));
        let pending = agents.each_ref().map(|agent| agent.open_diff(nvim.path("a.txt"), "two\n"));
        nvim.wait_until("two reviews", || nvim.right_panes().len() == 2);
        let exit = nvim.quit(leave);
        let told = format!("{before} {leave}: {exit:?}");
        assert!(exit.signal.is_none() && exit.took < LIMIT, "{told}");
        for pending in &pending {
            assert_eq!(pending.verdict(), Verdict::Rejected, "{told}");
        }
        assert!(!locks.iter().any(|lock| lock.path.exists()), "{told}");
    }
}

#[test]
fn a_panic_while_leaving_is_no_reason_to_stay() {
    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Pi);
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.lua::<Value>(
        "vim.api.nvim_create_autocmd('VimLeavePre', { callback = function()
           pcall(require('gangway.native').load()._panic, 'function') end })",
        (),
    );
    let exit = nvim.quit("qa!");
    assert_eq!((exit.code, exit.signal), (Some(0), None));
    // A debug library takes its time over the backtrace.
    assert!(exit.took < 3 * LIMIT, "{:?}", exit.took);
    assert!(!lock.path.exists());
    agent.wait_closed();
}
