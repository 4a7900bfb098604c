//! What differs between the agents that speak this protocol: coordinates, words, shapes, timing.
//!
//! Pure, any thread. A snapshot has one kind of position (0-based line, UTF-16 column, exclusive
//! end); each dialect converts from it here and nowhere else. How each agent reads what it gets was
//! seen with the agents themselves or read in their sources.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::rpc::{self, ToolResult};
use crate::context::{Position, Range, Severity, Snapshot};

/// Whose lock file a connection's credential came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `~/.pi/ide`: Pi with the pi-ide extension.
    Pi,
    /// `~/.claude/ide`: Claude Code, and opencode, which looks there as well.
    Claude,
    /// The system's temporary directory: Gemini CLI.
    Gemini,
    /// `~/.qwen/ide`: Qwen Code, a relative of Gemini CLI.
    Qwen,
    /// `~/.copilot/ide`: GitHub Copilot CLI.
    Copilot,
    /// `~/.local/share/amp/ide`: Amp.
    Amp,
}

/// What a family's messages travel over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    WebSocket,
    /// MCP's streamable HTTP.
    Http,
}

impl Family {
    pub const ALL: [Family; 6] =
        [Family::Pi, Family::Claude, Family::Gemini, Family::Qwen, Family::Copilot, Family::Amp];

    #[must_use]
    pub fn transport(self) -> Transport {
        match self {
            Family::Pi | Family::Claude | Family::Amp => Transport::WebSocket,
            Family::Gemini | Family::Qwen | Family::Copilot => Transport::Http,
        }
    }

    /// What we call ourselves to it. Copilot CLI is said to look for this very name.
    #[must_use]
    pub fn server_name(self) -> &'static str {
        match self {
            Family::Copilot => "vscode-copilot-cli",
            _ => "gangway.nvim",
        }
    }

    /// The agent as users know it; for Claude the one that is not opencode.
    #[must_use]
    pub fn agent(self) -> &'static str {
        match self {
            Family::Pi => "Pi",
            Family::Claude => "Claude Code",
            Family::Gemini => "Gemini CLI",
            Family::Qwen => "Qwen Code",
            Family::Copilot => "Copilot CLI",
            Family::Amp => "Amp",
        }
    }
}

/// How a client reads what we send. Known from its credential, and from its name for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    Pi,
    Claude,
    Opencode,
    /// Also Qwen Code's.
    Gemini,
    Copilot,
    /// Not MCP at all, see `agents::amp`.
    Amp,
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

/// What a client was last told; the same is not told twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Shown(Shown),
    /// To the clients that want to know what is open as well.
    Workspace(WorkspaceState),
}

/// Open files that Gemini CLI looks at; it drops what is beyond.
const OPEN_FILES: usize = 10;
/// What it keeps of a selected text, in UTF-16 code units.
const SELECTED_TEXT: usize = 16_384;

/// Parameters of `ide/contextUpdate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextUpdate {
    /// Without `isTrusted`: a change of that makes the client ask the user for a restart.
    pub workspace_state: WorkspaceState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceState {
    /// The newest first, and that alone is active.
    pub open_files: Vec<WorkspaceFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceFile {
    pub path: String,
    /// Milliseconds since the Unix epoch; the client sorts by it.
    pub timestamp: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub is_active: Option<bool>,
    /// Both numbers count from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cursor: Option<WirePosition>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub selected_text: Option<String>,
}

impl WorkspaceState {
    /// Nothing is open when sharing is off.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let active = snapshot.active.as_ref().filter(|_| snapshot.sharing);
        let files = snapshot.files.iter().filter(|_| snapshot.sharing);
        let newest = snapshot.files.iter().map(|file| file.last_visited).max().unwrap_or(0);
        let first = active.map(|active| WorkspaceFile {
            path: display(&active.path),
            timestamp: newest,
            is_active: Some(true),
            cursor: Some(WirePosition {
                line: active.cursor.line.saturating_add(1),
                character: active.cursor.character.saturating_add(1),
            }),
            selected_text: active
                .selection
                .as_ref()
                .map(|selection| cut(&selection.text, SELECTED_TEXT).to_owned())
                .filter(|text| !text.is_empty()),
        });
        let others = files.filter(|file| active.is_none_or(|a| a.path != file.path)).map(|file| {
            WorkspaceFile {
                path: display(&file.path),
                // Two of one moment would leave open which is the active one.
                timestamp: file.last_visited.min(newest.saturating_sub(1)),
                is_active: None,
                cursor: None,
                selected_text: None,
            }
        });
        Self { open_files: first.into_iter().chain(others).take(OPEN_FILES).collect() }
    }
}

