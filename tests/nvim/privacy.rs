//! What stays with the user: excluded files by all their names, the sharing switch, and the tools an
//! agent may call with a path of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

const SECRET: &str = "hunter2";

/// A Neovim in a folder with secrets, and plain ways to them.
fn start(opts: Value) -> Nvim {
    let mut context = json!({ "context": { "exclude": [".env*", "secrets/"] } });
    if let (Some(all), Some(more)) = (context.as_object_mut(), opts.as_object()) {
        all.extend(more.clone());
    }
    let nvim = Nvim::builder()
        .opts(context)
        .after("vim.o.hidden = true")
        .write("plain.txt", "nothing to hide\n")
        .write(".env", format!("TOKEN={SECRET}\n"))
        .start();
    for dir in ["secrets/deep", "sub"] {
        std::fs::create_dir_all(nvim.path(dir)).unwrap();
    }
    nvim.write("secrets/deep/x.txt", format!("{SECRET}\n"));
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(nvim.path(to), nvim.path(name)).unwrap();
    };
    link(".env", "link.txt");
    link("secrets", "also");
    nvim
}

/// Every way to a secret that an agent or a user may spell.
const WAYS: [&str; 7] = [
    ".env",
    "sub/../.env",
    ".//.env",
    "link.txt",
    "secrets/deep/x.txt",
    "also/deep/x.txt",
    "also/../secrets/deep/../deep/x.txt",
];

fn diagnose(nvim: &Nvim) {
    let set = "vim.diagnostic.set(vim.api.nvim_create_namespace('d'), 0, {
       { lnum = 0, col = 0, message = ..., severity = 1 } })";
    nvim.lua::<Value>(set, (format!("{SECRET} found"),));
}

fn selected(nvim: &Nvim) {
    nvim.input("<C-\\><C-n>ggV");
    nvim.settle(Duration::from_millis(300));
}

/// What every tool says that takes no path.
fn everything(agent: &Client) -> String {
    let mut told = format!("{:?}", agent.notes());
    for tool in [
        "getCurrentSelection",
        "getLatestSelection",
        "getOpenEditors",
        "getOpenEditorTabs",
        "getDiagnostics",
    ] {
        told += &agent.tool(tool, json!({})).to_string();
    }
    told
}

/// What a tool answers, with the asked name and the number of the request taken out: the same for
/// two files means that it tells nothing of them.
fn about(agent: &Client, tool: &str, mut args: Value, path: &Path) -> String {
    let name = path.to_str().unwrap();
    args[if tool == "getDiagnostics" { "uri" } else { "filePath" }] =
        if tool == "getDiagnostics" { json!(format!("file://{name}")) } else { json!(name) };
    let answer = agent.tool(tool, args);
    answer["result"].to_string().replace(name, "NAME")
}

/// No tool that takes a path tells of a file in a buffer, modified and full of diagnostics, more
/// than of one that is not open.
fn tells_nothing(agent: &Client, nvim: &Nvim, way: &str, when: &str) {
    let (asked, absent) = (nvim.cwd.join(way), nvim.cwd.join("absent.txt"));
    for tool in ["checkDocumentDirty", "saveDocument", "getDiagnostics"] {
        let told = about(agent, tool, json!({}), &asked);
        assert_eq!(told, about(agent, tool, json!({}), &absent), "{when}: {tool} of {way}");
    }
    // Opening it is the user's to see; what is in it is not told.
    let answers: Vec<String> = [SECRET, "not in it"]
        .map(|text| {
            let args = json!({ "startText": text, "makeFrontmost": false });
            [args.clone(), json!({ "startText": text })]
        })
        .concat()
        .into_iter()
        .map(|args| about(agent, "openFile", args, &asked))
        .collect();
    assert!(
        answers.iter().all(|told| *told == answers[0]),
        "{when}: openFile of {way}: {answers:?}"
    );
    assert!(!answers[0].contains("lineCount") && !answers[0].contains("languageId"), "{answers:?}");
}

