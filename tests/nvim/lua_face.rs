//! The Lua face: options, loading, what is said when that fails, health, terminals, statusline,
//! events.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

/// The plugin on the runtimepath, nothing set up, this library named.
fn with_library(path: &Path) -> Nvim {
    Nvim::builder().no_setup().env("GANGWAY_LIBRARY", path).start()
}

fn complaints(nvim: &Nvim) -> Vec<String> {
    nvim.lua("return require('gangway').problems", ())
}

fn health(nvim: &Nvim) -> Value {
    nvim.lua("return require('gangway.health').collect()", ())
}

/// `:checkhealth gangway`, as text.
fn check(nvim: &Nvim) -> String {
    nvim.cmd("checkhealth gangway");
    nvim.lua("return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\\n')", ())
}

/// Asks the plugin for something it needs its library for; what the user is told then.
fn told_without_a_library(nvim: &Nvim) -> String {
    nvim.cmd("IdeStart");
    nvim.cmd("IdeStart");
    nvim.settle(Duration::from_millis(50));
    let told = nvim.notifications();
    assert!(told.len() == 2 && told[0] == told[1], "each command is answered: {told:?}");
    assert!(!told[0].contains("stack traceback"), "{}", told[0]);
    told[0].clone()
}

#[test]
fn wrong_arguments_are_told_in_a_sentence_and_do_nothing() {
    let nvim = Nvim::builder().file("a.txt", "one\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.wait_until("the agent", || nvim.status()["clients"] != json!([]));
    let before = agent.notes().iter().filter(|note| note.method == "at_mentioned").count();
    for call in [
        "send({ line1 = 'x' })",
        "send({ client = -1 })",
        "send({ client = 'x' })",
        "send({ path = {} })",
        "send({ lin1 = 3 })",
        "send('a.txt')",
        "share('Off')",
        "share(true)",
        "share({})",
        "accept({})",
        "reject('')",
    ] {
        let told = nvim.notifications().len();
        nvim.lua::<Value>(&format!("return require('gangway').{call} or false"), ());
        let all = nvim.notifications();
        assert_eq!(all.len(), told + 1, "{call}: {all:?}");
        assert!(!all[told].contains("traceback") && all[told].len() < 100, "{call}: {}", all[told]);
    }
    let env =
        nvim.lua::<Value>("return require('gangway').terminal_env({ 'claude', '--ide' })", ());
    assert!(env["CLAUDE_CODE_SSE_PORT"].is_string(), "{env}");
    assert_eq!(nvim.status()["sharing"], json!(true));
    nvim.settle(Duration::from_millis(100));
    let after = agent.notes().iter().filter(|note| note.method == "at_mentioned").count();
    assert_eq!(before, after, "nothing was sent");
}

#[test]
fn in_a_fast_event_all_of_it_happens_right_after() {
    let nvim = Nvim::builder().file("a.txt", "one\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    let fast = |call: &str| {
        let code = format!(
            "_G.went = nil
             local gangway = require('gangway')
             vim.uv.new_timer():start(0, 0, function() _G.went = {{ pcall(function() return gangway.{call} end) }} end)"
        );
        nvim.lua::<()>(&code, ());
        nvim.wait_until(call, || nvim.lua::<bool>("return _G.went ~= nil", ()));
        assert_eq!(nvim.lua::<Value>("return _G.went", ()), json!([true]), "{call}");
    };
    let pending = agent.open_diff(nvim.path("a.txt"), "two\n");
    let review = nvim.shown(&pending);
    fast("show(1)");
    fast("send()");
    fast("share('off')");
    nvim.wait_until("share", || nvim.status()["sharing"] == json!(false));
    fast("suggest()");
    nvim.goto(review.right.win);
    nvim.settle(ARMED);
    fast("accept()");
    assert_eq!(pending.verdict(), Verdict::Saved("two\n".into()));
    let pending = agent.open_diff(nvim.path("a.txt"), "three\n");
    nvim.shown(&pending);
    fast("always_allow(2)");
    fast("reject(2)");
    assert_eq!(pending.verdict(), Verdict::Rejected);
    fast("stop()");
    nvim.wait_until("stop", || nvim.status()["running"] == json!(false));
    nvim.wait_no_locks();
    fast("start()");
    nvim.wait_until("start", || nvim.status()["running"] == json!(true));
    fast("setup({ review = { bell = true } })");
    assert!(!nvim.messages().contains("E5560"), "{}", nvim.messages());
}

#[test]
fn a_command_may_stand_behind_a_bar() {
    let nvim = Nvim::start();
    nvim.lock(Dialect::Pi);
    for command in [
        "IdeStop",
        "IdeStart",
        "IdeStatus",
        "IdeReviews",
        "IdeSend",
        "IdeSuggest",
        "PiSuggest",
        "IdeAccept",
        "IdeReject!",
        "IdeAlwaysAllow",
        "IdeShare on",
        "IdeLog",
    ] {
        nvim.cmd(&format!("{command} | let g:behind = '{command}'"));
        assert_eq!(nvim.eval("g:behind"), json!(command));
    }
    nvim.lock(Dialect::Pi);
}

#[test]
fn what_another_has_put_in_the_librarys_place_is_replaced() {
    for junk in ["true", "5", "'x'", "{}", "{ version = '0.1.0' }", "function() end"] {
        let junk = format!("package.loaded.gangway_native = {junk}");
        let nvim = Nvim::builder().before(&junk).start();
        nvim.lock(Dialect::Pi);
        nvim.cmd("IdeStatus");
        assert_eq!(nvim.notifications(), Vec::<String>::new(), "{junk}");
    }
}

#[test]
fn a_log_that_would_hold_neovim_up_is_done_without_and_said() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("state/nvim/gangway.log");
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&log).status().unwrap().success());
    let nvim = Nvim::builder().home(home.path()).start();
    nvim.lock(Dialect::Pi);
    let note = nvim.status()["notes"][0].as_str().map(str::to_owned);
    nvim.cmd("IdeLog");
    let told = nvim.notifications();
    let health = check(&nvim);
    // What reads it, as a report of this test does, would wait for ever.
    std::fs::remove_file(&log).unwrap();
    assert!(note.as_ref().is_some_and(|note| note.contains("there is no log")), "{note:?}");
    assert!(told.len() == 1 && told[0].contains("there is no log"), "{told:?}");
    assert!(health.contains("there is no log"), "{health}");
}

