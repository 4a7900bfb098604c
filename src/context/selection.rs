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
    /// Byte column of the character there.
    pub byte: usize,
    /// Screen cells behind that character's start; only with 'virtualedit'.
    pub beyond: u32,
}

/// A buffer line. `cells` describes the characters of a line whose widths are not plain: for each
/// character with what composes on it, its bytes and its screen cells, as two bytes of the slice.
/// Without it every byte is a character of one cell, except tabs and control characters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Row<'a> {
    pub text: &'a [u8],
    pub cells: Option<&'a [u8]>,
}

/// How far tabs reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tabs {
    /// 'tabstop'; 0 when a tab shows as `^I` ('list' without "tab" in 'listchars').
    pub stop: u32,
    /// 'vartabstop'; empty when not set.
    pub stops: Vec<u32>,
}

/// A highlighted area as Neovim describes it.
#[derive(Debug, Clone)]
pub struct Highlight<'a> {
    pub shape: Shape,
    /// Where visual mode began and where the cursor is, in either order.
    pub anchor: Corner,
    pub cursor: Corner,
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
