//! The snapshot files of Rivumi (now looplane): `.rivumi/ide/*.json` and `.looplane/ide/*.json`.
//!
//! Rivumi reads them before every model request and drops a whole file for one bad item, so every
//! bound of its reader is enforced here. Blocking file calls: `rivumi::run` calls this on a
//! blocking thread.
//!
//! Several Neovims in one root: without the focus, a file is written only while it is still as we
//! wrote it, or missing. So the Neovim the user looked at last has the word.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::agents::Enabled;
use crate::agents::paths::below;
use crate::context::paths::real_path;
use crate::context::{Code, Diagnostic, Position, Range, Root, Severity, Snapshot};
use crate::files;

/// Rivumi's own limits: bytes of a file, items of a list, code points of a string.
pub const MAX_DIAGNOSTICS_BYTES: usize = 256 * 1024;
pub const MAX_OPEN_FILES_BYTES: usize = 128 * 1024;
pub const MAX_DIAGNOSTICS: usize = 200;
pub const MAX_OPEN_FILES: usize = 32;
const MAX_PATH: usize = 512;
const MAX_MESSAGE: usize = 2000;
const MAX_WORD: usize = 128;

/// The agent's directory in a root, under its old and its new name.
const HOMES: [&str; 2] = [".rivumi", ".looplane"];

const DIAGNOSTICS: &str = "diagnostics.json";
const OPEN_FILES: &str = "open-files.json";

/// The two files' contents for one root. Also what the WebSocket push sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// `{"diagnostics":[…]}`, errors first.
    pub diagnostics: String,
    /// `{"files":[…]}`, the active file first.
    pub open_files: String,
}

impl Payload {
    /// What an agent may learn of `snapshot` in `root`; empty lists when sharing is off.
    #[must_use]
    pub fn new(snapshot: &Snapshot, root: &Root) -> Self {
        let mut names = Names { root, known: HashMap::new() };
        Self {
            diagnostics: diagnostics(snapshot, &mut names),
            open_files: open_files(snapshot, &mut names),
        }
    }

    /// Two empty lists.
    #[must_use]
    pub fn nothing() -> Self {
        let (diagnostics, open_files) = (List::new("diagnostics", 0), List::new("files", 0));
        Self { diagnostics: diagnostics.finish(), open_files: open_files.finish() }
    }
}

#[derive(Serialize)]
struct At {
    line: u32,
    character: u32,
}

#[derive(Serialize)]
struct Span {
    start: At,
    end: At,
}

/// No key but these: an unknown one makes Rivumi drop the file. `uri` must not stand beside `path`.
#[derive(Serialize)]
struct DiagnosticItem<'a> {
    path: &'a str,
    range: Span,
    severity: u8,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<CodeItem>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CodeItem {
    Number(i64),
    Text(String),
}

#[derive(Serialize)]
struct FileItem<'a> {
    path: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    active: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<At>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selection: Option<Span>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the shape serde asks for
fn is_false(value: &bool) -> bool {
    !value
}

impl From<Position> for At {
    fn from(position: Position) -> Self {
        Self { line: position.line, character: position.character }
    }
}

impl From<Range> for Span {
    fn from(range: Range) -> Self {
        let Range { start, end } = Range::between(range.start, range.end);
        Self { start: start.into(), end: end.into() }
    }
}

/// A JSON object with one list, which never grows beyond a number of bytes.
struct List {
    text: String,
    items: usize,
    limit: usize,
}

impl List {
    fn new(name: &str, limit: usize) -> Self {
        let mut text = String::new();
        let _ = write!(text, "{{\"{name}\":["); // a String takes everything
        Self { text, items: 0, limit }
    }

    /// False: there is no room for it.
    fn push(&mut self, item: &impl Serialize) -> bool {
        let Ok(item) = serde_json::to_string(item) else { return true };
        // A comma before it, and the end of the file after it.
        if self.text.len() + item.len() + 4 > self.limit {
            return false;
        }
        if self.items > 0 {
            self.text.push(',');
        }
        self.text.push_str(&item);
        self.items += 1;
        true
    }

    fn finish(mut self) -> String {
        self.text.push_str("]}\n");
        self.text
    }
}

/// How Rivumi names files, each asked of the file system once.
struct Names<'a> {
    root: &'a Root,
    known: HashMap<PathBuf, Option<String>>,
}

