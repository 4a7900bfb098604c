//! The list of differences between two panes: what the jump keys, "drop this hunk" and the count
//! in the winbar share.
//!
//! Pure, any thread; large inputs belong on a worker. Lines are the pieces between `\n`, exactly a
//! buffer's lines: the empty text is one empty line.

use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;

use imara_diff::{Algorithm, Diff, InternedInput};

/// One difference. 0-based lines, exclusive ends; an empty range stands before its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunk {
    pub old: Range<u32>,
    pub new: Range<u32>,
}

/// All differences of two texts, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hunks {
    pub list: Vec<Hunk>,
    /// Lines only in the new text.
    pub added: u32,
    /// Lines only in the old text.
    pub removed: u32,
}

impl Hunks {
    /// Compares two texts line by line (Myers, as Neovim does unless told otherwise).
    #[must_use]
    pub fn between(old: &str, new: &str) -> Self {
        let (diff, _) = compare(old, new);
        let list = diff.hunks().map(|h| Hunk { old: h.before, new: h.after }).collect();
        // The empty text is one empty line in a buffer, but nothing to count for people.
        let added = if new.is_empty() { 0 } else { diff.count_additions() };
        let removed = if old.is_empty() { 0 } else { diff.count_removals() };
        Self { list, added, removed }
    }

    /// The same, but `None` when it is not done in time.
    #[must_use]
    pub fn within(patience: Duration, old: &str, new: &str) -> Option<Self> {
        in_time(patience, old, new, Self::between)
    }

    /// The hunk at `line` (0-based) of the new text, or of the old one. A hunk that takes no line
    /// there belongs to the lines beside it.
    #[must_use]
    pub fn at(&self, line: u32, in_new: bool) -> Option<usize> {
        let side = |h: &Hunk| if in_new { h.new.clone() } else { h.old.clone() };
        let inside = self.list.iter().position(|h| side(h).contains(&line));
        inside.or_else(|| {
            self.list.iter().position(|h| {
                let lines = side(h);
                lines.is_empty() && (lines.start == line || lines.start == line + 1)
            })
        })
    }
}

/// `None` when it is not done in time; it goes on in a thread of its own then. Texts of one size may
/// take a thousand times longer than others.
fn in_time<T: Send + 'static>(
    patience: Duration,
    old: &str,
    new: &str,
    work: fn(&str, &str) -> T,
) -> Option<T> {
    let (old, new) = (old.to_owned(), new.to_owned());
    let (done, result) = mpsc::channel();
    // An error here: nobody waits any more.
    let work = move || done.send(work(&old, &new)).unwrap_or(());
    std::thread::Builder::new().name("gangway-diff".into()).spawn(work).ok()?;
    result.recv_timeout(patience).ok()
}

fn compare<'a>(old: &'a str, new: &'a str) -> (Diff, InternedInput<&'a str>) {
    let mut input: InternedInput<&str> = InternedInput::default();
    input.update_before(old.split('\n'));
    input.update_after(new.split('\n'));
    let mut diff = Diff::compute(Algorithm::Myers, &input);
    diff.postprocess_lines(&input);
    (diff, input)
}

/// `kept_lines`, but `None` when it is not done in time.
#[must_use]
pub fn kept_lines_within(patience: Duration, old: &str, new: &str) -> Option<Vec<Option<u32>>> {
    in_time(patience, old, new, kept_lines)
}

/// For each line of `new` the line of `old` it is, `None` for a line that is not there.
#[must_use]
pub fn kept_lines(old: &str, new: &str) -> Vec<Option<u32>> {
    let (diff, input) = compare(old, new);
    let mut before = 0;
    let mut out = Vec::with_capacity(input.after.len());
    let total = u32::try_from(input.after.len()).unwrap_or(u32::MAX);
    for after in 0..total {
        if diff.is_added(after) {
            out.push(None);
        } else {
            while diff.is_removed(before) {
                before += 1;
            }
            out.push(Some(before));
            before += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_places_of_changes() {
        let hunks = Hunks::between("a\nb\nc\nd", "a\nB\nc\nd\ne\nf");
        assert_eq!((hunks.added, hunks.removed), (3, 1));
        assert_eq!(hunks.list, [Hunk { old: 1..2, new: 1..2 }, Hunk { old: 4..4, new: 4..6 }]);
        assert_eq!(hunks.at(1, true), Some(0));
        assert_eq!(hunks.at(3, true), None);
        assert_eq!(hunks.at(3, false), Some(1), "an addition belongs to the line above it");
    }

    #[test]
    fn equal_texts_have_no_hunks() {
        assert_eq!(Hunks::between("a\nb", "a\nb"), Hunks::default());
    }

    #[test]
    fn a_new_file_removes_nothing_and_a_deleted_one_adds_nothing() {
        let new = Hunks::between("", "a\nb");
        assert_eq!((new.added, new.removed, new.list.len()), (2, 0, 1));
        let deleted = Hunks::between("a\nb", "");
        assert_eq!((deleted.added, deleted.removed), (0, 2));
    }

    #[test]
    fn kept_lines_name_their_origin() {
        assert_eq!(kept_lines("a\nb\nc", "x\na\nc"), [None, Some(0), Some(2)]);
    }
}
