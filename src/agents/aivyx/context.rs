//! What the user looks at, in a file that aivyx-coder reads at the start of each turn.
//!
//! One file for each root, because aivyx looks only at the one of its own working directory.
//! Metadata only, never text. Blocking file calls: `aivyx::run` calls this on a blocking thread.
//!
//! Several Neovims may work in one root, and the one the user looked at last has the word. Each
//! remembers what it wrote. A change is written by the Neovim that has the focus; without the
//! focus only while the file is still our own, gone, or too old to count. The heartbeat never
//! replaces another Neovim's living file; it goes on where nobody else writes.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::key::project_key;
use crate::agents::paths::below;
use crate::context::{Position, Range, Root, Snapshot};
use crate::files;

/// aivyx takes no file that is older (or younger) than this.
const STALE: Duration = Duration::from_secs(5 * 60);

/// Far more than a context file is, in bytes.
const LIMIT: u64 = 64 * 1024;

/// `editor-context/<key>.json`, schema version 1, without its date.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Context {
    schema_version: u32,
    workspace_root: String,
    /// Relative to `workspace_root`.
    file: String,
    cursor: Cursor,
    #[serde(skip_serializing_if = "Option::is_none")]
    selection: Option<Lines>,
}

/// 1-based. The column is in UTF-16 units: it is required, but aivyx shows it to nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Cursor {
    line: u32,
    column: u32,
}

/// 1-based, both inclusive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Lines {
    start_line: u32,
    end_line: u32,
}

#[derive(Serialize)]
struct Dated<'a> {
    #[serde(flatten)]
    context: &'a Context,
    updated_at: String,
}

/// What we last wrote for one root.
struct Mine {
    context: Context,
    bytes: Vec<u8>,
    written: SystemTime,
}

/// What is in a root's file now.
#[derive(PartialEq, Eq)]
enum OnDisk {
    Ours,
    /// Another Neovim's, and aivyx would take it.
    Theirs,
    /// Nothing, or nothing that aivyx would take.
    Free,
}

/// The context files of this Neovim.
pub struct ContextFiles {
    dir: PathBuf,
    heartbeat: Duration,
    mine: BTreeMap<String, Mine>,
    focused: bool,
    failing: bool,
}

impl ContextFiles {
    /// `state`: aivyx's state directory. A file is rewritten when it is `heartbeat` old.
    #[must_use]
    pub fn new(state: &Path, heartbeat: Duration) -> Self {
        Self {
            dir: state.join("editor-context"),
            heartbeat,
            mine: BTreeMap::new(),
            focused: false,
            failing: false,
        }
    }

    /// How many files are kept up to date now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mine.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mine.is_empty()
    }

    /// Brings the files to the state of `snapshot`: called after a change, and now and then for
    /// the heartbeat and to restore what somebody has deleted.
    pub fn update(&mut self, snapshot: &Snapshot, now: SystemTime) {
        let gained = snapshot.focused && !self.focused;
        self.focused = snapshot.focused;
        let wanted: BTreeMap<String, Context> =
            snapshot.roots.iter().filter_map(|root| describe(snapshot, root)).collect();
        let gone: Vec<String> =
            self.mine.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in gone {
            self.remove(&key);
        }
        for (key, context) in wanted {
            let mine = self.mine.get(&key);
            let changed = mine.is_none_or(|mine| mine.context != context);
            let old = mine.is_some_and(|mine| apart(now, mine.written) >= self.heartbeat);
            let write = match self.on_disk(&key, now) {
                OnDisk::Ours => changed || old,
                OnDisk::Theirs => snapshot.focused && (changed || gained),
                OnDisk::Free => true,
            };
            if write {
                self.write(key, context, now);
            }
        }
    }

    /// Removes the files that are still as we wrote them: Neovim leaves, or the plugin stops.
    pub fn remove_all(&mut self) {
        for key in self.mine.keys().cloned().collect::<Vec<_>>() {
            self.remove(&key);
        }
    }

    fn write(&mut self, key: String, context: Context, now: SystemTime) {
        let Some(bytes) = encode(&context, now) else { return };
        let path = self.path(&key);
        let written =
            files::private_dir(&self.dir).and_then(|()| files::write_private(&path, &bytes));
        match written {
            Ok(()) => {
                self.failing = false;
                self.mine.insert(key, Mine { context, bytes, written: now });
            }
            // Said once, not at every key press.
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!("aivyx-coder does not see the editor: {error}");
            }
            Err(_) => {}
        }
    }

    fn remove(&mut self, key: &str) {
        let Some(mine) = self.mine.remove(key) else { return };
        let path = self.path(key);
        // Another Neovim's newer file stays.
        if files::read_own(&path, LIMIT).is_ok_and(|bytes| bytes == mine.bytes)
            && let Err(error) = std::fs::remove_file(&path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
    }

    fn on_disk(&self, key: &str, now: SystemTime) -> OnDisk {
        #[derive(Deserialize)]
        struct Date {
            updated_at: String,
        }
        let Ok(bytes) = files::read_own(&self.path(key), LIMIT) else { return OnDisk::Free };
        if self.mine.get(key).is_some_and(|mine| mine.bytes == bytes) {
            return OnDisk::Ours;
        }
        let date = serde_json::from_slice(&bytes)
            .ok()
            .and_then(|Date { updated_at }| OffsetDateTime::parse(&updated_at, &Rfc3339).ok());
        match date {
            Some(date) if apart(now, date.into()) <= STALE => OnDisk::Theirs,
            _ => OnDisk::Free,
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(key).with_extension("json")
    }
}

/// The distance between two moments; a clock that was set back counts as well.
fn apart(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|error| error.duration())
}

