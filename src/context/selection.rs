//! What is highlighted, as text and range: the same text that `y` would yank.
//!
//! Pure: positions, options and line texts in, a `Selection` out. Neovim's own rules are followed,
//! including those nobody remembers: tabs half inside a block become spaces, `v$` takes the line
//! break, `$` blocks reach each row's end, 'selection' and 'virtualedit' move the ends.

use std::sync::Arc;

use crate::context::position::{lossy, utf16_from_byte, utf16_len};
use crate::context::{Position, Range, Selection};

/// The most selected text that is reported, in bytes; the range is exact beyond it.
pub const MAX_TEXT: usize = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `v`, and select mode's `s`.
    Characters,
    /// `V` and `S`.
    Lines,
    /// `CTRL-V` and `CTRL-S`.
    Block,
}

/// One end of the highlighted area, as `getpos()` gives it but 0-based.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Corner {
    pub line: u32,
    /// Byte column of the character there; the line's length when it is behind the last one.
    pub byte: usize,
    /// Screen cells behind that character's start; only with 'virtualedit'.
    pub beyond: u32,
    /// Bytes of that character, with what composes on it; 0 behind the last one.
    pub bytes: usize,
}

/// A buffer line. `cells` describes a line whose characters are not all one byte and one cell: two
/// bytes a character, its length in bytes and its screen cells (tabs: anything, see `Tabs`). A
/// cell count of `JOINED` adds the bytes to the character before, for those beyond 255 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Row<'a> {
    pub text: &'a [u8],
    pub cells: Option<&'a [u8]>,
}

/// See `Row::cells`.
pub const JOINED: u8 = 255;

/// How far tabs reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tabs {
    /// 'tabstop'; 0 when a tab shows as `^I` ('list' without "tab" in 'listchars').
    pub stop: u32,
    /// 'vartabstop'; empty when not set.
    pub stops: Vec<u32>,
}

impl Tabs {
    /// Screen cells of a tab that starts at the screen column `column`.
    fn width(&self, column: u32) -> u32 {
        if self.stop == 0 {
            return 2;
        }
        let mut stop = 0_u32;
        for &width in &self.stops {
            stop = stop.saturating_add(width);
            if stop > column {
                return stop - column;
            }
        }
        // The last of 'vartabstop' repeats.
        let every = self.stops.last().copied().unwrap_or(self.stop).max(1);
        every - (column - stop) % every
    }
}

/// A highlighted area as Neovim describes it.
#[derive(Debug, Clone)]
pub struct Highlight<'a> {
    pub shape: Shape,
    /// Where visual mode began and where the cursor is, in either order.
    pub corners: [Corner; 2],
    /// The block was extended with `$`.
    pub to_line_ends: bool,
    /// 'selection' is "exclusive".
    pub exclusive: bool,
    /// 'selection' is "old".
    pub old: bool,
    /// 'virtualedit' is in force in this mode.
    pub virtual_edit: bool,
    pub tabs: Tabs,
    /// 0-based number of the buffer's last line.
    pub last_line: u32,
    /// The lines from the first highlighted one on, as many as were fetched.
    pub rows: Vec<Row<'a>>,
    /// The last highlighted line, when `rows` does not reach it.
    pub last_row: Option<Row<'a>>,
}

/// One character on the screen.
#[derive(Debug, Clone, Copy)]
struct Cell {
    byte: usize,
    bytes: usize,
    width: u32,
}

/// The characters of a row, with the screen column each starts at.
struct Cells<'r, 'a> {
    row: Row<'a>,
    tabs: &'r Tabs,
    byte: usize,
    /// The next pair in `row.cells`.
    pair: usize,
    column: u32,
}

impl<'r, 'a> Cells<'r, 'a> {
    fn new(row: Row<'a>, tabs: &'r Tabs) -> Self {
        Self { row, tabs, byte: 0, pair: 0, column: 0 }
    }

    fn described(&mut self) -> Option<(usize, u32)> {
        let cells = self.row.cells?;
        let (&bytes, &width) = (cells.get(self.pair)?, cells.get(self.pair + 1)?);
        self.pair += 2;
        let mut bytes = usize::from(bytes);
        while cells.get(self.pair + 1) == Some(&JOINED) {
            bytes += usize::from(cells[self.pair]);
            self.pair += 2;
        }
        Some((bytes.max(1), u32::from(width)))
    }
}

