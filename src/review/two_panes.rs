//! A review of a file as its two panes: bodies, notes and how much decoration they can bear.
//!
//! Pure, any thread; belongs on a worker, because comparing big texts takes a while. The editor
//! puts it on the screen as it is.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::hunks::Hunks;
use super::text::{OldText, Pane};
use super::{Kind, Review};

/// Above this many bytes on one side: 'syntax' instead of treesitter.
pub const TREESITTER_BYTES: usize = 1 << 20;
/// Above this: no highlighting of the language at all.
pub const SYNTAX_BYTES: usize = 8 << 20;
/// Above this many bytes on one side, or in one line, the panes stand side by side without Neovim's
/// diff mode, and say so.
pub const DIFF_BYTES: usize = 40 << 20;
pub const DIFF_LINE_BYTES: usize = 256 << 10;
/// The same with more differences than this: Neovim needs a time that grows with the square of their
/// number before it shows anything (measured on 0.10 to 0.12: 2 000 0.2 s, 8 000 3 s, 16 000 12 s).
pub const DIFF_HUNKS: usize = 2000;
/// And when comparing takes us longer than this (many equal lines in another order).
pub const PATIENCE: Duration = Duration::from_millis(400);
/// Above this many bytes in one difference, both sides together, only whole lines are marked:
/// Neovim 0.12 compares character by character ('diffopt' "inline:char"), in a time that grows with
/// the square (measured there: 14 KB on each side 40 ms, 70 KB 0.6 s, 560 KB 21 s, at a redraw).
pub const WORDS_BYTES: usize = 32 << 10;
/// The same for texts in which an edit could make a difference that large, in bytes of one side.
pub const WORDS_TEXT_BYTES: usize = 128 << 10;
/// Neovim aligns the lines within a difference ('diffopt' "linematch", on from the start in 0.12) by
/// comparing each with each, character by character (measured on 0.10 to 0.12: 2 to 6 ns for the
/// product of both sides' bytes, for every difference in view). Not above this product.
pub const ALIGN_COST: usize = 8_000_000;
/// Of longer lines Neovim looks at this many bytes.
const ALIGN_LINE_BYTES: usize = 800;
/// Above this many bytes on one side the differences are counted after the panes are shown.
pub const COUNT_BYTES: usize = 512 << 10;

/// How much decoration the texts can bear without holding Neovim up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Diff mode and treesitter.
    Full,
    /// Diff mode and 'syntax'.
    Syntax,
    /// Diff mode only.
    Plain,
    /// Two texts side by side, without diff mode.
    NoDiff,
}

#[derive(Debug, Clone)]
pub struct TwoPanes {
    /// The left pane's lines joined by `\n`.
    pub left: String,
    /// The proposal, editable.
    pub right: Pane,
    /// 0-based lines of the left pane whose end is not its usual one.
    pub left_odd_ends: Vec<u32>,
    pub right_odd_ends: Vec<u32>,
    /// The last line of that side has no line end, and the other side's has.
    pub left_unterminated: bool,
    pub right_unterminated: bool,
    /// Short remarks for the winbar: "new file", "decoded from latin1", "LF → CRLF".
    pub left_notes: Vec<String>,
    pub right_notes: Vec<String>,
    /// `None` where showing the texts does not wait for the count.
    pub hunks: Option<Hunks>,
    /// 0-based line in which the sides first differ; the same number in both.
    pub first_change: u32,
    pub detail: Detail,
    /// Neovim may mark what differs within lines.
    pub words: bool,
    /// Neovim must not align differences of this many lines, both sides together, or more.
    pub unaligned: Option<usize>,
}

impl TwoPanes {
    /// `None` for kinds that have no file (they get the ask view).
    #[must_use]
    pub fn of(review: &Review) -> Option<Self> {
        let empty: Arc<str> = Arc::from("");
        match &review.kind {
            Kind::Write { old, new, .. } => Some(Self::new(old, new)),
            Kind::Delete { old, .. } => {
                let mut panes = Self::new(old, &empty);
                panes.right_notes = vec!["deletes the file".into()];
                panes.right_unterminated = false;
                Some(panes)
            }
            Kind::Command { .. } | Kind::Tool { .. } => None,
        }
    }

    /// The same proposal against what is on disk by now. `None` when the right pane would have to
    /// change for that (a byte order mark came or went on disk).
    #[must_use]
    pub fn against(&self, old: &OldText) -> Option<Self> {
        let renewed = Self::new(old, self.right.text());
        (renewed.right.bom_hidden == self.right.bom_hidden).then_some(renewed)
    }

