//! Opening and saving files for an agent: `documents.lua` in a real Neovim, loaded by itself.

use std::path::Path;

use proptest::prop_assert_eq;
use serde_json::{Value, json};

use crate::harness::*;

const DOCUMENTS: &str = include_str!("../../src/editor/documents.lua");

fn start(builder: Builder) -> Nvim {
    let nvim = builder.plain().start();
    nvim.lua::<Value>("Docs = loadstring(..., '=documents.lua')() Docs.install()", (DOCUMENTS,));
    nvim
}

/// Opens a file in front, with more arguments.
#[track_caller]
fn open(nvim: &Nvim, path: &Path, more: Value) -> Value {
    let mut what = json!({
        "path": path.to_str().unwrap(),
        "make_frontmost": true,
        "select_to_end_of_line": false,
    });
    what.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    nvim.lua("return Docs.open(...)", (what,))
}

/// What `save` returns: whether it wrote, and why not.
#[track_caller]
fn save(nvim: &Nvim, path: &Path) -> (bool, String) {
    let real = path.canonicalize().ok();
    nvim.lua("local ok, why = Docs.save(...) return { ok, why or '' }", (path, real))
}

fn current(nvim: &Nvim) -> String {
    nvim.lua("return vim.api.nvim_buf_get_name(0)", ())
}

fn windows(nvim: &Nvim) -> usize {
    nvim.lua("return #vim.api.nvim_tabpage_list_wins(0)", ())
}

#[test]
fn f09_awkward_names_mean_exactly_that_file() {
    let nvim = start(Nvim::builder().file("start.txt", "x\n"));
    let names = [
        "a b.txt",
        "$HOME.txt",
        "[id].tsx",
        "100%.txt",
        "a#b",
        "q?.md",
        "it's",
        "{a,b}.ts",
        "`id`",
        "~x",
        "-x",
        "+x",
        "é.txt",
        "e\u{301}.txt",
        "a|b",
        "q\"uote",
        "back\\slash",
        "%",
        "#1",
        "new\nline",
    ];
    for name in names {
        let path = nvim.write(name, "disk\nsame\n");
        let opened = open(&nvim, &path, json!({}));
        assert_eq!(opened["refused"], Value::Null, "{name:?}: {opened}");
        assert_eq!(Path::new(&current(&nvim)), path);
        nvim.set_lines(0, &["dirty", "same"]);
        assert_eq!(save(&nvim, &path), (true, String::new()), "{name:?}");
        assert_eq!(nvim.read(name), b"dirty\nsame\n");
        assert_eq!(save(&nvim, &path), (false, String::new()), "{name:?} again");
    }
    let made = std::fs::read_dir(nvim.path("")).unwrap().count();
    assert_eq!(made, names.len() + 1, "nothing else was created");
}

#[test]
fn f13_what_is_no_plain_file_is_refused_at_once() {
    let nvim = start(Nvim::builder().file("a.txt", "x\n"));
    assert!(
        std::process::Command::new("mkfifo").arg(nvim.path("fifo")).status().unwrap().success()
    );
    for (path, why) in [
        (nvim.path(""), "is a directory"),
        (nvim.path("missing"), "does not exist"),
        (nvim.path("a.txt/below"), "cannot be reached (ENOTDIR)"),
        (nvim.path("fifo"), "is no plain file"),
        ("/dev/zero".into(), "is no plain file"),
    ] {
        assert_eq!(open(&nvim, &path, json!({}))["refused"], why, "{}", path.display());
    }
}