#[test]
fn options_that_are_no_table_are_complained_about_at_the_start() {
    let nvim = Nvim::builder().no_setup().start();
    nvim.lua::<()>(
        "vim.api.nvim_list_uis = function() return { {} } end require('gangway').setup(5)",
        (),
    );
    nvim.wait_until("the start", || nvim.status()["running"] == json!(true));
    let told = nvim.notifications();
    assert!(
        told.len() == 1 && told[0].contains("setup(): wants a table, got the number 5"),
        "{told:?}"
    );
}

// ---- options

#[test]
fn a_wrong_option_is_named_by_its_full_path_and_the_rest_counts() {
    let nvim = Nvim::builder()
        .opts(json!({
            "review": { "keys": { "accept": 5, "reject": "gr" }, "focus": "sometimes" },
            "contxt": {},
            "agents": { "pi": { "enabled": "yes" } },
        }))
        .start();
    let expected = [
        "agents.pi.enabled: wants true or false, got \"yes\"",
        "contxt: no such option (see :help gangway-config)",
        "review.focus: wants \"auto\", \"never\" or \"always\", got \"sometimes\"",
        "review.keys.accept: wants a key such as \"<localleader>a\", or false, got the number 5",
    ];
    let mut found = complaints(&nvim);
    found.sort();
    assert_eq!(found, expected);
    let told = nvim.notifications();
    assert_eq!(told.len(), 1, "one message: {told:?}");
    assert!(expected.iter().all(|line| told[0].contains(line)), "{told:?}");
    nvim.lock(Dialect::Pi);
    let health = check(&nvim);
    assert!(
        health.contains(expected[3]) && health.contains("contxt: no such option\n"),
        "{health}"
    );
}