impl Names<'_> {
    /// Relative, with `/`. `None`: the file is outside, or cannot be named.
    fn of(&mut self, file: &Path) -> Option<&str> {
        if !self.known.contains_key(file) {
            self.known.insert(file.to_path_buf(), name(self.root, file));
        }
        self.known.get(file)?.as_deref()
    }
}

fn name(root: &Root, file: &Path) -> Option<String> {
    // A link that leads out of the root breaks Rivumi's run, not only the file.
    if !real_path(file)?.starts_with(&root.real) {
        return None;
    }
    let name = below(root, file)?.to_str()?.to_owned();
    // Newer Pythons take any character before a colon for a drive.
    let drive = name.chars().nth(1) == Some(':');
    let fits = name.chars().count() <= MAX_PATH
        // Its reader strips the path, so a blank at the edge would name another file.
        && name.trim() == name
        // Taken for a URI, for a Windows path.
        && !name.starts_with("file:")
        && !drive
        && !name.contains('\\')
        // The name becomes a line of the prompt.
        && !name.contains(char::is_control);
    fits.then_some(name)
}

/// At most `max` code points, without NUL, without blanks at the edges; `None` if nothing is left.
fn bounded(text: &str, max: usize) -> Option<String> {
    let clean: String = text.trim().chars().filter(|c| *c != '\0').take(max).collect();
    let clean = clean.trim_matches(|c: char| c.is_whitespace() || c.is_control());
    (!clean.is_empty()).then(|| clean.to_owned())
}

fn diagnostics(snapshot: &Snapshot, names: &mut Names<'_>) -> String {
    let mut list = List::new("diagnostics", MAX_DIAGNOSTICS_BYTES);
    if !snapshot.sharing {
        return list.finish();
    }
    let active = snapshot.active.as_ref().map(|file| &file.path);
    let mut all: Vec<(&PathBuf, &Diagnostic)> = snapshot
        .diagnostics
        .iter()
        .flat_map(|(path, items)| items.iter().map(move |item| (path, item)))
        .collect();
    all.sort_by_key(|(path, item)| {
        (item.severity, Some(*path) != active, *path, item.range.start, item.range.end)
    });
    for (path, item) in all {
        if list.items == MAX_DIAGNOSTICS {
            break;
        }
        let Some(message) = bounded(&item.message, MAX_MESSAGE) else { continue };
        let Some(path) = names.of(path) else { continue };
        let item = DiagnosticItem {
            path,
            range: item.range.into(),
            severity: severity(item.severity),
            message,
            source: item.source.as_deref().and_then(|source| bounded(source, MAX_WORD)),
            code: match &item.code {
                Some(Code::Number(number)) => Some(CodeItem::Number(*number)),
                Some(Code::Text(text)) => bounded(text, MAX_WORD).map(CodeItem::Text),
                None => None,
            },
        };
        // What comes later matters less, however short it is.
        if !list.push(&item) {
            break;
        }
    }
    list.finish()
}

fn severity(severity: Severity) -> u8 {
    match severity {
        Severity::Error => 1,
        Severity::Warning => 2,
        Severity::Info => 3,
        Severity::Hint => 4,
    }
}

/// The active file, then what else is open: visible files before others, the last visited of
/// those kept, all of them by name, so that going to and fro changes little. Each change costs
/// the user's agent tokens; for the same reason only visible files have a cursor.
fn open_files(snapshot: &Snapshot, names: &mut Names<'_>) -> String {
    let mut list = List::new("files", MAX_OPEN_FILES_BYTES);
    if !snapshot.sharing {
        return list.finish();
    }
    let mut left = MAX_OPEN_FILES;
    let mut active_name = None;
    if let Some(active) = &snapshot.active
        && let Some(path) = names.of(&active.path)
    {
        active_name = Some(path.to_owned());
        let selection = active.selection.as_ref().map(|selection| selection.range);
        let selection = selection.filter(|range| !range.is_empty()).map(Span::from);
        list.push(&FileItem { path, active: true, cursor: Some(active.cursor.into()), selection });
        left -= 1;
    }
    let visible = snapshot.files.iter().filter(|file| file.visible);
    let hidden = snapshot.files.iter().filter(|file| !file.visible);
    let mut others = BTreeMap::new();
    for file in visible.chain(hidden) {
        if others.len() == left {
            break;
        }
        if let Some(path) = names.of(&file.path)
            && active_name.as_deref() != Some(path)
        {
            let cursor = file.visible.then_some(file.cursor);
            others.entry(path.to_owned()).or_insert(cursor);
        }
    }
    for (path, cursor) in &others {
        let cursor = cursor.map(At::from);
        if !list.push(&FileItem { path, active: false, cursor, selection: None }) {
            break;
        }
    }
    list.finish()
}