/// The beginning of `text`, at most `units` UTF-16 code units.
#[must_use]
pub fn cut(text: &str, units: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, character)| {
        used += character.len_utf16();
        used > units
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
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

/// Parameters of Copilot CLI's `add_file_reference` and `add_selection`; null where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileReference {
    pub file_path: String,
    pub file_url: String,
    pub selection: Option<WireRange>,
    pub selected_text: Option<String>,
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
/// On a busy machine they are not, and nothing tells us: it is sent again after each of these.
const CLAUDE_SETTLES_AT_LAST: &[Duration] =
    &[Duration::from_millis(300), Duration::from_millis(600), Duration::from_millis(1200)];

impl Dialect {
    /// `client` is `clientInfo.name`.
    #[must_use]
    pub fn of(family: Family, client: Option<&str>) -> Self {
        match (family, client) {
            (Family::Pi, _) => Dialect::Pi,
            (Family::Claude, Some("opencode")) => Dialect::Opencode,
            (Family::Claude, _) => Dialect::Claude,
            (Family::Gemini | Family::Qwen, _) => Dialect::Gemini,
            (Family::Copilot, _) => Dialect::Copilot,
            (Family::Amp, _) => Dialect::Amp,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Pi => "pi",
            Dialect::Claude => "claude",
            Dialect::Opencode => "opencode",
            Dialect::Gemini => "gemini",
            Dialect::Copilot => "copilot",
            Dialect::Amp => "amp",
        }
    }

    /// After this moment: how long to wait before the current selection is sent (again).
    #[must_use]
    pub fn opens(self, moment: Moment) -> Option<Duration> {
        match (self, moment) {
            (Dialect::Pi, Moment::InitializeAnswered)
            | (
                Dialect::Opencode | Dialect::Gemini | Dialect::Copilot | Dialect::Amp,
                Moment::Initialized,
            ) => Some(Duration::ZERO),
            (Dialect::Claude, Moment::Initialized | Moment::ToolsListed) => Some(CLAUDE_SETTLES),
            _ => None,
        }
    }

    /// After the current selection was sent because of such a moment: the pauses after which it is
    /// sent again, to a client that may have missed it.
    #[must_use]
    pub fn repeats(self) -> &'static [Duration] {
        if self == Dialect::Claude { CLAUDE_SETTLES_AT_LAST } else { &[] }
    }

    /// The agent can be told "mention this file in the prompt". The others put what the user is at
    /// into every prompt by themselves.
    #[must_use]
    pub fn takes_mentions(self) -> bool {
        matches!(self, Dialect::Claude | Dialect::Opencode | Dialect::Copilot)
    }

    /// Added to every line number: opencode prints what it gets, and people count from 1.
    fn first_line(self) -> u32 {
        u32::from(self == Dialect::Opencode)
    }

    /// These print `end.line` as the last selected line; an end at the start of a line is the end
    /// of the line before.
    fn end_is_last_line(self) -> bool {
        matches!(self, Dialect::Pi | Dialect::Opencode | Dialect::Copilot)
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

    /// What to tell the client about the present state; `None` when there is nothing to be seen.
    #[must_use]
    pub fn tells(self, snapshot: &Snapshot) -> Option<Told> {
        match self {
            Dialect::Gemini => Some(Told::Workspace(WorkspaceState::of(snapshot))),
            _ => Shown::of(snapshot).map(Told::Shown),
        }
    }

    /// The notification for it.
    #[must_use]
    pub fn note(self, told: Option<&Told>, snapshot: &Snapshot) -> String {
        match told {
            Some(Told::Workspace(state)) => {
                let params = ContextUpdate { workspace_state: state.clone() };
                rpc::notification("ide/contextUpdate", &params)
            }
            Some(Told::Shown(shown)) => rpc::notification("selection_changed", &self.shown(shown)),
            None => rpc::notification("selection_changed", &self.cleared(snapshot)),
        }
    }

    /// `selection_changed` for what the user is at.
    #[must_use]
    pub fn shown(self, shown: &Shown) -> SelectionChanged {
        SelectionChanged {
            text: shown.text.to_string(),
            file_path: Some(display(&shown.path)),
            file_url: file_url(&shown.path),
            selection: Some(self.selection(shown.range)),
        }
    }

    /// What makes the client forget what it was shown: for Claude Code a null selection without a
    /// file. The others drop a message without a file, so the workspace folder, which they know
    /// from the lock file, takes the place of the file's name and text.
    #[must_use]
    pub fn cleared(self, snapshot: &Snapshot) -> SelectionChanged {
        let root = snapshot.roots.first().filter(|_| self != Dialect::Claude);
        let url = root.filter(|_| self == Dialect::Copilot);
        SelectionChanged {
            text: String::new(),
            file_path: root.map(|root| display(&root.path)),
            file_url: url.and_then(|root| file_url(&root.path)),
            selection: root.map(|_| self.selection(Range::default())),
        }
    }

    /// The notification that puts a file, or lines of it, into the agent's prompt; `selected` is
    /// their text where it is known.
    #[must_use]
    pub fn mention_note(
        self,
        path: &Path,
        lines: Option<(u32, u32)>,
        selected: Option<&str>,
    ) -> String {
        if self != Dialect::Copilot {
            return rpc::notification("at_mentioned", &self.mention(path, lines));
        }
        // It prints `end.line` as the last one, so the end is in that line, not behind it.
        let last_line = selected.and_then(|text| text.lines().last()).unwrap_or_default();
        let length = u32::try_from(last_line.encode_utf16().count()).unwrap_or(u32::MAX);
        let range = lines.map(|(first, last)| Range {
            start: Position::new(first, 0),
            end: Position::new(last, length),
        });
        let method = if lines.is_some() { "add_selection" } else { "add_file_reference" };
        let params = FileReference {
            file_path: display(path),
            file_url: file_url(path).unwrap_or_default(),
            selection: range.map(|range| self.range(range)),
            selected_text: selected.map(str::to_owned),
        };
        rpc::notification(method, &params)
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
            Severity::Error if self.whispers() => "error",
            Severity::Warning if self.whispers() => "warning",
            Severity::Info if self == Dialect::Copilot => "information",
            Severity::Info if self == Dialect::Amp => "info",
            Severity::Hint if self.whispers() => "hint",
            Severity::Error => "Error",
            Severity::Warning => "Warning",
            Severity::Info if self == Dialect::Pi => "Information",
            Severity::Info => "Info",
            Severity::Hint => "Hint",
        }
    }

    fn whispers(self) -> bool {
        matches!(self, Dialect::Copilot | Dialect::Amp)
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
            _ => ToolResult::failed(why),
        }
    }
}