impl Iterator for Cells<'_, '_> {
    type Item = Cell;

    fn next(&mut self) -> Option<Cell> {
        let &lead = self.row.text.get(self.byte)?;
        let (bytes, width) = self.described().unwrap_or_else(|| plain(&self.row.text[self.byte..]));
        let width = if lead == b'\t' { self.tabs.width(self.column) } else { width };
        let bytes = bytes.min(self.row.text.len() - self.byte);
        let cell = Cell { byte: self.byte, bytes, width };
        self.byte += bytes;
        self.column = self.column.saturating_add(width);
        Some(cell)
    }
}

/// Bytes and cells of the first character where nothing describes it.
fn plain(text: &[u8]) -> (usize, u32) {
    match text.first() {
        Some(0x20..0x7F) => (1, 1),
        Some(..0x80) => (1, 2),
        _ => match text.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next()) {
            Some(character) => (character.len_utf8(), 1),
            // Shown as `<80>`.
            None => (1, 4),
        },
    }
}

/// Whether the first character counts as one that shows itself; `^A` and `<80>` do not.
fn shown(text: &[u8]) -> bool {
    match text.utf8_chunks().next() {
        Some(chunk) => match chunk.valid().chars().next() {
            // Those that Neovim shows as a number, such as U+200D before 0.11.
            Some(character) => {
                !matches!(character, ..' ' | '\x7F'..'\u{A0}' | '\u{200B}'..='\u{200F}')
            }
            None => text.first().is_some_and(|&byte| byte >= 0xA0),
        },
        None => false,
    }
}

/// What `highlight` covers; `None` when that is nothing at all, such as an empty last line.
#[must_use]
pub fn describe(highlight: &Highlight<'_>) -> Option<Selection> {
    let [a, b] = highlight.corners;
    let (start, end) = if a <= b { (a, b) } else { (b, a) };
    let mut text = Text::default();
    let range = match highlight.shape {
        Shape::Lines => lines(highlight, start.line, end.line, &mut text),
        Shape::Characters => characters(highlight, start, end, &mut text),
        Shape::Block => block(highlight, start, end, &mut text),
    };
    if range.is_empty() && text.bytes.is_empty() {
        return None;
    }
    Some(text.finish(range))
}

/// The text so far, at most `MAX_TEXT` bytes of it.
#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Text {
    fn push(&mut self, part: &[u8]) {
        let room = MAX_TEXT.saturating_sub(self.bytes.len());
        self.truncated |= part.len() > room;
        self.bytes.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn spaces(&mut self, count: u32) {
        let room = MAX_TEXT.saturating_sub(self.bytes.len());
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.truncated |= count > room;
        self.bytes.resize(self.bytes.len() + count.min(room), b' ');
    }

    fn finish(mut self, range: Range) -> Selection {
        if self.truncated {
            // Not in the middle of a character.
            let cut = self.bytes.iter().rposition(|byte| byte & 0xC0 != 0x80).unwrap_or(0);
            if self.bytes[cut..].first().is_some_and(|lead| !lead.is_ascii())
                && std::str::from_utf8(&self.bytes[cut..]).is_err()
            {
                self.bytes.truncate(cut);
            }
        }
        let text = Arc::from(lossy(&self.bytes).as_ref());
        Selection { range, text, truncated: self.truncated }
    }
}

impl<'a> Highlight<'a> {
    fn first_line(&self) -> u32 {
        self.corners[0].line.min(self.corners[1].line)
    }

    fn final_line(&self) -> u32 {
        self.corners[0].line.max(self.corners[1].line)
    }

