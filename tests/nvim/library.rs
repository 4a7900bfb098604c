//! The Rust library as a guest in Neovim's process: which one is loaded, how often, beside whom, and
//! what it survives. What is said when it cannot be loaded: `lua_face`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::*;

/// One accepted review: everything works.
#[track_caller]
fn works(nvim: &Nvim, agent: &Client) {
    let path = nvim.write("works.txt", "one\n");
    let pending = agent.open_diff(&path, "one\nTWO\n");
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("one\nTWO\n".into()));
    agent.close_tab(&pending);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
}

fn library(nvim: &Nvim) -> PathBuf {
    nvim.env("GANGWAY_LIBRARY").unwrap()
}

/// Makes this Neovim say that it is another one.
fn pretend(minor: u32) -> String {
    format!(
        "local version, has = vim.version, vim.fn.has
         vim.version = setmetatable({{}}, {{ __index = version, __call = function()
           local v = version() v.minor, v.patch = {minor}, 0 return v end }})
         vim.fn.has = function(what)
           local asked = tostring(what):match('^nvim%-0%.(%d+)')
           if asked then return tonumber(asked) <= {minor} and 1 or 0 end
           return has(what)
         end"
    )
}

#[test]
fn r01_an_old_neovim_is_refused_by_name_before_loading_and_a_newer_one_is_served() {
    let old = Nvim::builder().no_setup().before(&pretend(9)).start();
    old.cmd("IdeStart");
    old.wait_until("a word about it", || !old.notifications().is_empty());
    let told = old.notifications();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("0.10") && told[0].contains("0.9.0"), "both versions: {told:?}");
    let loaded = "return package.loaded.gangway_native ~= nil";
    assert!(!old.lua::<bool>(loaded, ()), "refused, but loaded");
    assert!(old.locks(Dialect::Pi).is_empty());

    // One library for all of them: no struct of Neovim's is in it that could have changed.
    let new = Nvim::builder().before(&pretend(99)).start();
    works(&new, &Client::connect(&new, Dialect::Pi));
}

#[test]
fn r05_nothing_asks_the_compiler_for_more_than_any_cpu_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut looked_at = 0;
    for place in [
        "Cargo.toml",
        ".cargo/config.toml",
        "Makefile",
        ".github/workflows/release.yml",
        ".github/workflows/test.yml",
        "scripts/dist.py",
        "lua/gangway/build.lua",
        "build.lua",
    ] {
        let text = std::fs::read_to_string(root.join(place)).unwrap_or_default();
        looked_at += usize::from(!text.is_empty());
        for line in text.lines().filter(|line| !line.contains("crt-static")) {
            assert!(!line.contains("target-cpu"), "{place}: {line}");
            assert!(!line.contains("target-feature"), "{place}: {line}");
        }
    }
    assert!(looked_at >= 6, "{looked_at}");
    // This test is compiled as the library is.
    #[cfg(target_arch = "x86_64")]
    const {
        assert!(!cfg!(target_feature = "sse3") && !cfg!(target_feature = "avx"))
    };
    // A CPU of 2008, where there is an emulator.
    let there = |program: &str| {
        std::process::Command::new(program)
            .arg("--version")
            .output()
            .is_ok_and(|said| said.status.success())
    };
    if cfg!(target_arch = "x86_64") && there("qemu-x86_64") {
        let nvim = Nvim::start();
        let said = std::process::Command::new("qemu-x86_64")
            .args(["-cpu", "Nehalem"])
            .arg(nvim.lua::<String>("return vim.v.progpath", ()))
            .args(["--clean", "--headless", "-c"])
            .arg(format!(
                "lua print(package.loadlib([[{}]], 'luaopen_gangway_native')() and 'no' or package.loaded.gangway_native.version)",
                library(&nvim).display()
            ))
            .arg("+qa!")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(text.contains(env!("CARGO_PKG_VERSION")), "{said:?}");
    }
}

#[test]
fn r06_a_library_older_or_newer_than_the_lua_is_named_and_nothing_half_works() {
    for want in ["0.0.1", "9.9.9"] {
        let nvim = Nvim::builder()
            .before(&format!("package.loaded['gangway.version'] = '{want}'"))
            .start();
        nvim.wait_until("a word about it", || !nvim.notifications().is_empty());
        nvim.cmd("IdeStart");
        nvim.cmd("IdeStart");
        nvim.wait_until("an answer to each", || nvim.notifications().len() >= 3);
        let told = nvim.notifications();
        assert_eq!(told.len(), 3, "by itself once, and to each command: {told:?}");
        assert!(told[0].contains(env!("CARGO_PKG_VERSION")) && told[0].contains(want), "{told:?}");
        assert!(told[0].contains("restart Neovim"), "{told:?}");
        assert!(nvim.locks(Dialect::Pi).is_empty(), "half started");
        assert_eq!(nvim.status()["running"], json!(false));
    }
}

