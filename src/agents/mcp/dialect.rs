//! What differs between the agents that speak this protocol: coordinates, words, shapes, timing.
//!
//! Pure, any thread. A snapshot has one kind of position (0-based line, UTF-16 column, exclusive
//! end); each dialect converts from it here and nowhere else. How each agent reads what it gets was
//! seen with the agents themselves or read in their sources.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::rpc::ToolResult;
use crate::context::{Position, Range, Severity, Snapshot};

/// Whose lock file a connection's credential came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `~/.pi/ide`: Pi with the pi-ide extension.
    Pi,
    /// `~/.claude/ide`: Claude Code, and opencode, which looks there as well.
    Claude,
}

/// How a client reads what we send. Known from its credential, and from its name for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    Pi,
    Claude,
    Opencode,
}

/// What the user is at, as far as agents are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub path: PathBuf,
    /// The selection, else the cursor as an empty range.
    pub range: Range,
    /// Empty without a selection.
    pub text: Arc<str>,
}

impl Shown {
    /// `None` when sharing is off or there is no file.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        let active = snapshot.active.as_ref().filter(|_| snapshot.sharing)?;
        let (range, text) = match &active.selection {
            Some(selection) => (selection.range, Arc::clone(&selection.text)),
            None => (Range::between(active.cursor, active.cursor), Arc::from("")),
        };
        Some(Self { path: active.path.clone(), range, text })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WirePosition {
    pub line: u32,
    pub character: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRange {
    pub start: WirePosition,
    pub end: WirePosition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WireSelection {
    pub start: WirePosition,
    pub end: WirePosition,
    pub is_empty: bool,
}

/// Parameters of `selection_changed`, and the answer of `getCurrentSelection`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelectionChanged {
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file_url: Option<String>,
    /// Null says "nothing is selected anywhere".
    pub selection: Option<WireSelection>,
}

/// Parameters of `at_mentioned`; lines are inclusive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AtMentioned {
    pub file_path: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line_start: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line_end: Option<u32>,
}

/// When a client takes the first `selection_changed`, and what makes it forget earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    InitializeAnswered,
    Initialized,
    ToolsListed,
}

/// Claude Code drops what comes sooner after its handshake; 200 ms were enough when tried.
const CLAUDE_SETTLES: Duration = Duration::from_millis(300);

impl Dialect {
    /// `client` is `clientInfo.name`.
    #[must_use]
    pub fn of(family: Family, client: Option<&str>) -> Self {
        match (family, client) {
            (Family::Pi, _) => Dialect::Pi,
            (Family::Claude, Some("opencode")) => Dialect::Opencode,
            (Family::Claude, _) => Dialect::Claude,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Pi => "pi",
            Dialect::Claude => "claude",
            Dialect::Opencode => "opencode",
        }
    }

    /// After this moment: how long to wait before the current selection is sent (again).
    #[must_use]
    pub fn opens(self, moment: Moment) -> Option<Duration> {
        match (self, moment) {
            (Dialect::Pi, Moment::InitializeAnswered)
            | (Dialect::Opencode, Moment::Initialized) => Some(Duration::ZERO),
            (Dialect::Claude, Moment::Initialized | Moment::ToolsListed) => Some(CLAUDE_SETTLES),
            _ => None,
        }
    }

    /// The agent can be told "mention this file in the prompt". Pi's extension drops it: it puts
    /// the current selection into every prompt by itself.
    #[must_use]
    pub fn takes_mentions(self) -> bool {
        self != Dialect::Pi
    }

    /// Added to every line number: opencode prints what it gets, and people count from 1.
    fn first_line(self) -> u32 {
        match self {
            Dialect::Pi | Dialect::Claude => 0,
            Dialect::Opencode => 1,
        }
    }

    /// Pi and opencode print `end.line` as the last selected line; an end at the start of a line
    /// is the end of the line before.
    fn end_is_last_line(self) -> bool {
        self != Dialect::Claude
    }