fn encode(context: &Context, now: SystemTime) -> Option<Vec<u8>> {
    let date = OffsetDateTime::from(now).replace_nanosecond(0).ok()?;
    let dated = Dated { context, updated_at: date.format(&Rfc3339).ok()? };
    let mut bytes = serde_json::to_vec(&dated).ok()?;
    bytes.push(b'\n');
    Some(bytes)
}

/// The context for an aivyx that runs in `root`, with the root's key. That is the active file or,
/// when it lies elsewhere, the file of this root that the user was in last and still has open.
/// `None`: there is none, or its path cannot be said in UTF-8.
fn describe(snapshot: &Snapshot, root: &Root) -> Option<(String, Context)> {
    if !snapshot.sharing {
        return None;
    }
    let active = snapshot.active.as_ref().and_then(|file| {
        let range = file.selection.as_ref().map(|selection| selection.range);
        Some((below(root, &file.path)?, file.cursor, range))
    });
    let (file, cursor, selection) = active.or_else(|| {
        let mut visited = snapshot.files.iter().filter(|file| file.last_visited > 0);
        visited.find_map(|file| Some((below(root, &file.path)?, file.cursor, None)))
    })?;
    let context = Context {
        schema_version: 1,
        workspace_root: root.real.to_str()?.to_owned(),
        file: file.to_str()?.to_owned(),
        cursor: one_based(cursor),
        selection: selection.filter(|range| !range.is_empty()).map(lines),
    };
    Some((project_key(&root.real), context))
}

fn one_based(position: Position) -> Cursor {
    Cursor { line: position.line.saturating_add(1), column: position.character.saturating_add(1) }
}