#[test]
fn an_excluded_file_is_told_by_none_of_its_names_and_by_no_tool() {
    let nvim = start(json!({}));
    let (claude, pi) =
        (Client::connect(&nvim, Dialect::Claude), Client::connect(&nvim, Dialect::Pi));
    for way in WAYS {
        nvim.edit(nvim.cwd.join(way));
        nvim.cmd("call append(0, 'unsaved')");
        let text = std::fs::read_to_string(nvim.cwd.join(way)).unwrap();
        diagnose(&nvim);
        selected(&nvim);
        tells_nothing(&claude, &nvim, way, "excluded");
        assert_eq!(std::fs::read_to_string(nvim.cwd.join(way)).unwrap(), text, "{way} was saved");
        for agent in [&claude, &pi] {
            let told = everything(agent);
            for part in [SECRET, ".env", "secrets", "also", "link.txt", "unsaved"] {
                assert!(!told.contains(part), "{way}: {part:?} in {told}");
            }
        }
        nvim.input("<C-\\><C-n>");
        nvim.cmd("silent! %bwipeout!");
    }
    // The other files are as open as ever.
    nvim.edit("plain.txt");
    nvim.set_lines(0, &["changed"]);
    let plain = nvim.path("plain.txt");
    let dirty = about(&claude, "checkDocumentDirty", json!({}), &plain);
    assert!(dirty.contains(r#"\"isDirty\":true"#), "{dirty}");
    let found = about(&claude, "openFile", json!({ "startText": "changed" }), &plain);
    assert!(found.contains("selected the text"), "{found}");
}

#[test]
fn with_sharing_off_no_tool_tells_of_any_file() {
    let nvim = start(json!({}));
    let claude = Client::connect(&nvim, Dialect::Claude);
    nvim.edit("plain.txt");
    nvim.cmd("call append(0, 'unsaved')");
    diagnose(&nvim);
    selected(&nvim);
    claude.wait_selection("the line", |s| s["text"].as_str().unwrap().contains("unsaved"));
    nvim.cmd("IdeShare off");
    claude.wait_selection("nothing", |s| s["selection"].is_null());
    let heard = claude.notes().len();
    tells_nothing(&claude, &nvim, "plain.txt", "sharing off");
    assert_eq!(nvim.read("plain.txt"), b"nothing to hide\n");
    for tool in ["getCurrentSelection", "getOpenEditors", "getDiagnostics"] {
        let told = claude.tool(tool, json!({})).to_string();
        assert!(!told.contains("plain.txt") && !told.contains("unsaved"), "{tool}: {told}");
    }
    selected(&nvim);
    assert_eq!(claude.notes().len(), heard, "told nothing more");
    nvim.cmd("IdeShare on");
    claude.wait_selection("the line again", |s| s["text"].as_str().unwrap().contains("unsaved"));
}

#[test]
fn a_file_that_gets_a_private_name_is_taken_back() {
    let nvim = start(json!({}));
    let agents = [Client::connect(&nvim, Dialect::Claude), Client::connect(&nvim, Dialect::Pi)];
    nvim.edit("plain.txt");
    let told = |agent: &Client, name: &str| {
        agent.selections().last().is_some_and(|s| s["filePath"] == json!(nvim.path(name)))
    };
    for agent in &agents {
        nvim.wait_until("the file", || told(agent, "plain.txt"));
    }
    nvim.cmd("silent file .env.local");
    diagnose(&nvim);
    for agent in &agents {
        nvim.wait_until("it to be taken back", || !told(agent, "plain.txt"));
        let said = everything(agent);
        assert!(!said.contains(".env") && !said.contains(SECRET), "{said}");
    }
    nvim.cmd("silent file fine.txt");
    for agent in &agents {
        nvim.wait_until("it to be told again", || told(agent, "fine.txt"));
    }
}

#[test]
fn a_private_file_is_mentioned_only_after_a_yes() {
    let nvim =
        Nvim::builder().tty(24, 80).write("plain.txt", "x\n").file(".env", "a\nb\nc\n").start();
    std::os::unix::fs::symlink(nvim.path(".env"), nvim.path("link.txt")).unwrap();
    let claude = Client::connect(&nvim, Dialect::Claude);
    let mentions = || {
        let notes = claude.notes().into_iter().filter(|note| note.method == "at_mentioned");
        notes.map(|note| note.params).collect::<Vec<_>>()
    };
    let (env, link) = (nvim.path(".env"), nvim.path("link.txt"));
    let lua = |path: &PathBuf| {
        format!(":lua require('gangway').send({{ path = '{}' }})\r", path.display())
    };
    for (keys, path, line) in [
        (":IdeSend\r".to_owned(), &env, None),
        ("2GVj:IdeSend\r".to_owned(), &env, Some(1)),
        ("2GV\x1b:lua require('gangway').send()\r".to_owned(), &env, Some(1)),
        (":lua require('gangway').send({ line1 = 3 })\r".to_owned(), &env, Some(2)),
        (lua(&link), &link, None),
    ] {
        for (answer, yes) in [("n", false), ("\x1b", false), ("\r", false), ("y", true)] {
            let before = mentions().len();
            nvim.input("<C-\\><C-n>");
            nvim.cmd("call cursor(1, 1)");
            // An escape right before another key would be Alt and that key.
            for part in keys.split_inclusive('\x1b') {
                nvim.type_keys(part);
                std::thread::sleep(Duration::from_millis(120));
            }
            nvim.wait_for_text("is kept from agents");
            assert_eq!(mentions().len(), before, "{keys:?}: not asked first");
            nvim.type_keys(answer);
            if yes {
                nvim.wait_until("the mention", || mentions().len() > before);
                let told = mentions().pop().unwrap();
                assert_eq!(told["filePath"], json!(path), "{keys:?}");
                assert_eq!(told["lineStart"].as_i64(), line, "{keys:?}");
            } else {
                nvim.wait_until("the question to go", || {
                    nvim.screen_find("is kept from agents").is_none() || !nvim.blocked()
                });
                nvim.settle(Duration::from_millis(100));
                assert_eq!(mentions().len(), before, "{keys:?}: sent in spite of {answer:?}");
            }
            nvim.dismiss_prompts();
            nvim.cmd("redraw!");
        }
    }
    // Its text went nowhere; and what is not private is not asked about, unless sharing is off.
    assert!(claude.selections().iter().all(|s| s["text"] == ""));
    let before = mentions().len();
    let plain = nvim.path("plain.txt");
    nvim.type_keys(lua(&plain));
    nvim.wait_until("the mention", || mentions().len() > before);
    nvim.cmd("IdeShare off");
    nvim.type_keys(lua(&plain));
    nvim.wait_for_text("is not shared");
    nvim.type_keys("n");
    nvim.wait_until("the question to go", || !nvim.blocked());
    assert_eq!(mentions().len(), before + 1);
}

#[test]
fn x13_the_snapshot_files_hold_no_private_file_and_go_when_sharing_does() {
    let agents = json!({ "aivyx": { "enabled": true }, "rivumi": { "enabled": true } });
    let nvim = start(json!({ "agents": agents }));
    std::fs::create_dir_all(nvim.path(".rivumi/ide")).unwrap();
    let state: String = nvim.lua("return vim.env.XDG_STATE_HOME", ());
    let contexts = Path::new(&state).join("aivyx-coder/editor-context");
    let context = || {
        let entries = std::fs::read_dir(&contexts).into_iter().flatten().flatten();
        entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect::<String>()
    };
    let file = |name: &str| {
        std::fs::read_to_string(nvim.path(".rivumi/ide").join(name)).unwrap_or_default()
    };
    nvim.edit("plain.txt");
    nvim.lua::<Value>(
        "vim.diagnostic.set(vim.api.nvim_create_namespace('d'), 0, {
           { lnum = 0, col = 0, message = 'in the open', severity = 1 } })",
        (),
    );
    let all_told = || {
        file("open-files.json").contains("plain.txt")
            && file("diagnostics.json").contains("in the open")
            && context().contains("plain.txt")
    };
    nvim.wait_until("the files", all_told);
    for way in [".env", "link.txt", "also/deep/x.txt"] {
        nvim.edit(way);
        diagnose(&nvim);
        selected(&nvim);
        // Longer than Rivumi's files wait for a quiet moment.
        nvim.settle(Duration::from_millis(1400));
        let told = file("open-files.json") + &file("diagnostics.json") + &context();
        for part in [SECRET, ".env", "link.txt", "also", "secrets"] {
            assert!(!told.contains(part), "{way}: {part:?} in {told}");
        }
        assert!(file("open-files.json").contains("plain.txt"), "{way}");
        nvim.input("<C-\\><C-n>");
    }
    nvim.edit("plain.txt");
    nvim.wait_until("the context", || context().contains("plain.txt"));
    nvim.cmd("IdeShare off");
    let begun = std::time::Instant::now();
    nvim.wait_until("all to be taken back", || {
        let told = file("open-files.json") + &file("diagnostics.json") + &context();
        !told.contains("plain.txt") && !told.contains("in the open")
    });
    assert!(begun.elapsed() < Duration::from_millis(900), "not at once: {:?}", begun.elapsed());
    nvim.cmd("IdeShare on");
    nvim.wait_until("the files again", all_told);
}

