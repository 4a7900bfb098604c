//! Start, stop, and what is left behind.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::*;

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

/// A handler of `pattern`, which does nothing before `vim.g.ready`.
fn on(pattern: &str, command: &str) -> String {
    format!(
        "vim.api.nvim_create_autocmd('User', {{ pattern = '{pattern}', callback = function()
           if vim.g.ready then vim.cmd('{command}') end end }})"
    )
}

#[test]
fn a_handler_that_stops_it_when_lines_were_sent_is_obeyed() {
    let nvim = Nvim::builder().file("a.txt", "one\n").after(&on("GangwaySent", "IdeStop")).start();
    nvim.edit("a.txt");
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.cmd("let g:ready = 1");
    assert!(nvim.lua::<bool>("return require('gangway').send({ line1 = 1 })", ()));
    nvim.wait_no_locks();
    agent.wait_closed();
    assert_eq!(nvim.notifications(), Vec::<String>::new());
}

#[test]
fn a_start_from_a_handler_of_what_stopping_does_comes_after_the_stop() {
    let starts = on("GangwayReviewClosed", "IdeStart");
    let nvim = Nvim::builder().file("a.txt", "one\n").after(&starts).start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let shown = agent.open_diff(nvim.path("a.txt"), "two\n");
    nvim.shown(&shown);
    nvim.cmd("let g:ready = 1 | IdeStop");
    assert_eq!(shown.verdict(), Verdict::Rejected);
    // It runs again, and whole: agents get in, and what they propose is shown and decided.
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending = agent.open_diff(nvim.path("a.txt"), "three\n");
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("three\n".into()));
    // What was asked for once is done once.
    nvim.cmd("unlet g:ready | IdeStop");
    nvim.wait_no_locks();
    assert_eq!(nvim.status()["running"], json!(false));
}

#[test]
fn a_stop_from_an_expression_mapping_leaves_no_panes_behind() {
    let map = "vim.keymap.set('n', '<F2>', function() vim.cmd('IdeStop') return 'j' end, { expr = true })";
    let nvim = Nvim::builder().file("a.txt", "one\n").after(map).start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let pending = agent.open_diff(nvim.path("a.txt"), "two\n");
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.right, "<F2>");
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the panes to close", || nvim.panes().is_empty());
    assert_eq!(nvim.eval("tabpagenr('$')"), json!(1));
}