#[test]
fn the_documented_defaults_are_valid() {
    let nvim = Nvim::builder()
        .no_setup()
        .after("require('gangway').setup(vim.deepcopy(require('gangway.config').defaults))")
        .start();
    nvim.cmd("IdeStart");
    nvim.lock(Dialect::Claude);
    assert_eq!(complaints(&nvim), Vec::<String>::new());
    assert_eq!(nvim.notifications(), Vec::<String>::new());
}

#[test]
fn no_option_is_no_table_and_setup_says_so() {
    for wrong in ["5", "'x'", "true"] {
        let nvim =
            Nvim::builder().no_setup().after(&format!("require('gangway').setup({wrong})")).start();
        nvim.cmd("IdeStart");
        nvim.lock(Dialect::Pi);
        let found = complaints(&nvim);
        assert!(found.len() == 1 && found[0].starts_with("setup(): wants a table"), "{found:?}");
    }
}

#[test]
fn a_second_setup_before_the_start_can_call_it_off() {
    let twice = "require('gangway').setup({ auto_start = 'always' })
                 require('gangway').setup({ auto_start = false })";
    let nvim = Nvim::builder().no_setup().after(twice).start();
    nvim.wait_until("Neovim to be up", || nvim.eval("v:vim_did_enter") == json!(1));
    nvim.settle(Duration::ZERO);
    assert_eq!(nvim.status()["running"], json!(false));
}

#[test]
fn a_second_setup_takes_the_place_of_the_first() {
    let nvim = Nvim::builder().opts(json!({ "reviw": 1 })).start();
    nvim.lock(Dialect::Pi);
    assert_eq!(complaints(&nvim).len(), 1);
    nvim.lua::<Value>("require('gangway').setup({ agents = { pi = { enabled = false } } })", ());
    assert_eq!(complaints(&nvim), Vec::<String>::new());
    nvim.wait_until("Pi's lock file to vanish", || nvim.locks(Dialect::Pi).is_empty());
    nvim.lock(Dialect::Claude);
}

#[test]
fn nothing_is_loaded_before_it_is_used() {
    let nvim = Nvim::builder().no_setup().start();
    let loaded = "return vim.tbl_filter(function(name) return name:match('^gangway') end, \
                  vim.tbl_keys(package.loaded))";
    assert_eq!(nvim.lua::<Value>(loaded, ()), json!([]));
    nvim.lua::<Value>("require('gangway').statusline(); require('gangway').status()", ());
    assert_eq!(nvim.lua::<Value>("return package.loaded.gangway_native ~= nil", ()), json!(false));
    nvim.cmd("IdeStart");
    nvim.lock(Dialect::Pi);
}

// ---- loading

#[test]
fn r02_a_missing_library_is_one_message_with_every_path_and_the_next_step() {
    let nvim =
        Nvim::builder().no_setup().unset("GANGWAY_LIBRARY").unset("CARGO_TARGET_DIR").start();
    // A root without any library, whatever lies in this checkout.
    nvim.lua::<Value>("require('gangway.native').root = '/no such/plugin'", ());
    let told = told_without_a_library(&nvim);
    for part in [
        "/no such/plugin/lib/libgangway",
        "/no such/plugin/target/release/libgangway",
        "not found",
        "require(\"gangway.build\").install()",
        "cargo build --release",
    ] {
        assert!(told.contains(part), "{part:?} in {told}");
    }
    let seen = health(&nvim);
    assert_eq!(seen["library"]["source"], Value::Null);
    assert_eq!(seen["library"]["tried"].as_array().map(Vec::len), Some(2));
    assert_eq!(seen["running"], json!(false));
    let text = check(&nvim);
    assert!(text.contains("No library") && text.contains("not found"), "{text}");
    nvim.cmd("IdeStatus");
    nvim.cmd("IdeLog");
}

#[test]
fn a_path_that_the_user_names_is_the_only_one_tried() {
    let nvim = with_library(Path::new("/no/such/library.so"));
    let told = told_without_a_library(&nvim);
    assert!(told.contains("/no/such/library.so: not found"), "{told}");
    assert!(told.contains("$GANGWAY_LIBRARY names it"), "{told}");
    nvim.lua::<Value>("vim.g.gangway_library = '~/mine.so'", ());
    let tried: Vec<String> = nvim.lua("return require('gangway.native').candidates()", ());
    assert_eq!(tried, [nvim.home.join("mine.so").display().to_string()]);
}