#[test]
fn the_switch_is_of_a_project_and_remembered_whenever_it_was_turned() {
    let shown = |nvim: &Nvim| nvim.status()["sharing"].clone();
    let restart = |of: &Nvim, auto: &str| {
        Nvim::builder()
            .home(&of.home)
            .cwd(&of.cwd)
            .opts(json!({ "auto_start": auto }))
            .file("a.txt", "x\n")
            .start()
    };
    // Before anything runs.
    let first = Nvim::builder().no_setup().file("a.txt", "x\n").start();
    first.cmd("IdeShare off");
    first.cmd("IdeStart");
    let claude = Client::connect(&first, Dialect::Claude);
    claude.tool("getOpenEditors", json!({}));
    assert_eq!(shown(&first), json!(false), "off before it started");
    assert!(
        claude.selections().iter().all(|s| s["selection"].is_null()),
        "{:?}",
        claude.selections()
    );
    drop(claude);
    // Another project is another matter; what is said right before leaving counts as well.
    first.cmd("cd ~");
    first.wait_until("the other project", || shown(&first) == json!(true));
    first.cmd("cd -");
    first.wait_until("the first project", || shown(&first) == json!(false));
    first.cmd("IdeShare on");
    first.cmd("IdeShare off");
    first.quit("qa!");
    let unstarted = Nvim::builder().home(&first.home).cwd(&first.cwd).no_setup().start();
    let known: bool = unstarted.lua("return require('gangway').share()", ());
    assert!(!known && shown(&unstarted) == json!(false), "told before it runs");
    unstarted.quit("qa!");
    let second = restart(&first, "always");
    let claude = Client::connect(&second, Dialect::Claude);
    claude.tool("getOpenEditors", json!({}));
    assert_eq!(shown(&second), json!(false), "remembered");
    let line: String = second.lua("return require('gangway').statusline()", ());
    assert!(line.contains("not sharing"), "{line}");
    second.cmd("IdeStatus");
    let status = second.lines(0).join("\n");
    assert!(status.contains("Sharing is off for this project"), "{status}");
    second.cmd("close");
    second.cmd("IdeShare toggle");
    claude.wait_selection("the file", |s| s["filePath"] == json!(second.path("a.txt")));
    drop(claude);
    second.quit("qa!");
    let third = restart(&first, "always");
    let claude = Client::connect(&third, Dialect::Claude);
    claude.wait_selection("the file", |s| s["filePath"] == json!(third.path("a.txt")));
    drop(claude);
    drop((first, second));
}