/// A path as agents get it. They cannot name a file that is not UTF-8.
#[must_use]
pub fn display(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A proper `file://` uri, percent-encoded.
#[must_use]
pub fn file_url(path: &Path) -> Option<String> {
    url::Url::from_file_path(path).ok().map(Into::into)
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
        assert_eq!(sent(Dialect::Copilot, lines, "x")["selection"]["end"]["line"], 3);
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

    #[test]
    fn gemini_is_told_what_is_open_newest_first_and_counts_from_one() {
        let file = |path: &str, last_visited| crate::context::OpenFile {
            path: path.into(),
            language: String::new(),
            active: false,
            visible: false,
            modified: false,
            last_visited,
            cursor: Position::default(),
        };
        let mut state = snapshot(range((1, 0), (2, 1)), "text");
        state.files = (0..12).map(|n| file(&format!("/work/{n}"), 1000 - n)).collect();
        state.files.insert(1, file("/work/a b.txt", 999));
        let sent = |state: &Snapshot| {
            let told = Dialect::Gemini.tells(state);
            let text = Dialect::Gemini.note(told.as_ref(), state);
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        let note = sent(&state);
        assert_eq!(note["method"], "ide/contextUpdate");
        assert!(note["params"].get("isTrusted").is_none());
        let files = note["params"]["workspaceState"]["openFiles"].as_array().unwrap();
        assert_eq!(files.len(), 10);
        assert_eq!(
            files[0],
            json!({"path": "/work/a b.txt", "timestamp": 1000, "isActive": true,
                "cursor": {"line": 3, "character": 2}, "selectedText": "text"})
        );
        assert_eq!(files[1], json!({"path": "/work/0", "timestamp": 999}));
        state.sharing = false;
        let hidden = sent(&state);
        assert_eq!(hidden["params"], json!({"workspaceState": {"openFiles": []}}));
    }

    #[test]
    fn a_long_selection_is_cut_between_characters() {
        assert_eq!(cut("aé😀b", 3), "aé");
        assert_eq!(cut("aé😀b", 4), "aé😀");
        assert_eq!(cut("aé", 9), "aé");
        assert_eq!(cut("x", 0), "");
    }
}