#[test]
fn r02_broken_libraries_are_said_to_be_broken() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let nvim = Nvim::start();
    let real = std::fs::read(nvim.env("GANGWAY_LIBRARY").unwrap()).unwrap();
    let mut arm = real.clone();
    arm[18..20].copy_from_slice(&183_u16.to_le_bytes()); // e_machine: aarch64
    let cases = [
        (make("other-machine.so", &arm), "other-machine.so"),
        (make("empty.so", b""), "is empty"),
        (make("end-missing.so", &real[..real.len() - 1]), "is cut short"),
        (make("text.so", b"#!/bin/sh\n"), "text.so"),
        (make("truncated.so", &real[..real.len() / 3]), "is cut short"),
        (folder.path().to_owned(), "is a directory"),
    ];
    for (path, says) in cases {
        let nvim = with_library(&path);
        let told = told_without_a_library(&nvim);
        assert!(told.contains(says), "{says:?} in {told}");
        nvim.cmd("IdeStatus");
        assert!(health(&nvim)["library"]["problem"].is_string());
        check(&nvim);
    }
}

#[test]
fn r02_a_library_of_something_else_is_refused() {
    // Any shared object that is no plugin; each Neovim may bring a libc of its own, so the words
    // differ.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Some(libc) = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.contains("/libc.so").then(|| path.to_owned())
    }) else {
        return;
    };
    let nvim = with_library(Path::new(&libc));
    let told = told_without_a_library(&nvim);
    assert!(told.contains(&libc) && told.contains("undefined symbol"), "{told}");
}

#[test]
fn a_library_of_another_version_says_what_to_do() {
    let nvim =
        Nvim::builder().no_setup().before("package.loaded['gangway.version'] = '9.9.9'").start();
    let told = told_without_a_library(&nvim);
    assert!(told.contains(env!("CARGO_PKG_VERSION")) && told.contains("9.9.9"), "{told}");
    assert!(told.contains("restart Neovim"), "{told}");
    assert!(check(&nvim).contains("9.9.9"));
}

// ---- health

