//! What a review looks like: whole screens in real terminals, compared with `tests/nvim/looks/`.
//!
//! `GANGWAY_LOOKS=write` draws them anew; look at them before they are committed.

use std::path::PathBuf;
use std::time::Duration;

use crate::harness::*;

const OLD: &str = "\
fn main() {
    let name = \"world\";
    println!(\"hello {name}\");
}

/// Adds two numbers.
fn add(a: i32, b: i32) -> i32 {
    a + b
}
";

fn new() -> String {
    OLD.replace("\"world\"", "args().nth(1)")
        .replace("    a + b\n", "    a.wrapping_add(b)\n}\n\nfn two() -> i32 {\n    2\n")
}

struct Look {
    name: &'static str,
    rows: u16,
    cols: u16,
    set: &'static str,
    keys: &'static str,
}

const LOOKS: [Look; 8] = [
    Look { name: "80x24", rows: 24, cols: 80, set: "", keys: "" },
    Look { name: "60-columns", rows: 20, cols: 60, set: "", keys: "]c" },
    Look { name: "120-columns", rows: 20, cols: 120, set: "", keys: "" },
    Look { name: "160-columns", rows: 16, cols: 160, set: "", keys: "" },
    Look { name: "cmdheight-0", rows: 20, cols: 80, set: "cmdheight=0", keys: "" },
    Look { name: "laststatus-3", rows: 20, cols: 80, set: "laststatus=3", keys: "" },
    Look { name: "light", rows: 20, cols: 80, set: "background=light", keys: "" },
    Look { name: "dark-256", rows: 20, cols: 80, set: "background=dark notermguicolors", keys: "" },
];

/// The screen without what Neovim says of itself: the blanks at the ends, and the message line.
fn picture(nvim: &Nvim) -> String {
    let text = nvim.screen_text();
    let rows = text.lines().map(str::trim_end).filter(|row| !row.starts_with("gangway: "));
    rows.collect::<Vec<_>>().join("\n").trim_end().to_owned() + "\n"
}

fn reviewing(look: &Look) -> Nvim {
    let nvim = Nvim::builder()
        .tty(look.rows, look.cols)
        .file("src/main.rs", OLD)
        .before("vim.o.showcmd, vim.o.statusline = false, ' %f'")
        .start();
    if !look.set.is_empty() {
        nvim.cmd(&format!("set {}", look.set));
    }
    nvim
}

#[test]
fn a_review_looks_as_it_was_drawn() {
    let drawn = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/nvim/looks");
    let mut wrong = Vec::new();
    for look in LOOKS {
        let nvim = reviewing(&look);
        let agent = Client::connect(&nvim, Dialect::Claude);
        let pending = agent.open_diff(nvim.path("src/main.rs"), &new());
        let review = nvim.shown(&pending);
        nvim.keys_in(&review.right, look.keys);
        nvim.wait_for_text("wrapping_add");
        let path = drawn.join(format!("{}.txt", look.name));
        if std::env::var_os("GANGWAY_LOOKS").is_some() {
            nvim.settle(Duration::from_millis(300));
            std::fs::write(&path, picture(&nvim)).unwrap();
            continue;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        // The screen follows Neovim after a moment.
        if poll(PATIENCE, || (picture(&nvim) == expected).then_some(())).is_none() {
            wrong.push(format!("{}: drawn\n{expected}\nseen\n{}", look.name, picture(&nvim)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn what_changes_stands_out_in_every_light() {
    for set in [
        "background=dark",
        "background=light",
        "background=dark notermguicolors",
        "background=light notermguicolors",
    ] {
        let nvim = reviewing(&Look { name: "", rows: 24, cols: 120, set, keys: "" });
        let agent = Client::connect(&nvim, Dialect::Claude);
        let pending = agent.open_diff(nvim.path("src/main.rs"), &new());
        let review = nvim.shown(&pending);
        nvim.goto(review.right.win);
        nvim.wait_for_text("drop hunk");
        let at = |text: &str| -> Cell {
            let (row, col) = nvim.screen_find(text).unwrap_or_else(|| nvim.fail(text));
            nvim.screen_cell(row, col).unwrap()
        };
        let differ = |one: &str, other: &str| {
            let colour = |text: &str| (at(text).background, at(text).foreground, at(text).bold);
            nvim.wait_until(
                &format!("{set}: {one:?} {:?} and {other:?} {:?} to differ", at(one), at(other)),
                || colour(one) != colour(other),
            );
        };
        differ("fn two", "fn main"); // an added line
        differ("wrapping_add", "fn main"); // changed text
        differ("\\a accept", "accept"); // a key and what it does
        differ("+6", "\u{2212}2"); // added and removed
    }
}