/// What we last wrote into one `ide` directory.
#[derive(Default)]
struct Written {
    diagnostics: Option<String>,
    open_files: Option<String>,
}

/// The snapshot files of this Neovim.
pub struct SnapshotFiles {
    enabled: Enabled,
    /// The user's home directory, both spellings: never written to, as the root directory.
    homes: Vec<PathBuf>,
    written: BTreeMap<PathBuf, Written>,
    focused: bool,
    failing: bool,
}

impl SnapshotFiles {
    #[must_use]
    pub fn new(enabled: Enabled, home: Option<&Path>) -> Self {
        let real = home.and_then(real_path);
        let homes = home.map(Path::to_path_buf).into_iter().chain(real).collect();
        let written = BTreeMap::new();
        Self { enabled, homes, written, focused: false, failing: false }
    }

    /// The directories that are kept up to date now.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        self.written.keys().cloned().collect()
    }

    /// A directory of the agent's has appeared or gone since the last update.
    #[must_use]
    pub fn moved(&self, snapshot: &Snapshot) -> bool {
        !self.wanted(snapshot).into_keys().eq(self.written.keys().cloned())
    }

    /// Brings the files to the state of `snapshot`; what did not change is not touched.
    pub fn update(&mut self, snapshot: &Snapshot) {
        let gained = snapshot.focused && !self.focused;
        self.focused = snapshot.focused;
        let wanted = self.wanted(snapshot);
        let gone: Vec<PathBuf> =
            self.written.keys().filter(|dir| !wanted.contains_key(*dir)).cloned().collect();
        for dir in gone {
            self.empty(&dir);
        }
        let mut payloads: HashMap<&Root, Payload> = HashMap::new();
        for (dir, root) in wanted {
            let payload = payloads.entry(root).or_insert_with(|| Payload::new(snapshot, root));
            let write = Turn {
                focused: snapshot.focused,
                gained,
                // There is nothing to take back where there is nothing.
                create: snapshot.sharing,
            };
            let mut written = self.written.remove(&dir).unwrap_or_default();
            let result = self.put(&dir, &mut written, payload, write);
            self.report(result);
            self.written.insert(dir, written);
        }
    }

    /// Empties the files that are still as we wrote them: Neovim leaves, or the plugin stops.
    pub fn clear(&mut self) {
        for dir in self.directories() {
            self.empty(&dir);
        }
    }

    /// The `ide` directories to write to, each with its root. Under a directory of the agent's
    /// that exists; where the user has switched the agent on and there is none in any root, in
    /// the first root that is a Git work tree, else in the first.
    fn wanted<'a>(&self, snapshot: &'a Snapshot) -> BTreeMap<PathBuf, &'a Root> {
        let roots: Vec<&Root> = snapshot.roots.iter().filter(|root| self.may_hold(root)).collect();
        let mut wanted = BTreeMap::new();
        for root in &roots {
            for home in HOMES {
                let home = root.real.join(home);
                if home.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
                    wanted.insert(home.join("ide"), *root);
                }
            }
        }
        if wanted.is_empty() && self.enabled == Enabled::On && snapshot.sharing {
            let work_tree = roots.iter().find(|root| root.real.join(".git").exists());
            if let Some(root) = work_tree.or(roots.first())
                && root.real.join(HOMES[0]).symlink_metadata().is_err()
            {
                wanted.insert(root.real.join(HOMES[0]).join("ide"), *root);
            }
        }
        wanted
    }

    fn may_hold(&self, root: &Root) -> bool {
        let home = self.homes.iter().any(|home| *home == root.path || *home == root.real);
        self.enabled != Enabled::Off && !home && root.real.parent().is_some()
    }

    fn put(
        &self,
        dir: &Path,
        written: &mut Written,
        payload: &Payload,
        turn: Turn,
    ) -> std::io::Result<()> {
        match dir.symlink_metadata() {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                let why = format!("{} is not a directory of its own", dir.display());
                return Err(std::io::Error::other(why));
            }
            // One that exists keeps its mode: it lies in the user's work tree.
            Err(_) if turn.create => files::private_dir(dir)?,
            Err(_) => return Ok(()),
        }
        turn.put(&dir.join(DIAGNOSTICS), &mut written.diagnostics, &payload.diagnostics)?;
        turn.put(&dir.join(OPEN_FILES), &mut written.open_files, &payload.open_files)
    }

    fn empty(&mut self, dir: &Path) {
        let Some(mut written) = self.written.remove(dir) else { return };
        // As without the focus: another Neovim's file stays.
        let turn = Turn { focused: false, gained: false, create: false };
        let result = self.put(dir, &mut written, &Payload::nothing(), turn);
        self.report(result);
    }

    fn report(&mut self, result: std::io::Result<()>) {
        match result {
            Ok(()) => self.failing = false,
            // Said once, not at every change.
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!("Rivumi does not see the editor: {error}");
            }
            Err(_) => {}
        }
    }
}