    fn new(old: &OldText, new: &Arc<str>) -> Self {
        let mut left_notes = Vec::new();
        let mut right_notes = Vec::new();
        let mut binary = None;
        let old_text: Arc<str> = match old {
            OldText::Missing => {
                left_notes.push("new file".into());
                Arc::from("")
            }
            OldText::Text { text, decoded_from } => {
                if let Some(encoding) = decoded_from {
                    left_notes.push(format!("decoded from {encoding}"));
                    right_notes.push("writes UTF-8".into());
                }
                Arc::clone(text)
            }
            OldText::Binary { head, length } => {
                left_notes.push(format!("binary, {length} bytes"));
                binary = Some(hex_dump(head, *length));
                Arc::from("")
            }
        };
        let (mut left, right) = Pane::pair(&old_text, new);
        let comparable =
            matches!(old, OldText::Text { .. }) && !old_text.is_empty() && !new.is_empty();
        if comparable {
            right_notes.extend(end_notes(&left, &right));
        }
        let left_body = binary.unwrap_or_else(|| std::mem::take(&mut left.body));
        let same = common_start(left_body.as_bytes(), right.body.as_bytes());
        let often = may_differ_often(&left_body, &right.body, same);
        let hunks = if often {
            Hunks::within(PATIENCE, &left_body, &right.body)
        } else if left_body.len().max(right.body.len()) <= COUNT_BYTES {
            Some(Hunks::between(&left_body, &right.body))
        } else {
            None
        };
        // What takes us long would take Neovim as long, on the thread that serves the keys.
        let too_different = often && hunks.as_ref().is_none_or(|h| h.list.len() > DIFF_HUNKS);
        let detail = if too_different { Detail::NoDiff } else { detail(&left_body, &right.body) };
        match detail {
            Detail::NoDiff if too_different => {
                right_notes.push("too different for diff colours".into());
            }
            Detail::NoDiff => right_notes.push("too large for diff colours".into()),
            Detail::Plain => right_notes.push("too large for highlighting".into()),
            Detail::Syntax | Detail::Full => {}
        }
        let unterminated = |pane: &Pane| !pane.final_newline && !pane.text().is_empty();
        Self {
            left_odd_ends: left.odd_line_ends(),
            right_odd_ends: right.odd_line_ends(),
            left_unterminated: comparable && unterminated(&left) && !unterminated(&right),
            right_unterminated: unterminated(&right) && (!comparable || !unterminated(&left)),
            first_change: u32::try_from(lines_in(&left_body.as_bytes()[..same]))
                .unwrap_or(u32::MAX),
            detail,
            words: words(&left_body, &right.body, hunks.as_ref()),
            unaligned: unaligned(&left_body, &right.body, hunks.as_ref()),
            hunks,
            left: left_body,
            right,
            left_notes,
            right_notes,
        }
    }
}

/// What changes at line ends and at the file's ends, which coloured lines cannot show.
fn end_notes(left: &Pane, right: &Pane) -> Vec<String> {
    let mut notes = Vec::new();
    let bom = |pane: &Pane| pane.text().starts_with('\u{feff}');
    match (bom(left), bom(right)) {
        (true, false) => notes.push("removes BOM".into()),
        (false, true) => notes.push("adds BOM".into()),
        _ => {}
    }
    if let (Some(old), Some(new)) = (left.endings_name(), right.endings_name())
        && old != new
    {
        notes.push(format!("{old} → {new}"));
    }
    match (left.final_newline, right.final_newline) {
        (true, false) => notes.push("removes final newline".into()),
        (false, true) => notes.push("adds final newline".into()),
        _ => {}
    }
    notes
}

/// How many bytes both start with. In strides: a large file with a small change is the usual case.
fn common_start(left: &[u8], right: &[u8]) -> usize {
    const STRIDE: usize = 4096;
    let strides = left.chunks_exact(STRIDE).zip(right.chunks_exact(STRIDE));
    let start = STRIDE * strides.take_while(|(a, b)| a == b).count();
    let rest = left[start..].iter().zip(&right[start..]);
    start + rest.take_while(|(a, b)| a == b).count()
}

fn common_end(left: &[u8], right: &[u8]) -> usize {
    const STRIDE: usize = 4096;
    let strides = left.rchunks_exact(STRIDE).zip(right.rchunks_exact(STRIDE));
    let end = STRIDE * strides.take_while(|(a, b)| a == b).count();
    let (left, right) = (&left[..left.len() - end], &right[..right.len() - end]);
    let rest = left.iter().rev().zip(right.iter().rev());
    end + rest.take_while(|(a, b)| a == b).count()
}