    /// The text of `line`, if it was fetched.
    fn row(&self, line: u32) -> Option<Row<'a>> {
        let index = usize::try_from(line.checked_sub(self.first_line())?).ok()?;
        let far = if line == self.final_line() { self.last_row } else { None };
        self.rows.get(index).copied().or(far)
    }

    /// The position of a byte column, inside the line.
    fn position(&self, line: u32, byte: usize) -> Position {
        let text = self.row(line).unwrap_or_default().text;
        Position::new(line, utf16_from_byte(text, byte))
    }

    fn line_end(&self, line: u32) -> Position {
        Position::new(line, utf16_len(self.row(line).unwrap_or_default().text))
    }

    /// First and last screen column of the character at `corner`.
    fn columns(&self, corner: Corner) -> (u32, u32) {
        let mut cells = Cells::new(self.row(corner.line).unwrap_or_default(), &self.tabs);
        let mut column = 0;
        while let Some(cell) = cells.next() {
            if cell.byte + cell.bytes > corner.byte {
                return (column, column + cell.width.max(1) - 1);
            }
            column = cells.column;
        }
        (column, column)
    }

    /// As `columns`, but where the cursor really is: with 'virtualedit' that may be inside a tab or
    /// beyond the line.
    fn virtual_columns(&self, corner: Corner) -> (u32, u32) {
        let (first, last) = self.columns(corner);
        if !self.virtual_edit {
            return (first, last);
        }
        let text = self.row(corner.line).unwrap_or_default().text;
        if shown(text.get(corner.byte..).unwrap_or_default()) && corner.beyond <= last - first {
            // The cursor cannot be on a part of a wide character.
            return (first, last);
        }
        (first + corner.beyond, first + corner.beyond)
    }
}

/// Where a selection ends that takes in something of the line of `end`. At its start an end leaves
/// that line out, to every reader: it is behind the first character, of which perhaps only a part is
/// highlighted, and an empty line ends where the next one begins.
fn taking_in(highlight: &Highlight<'_>, end: Position) -> Position {
    if end.character > 0 {
        return end;
    }
    let row = highlight.row(end.line).unwrap_or_default();
    match Cells::new(row, &highlight.tabs).next() {
        Some(first) => highlight.position(end.line, first.bytes),
        None => Position::new(end.line.saturating_add(1), 0),
    }
}

fn lines(highlight: &Highlight<'_>, first: u32, last: u32, text: &mut Text) -> Range {
    for line in first..=last {
        let Some(row) = highlight.rows.get((line - first) as usize) else {
            text.truncated = true;
            break;
        };
        if line > first {
            text.push(b"\n");
        }
        text.push(row.text);
    }
    let end = highlight.line_end(last);
    if end.character == 0 && !text.truncated {
        // Else the text would end with the line before.
        text.push(b"\n");
    }
    Range { start: Position::new(first, 0), end: taking_in(highlight, end) }
}