#[test]
fn health_knows_what_there_is_to_know() {
    let nvim = Nvim::builder()
        .env("https_proxy", "http://proxy")
        .unset("no_proxy")
        .unset("NO_PROXY")
        .start();
    let lock = nvim.lock(Dialect::Claude);
    let agent = Client::connect(&nvim, Dialect::Claude);
    let seen = health(&nvim);
    assert_eq!(seen["port"], json!(lock.port));
    assert_eq!(seen["library"]["version"], json!(env!("CARGO_PKG_VERSION")));
    let locks = seen["locks"].as_array().unwrap();
    assert_eq!(locks.len(), 2);
    assert!(locks.iter().all(|l| l["mode"] == "600" && l["directory_mode"] == "700"), "{locks:?}");
    assert_eq!(seen["clients"].as_array().map(Vec::len), Some(1));
    assert_eq!(seen["proxies"], json!(["https_proxy"]));
    let served = |name: &str| {
        let agents = seen["agents"].as_array().unwrap();
        agents.iter().find(|a| a["name"].as_str().unwrap().starts_with(name)).unwrap()["served"]
            == json!(true)
    };
    assert!(served("Pi") && served("Claude Code"));
    assert!(!served("aivyx") && !served("Rivumi"));
    let text = check(&nvim);
    for part in
        ["listening on 127.0.0.1", "https_proxy is set", "manual permission mode", "sharing is on"]
    {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    drop(agent);
}

#[test]
fn health_names_another_editor_of_the_same_folder() {
    let first = Nvim::start();
    first.lock(Dialect::Claude);
    let second = Nvim::builder().home(&first.home).cwd(&first.cwd).start();
    second.lock(Dialect::Claude);
    let rivals = health(&second)["rivals"].as_array().cloned().unwrap_or_default();
    assert_eq!(rivals.len(), 1, "{rivals:?}");
    assert!(check(&second).contains("another editor is open for this folder"));
}

#[test]
fn every_agent_whose_folder_is_there_is_seen_to_be_served() {
    let nvim = Nvim::builder()
        .before(
            "vim.env.TMPDIR = vim.env.HOME .. '/tmp'
             vim.env.QWEN_HOME, vim.env.CODEX_HOME = vim.env.HOME .. '/q', vim.env.HOME .. '/c'
             for _, dir in ipairs({
               vim.env.XDG_STATE_HOME .. '/aivyx-coder', '.looplane', vim.env.HOME .. '/.gemini',
               vim.env.QWEN_HOME, vim.env.HOME .. '/.copilot', vim.env.XDG_DATA_HOME .. '/amp',
               vim.env.CODEX_HOME,
             }) do vim.fn.mkdir(dir, 'p') end",
        )
        .opts(json!({"agents": {"codex": {"enabled": true}}}))
        .write("a.txt", "a\n")
        .start();
    nvim.edit("a.txt");
    nvim.wait_until("all to be served", || {
        let seen = health(&nvim);
        let agents = seen["agents"].as_array().unwrap();
        agents.iter().all(|agent| agent["served"] == json!(true))
    });
    let text = check(&nvim);
    for name in [
        "Pi",
        "Claude Code, opencode",
        "aivyx-coder",
        "Rivumi, looplane",
        "Gemini CLI",
        "Qwen Code",
        "Copilot CLI",
        "Amp",
        "Codex",
    ] {
        assert!(text.contains(&format!("{name}: served through")), "{name} in {text}");
    }
    assert!(text.contains("Qwen Code shows diffs here only in its default approval mode"));
    let port = nvim.lock(Dialect::Claude).port.to_string();
    let env: HashMap<String, String> = nvim.lua("return require('gangway').terminal_env()", ());
    let cwd = nvim.cwd.to_str().unwrap();
    for prefix in ["GEMINI_CLI_IDE", "QWEN_CODE_IDE"] {
        assert_eq!(env[&format!("{prefix}_SERVER_PORT")], port);
        let folders = &env[&format!("{prefix}_WORKSPACE_PATH")];
        assert!(folders.split(':').any(|folder| folder == cwd), "{folders}");
    }
    assert_eq!(env["GEMINI_CLI_IDE_PID"], nvim.pid().to_string());
    assert!(!env.keys().any(|name| name.contains("TOKEN")), "{:?}", env.keys());
}

// ---- terminals

#[test]
fn t16_terminals_are_told_the_port_and_to_leave_the_proxy_aside() {
    let nvim = Nvim::builder().env("no_proxy", "intra.example, 10.0.0.1").unset("NO_PROXY").start();
    let port = nvim.lock(Dialect::Claude).port;
    let env = |arg: &str| -> Value {
        nvim.lua(&format!("return require('gangway').terminal_env({arg})"), ())
    };
    let wanted = "intra.example,10.0.0.1,127.0.0.1,localhost";
    let told = env("");
    assert_eq!(told["CLAUDE_CODE_SSE_PORT"], json!(port.to_string()));
    assert_eq!((&told["no_proxy"], &told["NO_PROXY"]), (&json!(wanted), &json!(wanted)));
    assert_eq!(told.get("GEMINI_CLI_IDE_PID"), None, "it is not served here");
    assert_eq!(env("'/usr/bin/opencode -c'").get("CLAUDE_CODE_SSE_PORT"), None);
    // Of an editor in whose terminal Neovim runs.
    for inherited in ["CLAUDE_CODE_SSE_PORT", "OPENCODE_EDITOR_SSE_PORT"] {
        nvim.lua::<Value>("vim.env[...] = '1'", (inherited,));
        assert_eq!(env("'opencode'")[inherited], json!(""));
        nvim.lua::<Value>("vim.env[...] = nil", (inherited,));
    }
    let contained = "local stat, there = vim.uv.fs_stat, ...
        vim.uv.fs_stat = function(path)
          if path == '/.dockerenv' or path == '/run/.containerenv' then return path == there and {} or nil end
          return stat(path)
        end
        local env = require('gangway').terminal_env()
        vim.uv.fs_stat = stat
        return env.REMOTE_CONTAINERS or 'not set'";
    for (file, wanted) in [("/.dockerenv", "true"), ("/run/.containerenv", "true"), ("", "not set")]
    {
        assert_eq!(nvim.lua::<String>(contained, (file,)), wanted, "{file}");
    }
    nvim.lua::<Value>("vim.env.no_proxy = '*'", ());
    assert_eq!(env("")["NO_PROXY"], json!("*"));
    nvim.lua::<Value>("vim.env.no_proxy = '127.0.0.1'; vim.env.NO_PROXY = nil", ());
    assert_eq!(env("")["no_proxy"], json!("127.0.0.1,localhost"), "nothing twice");
    nvim.cmd("IdeStop");
    assert_eq!(env("").get("CLAUDE_CODE_SSE_PORT"), None);
}

#[test]
fn ide_agent_runs_a_program_that_knows_this_neovim() {
    let nvim = Nvim::builder().no_setup().unset("no_proxy").unset("NO_PROXY").start();
    // Into a file: a headless Neovim does not always draw its terminals.
    nvim.cmd("IdeAgent printenv CLAUDE_CODE_SSE_PORT NO_PROXY > told && mv told out && sleep 60");
    let port = nvim.lock(Dialect::Claude).port;
    nvim.wait_until("the program to run", || nvim.path("out").exists());
    let told = String::from_utf8(nvim.read("out")).unwrap();
    assert_eq!(told, format!("{port}\n127.0.0.1,localhost\n"));
    assert_eq!(nvim.lua::<String>("return vim.bo.buftype", ()), "terminal");
    let layout: Value = nvim.lua("return vim.fn.winlayout()", ());
    assert_eq!(layout[0], "row", "beside, not below: {layout}");
    nvim.lua::<Value>("vim.cmd.stopinsert(); vim.cmd('tab IdeAgent sleep 60')", ());
    assert_eq!(nvim.lua::<i64>("return vim.fn.tabpagenr('$')", ()), 2);
    nvim.lua::<Value>("for _, c in ipairs(vim.api.nvim_list_chans()) do if c.mode == 'terminal' then vim.fn.jobstop(c.id) end end", ());
}

#[test]
fn ide_agent_says_when_there_is_no_such_program() {
    let nvim = Nvim::builder().no_setup().start();
    nvim.cmd("IdeAgent no-such-agent --flag");
    nvim.settle(Duration::from_millis(50));
    let told = nvim.notifications();
    assert_eq!(told, ["gangway: there is no program \"no-such-agent\" in $PATH"]);
    assert_eq!(nvim.lua::<i64>("return #vim.api.nvim_list_wins()", ()), 1);
}

// ---- statusline and events

#[test]
fn the_statusline_counts_agents_and_reviews() {
    let nvim = Nvim::builder().write("a.txt", "one\n").start();
    let line = || nvim.lua::<String>("return require('gangway').statusline()", ());
    nvim.lock(Dialect::Pi);
    assert_eq!(line(), "");
    let agent = Client::connect(&nvim, Dialect::Pi);
    nvim.wait_until("one agent", || line() == "1 agent");
    let pending = agent.open_diff(nvim.path("a.txt"), "two\n");
    let review = nvim.shown(&pending);
    assert_eq!(line(), "1 agent · 1 review");
    nvim.cmd("IdeShare off");
    assert_eq!(line(), "1 agent · 1 review · not sharing");
    nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    nvim.wait_until("the review to be gone", || line() == "1 agent · not sharing");
}

#[test]
fn events_tell_the_whole_story_in_order() {
    let nvim = Nvim::builder().file("a.txt", "one\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.wait_until("the connection", || {
        nvim.events().iter().any(|event| event["name"] == "GangwayConnected")
    });
    nvim.cmd("1IdeSend");
    let pending = agent.open_diff(nvim.path("a.txt"), "two\n");
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("two\n".into()));
    nvim.wait_until("the end of the review", || {
        nvim.events().iter().any(|event| event["name"] == "GangwayReviewClosed")
    });
    drop(agent);
    nvim.wait_until("the agent to go", || {
        nvim.events().iter().any(|event| event["name"] == "GangwayDisconnected")
    });
    let connected = |event: &&Value| event["name"] == "GangwayConnected";
    let cut_off = Client::connect(&nvim, Dialect::Pi);
    nvim.wait_until("a second one", || nvim.events().iter().filter(connected).count() == 2);
    nvim.cmd("IdeStop");
    cut_off.wait_closed();
    let events = nvim.events();
    let names: Vec<&str> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "GangwayStarted",
            "GangwayConnected",
            "GangwaySent",
            "GangwayReviewOpened",
            "GangwayReviewClosed",
            "GangwayDisconnected",
            "GangwayConnected",
            "GangwayDisconnected",
            "GangwayStopped"
        ]
    );
    let data = |name: &str| &events.iter().find(|event| event["name"] == name).unwrap()["data"];
    assert!(data("GangwayStarted")["port"].is_number());
    assert_eq!(data("GangwayConnected")["name"], "Claude Code");
    assert_eq!(data("GangwaySent")["path"], json!(nvim.path("a.txt")));
    assert_eq!(
        (&data("GangwaySent")["line1"], &data("GangwaySent")["line2"]),
        (&json!(1), &json!(1))
    );
    let opened = data("GangwayReviewOpened");
    assert_eq!(opened["buffers"], json!([review.left.buf, review.right.buf]));
    assert_eq!((&opened["kind"], &opened["origin"]), (&json!("write"), &json!("Claude Code")));
    assert_eq!(data("GangwayReviewClosed")["verdict"], "accepted");
}