fn lines_in(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

/// False if there can be no more than `DIFF_HUNKS` differences: few lines between the common start
/// (of `same` bytes) and the common end, or few that differ in their place. Far faster than
/// comparing.
fn may_differ_often(left: &str, right: &str, same: usize) -> bool {
    let (left, right) = (&left.as_bytes()[same..], &right.as_bytes()[same..]);
    let end = common_end(left, right);
    let (left, right) = (&left[..left.len() - end], &right[..right.len() - end]);
    let (old, new) = (lines_in(left), lines_in(right));
    let split = |bytes| <[u8]>::split(bytes, |byte| *byte == b'\n');
    let in_place = || split(left).zip(split(right)).filter(|(a, b)| a != b).count();
    old.min(new) >= DIFF_HUNKS && in_place() + old.abs_diff(new) >= DIFF_HUNKS
}

fn detail(left: &str, right: &str) -> Detail {
    let longest = |text: &str| {
        let mut start = 0;
        let ends = memchr::memchr_iter(b'\n', text.as_bytes()).chain([text.len()]);
        ends.map(|end| end - std::mem::replace(&mut start, end + 1)).max().unwrap_or(0)
    };
    let size = left.len().max(right.len());
    if size > DIFF_BYTES || longest(left).max(longest(right)) > DIFF_LINE_BYTES {
        Detail::NoDiff
    } else if size > SYNTAX_BYTES {
        Detail::Plain
    } else if size > TREESITTER_BYTES {
        Detail::Syntax
    } else {
        Detail::Full
    }
}

/// How many bytes stand in each difference, on either side; of one line at most `most`.
fn sizes(
    left: &str,
    right: &str,
    hunks: &Hunks,
    most: usize,
) -> impl Iterator<Item = (usize, usize)> {
    // Of all lines before the line of that number.
    let before = |text: &str| {
        let mut sum = 0;
        let sums = text.split('\n').map(|line| {
            sum += line.len().min(most) + 1;
            sum
        });
        std::iter::once(0).chain(sums).collect::<Vec<usize>>()
    };
    let (old, new) = (before(left), before(right));
    let bytes = |sums: &[usize], lines: &Range<u32>| -> usize {
        let at = |line: u32| sums.get(line as usize).copied().unwrap_or_default();
        at(lines.end).saturating_sub(at(lines.start))
    };
    hunks.list.iter().map(move |h| (bytes(&old, &h.old), bytes(&new, &h.new)))
}

fn words(left: &str, right: &str, hunks: Option<&Hunks>) -> bool {
    let Some(hunks) = hunks.filter(|_| left.len().max(right.len()) <= WORDS_TEXT_BYTES) else {
        return false;
    };
    sizes(left, right, hunks, usize::MAX).all(|(old, new)| old + new <= WORDS_BYTES)
}

fn unaligned(left: &str, right: &str, hunks: Option<&Hunks>) -> Option<usize> {
    let Some(hunks) = hunks else { return Some(0) };
    let sizes = sizes(left, right, hunks, ALIGN_LINE_BYTES);
    let costly = hunks
        .list
        .iter()
        .zip(sizes)
        .filter(|(_, (old, new))| old.saturating_mul(*new) > ALIGN_COST);
    costly.map(|(h, _)| h.old.len() + h.new.len()).min()
}

/// The way `xxd` shows bytes; what is not shown is counted.
fn hex_dump(head: &[u8], length: u64) -> String {
    let mut out = String::new();
    for (row, bytes) in head.chunks(16).enumerate() {
        let _ = write!(out, "{:08x}: ", row * 16);
        for pair in bytes.chunks(2) {
            for byte in pair {
                let _ = write!(out, "{byte:02x}");
            }
            out.push(' ');
        }
        let width = 10 + 41;
        let line_start = out.rfind('\n').map_or(0, |at| at + 1);
        let pad = width - (out.len() - line_start).min(width);
        out.extend(std::iter::repeat_n(' ', pad));
        out.extend(
            bytes
                .iter()
                .map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' }),
        );
        out.push('\n');
    }
    let rest = length.saturating_sub(head.len() as u64);
    if rest > 0 {
        let _ = write!(out, "… {rest} more bytes");
    } else {
        out.pop();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panes(old: &str, new: &str) -> TwoPanes {
        TwoPanes::new(&OldText::new(old), &Arc::from(new))
    }

    #[test]
    fn what_lines_cannot_show_is_said() {
        assert_eq!(panes("a\r\nb\r\n", "a\nb\n").right_notes, ["CRLF → LF"]);
        assert_eq!(panes("a\n", "a").right_notes, ["removes final newline"]);
        assert_eq!(panes("\u{feff}a\n", "a\n").right_notes, ["removes BOM"]);
        assert!(panes("a\n", "b\n").right_notes.is_empty());
    }

    #[test]
    fn only_true_changes_are_hunks() {
        let crlf = panes("a\r\nb\r\nc\r\n", "a\r\nB\r\nc\r\n");
        let hunks = crlf.hunks.unwrap();
        assert_eq!((hunks.added, hunks.removed, crlf.first_change), (1, 1, 1));
        assert!(panes("a\r\n", "a\r\n").hunks.unwrap().list.is_empty());
    }

    #[test]
    fn a_proposal_can_be_held_against_a_newer_file() {
        let first = panes("a\n", "b\n");
        let later = first.against(&OldText::new("b\n")).unwrap();
        assert!(later.hunks.unwrap().list.is_empty());
        assert!(panes("\u{feff}a\n", "\u{feff}b\n").against(&OldText::new("a\n")).is_none());
    }

    #[test]
    fn differences_that_are_costly_to_align_are_told_by_their_number_of_lines() {
        let lines = |count: usize, width: usize, of: &str| {
            (0..count).map(|n| format!("{n}{}\n", of.repeat(width))).collect::<String>()
        };
        let text = |of: &str| {
            format!("{}same\n{}same\n{}", lines(30, 90, of), lines(20, 800, of), lines(2, 9000, of))
        };
        assert_eq!(panes(&lines(20, 100, "a"), &lines(20, 100, "b")).unaligned, None);
        assert_eq!(panes(&text("a"), &text("b")).unaligned, Some(40));
        assert_eq!(panes("", &text("b")).unaligned, None, "a new file has nothing to align");
        let large = "a line\n".repeat(100_000);
        assert_eq!(panes(&large, &format!("{large}b")).unaligned, Some(0), "not counted yet");
    }

    #[test]
    fn what_texts_share_at_their_ends_is_found_to_the_byte() {
        for length in [0, 1, 4095, 4096, 4097, 9000] {
            let same = "s".repeat(length);
            for (a, b) in [("", ""), ("a", ""), ("a", "b"), ("ax", "by"), ("a\n", "b")] {
                let [before, after] =
                    [[a, b].map(|t| same.clone() + t), [a, b].map(|t| t.to_owned() + &same)];
                assert_eq!(common_start(before[0].as_bytes(), before[1].as_bytes()), length);
                assert_eq!(common_end(after[0].as_bytes(), after[1].as_bytes()), length);
            }
        }
    }

    #[test]
    fn a_binary_file_is_shown_as_bytes() {
        let old = OldText::Binary { head: Arc::from(&b"\x89PNG\0"[..]), length: 2005 };
        let panes = TwoPanes::new(&old, &Arc::from("text\n"));
        assert_eq!(panes.left_notes, ["binary, 2005 bytes"]);
        assert!(panes.left.starts_with("00000000: 8950 4e47 00 "), "{}", panes.left);
        assert!(panes.left.ends_with("… 2000 more bytes"));
    }

    #[test]
    fn decoration_gives_way_to_size() {
        let line = "x".repeat(DIFF_LINE_BYTES + 1);
        assert_eq!(panes("a\n", &line).detail, Detail::NoDiff);
        assert_eq!(panes("a\n", "b\n").detail, Detail::Full);
        let every_other = |n: usize, changed: &str| -> String {
            (0..n)
                .map(|i| format!("line {i} {}\n", if i % 2 == 0 { changed } else { "" }))
                .collect()
        };
        let (old, new) = (every_other(2 * DIFF_HUNKS, ""), every_other(2 * DIFF_HUNKS, "x"));
        assert_eq!(panes(&old, &new).detail, Detail::Full, "{DIFF_HUNKS} differences");
        let mut state = 1u32;
        let mut shuffled = || -> String {
            let any = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ["{\n", "}\n", "\n", "  return;\n", "else\n"][state as usize % 5]
            };
            (0..60_000).map(any).collect()
        };
        let lines = [2 * DIFF_HUNKS + 2, 100 * DIFF_HUNKS];
        let mut much = lines.map(|n| [every_other(n, ""), every_other(n, "x")]).to_vec();
        much.push([shuffled(), shuffled()]);
        for [old, new] in &much {
            let panes = panes(old, new);
            assert_eq!(panes.detail, Detail::NoDiff);
            assert_eq!(panes.right_notes, ["too different for diff colours"]);
        }
        assert!(panes("a\n", "b\n").words);
        let text = |line: &str| format!("{line}\n").repeat(WORDS_BYTES / 16 - 8);
        let (old, new) = (text("seven b"), text("other b"));
        assert!(panes(&old, &new).words);
        let more = format!("{old}{old}");
        assert!(!panes(&more, &format!("{new}{new}")).words, "one large difference");
        assert!(panes(&more, &format!("a\n{more}b\n")).words, "small ones far apart");
        let long = text("seven b").repeat(10);
        assert!(!panes(&long, &format!("a\n{long}")).words, "an edit may make it large");
        let big = "0123456789abcde\n".repeat(SYNTAX_BYTES / 16 + 1);
        assert_eq!(panes("a\n", &big).detail, Detail::Plain);
    }
}