fn characters(highlight: &Highlight<'_>, start: Corner, end: Corner, text: &mut Text) -> Range {
    let mut start = start;
    let mut end = end;
    let mut line_break = false;
    // The byte behind the last one, and whether that counts: it does not when the end stands on the
    // line's end.
    let mut stop = end.byte + end.bytes;
    if highlight.exclusive
        && (start.line, start.byte, start.beyond) != (end.line, end.byte, end.beyond)
    {
        if end.beyond > 0 {
            end.beyond -= 1;
        } else if end.byte > 0 {
            stop = end.byte;
            end.byte = char_before(highlight, end);
            end.bytes = stop - end.byte;
            let (first, last) = highlight.columns(end);
            end.beyond = if highlight.virtual_edit { last - first } else { 0 };
        } else if end.line > 0 {
            end.line -= 1;
            end.byte = highlight.row(end.line).unwrap_or_default().text.len();
            end.bytes = 0;
            stop = end.byte;
            line_break = true;
        }
    }

    let mut inclusive = true;
    let mut range_end = highlight.position(end.line, stop);
    let mut newline = false;
    if end.bytes == 0 && (line_break || !highlight.virtual_edit) {
        inclusive = false;
        newline = !highlight.old && end.line < highlight.last_line;
        if !newline && highlight.old && end.byte == 0 && end.line > start.line {
            // An end on an empty line counts as the end of the line before; from the indent on,
            // whole lines are meant (`:help o_v`).
            end.line -= 1;
            let head = highlight.row(start.line).unwrap_or_default().text;
            if head[..start.byte.min(head.len())].iter().all(|byte| matches!(byte, b' ' | b'\t'))
                && (start.byte < head.len() || head.is_empty())
            {
                return lines(highlight, start.line, end.line, text);
            }
            end.byte = highlight.row(end.line).unwrap_or_default().text.len();
            stop = end.byte;
            range_end = highlight.position(end.line, stop);
        }
    }

    let mut start_spaces = 0;
    let mut end_spaces = 0;
    if highlight.virtual_edit {
        let inside = u32::from(inclusive);
        let (first, last) = highlight.columns(start);
        if first != last && start.beyond > 0 {
            // Part of a tab.
            start_spaces = (last - first + 1).saturating_sub(start.beyond);
            start.byte += 1;
        }
        let (first, last) = highlight.columns(end);
        // A wide character is always taken whole.
        let partial = first + end.beyond < last && end.bytes <= 1;
        if !newline && (end.bytes == 0 || partial) {
            let began = if start_spaces > 0 { start.byte - 1 } else { start.byte };
            if start.line == end.line && began == end.byte {
                start_spaces = (end.beyond + inside).saturating_sub(start.beyond);
                stop = start.byte;
            } else {
                end_spaces = end.beyond + inside;
                stop = end.byte;
            }
            range_end = highlight.position(end.line, stop.max(end.byte));
        }
    }

    for line in start.line..=end.line {
        let Some(row) = highlight
            .row(line)
            .filter(|_| ((line - highlight.first_line()) as usize) < highlight.rows.len())
        else {
            text.truncated = true;
            break;
        };
        let from = if line == start.line { start.byte.min(row.text.len()) } else { 0 };
        let to = if line == end.line { stop.min(row.text.len()) } else { row.text.len() };
        if line > start.line {
            text.push(b"\n");
        } else {
            text.spaces(start_spaces);
        }
        text.push(&row.text[from..to.max(from)]);
        if line == end.line {
            text.spaces(end_spaces);
            if newline {
                text.push(b"\n");
            }
        }
    }
    if !text.bytes.is_empty() {
        range_end = taking_in(highlight, range_end);
    }
    Range { start: highlight.position(start.line, start.byte), end: range_end }
}

/// Where the character before `corner` begins.
fn char_before(highlight: &Highlight<'_>, corner: Corner) -> usize {
    let row = highlight.row(corner.line).unwrap_or_default();
    if !highlight.virtual_edit {
        // Only the byte behind it matters then.
        return corner.byte.saturating_sub(1);
    }
    Cells::new(row, &highlight.tabs)
        .take_while(|cell| cell.byte < corner.byte)
        .last()
        .map_or(0, |cell| cell.byte)
}

fn block(highlight: &Highlight<'_>, start: Corner, end: Corner, text: &mut Text) -> Range {
    let (start_first, start_last) = highlight.virtual_columns(start);
    let (end_first, end_last) = highlight.virtual_columns(end);
    let left = start_first.min(end_first);
    let right = if highlight.to_line_ends {
        let beyond = if highlight.virtual_edit { start.beyond } else { 0 };
        (start.line..=end.line)
            .map_while(|line| highlight.row(line))
            .map(|row| width(row, &highlight.tabs))
            .max()
            .map_or(left, |width| width + beyond)
    } else if end_last > start_last {
        if highlight.exclusive && end_first > start_last { end_first - 1 } else { end_last }
    } else {
        start_last
    };
    let mut spans = Vec::new();
    for line in start.line..=end.line {
        let index = (line - start.line) as usize;
        let Some(&row) = highlight.rows.get(index) else {
            text.truncated = true;
            break;
        };
        if line > start.line {
            text.push(b"\n");
        }
        let part = block_row(highlight, row, left, right);
        text.spaces(part.spaces_before);
        text.push(&row.text[part.from..part.to]);
        text.spaces(part.spaces_after);
        spans.push(part);
    }
    let from = spans.first().map_or(0, |part| part.from);
    let to = match highlight.row(end.line) {
        Some(row) => block_row(highlight, row, left, right).to,
        None => 0,
    };
    let end = highlight.position(end.line, to);
    let end = if text.bytes.is_empty() { end } else { taking_in(highlight, end) };
    Range::between(highlight.position(start.line, from), end)
}

/// Screen cells of a whole row.
fn width(row: Row<'_>, tabs: &Tabs) -> u32 {
    let mut cells = Cells::new(row, tabs);
    cells.by_ref().for_each(drop);
    cells.column
}

