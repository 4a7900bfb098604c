//! What `collect.lua` packs in a real Neovim, read back by the `Tracker`. No plugin runs here: the
//! chunk is loaded by itself, and only what it collects is looked at.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use gangway::context::position::lossy;
use gangway::context::tracker::{Disk, RawState, Tracker};
use gangway::context::{ActiveFile, Code, Position, Range, Severity, Snapshot};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::{Value, json};

use crate::harness::*;

const COLLECT: &str = include_str!("../../src/editor/collect.lua");

/// The chunk, and helpers that take lines as hexadecimal: they may hold any byte.
const SETUP: &str = r#"
local source, path, root = ...
if root == "function" then root = function() return { "~/chosen", "/also" } end end
Chunk = loadstring(source, "=collect.lua")()(function() end, { root = root })
Chunk.install()
local function unhex(text)
  return (text:gsub("..", function(digits) return string.char(tonumber(digits, 16)) end))
end
function Collect(urgent)
  local packed, failure = Chunk.collect(urgent)
  local file = assert(io.open(path, "wb"))
  file:write(packed)
  file:close()
  return failure or ""
end
function Prepare(lines, options, line, byte)
  vim.cmd("normal! \27")
  for name, value in pairs(options) do vim.o[name] = value end
  vim.api.nvim_buf_set_lines(0, 0, -1, false, vim.tbl_map(unhex, lines))
  vim.fn.cursor(line, byte)