#[test]
fn text_is_searched_literally_and_selected() {
    let nvim = start(Nvim::builder().file("start.txt", "x\n"));
    let path = nvim.write("a.txt", "a.b\nfirst é😀 (.*)\r\nlast line\n");
    let more = json!({ "start_text": "é😀 (.*)", "end_text": "last" });
    let opened = open(&nvim, &path, more);
    assert_eq!(opened["start_line"], 1);
    assert_eq!(opened["start_head"], "first ");
    assert_eq!((&opened["stop_line"], &opened["stop_head"]), (&json!(2), &json!("last")));
    nvim.input("y");
    assert_eq!(nvim.eval("getreg('\"')"), json!("é😀 (.*)\r\nlast"));

    let more = json!({ "start_text": "first", "select_to_end_of_line": true });
    assert_eq!(open(&nvim, &path, more)["stop_head"], "first é😀 (.*)\r");
    nvim.input("<Esc>");
    let missing = open(&nvim, &path, json!({ "start_text": "a.*b" }));
    assert_eq!(missing["start_line"], Value::Null);
    open(&nvim, &path, json!({ "line": 99 }));
    assert_eq!(nvim.eval("line('.')"), json!(3));
}

/// Where `first` and then `last` are in a text, as `openFile` is to find them: line and column in
/// bytes of the start and of the end.
type Found = Option<((usize, usize), (usize, usize))>;

fn found(lines: &[&[u8]], first: &[u8], last: &[u8], to_end_of_line: bool) -> Found {
    let text = lines.join(&b'\n');
    let plain =
        |text: &[u8]| String::from_utf8(text.to_vec()).unwrap().replace("\r\n", "\n").into_bytes();
    let (first, last) = (plain(first), plain(last));
    let find = |what: &[u8], from: usize| {
        let at = |i: &usize| text[*i..].starts_with(what);
        (from..=text.len()).find(at)
    };
    let from = find(&first, 0)?;
    let mut to = from + first.len();
    if !last.is_empty() {
        to = find(&last, to).map_or(to, |at| at + last.len());
    }
    let place = |offset: usize| {
        let before = &text[..offset];
        let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        (before.iter().filter(|b| **b == b'\n').count(), offset - start)
    };
    let mut end = place(to);
    if to_end_of_line {
        end.1 = lines[end.0].len();
    }
    Some((place(from), end))
}

#[test]
fn fuzz_open_file_finds_any_text_literally_and_selects_no_more() {
    let nvim = start(Nvim::builder().file("start.txt", "x\n"));
    // A buffer of the test's own lines is enough: reading files is Neovim's business.
    let path = nvim.write("a.txt", "");
    open(&nvim, &path, json!({}));
    let buf = nvim.eval("bufnr('%')").as_i64().unwrap();
    crate::fuzz::run("open_file", |bytes| {
        let mut parts = bytes.splitn(3, |byte| *byte == 0x1f);
        let mut part = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let (text, first, last) = (part(), part(), part());
        let to_end_of_line = bytes.len() % 2 == 0;
        let lines: Vec<&str> = text.split('\n').collect();
        nvim.set_lines(buf, &lines);
        let mut more = json!({ "select_to_end_of_line": to_end_of_line });
        for (name, text) in [("start_text", &first), ("end_text", &last)] {
            // An empty one is left out, as the tool does.
            if !text.is_empty() {
                more[name] = json!(text);
            }
        }
        let opened = open(&nvim, &path, more);
        nvim.input("<Esc>");
        let given: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        let (from, then) = if first.is_empty() { (&last, "") } else { (&first, &*last) };
        let wanted = if from.is_empty() {
            None
        } else {
            found(&given, from.as_bytes(), then.as_bytes(), to_end_of_line)
        };
        let place = |line: &str, head: &str| {
            Some((opened[line].as_u64()? as usize, opened[head].as_str()?.len()))
        };
        let got = place("start_line", "start_head").zip(place("stop_line", "stop_head"));
        prop_assert_eq!(got, wanted, "{}", opened);
        prop_assert_eq!(opened["refused"].as_str(), None);
        prop_assert_eq!(nvim.mode(), "n");
        Ok(())
    });
}