#[test]
fn r08_a_second_load_under_any_name_is_the_first_instance() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let threads = nvim.counts().get("threads");
    let forget = "for name in pairs(package.loaded) do
                    if name:find('^gangway') then package.loaded[name] = nil end
                  end";
    // Lua forgets everything, as a plugin manager's reload does.
    nvim.lua::<Value>(
        &format!("_G.first = package.loaded.gangway_native {forget} require('gangway').setup({{ auto_start = 'always' }})"),
        (),
    );
    let same = "return rawequal(require('gangway.native').load(), _G.first)";
    assert!(nvim.lua::<bool>(same, ()), "require again");
    works(&nvim, &agent);

    // The plugin once more on the runtimepath, by another name.
    let link = nvim.path("link");
    std::os::unix::fs::symlink(env!("CARGO_MANIFEST_DIR"), &link).unwrap();
    nvim.lua::<Value>(
        &format!("{forget} vim.opt.rtp:prepend(...) require('gangway').setup({{ auto_start = 'always' }})"),
        (&link,),
    );
    nvim.lua::<Value>("require('gangway').status()", ());
    assert!(nvim.lua::<bool>(same, ()), "another runtimepath");
    works(&nvim, &agent);

    // A copy of the file is another library to the system, with statics of its own.
    let copy = nvim.path("copy.so");
    std::fs::copy(library(&nvim), &copy).unwrap();
    let again = "package.loaded.gangway_native = nil
                 package.loadlib(..., 'luaopen_gangway_native')()
                 return rawequal(package.loaded.gangway_native, _G.first)";
    assert!(nvim.lua::<bool>(again, (&copy,)), "a copy of the library");
    works(&nvim, &agent);
    nvim.lua::<Value>("for _ = 1, 5 do collectgarbage() end", ());
    assert_eq!(nvim.locks(Dialect::Pi).len(), 1, "one server");
    assert!(nvim.counts().get("threads") <= threads + 5, "one runtime");
    agent.ping();
}

#[test]
fn r08_options_given_after_a_reload_are_in_force() {
    let nvim = Nvim::start();
    nvim.lock(Dialect::Pi);
    nvim.lua::<Value>(
        "for name in pairs(package.loaded) do
           if name:find('^gangway') and name ~= 'gangway_native' then package.loaded[name] = nil end
         end
         require('gangway').setup({ auto_start = false, agents = { pi = { enabled = false } } })",
        (),
    );
    nvim.wait_until("Pi's lock file to vanish", || nvim.locks(Dialect::Pi).is_empty());
    let agent = Client::connect(&nvim, Dialect::Claude);
    // A reload alone changes nothing.
    nvim.lua::<Value>("package.loaded.gangway = nil require('gangway').start()", ());
    works(&nvim, &agent);
    assert!(nvim.locks(Dialect::Pi).is_empty());
}

#[test]
fn r08_another_plugins_catch_all_cpath_and_ours_do_not_meet() {
    let nvim = Nvim::builder()
        .no_setup()
        // Any module that is not found elsewhere is looked for in there.
        .before("package.cpath = vim.env.GANGWAY_LIBRARY .. ';/nowhere/?.so;' .. package.cpath")
        .start();
    let before: String = nvim.lua("return package.cpath", ());
    let missing = "local ok, why = pcall(require, 'no_such_module') return { ok, tostring(why) }";
    nvim.lua::<Value>(missing, ());
    nvim.cmd("IdeStart");
    works(&nvim, &Client::connect(&nvim, Dialect::Claude));
    let (found, _): (bool, String) = nvim.lua(missing, ());
    assert!(!found, "our library answers to names that are not its own");
    assert_eq!(nvim.lua::<String>("return package.cpath", ()), before, "cpath is the user's");
}

#[test]
fn a_library_replaced_while_it_runs_is_of_no_consequence_until_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libgangway.so");
    std::fs::copy(library(&Nvim::start()), &path).unwrap();
    let nvim = Nvim::builder().env("GANGWAY_LIBRARY", &path).start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    // As the installer does it: another file takes the name.
    let other = folder.path().join("other");
    std::fs::write(&other, "not a library\n").unwrap();
    std::fs::rename(&other, &path).unwrap();
    works(&nvim, &agent);
    nvim.cmd("IdeStop");
    nvim.cmd("IdeStart");
    works(&nvim, &Client::connect(&nvim, Dialect::Pi));
    std::fs::remove_file(&path).unwrap();
    works(&nvim, &Client::connect(&nvim, Dialect::Claude));
    assert_eq!(nvim.quit("qa!").code, Some(0));
}