/// May this Neovim write now?
#[derive(Clone, Copy)]
struct Turn {
    focused: bool,
    gained: bool,
    /// Make a file that is not there.
    create: bool,
}

impl Turn {
    fn put(self, path: &Path, ours: &mut Option<String>, text: &str) -> std::io::Result<()> {
        let there = files::read_own(path, MAX_DIAGNOSTICS_BYTES as u64);
        let write = match &there {
            Ok(there) if there == text.as_bytes() => false,
            Ok(there) if ours.as_ref().is_some_and(|ours| ours.as_bytes() == there) => true,
            // Another's, or left behind: it goes if the user is here and has moved.
            Ok(_) => self.focused && (self.gained || ours.as_deref() != Some(text)),
            Err(error) if error.is_missing() => self.create,
            // A link, something huge: Rivumi refuses it, so nobody misses it.
            Err(_) => self.focused,
        };
        if write {
            files::write_private(path, text.as_bytes())?;
        }
        if write || there.is_ok_and(|there| there == text.as_bytes()) {
            *ours = Some(text.to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use super::*;
    use crate::context::{ActiveFile, OpenFile, Selection};

    struct Fixture {
        _dir: tempfile::TempDir,
        root: Root,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let real = dir.path().canonicalize().unwrap().join("project");
            std::fs::create_dir(&real).unwrap();
            Self { _dir: dir, root: Root { path: real.clone(), real } }
        }

        fn ide(&self) -> PathBuf {
            self.root.real.join(".rivumi/ide")
        }

        fn open(&self, name: &str) -> OpenFile {
            OpenFile {
                path: self.root.real.join(name),
                language: String::new(),
                active: false,
                visible: false,
                modified: false,
                last_visited: 1,
                cursor: Position::new(1, 1),
            }
        }

        fn snapshot(&self, name: &str) -> Snapshot {
            Snapshot {
                sharing: true,
                active: Some(ActiveFile {
                    path: self.root.real.join(name),
                    language: String::new(),
                    modified: false,
                    cursor: Position::new(3, 4),
                    selection: None,
                }),
                files: vec![OpenFile { active: true, visible: true, ..self.open(name) }],
                roots: vec![self.root.clone()],
                focused: true,
                ..Snapshot::default()
            }
        }

        fn open_files(&self) -> String {
            std::fs::read_to_string(self.ide().join(OPEN_FILES)).unwrap()
        }
    }

    fn error(message: &str, severity: Severity) -> Diagnostic {
        let range = Range { start: Position::new(2, 0), end: Position::new(1, 0) };
        Diagnostic { range, severity, message: message.into(), source: None, code: None }
    }

    #[test]
    fn the_active_file_comes_first_and_has_its_selection() {
        let fixture = Fixture::new();
        let mut snapshot = fixture.snapshot("b.rs");
        snapshot.files.push(fixture.open("a.rs"));
        snapshot.files.push(OpenFile { visible: true, ..fixture.open("c.rs") });
        let range = Range { start: Position::new(3, 0), end: Position::new(4, 2) };
        if let Some(active) = &mut snapshot.active {
            active.selection = Some(Selection { range, text: "".into(), truncated: false });
        }
        let want = "{\"files\":[{\"path\":\"b.rs\",\"active\":true,\"cursor\":{\"line\":3,\"character\":4},\
            \"selection\":{\"start\":{\"line\":3,\"character\":0},\"end\":{\"line\":4,\"character\":2}}},\
            {\"path\":\"a.rs\"},{\"path\":\"c.rs\",\"cursor\":{\"line\":1,\"character\":1}}]}\n";
        assert_eq!(Payload::new(&snapshot, &fixture.root).open_files, want);
    }

    #[test]
    fn the_active_and_the_visible_are_kept_of_many_files() {
        let fixture = Fixture::new();
        let mut snapshot = fixture.snapshot("active.rs");
        snapshot.files.extend((0..100).map(|n| fixture.open(&format!("{n:03}.rs"))));
        snapshot.files.push(OpenFile { visible: true, ..fixture.open("visible.rs") });
        let text = Payload::new(&snapshot, &fixture.root).open_files;
        assert_eq!(text.matches("\"path\"").count(), MAX_OPEN_FILES);
        assert!(text.contains("active.rs") && text.contains("visible.rs"));
        assert!(text.contains("029.rs") && !text.contains("030.rs"));
    }

    #[test]
    fn errors_come_first_and_bad_items_do_not_come() {
        let fixture = Fixture::new();
        let mut snapshot = fixture.snapshot("a.rs");
        let in_root = |name: &str| fixture.root.real.join(name);
        let mut items: Vec<Diagnostic> =
            (0..300).map(|n| error(&format!("w{n}"), Severity::Warning)).collect();
        items.push(error("late", Severity::Error));
        items.push(error(" \0\n", Severity::Error));
        items.push(Diagnostic {
            source: Some("\0s".repeat(300)),
            code: Some(Code::Text("c".repeat(300))),
            ..error(&format!("nul\0{}", "é".repeat(5000)), Severity::Error)
        });
        snapshot.diagnostics.insert(in_root("z.rs"), items.into());
        let outside: Arc<[Diagnostic]> = Arc::from([error("outside", Severity::Error)]);
        symlink("/etc/hosts", in_root("link.rs")).unwrap();
        for path in [
            "/usr/include/x.h".into(),
            in_root("../x.rs"),
            in_root("link.rs"),
            in_root("file:x"),
            in_root("c:x"),
            in_root(" x"),
            in_root("x\ny"),
            in_root("x\\y"),
            in_root(&format!("{0}/{0}/{0}", "d".repeat(200))),
        ] {
            snapshot.diagnostics.insert(path, Arc::clone(&outside));
        }
        let text = Payload::new(&snapshot, &fixture.root).diagnostics;
        assert!(!text.contains("outside"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let list = json["diagnostics"].as_array().unwrap();
        assert_eq!(list.len(), MAX_DIAGNOSTICS);
        assert_eq!(list[0]["message"], "late");
        assert_eq!(list[0]["range"]["start"]["line"], 1, "turned round");
        assert_eq!(list[1]["message"], format!("nul{}", "é".repeat(MAX_MESSAGE - 3)));
        assert_eq!(list[1]["source"], "s".repeat(MAX_WORD));
        assert_eq!(list[1]["code"], "c".repeat(MAX_WORD));
        assert_eq!(list[2]["severity"], 2);
    }

    #[test]
    fn long_messages_stop_at_the_limit_of_the_file() {
        let fixture = Fixture::new();
        let mut snapshot = fixture.snapshot("a.rs");
        let long = "\u{1}\u{2}é\"".repeat(700);
        let items: Vec<Diagnostic> =
            (0..200).map(|n| error(&format!("{n}{long}"), Severity::Error)).collect();
        snapshot.diagnostics.insert(fixture.root.real.join("a.rs"), items.into());
        let text = Payload::new(&snapshot, &fixture.root).diagnostics;
        assert!(text.len() <= MAX_DIAGNOSTICS_BYTES && text.len() > MAX_DIAGNOSTICS_BYTES - 13_000);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }

    #[test]
    fn auto_writes_only_where_the_agent_has_a_directory() {
        let fixture = Fixture::new();
        let snapshot = fixture.snapshot("a.rs");
        let mut files = SnapshotFiles::new(Enabled::Auto, None);
        files.update(&snapshot);
        assert!(!fixture.ide().exists());
        std::fs::create_dir(fixture.root.real.join(".looplane")).unwrap();
        files.update(&snapshot);
        assert!(!fixture.ide().exists());
        assert!(fixture.root.real.join(".looplane/ide/open-files.json").is_file());
        std::fs::create_dir(fixture.root.real.join(".rivumi")).unwrap();
        files.update(&snapshot);
        assert!(fixture.open_files().contains("a.rs"));
        assert_eq!(files.directories().len(), 2);
    }

    #[test]
    fn switched_on_it_makes_one_directory_and_never_in_the_home_directory() {
        let fixture = Fixture::new();
        let mut snapshot = fixture.snapshot("a.rs");
        let outer = fixture.root.real.parent().unwrap().to_path_buf();
        snapshot.roots.insert(0, Root { path: "/".into(), real: "/".into() });
        snapshot.roots.insert(1, Root { path: outer.clone(), real: outer.clone() });
        let mut files = SnapshotFiles::new(Enabled::On, Some(&outer));
        files.update(&snapshot);
        assert_eq!(files.directories(), [fixture.ide()]);
        assert!(!outer.join(".rivumi").exists());
        snapshot.roots.truncate(2);
        files.update(&snapshot);
        assert!(files.directories().is_empty());
        assert_eq!(fixture.open_files(), Payload::nothing().open_files, "the root is gone");
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let fixture = Fixture::new();
        let elsewhere = fixture.root.real.parent().unwrap().join("elsewhere");
        std::fs::create_dir_all(elsewhere.join("ide")).unwrap();
        let rivumi = fixture.root.real.join(".rivumi");
        for enabled in [Enabled::Auto, Enabled::On] {
            let mut files = SnapshotFiles::new(enabled, None);
            symlink(&elsewhere, &rivumi).unwrap();
            files.update(&fixture.snapshot("a.rs"));
            std::fs::remove_file(&rivumi).unwrap();
            std::fs::create_dir(&rivumi).unwrap();
            symlink(elsewhere.join("ide"), rivumi.join("ide")).unwrap();
            files.update(&fixture.snapshot("a.rs"));
            std::fs::remove_dir_all(&rivumi).unwrap();
            assert_eq!(std::fs::read_dir(elsewhere.join("ide")).unwrap().count(), 0);
        }
        let target = elsewhere.join("target.json");
        std::fs::write(&target, "precious").unwrap();
        std::fs::create_dir_all(fixture.ide()).unwrap();
        symlink(&target, fixture.ide().join(OPEN_FILES)).unwrap();
        SnapshotFiles::new(Enabled::Auto, None).update(&fixture.snapshot("a.rs"));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
        assert!(fixture.open_files().contains("a.rs"), "the link itself was replaced");
    }

    #[test]
    fn unchanged_files_are_not_touched_and_all_are_emptied_in_the_end() {
        let fixture = Fixture::new();
        std::fs::create_dir_all(fixture.ide()).unwrap();
        let mut files = SnapshotFiles::new(Enabled::Auto, None);
        let mut snapshot = fixture.snapshot("a.rs");
        files.update(&snapshot);
        let inode = || {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(fixture.ide().join(OPEN_FILES)).unwrap().ino()
        };
        let before = inode();
        snapshot.files[0].last_visited = 99;
        files.update(&snapshot);
        assert_eq!(inode(), before);
        let off = Snapshot { roots: snapshot.roots.clone(), ..Snapshot::default() };
        files.update(&off);
        assert_eq!(fixture.open_files(), Payload::nothing().open_files);
        files.update(&snapshot);
        assert!(fixture.open_files().contains("a.rs"));
        files.clear();
        assert_eq!(fixture.open_files(), Payload::nothing().open_files);
    }

    #[test]
    fn the_neovim_with_the_focus_has_the_word() {
        let fixture = Fixture::new();
        std::fs::create_dir_all(fixture.ide()).unwrap();
        let mut a = SnapshotFiles::new(Enabled::Auto, None);
        let mut b = SnapshotFiles::new(Enabled::Auto, None);
        a.update(&fixture.snapshot("a.rs"));
        b.update(&fixture.snapshot("b.rs"));
        a.update(&Snapshot { focused: false, ..fixture.snapshot("other.rs") });
        a.clear();
        assert!(fixture.open_files().contains("b.rs"));
        a.update(&fixture.snapshot("other.rs"));
        assert!(fixture.open_files().contains("other.rs"));
    }
}