#[test]
fn the_bell_and_readmes_notification_reach_the_terminal() {
    let readme = include_str!("../../README.md");
    let mut blocks = readme.split("```lua\n").map(|block| block.split("```").next().unwrap());
    let recipe = blocks.find(|block| block.contains("\\27]9;")).expect("README's recipe");
    let nvim = Nvim::builder()
        .tty(24, 80)
        .opts(json!({ "review": { "bell": true } }))
        .after(recipe)
        .file("a.txt", "one\n")
        .start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let rung = nvim.bells();
    let pending = agent.open_diff(nvim.path("a.txt"), "two\n");
    nvim.shown(&pending);
    nvim.wait_until("the bell", || nvim.bells() == rung + 1);
    nvim.wait_until("the notification", || {
        nvim.os_commands().iter().any(|told| told == "9;Pi waits for you")
    });
}

#[test]
fn a_users_own_map_in_the_panes_accepts() {
    let nvim = Nvim::builder()
        .after(
            "vim.api.nvim_create_autocmd('User', { pattern = 'GangwayReviewOpened', callback = function(event)
               for _, buf in ipairs(event.data.buffers) do
                 vim.keymap.set('n', 'ga', '<Plug>(gangway-accept)', { buffer = buf })
               end
             end })",
        )
        .write("a.txt", "one\n")
        .start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.open_diff(nvim.path("a.txt"), "two\n");
    let review = nvim.shown(&pending);
    nvim.keys_in(&review.left, "ga");
    assert_eq!(pending.verdict(), Verdict::Saved("two\n".into()));
}

#[test]
fn the_commands_complete_and_refuse_nonsense() {
    let nvim = Nvim::start();
    nvim.lock(Dialect::Pi);
    let complete = |line: &str| -> Vec<String> {
        nvim.lua("return vim.fn.getcompletion(..., 'cmdline')", (line,))
    };
    assert_eq!(complete("IdeShare "), ["on", "off", "toggle"]);
    assert_eq!(complete("IdeShare o"), ["on", "off"]);
    nvim.cmd("IdeShare perhaps");
    nvim.cmd("IdeAccept 77");
    nvim.cmd("IdeReviews");
    let told = nvim.notifications();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told.iter().all(|text| text.starts_with("gangway: ")), "{told:?}");
    // An agent's own words for its request: none that would end the command.
    nvim.lua::<()>(
        "require('gangway').status = function()
           return { reviews = { { id = 'a-1_b.c' }, { id = 'a|qa!' }, { id = 'a\\nqa!' }, { id = 'a\"' } } }
         end",
        (),
    );
    assert_eq!(complete("IdeAccept "), ["a-1_b.c"]);
}