#[test]
fn r10_junk_for_every_function_and_on_the_wire_leaves_the_editor_and_others_alone() {
    let nvim = Nvim::start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    let said: Vec<String> = nvim.lua(
        "local round = {} round.round = round
         local junk = { {}, { 5 }, { 'x' }, { {} }, { round }, { function() error('boom') end }, { -1 }, { 0 / 0 },
           { vim.NIL }, { 'a', {}, 9e99 }, { ('x'):rep(60) }, { '\\0\\255' }, { true, true, true } }
         local said = {}
         local function try(name, f)
           for _, args in ipairs(junk) do
             local ok, why = pcall(f, unpack(args))
             if not ok then said[#said + 1] = name .. ': ' .. tostring(why) end
           end
         end
         for name, f in pairs(require('gangway')) do
           if type(f) == 'function' and name ~= 'stop' then try(name, f) end
         end
         for name, f in pairs(require('gangway.native').load()) do
           if type(f) == 'function' and name ~= 'stop' and name ~= '_panic' then try(name, f) end
         end
         return said",
        (),
    );
    for text in &said {
        assert!(!text.contains("panic") && !text.contains("internal error"), "{text}");
    }
    nvim.lua::<Value>("require('gangway').setup({ auto_start = 'always' })", ());
    nvim.cmd("silent! tabonly | silent! only!");
    nvim.lock(Dialect::Pi);
    let junk = Client::connect(&nvim, Dialect::Claude);
    junk.lenient();
    for text in [
        r#"{"jsonrpc":"2.0","id":9001,"method":"tools/call","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":9002,"method":"tools/call","params":{"name":{},"arguments":[1]}}"#,
        r#"{"jsonrpc":"2.0","id":9003,"method":"initialize","params":7}"#,
        r#"{"id":{}}"#,
        "[]",
        "null",
        r#"{"jsonrpc":"2.0","id":9005,"method":"tools/call","params":{"name":"close_tab","arguments":{"tab_name":[]}}}"#,
    ] {
        junk.send_text(text);
    }
    assert!(junk.tools().len() >= 12, "the junk's own connection goes on");
    if agent.is_closed() {
        works(&nvim, &Client::connect(&nvim, Dialect::Pi));
    } else {
        works(&nvim, &agent);
    }
}

#[test]
fn r12_handles_that_die_between_two_steps_cost_one_review_at_most() {
    let nvim = Nvim::builder().file("b.txt", "other\n").write("a.txt", "one\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    for hook in [
        "WinNew * ++nested close!",
        "BufAdd,BufNew * ++nested silent! execute 'bwipeout! ' .. expand('<abuf>')",
        "TabNew,TabNewEntered * ++nested silent! tabonly",
        "WinNew * ++nested silent! only!",
        "OptionSet diff ++nested silent! close!",
        "FileType * ++nested silent! bwipeout!",
        "BufWinEnter * ++nested silent! enew!",
        "WinClosed * ++nested silent! only!",
        "User GangwayReviewOpened ++nested silent! IdeReject!",
    ] {
        nvim.cmd(&format!("augroup Evil | au! | au {hook}"));
        nvim.cmd("augroup END");
        let pending = agent.open_diff(nvim.path("a.txt"), "one\nTWO\n");
        let shown = || pending.is_answered() || !nvim.right_panes().is_empty();
        nvim.wait_until(&format!("{hook}: an answer or a diff"), shown);
        nvim.cmd("augroup Evil | au! | augroup END");
        agent.close_tab(&pending);
        let verdict = pending.verdict();
        assert!(!matches!(verdict, Verdict::Saved(_)), "{hook}: {verdict:?}");
        nvim.cmd("silent! tabonly | silent! only! | edit! b.txt");
        let log = nvim.log();
        assert!(!log.contains("panic"), "{hook}: {log}");
        works(&nvim, &agent);
    }
}

#[test]
fn r14_a_mac_is_told_what_to_do_about_quarantine_and_libraries_are_signed_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    // An arm64 Mac kills a process that loads an unsigned library. Its linker signs ad hoc; what
    // takes the signature away again, `strip` after the fact, happens nowhere.
    let release = read(".github/workflows/release.yml");
    assert!(release.contains("os: macos-latest, target: aarch64-apple-darwin"), "built natively");
    let packing = read("scripts/dist.py");
    for (place, text) in [("release.yml", &release), ("dist.py", &packing)] {
        let strips = text.lines().any(|line| line.trim_start().starts_with("strip "));
        assert!(!strips, "{place} strips the signature");
    }
    assert!(packing.contains("\"dylib\" if \"apple\" in target"), "its name there");
    assert!(read("lua/gangway/native.lua").contains("'dylib'"), "and here");
    let help = read("doc/gangway.txt");
    assert!(help.contains("com.apple.quarantine"), ":help says how to lift the quarantine");
}