/// The part of one row that lies in a block; cells of characters cut in half become spaces.
struct Part {
    from: usize,
    to: usize,
    spaces_before: u32,
    spaces_after: u32,
}

/// What a block of the screen columns `left..=right` takes of `row`.
fn block_row(highlight: &Highlight<'_>, row: Row<'_>, left: u32, right: u32) -> Part {
    let mut cells = Cells::new(row, &highlight.tabs);
    while cells.column < left && cells.byte < row.text.len() {
        cells.next();
    }
    let from = cells.byte;
    if cells.column < left {
        // The row ends before the block begins.
        return Part { from, to: from, spaces_before: 0, spaces_after: right - left + 1 };
    }
    let spaces_before = cells.column - left;
    if cells.column > right {
        // The block lies within one character.
        return Part { from, to: from, spaces_before: right - left + 1, spaces_after: 0 };
    }
    let mut last = Cell { byte: from, bytes: 0, width: 0 };
    while cells.column <= right {
        let Some(cell) = cells.next() else { break };
        last = cell;
    }
    let to = cells.byte;
    if cells.column <= right {
        let missing = if highlight.virtual_edit { right - cells.column + 1 } else { 0 };
        return Part { from, to, spaces_before, spaces_after: missing };
    }
    match cells.column - right - 1 {
        0 => Part { from, to, spaces_before, spaces_after: 0 },
        over => Part { from, to: last.byte, spaces_before, spaces_after: last.width - over },
    }
}

#[cfg(test)]
mod tests {
    use super::{Corner, Highlight, MAX_TEXT, Row, Shape, Tabs, describe};
    use crate::context::{Position, Range};

    fn corner(line: u32, byte: usize, bytes: usize) -> Corner {
        Corner { line, byte, beyond: 0, bytes }
    }