#[test]
fn a_file_can_be_loaded_without_taking_the_user_there() {
    let nvim = start(Nvim::builder().file("start.txt", "x\n"));
    let path = nvim.write("b.txt", "one\ntwo\n");
    let opened = open(&nvim, &path, json!({ "make_frontmost": false, "start_text": "two" }));
    assert_eq!((&opened["line_count"], &opened["start_line"]), (&json!(2), &json!(1)));
    assert_eq!(Path::new(&current(&nvim)), nvim.path("start.txt"));
    assert_eq!(nvim.eval("buflisted('b.txt')"), json!(1));
}

#[test]
fn d04_windows_that_are_special_are_left_alone() {
    let cases = [
        ("terminal cat", 2),
        ("setlocal winfixbuf", 2),
        ("help | only", 2),
        ("set nohidden | call setline(1, 'unsaved')", 2),
        ("setlocal winfixwidth", 2),
        ("enew", 1),
        (
            "lua vim.api.nvim_open_win(vim.api.nvim_create_buf(false, true), true, \
             { relative = 'editor', row = 1, col = 1, width = 9, height = 2 })",
            2,
        ),
    ];
    for (command, count) in cases {
        let nvim = start(Nvim::builder().file("a.txt", "x\n"));
        let path = nvim.write("b.txt", "b\n");
        nvim.cmd(command);
        let special: i64 = nvim.lua("return vim.api.nvim_get_current_buf()", ());
        let opened = open(&nvim, &path, json!({}));
        assert_eq!(opened["refused"], Value::Null, "{command}: {opened}");
        assert_eq!(Path::new(&current(&nvim)), path, "{command}");
        assert_eq!(windows(&nvim), count, "{command}");
        assert_eq!(nvim.eval("&winfixbuf || &winfixwidth"), json!(0), "{command}");
        if count == 2 {
            let shown = nvim.eval(&format!("len(win_findbuf({special}))"));
            assert_eq!(shown, json!(1), "{command}: its window was taken");
        }
        nvim.cmd("silent! %bwipeout!");
    }
}

#[test]
fn f11_a_symbolic_link_and_its_target_are_one_buffer() {
    let nvim = start(Nvim::builder().file("real.txt", "x\n"));
    std::os::unix::fs::symlink("real.txt", nvim.path("link.txt")).unwrap();
    nvim.set_lines(0, &["changed"]);
    let link = nvim.path("link.txt");
    let real = link.canonicalize().unwrap();
    let modified: bool =
        nvim.lua("return Docs.modified(...)", (link.to_str().unwrap(), real.to_str().unwrap()));
    assert!(modified);
    assert_eq!(save(&nvim, &link), (true, String::new()));
    assert_eq!(nvim.read("real.txt"), b"changed\n");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn saving_never_overwrites_and_never_asks() {
    let nvim = start(Nvim::builder().file("a.txt", "x\n"));
    let path = nvim.path("a.txt");
    assert_eq!(save(&nvim, &nvim.path("other")).1, "is not open in Neovim");
    nvim.set_lines(0, &["mine"]);
    nvim.write("a.txt", "somebody else's\n");
    let (saved, why) = save(&nvim, &path);
    assert!(!saved && why.starts_with("has changed on disk"), "{why}");
    assert_eq!(nvim.read("a.txt"), b"somebody else's\n");
    assert!(!nvim.blocked());

    nvim.cmd("silent edit! | set confirm");
    nvim.set_lines(0, &["mine"]);
    assert_eq!(save(&nvim, &path), (true, String::new()), "read again, it may be written");
    nvim.cmd("setlocal readonly");
    nvim.lua::<Value>("vim.bo.modified = true", ());
    assert_eq!(save(&nvim, &path).1, "is read-only in Neovim");
    nvim.cmd("setlocal noreadonly");
    nvim.cmd("autocmd BufWritePre <buffer> throw 'not now'");
    assert!(save(&nvim, &path).1.contains("not now"));
    assert!(!nvim.blocked());
    assert_eq!(nvim.eval("&confirm"), json!(1));
    nvim.cmd("set noconfirm nomodified");
}
