//! What the user sees, as one plain value: the `Snapshot`.
//!
//! Pure: std and plain values, any thread. `editor/watch` builds a snapshot on Neovim's thread,
//! `privacy` filters it once, and a `watch` channel hands the latest to every agent. Positions are
//! 0-based lines and UTF-16 columns with an exclusive end; each dialect converts from that.

pub mod debounce;
pub mod paths;
pub mod position;
pub mod privacy;
pub mod selection;
pub mod tracker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A place in a document: `line` is 0-based, `character` counts UTF-16 code units from the line's
/// start (the unit of LSP and of every agent that reads columns at all).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    pub line: u32,
    pub character: u32,
}

impl Position {
    #[must_use]
    pub fn new(line: u32, character: u32) -> Self {
        Self { line, character }
    }
}

/// `start <= end`; `end` is exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Range {
    pub start: Position,
    pub end: Position,
}

impl Range {
    /// The range between two positions, whichever comes first.
    #[must_use]
    pub fn between(a: Position, b: Position) -> Self {
        if a <= b { Self { start: a, end: b } } else { Self { start: b, end: a } }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// Text the user has highlighted, or had highlighted last and has not moved from since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Covers everything selected; for a block, from its first to its last corner.
    pub range: Range,
    /// Exactly what was highlighted; rows of a block joined by `\n`. Valid UTF-8 whatever the
    /// buffer holds (invalid bytes become U+FFFD).
    pub text: Arc<str>,
    /// The text was cut at the stated limit (`selection::MAX_TEXT` bytes).
    pub truncated: bool,
}

/// The file the user is in, or was in last before going to a window that holds no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveFile {
    /// Absolute, as Neovim names the buffer.
    pub path: PathBuf,
    /// 'filetype'; may be empty.
    pub language: String,
    pub modified: bool,
    pub cursor: Position,
    pub selection: Option<Selection>,
}

/// A listed buffer that holds a file (`buftype` empty, has a name).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFile {
    pub path: PathBuf,
    pub language: String,
    /// The one `Snapshot::active` names.
    pub active: bool,
    /// In a window of the current tab page.
    pub visible: bool,
    pub modified: bool,
    /// Milliseconds since the Unix epoch; 0 when it was never entered.
    pub last_visited: u64,
    /// Last known cursor.
    pub cursor: Position,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    Error = 1,
    Warning = 2,
    Info = 3,
    Hint = 4,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    Number(i64),
    Text(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Clamped to the buffer; `start <= end`.
    pub range: Range,
    pub severity: Severity,
    pub message: String,
    pub source: Option<String>,
    pub code: Option<Code>,
}

/// A folder the user works in. Agents compare folders as strings, so both spellings are published.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Root {
    /// As the user or Neovim spells it (a symbolic link stays one); absolute.
    pub path: PathBuf,
    /// With symbolic links resolved; equal to `path` where there are none.
    pub real: PathBuf,
}

/// Everything an agent may learn, at one moment. Cheap to clone: big parts are shared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// False: the user has switched sharing off; `active`, `files` and `diagnostics` are empty.
    pub sharing: bool,
    pub active: Option<ActiveFile>,
    /// Most recently visited first.
    pub files: Vec<OpenFile>,
    /// Only files that are loaded in a buffer. An entry with an empty list says "open and clean",
    /// no entry says "not open".
    pub diagnostics: BTreeMap<PathBuf, Arc<[Diagnostic]>>,
    /// Most important first: the current working directory's root leads. Never empty once started.
    pub roots: Vec<Root>,
    /// Neovim has the terminal's focus, as far as it was told.
    pub focused: bool,
}

impl Snapshot {
    /// The open file named `path`, if it is one.
    #[must_use]
    pub fn file(&self, path: &Path) -> Option<&OpenFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Every spelling of every root, without repeats, in order.
    #[must_use]
    pub fn root_spellings(&self) -> Vec<&Path> {
        let mut out: Vec<&Path> = Vec::new();
        for root in &self.roots {
            for path in [root.path.as_path(), root.real.as_path()] {
                if !out.contains(&path) {
                    out.push(path);
                }
            }
        }
        out
    }
}