/// An exclusive end at the start of a later line does not touch that line.
fn lines(range: Range) -> Lines {
    let last = if range.end.character == 0 && range.end.line > range.start.line {
        range.end.line - 1
    } else {
        range.end.line
    };
    Lines { start_line: range.start.line.saturating_add(1), end_line: last.saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{ActiveFile, OpenFile, Selection};

    struct Fixture {
        _dir: tempfile::TempDir,
        state: PathBuf,
        root: Root,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let base = dir.path().canonicalize().unwrap();
            let real = base.join("project");
            std::fs::create_dir(&real).unwrap();
            let root = Root { path: real.clone(), real };
            Self { state: base.join("state"), root, _dir: dir }
        }

        fn path(&self) -> PathBuf {
            let name = format!("{}.json", project_key(&self.root.real));
            self.state.join("editor-context").join(name)
        }

        fn snapshot(&self, file: &str, line: u32) -> Snapshot {
            let (path, cursor) = (self.root.real.join(file), Position::new(line, 2));
            Snapshot {
                sharing: true,
                files: vec![OpenFile {
                    path: path.clone(),
                    language: String::new(),
                    active: true,
                    visible: true,
                    modified: false,
                    last_visited: 1,
                    cursor,
                }],
                active: Some(ActiveFile {
                    path,
                    language: String::new(),
                    modified: false,
                    cursor,
                    selection: None,
                }),
                roots: vec![self.root.clone()],
                focused: true,
                ..Snapshot::default()
            }
        }

        fn read(&self) -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(self.path()).unwrap()).unwrap()
        }

        fn files(&self) -> ContextFiles {
            ContextFiles::new(&self.state, Duration::from_secs(120))
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_000_000 + seconds)
    }

    #[test]
    fn x02_the_file_is_what_aivyx_wants() {
        let fixture = Fixture::new();
        let mut files = fixture.files();
        let mut snapshot = fixture.snapshot("src/a.rs", 0);
        files.update(&snapshot, at(0));
        let want = serde_json::json!({
            "schema_version": 1, "workspace_root": fixture.root.real, "file": "src/a.rs",
            "cursor": { "line": 1, "column": 3 }, "updated_at": "2026-11-30T00:53:20Z",
        });
        assert_eq!(fixture.read(), want);
        let range = |a, b| Range { start: a, end: b };
        for (range, lines) in [
            (range(Position::new(2, 1), Position::new(3, 4)), Some((3, 4))),
            (range(Position::new(2, 0), Position::new(4, 0)), Some((3, 4))),
            (range(Position::new(2, 3), Position::new(2, 5)), Some((3, 3))),
            (range(Position::new(2, 3), Position::new(2, 3)), None),
        ] {
            if let Some(active) = &mut snapshot.active {
                active.selection =
                    Some(Selection { range, text: "secret".into(), truncated: false });
            }
            files.update(&snapshot, at(1));
            let got = fixture.read();
            match lines {
                Some((start, end)) => assert_eq!(
                    got["selection"],
                    serde_json::json!({ "start_line": start, "end_line": end })
                ),
                None => assert!(got.as_object().unwrap().get("selection").is_none()),
            }
            assert!(!got.to_string().contains("secret"));
        }
    }

    #[test]
    fn a_file_elsewhere_leaves_the_last_one_of_the_root_while_it_is_open() {
        let fixture = Fixture::new();
        let mut files = fixture.files();
        let mut snapshot = fixture.snapshot("a.rs", 4);
        files.update(&snapshot, at(0));
        if let Some(active) = &mut snapshot.active {
            active.path = "/elsewhere/b.rs".into();
        }
        files.update(&snapshot, at(1));
        assert_eq!(fixture.read()["file"], "a.rs");
        snapshot.active = None;
        files.update(&snapshot, at(2));
        assert_eq!(fixture.read()["file"], "a.rs");
        snapshot.files.clear();
        files.update(&snapshot, at(3));
        assert!(!fixture.path().exists() && files.is_empty());
    }

    #[test]
    fn each_root_has_a_file_and_loses_it_with_the_root() {
        let fixture = Fixture::new();
        let mut files = fixture.files();
        let mut snapshot = fixture.snapshot("sub/a.rs", 0);
        let sub = fixture.root.real.join("sub");
        snapshot.roots.push(Root { path: sub.clone(), real: sub.clone() });
        files.update(&snapshot, at(0));
        let sub_file = fixture.path().with_file_name(project_key(&sub) + ".json");
        let text = std::fs::read_to_string(&sub_file).unwrap();
        assert!(text.contains("\"file\":\"a.rs\""), "{text}");
        snapshot.roots.pop();
        files.update(&snapshot, at(1));
        assert!(!sub_file.exists() && fixture.path().exists());
    }

    #[test]
    fn the_heartbeat_rewrites_only_what_is_old() {
        let fixture = Fixture::new();
        let mut files = fixture.files();
        let snapshot = fixture.snapshot("a.rs", 0);
        files.update(&snapshot, at(0));
        let first = fixture.read();
        files.update(&snapshot, at(119));
        assert_eq!(fixture.read(), first);
        files.update(&snapshot, at(120));
        assert_eq!(fixture.read()["updated_at"], "2026-11-30T00:55:20Z");
        files.update(&snapshot, at(0));
        assert_eq!(fixture.read(), first, "the clock was set back");
        std::fs::remove_dir_all(fixture.path().parent().unwrap()).unwrap();
        files.update(&snapshot, at(1));
        assert!(fixture.path().exists(), "restored");
    }

    #[test]
    fn the_neovim_with_the_focus_has_the_word() {
        let fixture = Fixture::new();
        let (mut a, mut b) = (fixture.files(), fixture.files());
        let mut in_a = fixture.snapshot("a.rs", 0);
        a.update(&in_a, at(0));
        // The user goes to B; A hears of it, and goes on living.
        in_a.focused = false;
        a.update(&in_a, at(1));
        let mut in_b = fixture.snapshot("b.rs", 0);
        b.update(&in_b, at(2));
        if let Some(active) = &mut in_a.active {
            active.cursor.line = 7;
        }
        a.update(&in_a, at(3));
        a.update(&in_a, at(200));
        assert_eq!(fixture.read()["file"], "b.rs", "no change and no heartbeat over B's file");
        // B goes to its terminal: it was looked at last and keeps the file alive.
        in_b.focused = false;
        b.update(&in_b, at(201));
        assert_eq!(fixture.read()["updated_at"], "2026-11-30T00:56:41Z");
        // Back in A, with nothing changed since.
        in_a.focused = true;
        a.update(&in_a, at(202));
        assert_eq!(fixture.read()["file"], "a.rs");
        b.remove_all();
        assert_eq!(fixture.read()["file"], "a.rs", "B does not remove A's");
        a.remove_all();
        assert!(!fixture.path().exists());
        // B died without a word while A was in the back.
        b.update(&in_b, at(300));
        in_a.focused = false;
        a.update(&in_a, at(300 + 301));
        assert_eq!(fixture.read()["file"], "a.rs", "what is too old is nobody's");
    }

    #[test]
    fn sharing_off_removes_the_file_at_once() {
        let fixture = Fixture::new();
        let mut files = fixture.files();
        files.update(&fixture.snapshot("a.rs", 0), at(0));
        let off = Snapshot { roots: vec![fixture.root.clone()], ..Snapshot::default() };
        files.update(&off, at(1));
        assert!(!fixture.path().exists());
    }
}