    fn position(self, position: Position) -> WirePosition {
        WirePosition {
            line: position.line.saturating_add(self.first_line()),
            character: position.character,
        }
    }

    #[must_use]
    pub fn range(self, range: Range) -> WireRange {
        WireRange { start: self.position(range.start), end: self.position(range.end) }
    }

    fn selection(self, range: Range) -> WireSelection {
        let mut end = range.end;
        if self.end_is_last_line() && end.character == 0 && end.line > range.start.line {
            end.line -= 1;
            // The length of that line is not known here; columns are not read by these agents.
            end.character = if end.line == range.start.line { range.start.character } else { 0 };
        }
        let WireRange { start, end } = self.range(Range { start: range.start, end });
        WireSelection { start, end, is_empty: range.is_empty() }
    }

    /// `selection_changed` for what the user is at.
    #[must_use]
    pub fn shown(self, shown: &Shown) -> SelectionChanged {
        SelectionChanged {
            text: shown.text.to_string(),
            file_path: Some(display(&shown.path)),
            file_url: url::Url::from_file_path(&shown.path).ok().map(Into::into),
            selection: Some(self.selection(shown.range)),
        }
    }

    /// What makes the client forget what it was shown: for Claude Code a null selection without a
    /// file. Pi and opencode drop a message without a file, so the workspace folder, which they
    /// know from the lock file, takes the place of the file's name and text.
    #[must_use]
    pub fn cleared(self, snapshot: &Snapshot) -> SelectionChanged {
        let root = snapshot.roots.first().filter(|_| self != Dialect::Claude);
        SelectionChanged {
            text: String::new(),
            file_path: root.map(|root| display(&root.path)),
            file_url: None,
            selection: root.map(|_| self.selection(Range::default())),
        }
    }

    /// `at_mentioned` for a file and 0-based inclusive lines. opencode requires lines: a whole file
    /// is its first line to it.
    #[must_use]
    pub fn mention(self, path: &Path, lines: Option<(u32, u32)>) -> AtMentioned {
        let lines = lines.or((self == Dialect::Opencode).then_some((0, 0)));
        let line = |line: u32| line.saturating_add(self.first_line());
        AtMentioned {
            file_path: display(path),
            line_start: lines.map(|(first, _)| line(first)),
            line_end: lines.map(|(_, last)| line(last)),
        }
    }

    #[must_use]
    pub fn severity(self, severity: Severity) -> &'static str {
        match severity {
            Severity::Error => "Error",
            Severity::Warning => "Warning",
            Severity::Info if self == Dialect::Pi => "Information",
            Severity::Info => "Info",
            Severity::Hint => "Hint",
        }
    }

    /// `getDiagnostics` answers an object keyed by uri instead of a list of `{uri, diagnostics}`;
    /// the other shape makes Pi's extension lose the whole context.
    #[must_use]
    pub fn diagnostics_by_uri(self) -> bool {
        self == Dialect::Pi
    }

    /// The answer to an `openDiff` that cannot be shown. For Pi every error means "go ahead
    /// unreviewed", so it is told "rejected" and why; the others ask in their own terminal.
    #[must_use]
    pub fn no_review(self, name: &str, why: &str) -> ToolResult {
        match self {
            Dialect::Pi => ToolResult::texts(["DIFF_REJECTED", name, why]),
            Dialect::Claude | Dialect::Opencode => ToolResult::failed(why),
        }
    }
}