#[test]
fn nothing_starts_in_a_neovim_that_is_leaving() {
    let late = "vim.api.nvim_create_autocmd('VimLeave', { callback = function()
        vim.cmd('IdeStart')
        vim.fn.writefile({ tostring(require('gangway').status().running) }, 'running') end })";
    let nvim = Nvim::builder().after(late).start();
    let lock = nvim.lock(Dialect::Pi);
    let told = nvim.path("running");
    assert_eq!(nvim.quit("qa!").code, Some(0));
    assert_eq!(std::fs::read_to_string(told).unwrap(), "false\n");
    assert_eq!(std::fs::read_dir(lock.path.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn agents_get_in_while_a_prompt_of_the_start_stands() {
    let nvim = Nvim::builder().tty(24, 80).no_setup().start();
    nvim.type_keys(":exe 'IdeStart' | echo \"one\\ntwo\\nthree\"\r");
    nvim.wait_until("the hit-enter prompt", || nvim.blocked());
    let lock = nvim.lock(Dialect::Pi);
    assert!(nvim.blocked());
    assert_eq!(lock.json["workspaceFolders"][0], json!(nvim.cwd));
    let agent = Client::connect(&nvim, Dialect::Pi);
    agent.ping();
    // What happens from the start on is noticed as ever.
    nvim.type_keys("\r");
    nvim.wait_until("the prompt to go", || !nvim.blocked());
    nvim.edit(nvim.write("a.txt", "one\n"));
    let path = nvim.path("a.txt");
    agent.wait_selection("the file", |selection| selection["filePath"] == json!(path));
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

/// A run without the harness's channel: what a script or another program starts.
fn run(nvim: &Nvim, init: &std::path::Path, args: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(nvim.lua::<String>("return vim.v.progpath", ()));
    command.arg("--clean").arg("-u").arg(init).args(args).current_dir(&nvim.cwd);
    command.stdin(std::process::Stdio::null()).env("HOME", &nvim.home);
    for part in ["CONFIG", "DATA", "STATE", "CACHE"] {
        command.env(format!("XDG_{part}_HOME"), nvim.home.join(part));
    }
    command.env("GANGWAY_LIBRARY", nvim.env("GANGWAY_LIBRARY").unwrap()).env_remove("NVIM");
    command.output().unwrap()
}

#[test]
fn u01_headless_and_one_shot_runs_are_as_without_the_plugin() {
    let nvim = Nvim::builder().no_setup().after("require('gangway').setup({})").start();
    nvim.settle(Duration::from_millis(500));
    assert!(nvim.locks(Dialect::Pi).is_empty() && nvim.locks(Dialect::Claude).is_empty());
    assert_eq!(nvim.messages(), "");

    nvim.write("x.lua", "print('hi')\nos.exit(3)\n");
    nvim.write("a.txt", "one\n");
    nvim.write("b.txt", "one\ntwo\n");
    let bare = nvim.write("bare.lua", "");
    let ours = nvim.write(
        "ours.lua",
        format!(
            "vim.opt.runtimepath:prepend([[{}]]) require('gangway').setup({{}})",
            env!("CARGO_MANIFEST_DIR")
        ),
    );
    // As scripts, `git commit`, `nvim -d` and pagers use it.
    for args in [
        &["--headless", "+qa"][..],
        &["--headless", "+cquit 5"],
        &["-es", "+qa"],
        &["-es", "+echo 1", "+cquit"],
        &["-l", "x.lua"],
        &["--headless", "-d", "a.txt", "b.txt", "+qa"],
        &["--headless", "a.txt", "+normal Ox", "+wq"],
        &["--headless", "+Man! | qa!"],
    ] {
        let [without, with] = [&bare, &ours].map(|init| {
            nvim.write("a.txt", "one\n");
            run(&nvim, init, args)
        });
        assert_eq!(with, without, "{args:?}");
        assert!(!nvim.home.join(".pi").exists() && !nvim.home.join(".claude").exists(), "{args:?}");
    }
    // Processor time, since others use this machine too.
    let told = "+lua local u = vim.uv.getrusage() \
                io.stdout:write((u.utime.sec + u.stime.sec) * 1e6 + u.utime.usec + u.stime.usec)";
    let cost = |init: &std::path::Path| {
        let run = || run(&nvim, init, &["--headless", told, "+qa"]).stdout;
        let micros = || String::from_utf8(run()).unwrap().trim().parse::<f64>().unwrap();
        (0..10).map(|_| micros() / 1e3).fold(f64::MAX, f64::min)
    };
    let (without, with) = (cost(&bare), cost(&ours));
    println!("a headless run takes {:.1} ms longer than {without:.1} ms", with - without);
    assert!(with - without < 5.0, "{with} ms, without the plugin {without} ms");
}

#[test]
fn u05_signals_and_cquit_remove_the_lock_files_and_what_they_cannot_the_next_start_does() {
    for signal in [Signal::TERM, Signal::HUP] {
        let nvim = Nvim::start();
        let lock = nvim.lock(Dialect::Pi);
        nvim.kill(signal);
        assert!(!lock.path.exists(), "{signal:?}");
    }
    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Pi);
    assert_eq!(nvim.quit("cquit 4").code, Some(4));
    assert!(!lock.path.exists());
    // Neovim is killed by these where it stands (0.12 by KILL alone).
    for signal in [Signal::INT, Signal::KILL] {
        let nvim = Nvim::start();
        let lock = nvim.lock(Dialect::Pi);
        nvim.kill(signal);
        assert!(signal == Signal::INT || lock.path.exists(), "{signal:?}");
        let next = Nvim::builder().home(&nvim.home).start();
        let own = next.lock(Dialect::Pi);
        next.lock(Dialect::Claude);
        assert!(own.path == lock.path || !lock.path.exists(), "{signal:?}");
    }
}

#[test]
fn u05_a_terminal_that_is_closed_takes_the_lock_files_along() {
    let nvim = Nvim::builder().tty(24, 80).start();
    let lock = nvim.lock(Dialect::Pi);
    nvim.hang_up();
    let gone = poll(PATIENCE, || (!lock.path.exists()).then_some(()));
    assert!(gone.is_some(), "{} is left", lock.path.display());
}

#[test]
fn u05_a_suspended_neovim_keeps_its_agents_and_goes_on_in_the_foreground() {
    // A shell with job control, in a terminal of a Neovim that knows nothing of us.
    let inner = Nvim::builder().start();
    let (home, init) = (inner.home.clone(), inner.init());
    let library = inner.env("GANGWAY_LIBRARY").unwrap();
    inner.quit("qa!");
    let outer = Nvim::builder().plain().tty(30, 100).start();
    let program: String = outer.lua("return vim.v.progpath", ());
    outer.cmd("terminal bash --norc --noprofile -i");
    outer.wait_for_text("bash-");
    outer.cmd("startinsert");
    outer.type_keys(format!(
        "HOME={home} XDG_CONFIG_HOME={home}/config XDG_STATE_HOME={home}/state XDG_DATA_HOME={home}/data GANGWAY_LIBRARY={library} {program} --clean -u {init} hello.txt\r",
        home = home.display(),
        library = library.display(),
        init = init.display(),
    ));
    let dir = home.join(".pi/ide");
    let lock = outer.wait_for("the inner Neovim's lock file", || {
        std::fs::read_dir(&dir).ok()?.find_map(|entry| Lock::read(&entry.ok()?.path()))
    });
    let agent = Client::to(lock.port, &lock.token, Dialect::Pi).connect();
    outer.wait_for_text("hello.txt");
    outer.type_keys(":suspend\r");
    outer.wait_for_text("Stopped");
    // Whether or not the editor's process stands still as well, nobody is thrown out.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!agent.is_closed());
    assert!(lock.path.exists());
    outer.type_keys("fg\r");
    outer.wait_for_text("hello.txt");
    agent.ping();
    assert!(agent.tools().len() >= 12);
    outer.type_keys(":qa!\r");
    outer.wait_until("the inner one to leave", || !lock.path.exists());
    agent.wait_closed();
    outer.type_keys("exit\r");
}

#[test]
fn u05_a_neovim_in_a_terminal_of_another_has_a_door_of_its_own() {
    let outer = Nvim::builder().tty(30, 100).start();
    let lock = outer.lock(Dialect::Pi);
    let agent = Client::connect(&outer, Dialect::Pi);
    let program: String = outer.lua("return vim.v.progpath", ());
    outer.lua::<Value>(
        "vim.cmd('tabnew') vim.fn[vim.fn.has('nvim-0.11') == 1 and 'jobstart' or 'termopen'](..., { term = true })",
        json!([[program, "--clean", "-u", outer.init()]]),
    );
    let dir = lock.path.parent().unwrap();
    let inner = outer.wait_for("the inner one's lock file", || {
        let locks = std::fs::read_dir(dir).ok()?.filter_map(|e| Lock::read(&e.ok()?.path()));
        locks.into_iter().find(|other| other.json["pid"] != lock.json["pid"])
    });
    assert_ne!(inner.port, lock.port);
    assert_ne!(inner.token, lock.token);
    assert_ne!(inner.json["ideName"], lock.json["ideName"], "two names to choose from");
    // Each knows its own alone.
    let within = Client::to(inner.port, &inner.token, Dialect::Pi).connect();
    let path = outer.write("a.txt", "one\n");
    let pending = within.open_diff(&path, "two\n");
    pending.assert_unanswered(Duration::from_millis(800));
    assert_eq!(outer.right_panes().len(), 0, "it opened in the outer one");
    outer.quit("qa!");
    assert!(!lock.path.exists());
    assert_eq!(pending.verdict(), Verdict::Rejected, "the terminal's end is the inner one's");
    assert!(poll(PATIENCE, || (!inner.path.exists()).then_some(())).is_some());
    agent.wait_closed();
    within.wait_closed();
}

#[test]
fn u05_a_restart_hands_over_to_a_neovim_with_a_door_of_its_own() {
    let nvim = Nvim::builder().tty(24, 80).start();
    if !nvim.lua::<bool>("return vim.fn.exists(':restart') == 2", ()) {
        return;
    }
    let lock = nvim.lock(Dialect::Pi);
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.write("a.txt", "one\n"), "two\n");
    nvim.wait_until("the review", || !nvim.right_panes().is_empty());
    nvim.ends_by_itself();
    nvim.type_keys(":restart\r");
    assert_eq!(pending.verdict(), Verdict::Rejected);
    agent.wait_closed();
    let dir = lock.path.parent().unwrap();
    let again = poll(PATIENCE, || {
        let mut locks = std::fs::read_dir(dir).ok()?.filter_map(|e| Lock::read(&e.ok()?.path()));
        locks.find(|other| other.json["pid"] != lock.json["pid"])
    });
    let again = again.expect("a lock file of the new one");
    Client::to(again.port, &again.token, Dialect::Pi).connect().ping();
    nvim.type_keys(":qa!\r");
    nvim.wait_exit(PATIENCE);
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn u07_a_whole_session_calls_nothing_deprecated_and_ends_without_an_error() {
    let nvim = Nvim::builder()
        .before(
            "_G.old = {}
             local deprecate = vim.deprecate
             vim.deprecate = function(name, ...)
               table.insert(_G.old, name .. debug.traceback())
               return deprecate(name, ...)
             end",
        )
        .opts(json!({ "log_level": "debug" }))
        .file("a.txt", "one\ntwo\nthree\n")
        .start();
    let agents = [Client::connect(&nvim, Dialect::Pi), Client::connect(&nvim, Dialect::Claude)];
    let path = nvim.path("a.txt");
    nvim.input("Vj<Esc>");
    agents[0]
        .wait_selection("two lines", |s| s["text"].as_str().is_some_and(|t| t.contains("two")));
    nvim.lua::<Value>(
        "vim.diagnostic.set(vim.api.nvim_create_namespace('d'), 0, { { lnum = 0, col = 0, message = 'm', severity = 1 } })",
        (),
    );
    for (turn, agent) in agents.iter().enumerate() {
        for tool in agent.tools() {
            if !["openDiff", "close_tab"].contains(&&*tool) {
                agent.tool(
                    &tool,
                    json!({ "filePath": path, "uri": format!("file://{}", path.display()) }),
                );
            }
        }
        for name in ["a.txt", "new.lua"] {
            let pending = agent.open_diff(nvim.path(name), "x = 1\n");
            nvim.decide(agent, &pending, turn == 0);
        }
    }
    let [pi, claude] = agents;
    drop(claude);
    let clients = || nvim.status()["clients"].as_array().map(Vec::len);
    nvim.wait_until("one agent", || clients() == Some(1));
    for command in [
        "1IdeSend",
        "IdeShare off",
        "IdeShare on",
        "IdeReviews",
        "IdeStatus",
        "checkhealth gangway",
    ] {
        nvim.cmd(&format!("silent! {command}"));
    }
    nvim.cmd("IdeStop");
    pi.wait_closed();
    nvim.cmd("IdeStart");
    nvim.lock(Dialect::Pi);
    assert_eq!(nvim.lua::<Vec<String>>("return _G.old", ()), Vec::<String>::new());
    let said = nvim.messages();
    assert!(
        !said.contains("Error") && !said.contains("E5108") && !said.contains("traceback"),
        "{said}"
    );
    let log = nvim.log();
    assert!(!log.contains("ERROR"), "{log}");
}