    fn highlight<'a>(shape: Shape, corners: [Corner; 2], rows: &[&'a str]) -> Highlight<'a> {
        Highlight {
            shape,
            corners,
            to_line_ends: false,
            exclusive: false,
            old: false,
            virtual_edit: false,
            tabs: Tabs { stop: 8, stops: Vec::new() },
            last_line: 99,
            rows: rows.iter().map(|row| Row { text: row.as_bytes(), cells: None }).collect(),
            last_row: None,
        }
    }

    fn range(start: (u32, u32), end: (u32, u32)) -> Range {
        Range { start: Position::new(start.0, start.1), end: Position::new(end.0, end.1) }
    }

    #[test]
    fn lines_end_at_the_last_line_not_in_the_next() {
        let corners = [corner(3, 0, 0), corner(2, 0, 0)];
        let selection = describe(&highlight(Shape::Lines, corners, &["three", "four 😀"])).unwrap();
        assert_eq!(&*selection.text, "three\nfour 😀");
        assert_eq!(selection.range, range((2, 0), (3, 7)));
    }

    #[test]
    fn an_empty_last_line_is_in_the_selection() {
        let rows = ["three", "", ""];
        let of = |shape, first: u32, last: u32, rows: &[&str]| {
            let mut it = highlight(shape, [corner(first, 0, 0), corner(last, 0, 0)], rows);
            it.last_line = 5;
            let selection = describe(&it).unwrap();
            (selection.text.to_string(), selection.range)
        };
        let whole = |first, last, rows| of(Shape::Lines, first, last, rows);
        assert_eq!(whole(2, 4, &rows), ("three\n\n\n".into(), range((2, 0), (5, 0))));
        assert_eq!(whole(3, 3, &rows[1..2]), ("\n".into(), range((3, 0), (4, 0))));
        assert_eq!(whole(5, 5, &rows[1..2]), ("\n".into(), range((5, 0), (6, 0))), "the last one");
        let part = |first, last, rows| of(Shape::Characters, first, last, rows);
        assert_eq!(part(2, 3, &rows[..2]), ("three\n\n".into(), range((2, 0), (4, 0))));
        assert_eq!(part(3, 3, &rows[1..2]), ("\n".into(), range((3, 0), (4, 0))));
        // What `y` takes of the buffer's last line has no line break.
        assert_eq!(part(4, 5, &["x", ""]), ("x\n".into(), range((4, 0), (6, 0))));
        let block = |first, last, rows| of(Shape::Block, first, last, rows);
        assert_eq!(block(2, 3, &rows[..2]), ("t\n".into(), range((2, 0), (4, 0))));
        let mut it = highlight(Shape::Block, [corner(2, 0, 1), corner(3, 0, 1)], &["three", "\t"]);
        it.virtual_edit = true;
        let selection = describe(&it).unwrap();
        assert_eq!((&*selection.text, selection.range), ("t\n ", range((2, 0), (3, 1))));
    }

    #[test]
    fn the_last_character_is_taken_with_what_composes_on_it() {
        let corners = [corner(0, 1, 1), corner(0, 2, 3)];
        let selection = describe(&highlight(Shape::Characters, corners, &["abe\u{301}d"])).unwrap();
        assert_eq!(&*selection.text, "be\u{301}");
        assert_eq!(selection.range, range((0, 1), (0, 4)));
    }

    #[test]
    fn the_line_break_behind_the_last_character_counts() {
        let corners = [corner(0, 1, 1), corner(0, 3, 0)];
        let mut it = highlight(Shape::Characters, corners, &["abc"]);
        let selection = describe(&it).unwrap();
        assert_eq!((&*selection.text, selection.range), ("bc\n", range((0, 1), (0, 3))));
        it.old = true;
        assert_eq!(&*describe(&it).unwrap().text, "bc");
        it.old = false;
        it.last_line = 0;
        assert_eq!(&*describe(&it).unwrap().text, "bc");
    }

    #[test]
    fn exclusive_selections_end_before_the_cursor() {
        let corners = [corner(0, 3, 1), corner(0, 1, 1)];
        let mut it = highlight(Shape::Characters, corners, &["abcd"]);
        it.exclusive = true;
        let selection = describe(&it).unwrap();
        assert_eq!((&*selection.text, selection.range), ("bc", range((0, 1), (0, 3))));
    }

    #[test]
    fn a_block_is_its_rows_and_halved_tabs_are_spaces() {
        let corners = [corner(0, 1, 1), corner(2, 3, 1)];
        let rows = ["abcdef", "a\tb", "ghijkl"];
        let selection = describe(&highlight(Shape::Block, corners, &rows)).unwrap();
        assert_eq!(&*selection.text, "bcd\n   \nhij");
        assert_eq!(selection.range, range((0, 1), (2, 4)));
    }

    #[test]
    fn a_block_to_the_line_ends_reaches_each_rows_end() {
        let corners = [corner(0, 2, 1), corner(1, 2, 0)];
        let mut it = highlight(Shape::Block, corners, &["abcdef", "ghij"]);
        it.to_line_ends = true;
        let selection = describe(&it).unwrap();
        assert_eq!((&*selection.text, selection.range), ("cdef\nij", range((0, 2), (1, 4))));
    }

    #[test]
    fn a_described_row_counts_in_cells() {
        let text = "漢字ab";
        let row = Row { text: text.as_bytes(), cells: Some(&[3, 2, 3, 2, 1, 1, 1, 1]) };
        let mut it = highlight(Shape::Block, [corner(0, 1, 1), corner(1, 6, 1)], &["abcdef"]);
        it.rows.push(row);
        // The block begins inside the first wide character and ends with the "a".
        assert_eq!(&*describe(&it).unwrap().text, "bcde\n 字a");
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_its_range_is_not() {
        let long = "é".repeat(MAX_TEXT);
        let corners = [corner(0, 0, 0), corner(7, 0, 0)];
        let mut it = highlight(Shape::Lines, corners, &["x", long.as_str()]);
        it.last_row = Some(Row { text: b"end", cells: None });
        let selection = describe(&it).unwrap();
        assert!(selection.truncated);
        assert!(selection.text.len() <= MAX_TEXT && selection.text.len() > MAX_TEXT - 2);
        assert!(!selection.text.contains('\u{FFFD}'));
        assert_eq!(selection.range, range((0, 0), (7, 3)));
    }

    #[test]
    fn nothing_selected_is_no_selection() {
        let at = corner(0, 0, 0);
        let mut it = highlight(Shape::Characters, [at, at], &[""]);
        it.last_line = 0;
        assert_eq!(describe(&it), None);
    }
}