/// A path as agents get it. They cannot name a file that is not UTF-8.
#[must_use]
pub fn display(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// `file://` and the raw path: Claude Code compares without decoding, so an encoded space would
/// make it another file.
#[must_use]
pub fn raw_uri(path: &Path) -> String {
    format!("file://{}", path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{ActiveFile, Root, Selection};
    use serde_json::json;

    fn snapshot(range: Option<Range>, text: &str) -> Snapshot {
        let selection = range.map(|range| Selection { range, text: text.into(), truncated: false });
        Snapshot {
            sharing: true,
            active: Some(ActiveFile {
                path: "/work/a b.txt".into(),
                language: String::new(),
                modified: false,
                cursor: Position::new(2, 1),
                selection,
            }),
            roots: vec![Root { path: "/work".into(), real: "/work".into() }],
            ..Snapshot::default()
        }
    }

    fn sent(dialect: Dialect, range: Option<Range>, text: &str) -> serde_json::Value {
        let shown = Shown::of(&snapshot(range, text)).unwrap();
        serde_json::to_value(dialect.shown(&shown)).unwrap()
    }

    fn range(start: (u32, u32), end: (u32, u32)) -> Option<Range> {
        let at = |(line, character)| Position::new(line, character);
        Some(Range { start: at(start), end: at(end) })
    }

    #[test]
    fn a_cursor_is_an_empty_selection_without_text() {
        let expected = json!({"text": "", "filePath": "/work/a b.txt",
            "fileUrl": "file:///work/a%20b.txt", "selection": {
                "start": {"line": 2, "character": 1}, "end": {"line": 2, "character": 1},
                "isEmpty": true}});
        assert_eq!(sent(Dialect::Claude, None, ""), expected);
        assert_eq!(sent(Dialect::Pi, None, ""), expected);
        let opencode = sent(Dialect::Opencode, None, "");
        assert_eq!(opencode["selection"]["start"]["line"], 3);
    }

    #[test]
    fn whole_lines_three_and_four_are_those_for_every_agent() {
        let lines = range((2, 0), (3, 9));
        let text = "three\nfour long";
        let claude = sent(Dialect::Claude, lines, text)["selection"].clone();
        assert_eq!(
            claude,
            json!({"start": {"line": 2, "character": 0},
            "end": {"line": 3, "character": 9}, "isEmpty": false})
        );
        assert_eq!(sent(Dialect::Pi, lines, text)["selection"], claude);
        let opencode = sent(Dialect::Opencode, lines, text)["selection"].clone();
        assert_eq!((&opencode["start"]["line"], &opencode["end"]["line"]), (&json!(3), &json!(4)));
    }

    #[test]
    fn an_end_at_the_start_of_a_line_is_not_in_that_line_for_those_who_print_it() {
        let lines = range((2, 4), (4, 0));
        assert_eq!(sent(Dialect::Claude, lines, "x")["selection"]["end"]["line"], 4);
        assert_eq!(sent(Dialect::Pi, lines, "x")["selection"]["end"]["line"], 3);
        let pi = sent(Dialect::Pi, range((2, 4), (3, 0)), "\n")["selection"].clone();
        assert_eq!(pi["end"], json!({"line": 2, "character": 4}));
        assert_eq!(pi["isEmpty"], false);
    }

    #[test]
    fn nothing_is_shown_without_sharing_and_each_agent_is_told_to_forget() {
        let mut hidden = snapshot(None, "");
        hidden.sharing = false;
        assert_eq!(Shown::of(&hidden), None);
        let claude = serde_json::to_value(Dialect::Claude.cleared(&hidden)).unwrap();
        assert_eq!(claude, json!({"text": "", "selection": null}));
        let pi = serde_json::to_value(Dialect::Pi.cleared(&hidden)).unwrap();
        assert_eq!(pi["filePath"], "/work");
        assert_eq!(pi["selection"]["isEmpty"], true);
    }

    #[test]
    fn mentions_count_from_zero_but_for_opencode_which_needs_lines() {
        let mention = |dialect: Dialect, lines| {
            serde_json::to_value(dialect.mention(Path::new("/a"), lines)).unwrap()
        };
        assert_eq!(
            mention(Dialect::Claude, Some((2, 3))),
            json!({"filePath": "/a", "lineStart": 2, "lineEnd": 3})
        );
        assert_eq!(mention(Dialect::Claude, None), json!({"filePath": "/a"}));
        assert_eq!(
            mention(Dialect::Opencode, None),
            json!({"filePath": "/a", "lineStart": 1, "lineEnd": 1})
        );
    }
}