#[test]
fn the_switch_is_of_the_whole_project_and_its_files_are_private_from_anywhere() {
    let nvim = Nvim::builder()
        .before("vim.fn.mkdir('repo/.git', 'p') vim.fn.mkdir('repo/sub') vim.fn.mkdir('else')")
        .after("vim.o.hidden = true")
        .start();
    for (file, text) in [("repo/sub/a.txt", SECRET), ("else/b.txt", "in the open")] {
        nvim.write(file, format!("{text}\n"));
    }
    let agents = [Client::connect(&nvim, Dialect::Claude), Client::connect(&nvim, Dialect::Pi)];
    nvim.cmd("cd repo/sub | edit a.txt");
    diagnose(&nvim);
    selected(&nvim);
    for agent in &agents {
        agent.wait_selection("the line", |s| s["text"].as_str().unwrap().contains(SECRET));
    }
    nvim.cmd("IdeShare off");
    nvim.wait_until("it to be off", || nvim.status()["sharing"] == json!(false));
    nvim.settle(Duration::from_millis(600));
    let heard = agents.each_ref().map(|agent| agent.selections().len());
    let nothing = |when: &str| {
        nvim.cmd("call cursor(1, 1)");
        nvim.input("<C-\\><C-n>V");
        nvim.settle(Duration::from_millis(400));
        nvim.input("<Esc>");
        for (agent, from) in agents.iter().zip(heard) {
            let mut told = format!("{:?}", &agent.selections()[from..]);
            for tool in ["getCurrentSelection", "getOpenEditors", "getDiagnostics"] {
                told += &agent.tool(tool, json!({})).to_string();
            }
            assert!(!told.contains(SECRET) && !told.contains("a.txt"), "{when}: {told}");
        }
        let asked = nvim.path("repo/sub/a.txt");
        let dirty = about(&agents[0], "checkDocumentDirty", json!({}), &asked);
        assert!(dirty.contains(r#"\"success\":false"#), "{when}: {dirty}");
    };
    for (go, shared) in [
        ("cd ..", false),
        ("cd sub", false),
        ("cd ../../else", true),
        ("cd ../repo | tab split | tcd ../else", true),
        ("tabclose | lcd ../else", true),
    ] {
        nvim.cmd(go);
        nvim.wait_until(go, || nvim.status()["sharing"] == json!(shared));
        nothing(go);
    }
    // What lies beside it is as open as ever.
    nvim.cmd("edit ../else/b.txt");
    selected(&nvim);
    for agent in &agents {
        agent.wait_selection("the other file", |s| s["text"].as_str().unwrap().contains("open"));
    }
    nvim.cmd("cd ../repo");
    nvim.wait_until("the project", || nvim.status()["sharing"] == json!(false));
    nvim.cmd("IdeStop");
    let stopped = || nvim.lua::<bool>("return require('gangway').share()", ());
    assert!(!stopped());
    nvim.cmd("cd sub");
    assert!(!stopped(), "a part of it");
    nvim.cmd("cd ../../else");
    assert!(stopped());
}

#[test]
fn what_one_neovim_is_told_about_sharing_holds_in_the_others() {
    let opts = json!({ "auto_start": "always", "agents": { "aivyx": { "enabled": true } } });
    let first = Nvim::builder().opts(opts.clone()).file("a.txt", "x\n").start();
    let second = Nvim::builder().home(&first.home).cwd(&first.cwd).opts(opts).file("a.txt", "x\n");
    let second = second.start();
    let claude = Client::connect(&second, Dialect::Claude);
    let state: String = second.lua("return vim.env.XDG_STATE_HOME", ());
    let contexts = Path::new(&state).join("aivyx-coder/editor-context");
    let context = || std::fs::read_dir(&contexts).is_ok_and(|mut entries| entries.next().is_some());
    claude.wait_selection("the file", |s| s["filePath"] == json!(second.path("a.txt")));
    second.wait_until("the context file", context);
    first.cmd("IdeShare off");
    let begun = std::time::Instant::now();
    claude.wait_selection("nothing", |s| s["selection"].is_null());
    second.wait_until("the context file to go", || !context());
    assert!(begun.elapsed() < Duration::from_millis(2500), "{:?}", begun.elapsed());
    let line: String = second.lua("return require('gangway').statusline()", ());
    assert!(line.contains("not sharing"), "{line}");
    second.cmd("IdeShare on");
    first.wait_until("it to be on again", || first.status()["sharing"] == json!(true));
}

#[test]
fn a_switch_that_cannot_be_remembered_holds_here_and_the_user_is_told() {
    let nvim = Nvim::builder().file("a.txt", "x\n").start();
    let claude = Client::connect(&nvim, Dialect::Claude);
    claude.wait_selection("the file", |s| s["filePath"] == json!(nvim.path("a.txt")));
    let state: PathBuf = nvim.lua::<String>("return vim.fn.stdpath('state')", ()).into();
    std::fs::create_dir_all(state.join("gangway/sharing.lock")).unwrap();
    nvim.cmd("IdeShare off");
    let told = || {
        let said = nvim.notifications();
        said.iter().filter(|text| text.contains("not remembered")).count()
    };
    nvim.wait_until("the message", || told() == 1);
    claude.wait_selection("nothing", |s| s["selection"].is_null());
    // Longer than it takes to look what others were told.
    nvim.settle(Duration::from_millis(1500));
    nvim.input("j");
    nvim.settle(Duration::from_millis(300));
    assert!(claude.selections().last().unwrap()["selection"].is_null());
    assert_eq!((told(), &nvim.status()["sharing"]), (1, &json!(false)));
}

#[cfg(target_os = "linux")]
#[test]
fn a_window_into_the_kernel_is_no_file() {
    let nvim = Nvim::builder().file("a.txt", "x\n").start();
    let claude = Client::connect(&nvim, Dialect::Claude);
    claude.wait_selection("the file", |s| s["filePath"] == json!(nvim.path("a.txt")));
    nvim.edit("/proc/self/status");
    selected(&nvim);
    let told = everything(&claude);
    assert!(!told.contains("/proc/") && !told.contains("Name:"), "{told}");
}

#[test]
fn new_patterns_take_back_what_the_old_ones_let_out() {
    let nvim = Nvim::builder().file("a.txt", "x\n").start();
    let claude = Client::connect(&nvim, Dialect::Claude);
    claude.wait_selection("the file", |s| s["filePath"] == json!(nvim.path("a.txt")));
    let setup =
        "require('gangway').setup({ auto_start = 'always', context = { exclude = { '*.txt' } } })";
    nvim.lua::<Value>(setup, ());
    claude.wait_selection("nothing", |s| s["selection"].is_null());
}