end
function Yanked()
  local lines = vim.fn.getreg('"', 1, 1)
  for i, line in ipairs(lines) do lines[i] = line:gsub("\n", "\0") end
  -- Whole lines are told with their last line break if only that shows the last one.
  if vim.fn.getregtype('"') == "V" and lines[#lines] == "" then lines[#lines + 1] = "" end
  return (table.concat(lines, "\n"):gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end
"#;

struct Plain;

impl Disk for Plain {
    fn work_tree(&self, _: &Path) -> Option<PathBuf> {
        None
    }
    fn real(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }
    fn home(&self) -> Option<PathBuf> {
        None
    }
}

struct Seen {
    nvim: Nvim,
    tracker: RefCell<Tracker>,
}

impl Seen {
    #[track_caller]
    fn start_with(builder: Builder, root: Value) -> Self {
        let nvim = builder.plain().start();
        let packed = nvim.path("packed");
        nvim.lua::<Value>(SETUP, (COLLECT, packed.to_str().unwrap(), root));
        nvim.cmd("set noswapfile");
        Self { nvim, tracker: RefCell::default() }
    }

    #[track_caller]
    fn start() -> Self {
        Self::start_with(Nvim::builder().file("a.txt", "alpha beta\ngamma\ndelta\n"), Value::Null)
    }

    #[track_caller]
    fn snapshot(&self) -> Snapshot {
        let failure: String = self.nvim.lua("return Collect(true)", ());
        assert_eq!(failure, "", "a section failed");
        let raw = RawState::new(self.nvim.read("packed"));
        self.tracker.borrow_mut().apply(&raw, &Plain).unwrap().snapshot
    }

    #[track_caller]
    fn active(&self) -> ActiveFile {
        self.snapshot().active.expect("an active file")
    }

    /// Types keys, then tells what is selected ("" when nothing is).
    #[track_caller]
    fn selected(&self, keys: &str) -> String {
        self.nvim.input(keys);
        self.active().selection.map(|it| it.text.to_string()).unwrap_or_default()
    }

    fn is_0_10(&self) -> bool {
        self.nvim.eval("has('nvim-0.11')") == json!(0)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|it| u8::from_str_radix(std::str::from_utf8(it).unwrap(), 16).unwrap()).collect()
}

fn range(start: (u32, u32), end: (u32, u32)) -> Range {
    Range { start: Position::new(start.0, start.1), end: Position::new(end.0, end.1) }
}

// --------------------------------------------------------------------------------- selections

#[derive(Debug, Clone)]
struct Case {
    lines: Vec<Vec<u8>>,
    at: (usize, usize),
    keys: String,
    select_mode: bool,
    selection: &'static str,
    virtual_edit: &'static str,
    tab_stop: u32,
    tab_stops: &'static str,
    hidden_tabs: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let atom = prop_oneof![
        6 => prop::sample::select(vec!["a", "b", " ", "foo", "\t", "("]).prop_map(str::as_bytes),
        4 => prop::sample::select(vec!["é", "e\u{301}", "漢", "😀", "👩‍👩‍👧", "ｱ", "한"])
            .prop_map(str::as_bytes),
        1 => prop::sample::select(vec![&b"\x80"[..], b"\xF0\x9F", b"\0", b"\x01", b"\x7F"]),
    ];
    let line = prop::collection::vec(atom, 0..9).prop_map(|atoms| atoms.concat());
    let motions = prop::sample::select(vec![
        "h", "j", "k", "l", "w", "b", "e", "$", "0", "^", "G", "gg", "o", "O", "g_", "2l", "3l",
    ]);
    let keys = (
        prop::sample::select(vec!["v", "V", "<C-v>", "<C-v>"]),
        prop::collection::vec(motions, 0..5),
    )
        .prop_map(|(mode, motions)| mode.to_string() + &motions.concat());
    let options = (
        prop::sample::select(vec!["inclusive", "inclusive", "exclusive", "old"]),
        prop::sample::select(vec!["", "", "", "block", "all", "onemore"]),
        prop::sample::select(vec![8, 4, 3, 1]),
        prop::sample::select(vec!["", "", "4,2,6"]),
        prop::bool::weighted(0.1),
    );
    (
        prop::collection::vec(line, 1..5),
        (0_usize..5, 0_usize..12),
        keys,
        prop::bool::weighted(0.2),
        options,
    )
        .prop_map(|(lines, at, keys, select_mode, options)| Case {
            lines,
            at,
            keys,
            select_mode,
            selection: options.0,
            virtual_edit: options.1,
            tab_stop: options.2,
            tab_stops: options.3,
            hidden_tabs: options.4,
        })
}

impl Case {
    /// Where Neovim 0.10.4 itself yanks something else than it highlights: part of a tab before an
    /// exclusive end with 'virtualedit', and invalid bytes with either.
    fn is_odd_in_0_10(&self) -> bool {
        let invalid = self.lines.iter().any(|line| std::str::from_utf8(line).is_err());
        let virtual_edit = matches!(self.virtual_edit, "block" | "all");
        let exclusive = self.selection == "exclusive";
        [invalid, virtual_edit, exclusive].into_iter().filter(|it| *it).count() > 1
    }

    fn prepare(&self, seen: &Seen) {
        let lines: Vec<String> = self.lines.iter().map(|line| hex(line)).collect();
        let options = json!({
            "selection": self.selection,
            "virtualedit": self.virtual_edit,
            "tabstop": self.tab_stop,
            "vartabstop": self.tab_stops,
            "list": self.hidden_tabs,
            "listchars": "eol:$",
        });
        let (line, byte) = (self.at.0 % self.lines.len() + 1, self.at.1 + 1);
        seen.nvim.lua::<Value>("Prepare(...)", (lines, options, line, byte));
    }
}

/// Neither in visual mode nor after it was left may anything else be told than what `y` takes.
fn agrees(seen: &Seen, case: &Case) -> Result<(), TestCaseError> {
    if seen.is_0_10() && case.is_odd_in_0_10() {
        return Ok(());
    }
    let toggle = if case.select_mode { "<C-g>" } else { "" };
    case.prepare(seen);
    seen.snapshot();
    seen.nvim.input(&format!("{}{toggle}", case.keys));
    if !seen.nvim.mode().starts_with(['v', 'V', '\x16', 's', 'S', '\x13']) {
        return Ok(());
    }
    let live = seen.active().selection;
    seen.nvim.input(&format!("{toggle}y"));
    let yanked = unhex(&seen.nvim.lua::<String>("return Yanked()", ()));
    let text = live.as_ref().map_or("", |it| &*it.text);
    prop_assert_eq!(text, &*lossy(&yanked));

    if let Some(selection) = &live {
        let Range { start, end } = selection.range;
        prop_assert!(start <= end);
        for at in [start, end] {
            // The buffer's last line, if it is empty, ends where the next one would begin.
            let behind = case.lines.last().is_some_and(Vec::is_empty)
                && at == Position::new(u32::try_from(case.lines.len()).unwrap(), 0);
            let line = case.lines.get(at.line as usize);
            let length = line.map(|line| lossy(line).encode_utf16().count());
            prop_assert!(behind || length.is_some_and(|length| at.character as usize <= length));
        }
    }

    case.prepare(seen);
    seen.snapshot();
    seen.nvim.input(&format!("{}<Esc>", case.keys));
    prop_assert_eq!(seen.active().selection, live);
    Ok(())
}

#[test]
fn s_every_selection_is_what_y_yanks() {
    let seen = Seen::start();
    seen.nvim.cmd("set undolevels=-1");
    // `PROPTEST_CASES` for more.
    let config = Config { failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let outcome = TestRunner::new_with_rng(config, rng).run(&case(), |case| agrees(&seen, &case));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn s_inline_virtual_text_moves_a_blocks_columns() {
    let seen = Seen::start();
    seen.nvim.set_lines(0, &["abcdefgh", "abcdefgh", "abcdefgh"]);
    seen.nvim.lua::<Value>(
        "local ns = vim.api.nvim_create_namespace('t')
         vim.api.nvim_buf_set_extmark(0, ns, 1, 2, {
           virt_text = { { ': type' } }, virt_text_pos = 'inline' })",
        (),
    );
    let live = seen.selected("ggll<C-v>jjl");
    seen.nvim.input("y");
    let yanked = unhex(&seen.nvim.lua::<String>("return Yanked()", ()));
    assert_eq!(live, lossy(&yanked));
}

#[test]
fn s_a_long_selection_is_bounded_and_its_range_exact() {
    let seen = Seen::start();
    seen.nvim.lua::<Value>(
        "local l = {} for i = 1, 60000 do l[i] = 'line é ' .. i end
         vim.api.nvim_buf_set_lines(0, 0, -1, false, l)",
        (),
    );
    seen.nvim.input("ggVG");
    let selection = seen.active().selection.unwrap();
    assert!(selection.truncated && selection.text.len() == 256 * 1024);
    assert_eq!(selection.range, range((0, 0), (59999, 12)));
    seen.nvim.input("<Esc>ggll<C-v>Gl");
    let selection = seen.active().selection.unwrap();
    assert!(selection.text.starts_with("ne\nne\n"), "{}", short(&selection.text));
    assert_eq!(selection.range, range((0, 2), (59999, 4)));
}

#[test]
fn s_what_y_takes_stays_selected_and_what_d_takes_does_not() {
    let seen = Seen::start();
    assert_eq!(seen.selected("ggvey"), "alpha");
    assert_eq!(seen.selected("gg<C-v>j$y"), "alpha beta\ngamma");
    assert_eq!(seen.selected("ggVd"), "");
    assert_eq!(seen.selected("uggvec<Esc>"), "");
    assert_eq!(seen.selected("uggwviwp"), "", "put over");
}

#[test]
fn s01_a_quick_selection_stays_until_the_cursor_moves() {
    let seen = Seen::start();
    seen.snapshot();
    assert_eq!(seen.selected("2GV<Esc>"), "gamma");
    assert_eq!(seen.selected(""), "gamma");
    assert_eq!(seen.selected("k"), "");
    assert_eq!(seen.selected("ggv$<Esc>"), "alpha beta\n", "Neovim itself steps back one column");
    assert_eq!(seen.selected("h"), "");
}

#[test]
fn s07_the_last_file_and_its_selection_are_kept_elsewhere() {
    let seen = Seen::start();
    seen.snapshot();
    seen.nvim.input("wviw<Esc>");
    let before = seen.active();
    assert_eq!(before.selection.as_ref().map(|it| &*it.text), Some("beta"));
    let elsewhere = [
        "botright split | terminal cat",
        "help | only",
        "call setqflist([{'text': 'x'}]) | copen",
        "new | setlocal buftype=nofile",
        "new | setlocal buftype=prompt",
        "lua vim.api.nvim_open_win(vim.api.nvim_create_buf(false, true), true, \
         { relative = 'editor', row = 1, col = 1, width = 9, height = 2 })",
        "enew",
        "edit oil:///tmp/",
        "edit fugitive:///x/.git//0/a",
        "edit /",
    ];
    for command in elsewhere {
        seen.nvim.cmd(command);
        assert_eq!(seen.active(), before, "in: {command}");
        let listed: Vec<_> = seen.snapshot().files.into_iter().map(|file| file.path).collect();
        assert_eq!(listed, [seen.nvim.path("a.txt")], "in: {command}");
        seen.nvim.input("<C-\\><C-n>");
    }
    seen.nvim.cmd("silent! bwipeout! a.txt");
    assert_eq!(seen.snapshot().active, None, "the file is gone");
}

#[test]
fn s_a_selection_follows_its_text_and_its_file() {
    let seen = Seen::start();
    seen.snapshot();
    assert_eq!(seen.selected("2GVj<Esc>"), "gamma\ndelta");
    seen.nvim.cmd("silent write");
    assert_eq!(seen.selected(""), "gamma\ndelta", "saving changes nothing");
    seen.nvim.cmd("silent! file b.txt");
    assert_eq!(seen.active().path, seen.nvim.path("b.txt"), ":file");
    assert_eq!(seen.selected(""), "gamma\ndelta");
    seen.nvim.lua::<Value>("vim.api.nvim_buf_set_lines(0, 1, 2, false, { 'GAMMA' })", ());
    assert_eq!(seen.selected(""), "", "edited under it");
    assert_eq!(seen.selected("gvj<Esc>"), "GAMMA\ndelta", "selected again");
}

// --------------------------------------------------------------------------------- diagnostics

#[test]
fn g06_odd_diagnostics_break_nothing() {
    let seen = Seen::start();
    seen.nvim.set_lines(0, &["é😀x = 1", "plain"]);
    seen.nvim.lua::<Value>(
        r"local ns = vim.api.nvim_create_namespace('odd')
          vim.diagnostic.config({ virtual_text = false, signs = false, underline = false })
          vim.diagnostic.set(ns, 0, {
            { lnum = 0, col = 2, end_lnum = 0, end_col = 6, message = 'one', severity = 2, code = 7 },
            { lnum = 0, col = 6, message = 'nul \0 bad \255', code = { value = 'x' } },
            { lnum = 1, col = 99, end_lnum = 70, end_col = 3, message = 'beyond', severity = 4 },
            { lnum = 1, col = 4, end_lnum = 1, end_col = 1, message = 'reversed', source = 's', code = 'c' },
          })
          local unnamed = vim.api.nvim_create_buf(true, false)
          vim.diagnostic.set(ns, unnamed, { { lnum = 0, col = 0, message = 'unnamed' } })",
        (),
    );
    let snapshot = seen.snapshot();
    assert_eq!(snapshot.diagnostics.len(), 1);
    let list = &snapshot.diagnostics[&seen.nvim.path("a.txt")];
    let ranges: Vec<Range> = list.iter().map(|it| it.range).collect();
    assert_eq!(
        ranges,
        [
            range((0, 1), (0, 3)),
            range((0, 3), (0, 3)),
            range((1, 5), (1, 5)),
            range((1, 1), (1, 4))
        ]
    );
    assert_eq!((list[0].severity, &list[0].code), (Severity::Warning, &Some(Code::Number(7))));
    assert_eq!((list[1].severity, &list[1].code), (Severity::Error, &Some(Code::Text("x".into()))));
    assert_eq!((&*list[1].message, &list[1].source), ("nul \0 bad \u{FFFD}", &None));
    assert_eq!(
        (list[3].source.as_deref(), &list[3].code),
        (Some("s"), &Some(Code::Text("c".into())))
    );
}

#[test]
fn g06_a_source_that_cannot_be_copied_does_not_hide_the_others() {
    let seen = Seen::start();
    seen.nvim.lua::<Value>(
        "local good = vim.api.nvim_create_namespace('good')
         local bad = vim.api.nvim_create_namespace('bad')
         local loop = {} loop.loop = loop
         vim.diagnostic.set(good, 0, { { lnum = 0, col = 0, message = 'good' } })
         pcall(vim.diagnostic.set, bad, 0, {
           { lnum = 0, col = 0, message = 'cyclic', severity = 1, user_data = loop },
           { lnum = 0, col = 0, message = 'warning', severity = 2 } })
         pcall(vim.api.nvim_exec_autocmds, 'DiagnosticChanged', { buffer = 0 })",
        (),
    );
    let snapshot = seen.snapshot();
    let mut messages: Vec<_> =
        snapshot.diagnostics[&seen.nvim.path("a.txt")].iter().map(|it| &*it.message).collect();
    messages.sort_unstable();
    assert_eq!(messages, ["good", "warning"]);
}

#[test]
fn g06_a_finding_that_cannot_be_told_hides_no_other_and_is_said_in_the_log() {
    let seen = Seen::start();
    seen.nvim.lua::<Value>(
        "vim.diagnostic.config({ virtual_text = false, signs = false, underline = false })
         local function fails() error({}) end
         vim.diagnostic.set(vim.api.nvim_create_namespace('mixed'), 0, {
           { lnum = 0, col = 0, message = 'first' },
           { lnum = 0, col = 0, message = setmetatable({}, { __tostring = fails }) },
           { lnum = 1, col = 0, message = 'last' } })",
        (),
    );
    let failure: String = seen.nvim.lua("return Collect(true)", ());
    assert_eq!(failure, "an error that is a table");
    let raw = RawState::new(seen.nvim.read("packed"));
    let snapshot = seen.tracker.borrow_mut().apply(&raw, &Plain).unwrap().snapshot;
    let list = &snapshot.diagnostics[&seen.nvim.path("a.txt")];
    assert_eq!(list.iter().map(|it| &*it.message).collect::<Vec<_>>(), ["first", "last"]);
    let leaked: bool = seen.nvim.lua("return rawget(_G, 'failure') ~= nil", ());
    assert!(!leaked, "a global variable");
    assert_eq!(seen.snapshot().diagnostics[&seen.nvim.path("a.txt")].len(), 2, "the next one");
}

#[test]
fn g01_clean_is_told_from_not_open_and_cleared_from_both() {
    let seen = Seen::start();
    let file = seen.nvim.path("a.txt");
    assert!(seen.snapshot().diagnostics[&file].is_empty());
    let set = "vim.diagnostic.set(vim.api.nvim_create_namespace('d'), vim.fn.bufnr('a.txt'), ...)";
    seen.nvim.lua::<Value>(set, (json!([{ "lnum": 0, "col": 0, "message": "m" }]),));
    seen.nvim.cmd("enew");
    assert_eq!(seen.snapshot().diagnostics[&file].len(), 1, "a hidden buffer counts");
    seen.nvim.lua::<Value>(
        "vim.diagnostic.reset(vim.api.nvim_create_namespace('d'), vim.fn.bufnr('a.txt'))",
        (),
    );
    assert!(seen.snapshot().diagnostics[&file].is_empty());
    seen.nvim.cmd("bdelete a.txt");
    assert!(seen.snapshot().diagnostics.is_empty());
}

// --------------------------------------------------------------------------------- files, roots

#[test]
fn files_are_listed_with_what_is_known_of_them() {
    let seen = Seen::start();
    seen.nvim.write("b.lua", "é = 1\n");
    seen.nvim.cmd("filetype on");
    seen.nvim.cmd("edit b.lua");
    seen.nvim.input("$ix<Esc>");
    let snapshot = seen.snapshot();
    let names: Vec<_> = snapshot.files.iter().map(|it| it.path.clone()).collect();
    assert_eq!(names, [seen.nvim.path("b.lua"), seen.nvim.path("a.txt")], "latest first");
    let (b, a) = (&snapshot.files[0], &snapshot.files[1]);
    assert!(b.active && b.visible && b.modified && b.language == "lua");
    assert!(!a.active && !a.visible && !a.modified);
    assert_eq!(b.cursor, Position::new(0, 4));
    assert!(b.last_visited >= a.last_visited && b.last_visited > 1_600_000_000_000);
}

#[test]
fn l09_roots_are_every_folder_the_user_works_in() {
    let seen = Seen::start();
    let (first, sub) = (seen.nvim.path(""), seen.nvim.path("sub"));
    let first: PathBuf = first.components().collect();
    std::fs::create_dir(&sub).unwrap();
    let roots = || {
        let roots = seen.snapshot().roots;
        roots.into_iter().map(|root| root.path).collect::<Vec<_>>()
    };
    assert_eq!(roots(), std::slice::from_ref(&first));
    seen.nvim.cmd("cd sub");
    assert_eq!(roots(), [sub.clone(), first.clone()], "the present one leads");
    seen.nvim.cmd("cd ..");
    seen.nvim.cmd("tabnew | tcd sub | tabprevious");
    assert_eq!(roots(), [first.clone(), sub.clone()]);
    seen.nvim.cmd("tabonly | split | lcd sub | wincmd p");
    assert_eq!(roots(), [first.clone(), sub.clone()]);
    seen.nvim.cmd("only | set autochdir | edit sub/x.txt");
    assert_eq!(roots(), [first], "autochdir moves about within the project");
}

#[test]
fn the_users_roots_replace_the_others() {
    let start = |root| Seen::start_with(Nvim::builder().file("a.txt", "x\n"), root);
    let roots =
        |seen: &Seen| seen.snapshot().roots.into_iter().map(|root| root.path).collect::<Vec<_>>();
    assert_eq!(roots(&start(json!("/srv/project/"))), [PathBuf::from("/srv/project")]);
    let seen = start(json!("function"));
    let home = seen.nvim.env("HOME").unwrap();
    assert_eq!(roots(&seen), [home.join("chosen"), PathBuf::from("/also")]);
}
