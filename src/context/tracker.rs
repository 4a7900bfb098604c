//! From what Neovim's thread collected to a `Snapshot`, with the memory that needs: the file and
//! selection last seen while the user is in a terminal, and each file's diagnostics.
//!
//! Pure, any thread. Neovim's thread only packs bytes (`RawState`); they are read here.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::context::position::{lossy, utf16_from_byte, utf16_len};
use crate::context::selection::{Corner, Highlight, Row, Shape, Tabs, describe};
use crate::context::{
    ActiveFile, Code, Diagnostic, OpenFile, Position, Range, Root, Severity, Snapshot,
};

/// The version of the packing that is read here; `collect.lua` says which one it writes.
const FORMAT: i64 = 1;

/// Every folder some language server works in would be too much.
const MAX_ROOTS: usize = 32;

/// What `editor/watch` collected in one go, packed by `collect.lua`. Each one says only what
/// changed since the one before, so a `Tracker` must be given all of them, in order.
#[derive(Debug, Clone)]
pub struct RawState(Vec<u8>);

impl RawState {
    #[must_use]
    pub fn new(packed: Vec<u8>) -> Self {
        Self(packed)
    }

    /// The folders that `Tracker::apply` will ask the `Disk` about.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        let roots = Collected::read_roots(&self.0).ok().flatten().unwrap_or_default();
        roots.into_iter().map(|(_, path)| path).collect()
    }
}

/// A `RawState` that cannot be read: library and `collect.lua` are of different versions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the collected state is malformed at byte {at}: {what} expected")]
pub struct Malformed {
    at: usize,
    what: &'static str,
}

/// What has to be asked of the file system. `disk::Disk` answers from what it has heard, at once.
pub trait Disk {
    /// The work tree (the folder that holds `.git`) that `folder` lies in.
    fn work_tree(&self, folder: &Path) -> Option<PathBuf>;
    /// `path` without symbolic links; `path` itself where that cannot be told.
    fn real(&self, path: &Path) -> PathBuf;
    /// The user's home directory.
    fn home(&self) -> Option<PathBuf>;
}

/// A snapshot, and what is left to do.
#[derive(Debug, Clone)]
pub struct Applied {
    pub snapshot: Snapshot,
    /// Something was put off: collect again in this many milliseconds, though nothing changes.
    pub again_ms: Option<u64>,
}

/// A listed or loaded buffer that holds a file.
#[derive(Debug, Clone)]
struct File {
    buffer: i64,
    listed: bool,
    loaded: bool,
    open: OpenFile,
}

/// Keeps the state that snapshots are made from.
#[derive(Debug, Default)]
pub struct Tracker {
    focused: bool,
    active: Option<(i64, ActiveFile)>,
    files: Vec<File>,
    roots: Vec<Root>,
    diagnostics: HashMap<i64, Arc<[Diagnostic]>>,
}

impl Tracker {
    /// Takes in what was collected.
    ///
    /// # Errors
    /// `Malformed`, which leaves the state as it was.
    pub fn apply(&mut self, raw: &RawState, disk: &dyn Disk) -> Result<Applied, Malformed> {
        let collected = Collected::read(&raw.0)?;
        self.focused = collected.focused;
        if let Some(active) = collected.active {
            self.set_active(active);
        }
        if let Some(files) = collected.files {
            self.files = files;
            // Most recently visited first.
            self.files.sort_by_key(|file| std::cmp::Reverse((file.open.last_visited, file.buffer)));
        }
        if let Some(roots) = collected.roots {
            self.roots = arrange(&roots, disk);
        }
        self.diagnostics.extend(collected.diagnostics);
        let files = &self.files;
        self.diagnostics
            .retain(|buffer, _| files.iter().any(|file| file.loaded && file.buffer == *buffer));
        Ok(Applied {
            snapshot: self.snapshot(),
            again_ms: u64::try_from(collected.again_ms).ok().filter(|&ms| ms > 0),
        })
    }

    fn set_active(&mut self, collected: Option<Active<'_>>) {
        let Some(collected) = collected else {
            self.active = None;
            return;
        };
        let before = self.active.take().and_then(|(_, file)| file.selection);
        let selection = match collected.selection {
            Seen::Nothing => None,
            Seen::Same => before,
            Seen::New(highlight) => describe(&highlight),
            Seen::Changed(highlight) => {
                describe(&highlight).filter(|now| Some(now) == before.as_ref())
            }
        };
        self.active = Some((collected.buffer, ActiveFile { selection, ..collected.file }));
    }

    fn snapshot(&self) -> Snapshot {
        let active = self.active.as_ref();
        let files = self
            .files
            .iter()
            .filter(|file| file.listed)
            .map(|file| {
                let mut open = file.open.clone();
                if let Some((_, current)) = active.filter(|(buffer, _)| *buffer == file.buffer) {
                    open.active = true;
                    open.path.clone_from(&current.path);
                    open.language.clone_from(&current.language);
                    open.modified = current.modified;
                    open.cursor = current.cursor;
                }
                open
            })
            .collect();
        let diagnostics: BTreeMap<PathBuf, Arc<[Diagnostic]>> = self
            .files
            .iter()
            .filter_map(|file| {
                Some((file.open.path.clone(), self.diagnostics.get(&file.buffer)?.clone()))
            })
            .collect();
        Snapshot {
            sharing: true,
            active: active.map(|(_, file)| file.clone()),
            files,
            diagnostics,
            roots: self.roots.clone(),
            focused: self.focused,
        }
    }
}

/// Where a root comes from; the numbers are `collect.lua`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The user's option.
    Chosen,
    /// A working directory.
    Own,
    /// A working directory that 'autochdir' moves about.
    Wandering,
    LanguageServer,
    /// Where Neovim was when the plugin started.
    Initial,
    /// The shell's spelling of where Neovim was started.
    Spelling,
}

/// Puts the roots in order, most important first, each once.
fn arrange(collected: &[(Origin, PathBuf)], disk: &dyn Disk) -> Vec<Root> {
    let of = |wanted: Origin| {
        collected.iter().filter(move |(origin, _)| *origin == wanted).map(|(_, path)| path)
    };
    let mut roots = Roots { list: Vec::new(), disk };
    for path in of(Origin::Chosen) {
        roots.add(path);
    }
    if roots.list.is_empty() {
        for path in of(Origin::Own) {
            roots.add(path);
            roots.add_work_tree(path);
        }
        let wandering = of(Origin::Wandering).next().is_some();
        if wandering {
            // Following each buffer's folder would make the project itself disappear.
            for path in of(Origin::Initial) {
                for outer in of(Origin::Spelling).filter(|outer| path.starts_with(outer)) {
                    roots.add_below_root(outer);
                }
                roots.add(path);
                roots.add_work_tree(path);
            }
        }
        for path in of(Origin::LanguageServer) {
            roots.add_below_root(path);
        }
        for path in of(Origin::Wandering) {
            roots.add_work_tree(path);
            if !roots.list.iter().any(|root| path.starts_with(&root.path)) {
                roots.add_below_root(path);
            }
        }
        for path in of(Origin::Initial) {
            roots.add_below_root(path);
            roots.add_work_tree(path);
        }
        if roots.list.is_empty() {
            of(Origin::Initial).for_each(|path| roots.add(path));
        }
    }
    for path in of(Origin::Spelling) {
        roots.spell(path);
    }
    roots.list.truncate(MAX_ROOTS);
    roots.list
}

struct Roots<'a> {
    list: Vec<Root>,
    disk: &'a dyn Disk,
}

impl Roots<'_> {
    fn add(&mut self, path: &Path) {
        // Without a slash at the end, "." or a doubled slash.
        let path: PathBuf = path.components().collect();
        let real = self.disk.real(&path);
        if !self.list.iter().any(|root| root.path == path || root.real == real) {
            self.list.push(Root { path, real });
        }
    }

    /// As `add`, but not the file system's root: every project lies in that.
    fn add_below_root(&mut self, path: &Path) {
        if path.parent().is_some() {
            self.add(path);
        }
    }

    /// A home directory under version control (dotfiles) does not make all of it one project.
    fn add_work_tree(&mut self, path: &Path) {
        if let Some(tree) = self.disk.work_tree(path)
            && self.disk.home().as_ref() != Some(&tree)
        {
            self.add_below_root(&tree);
        }
    }

    /// Neovim resolves the folder it works in; the shell's spelling of it is what users type.
    fn spell(&mut self, path: &Path) {
        let path: PathBuf = path.components().collect();
        let real = self.disk.real(&path);
        for root in &mut self.list {
            if root.real == real && root.path == root.real {
                root.path.clone_from(&path);
            }
        }
    }
}

/// A `RawState`, read.
struct Collected<'a> {
    focused: bool,
    /// `None`: not known this time.
    active: Option<Option<Active<'a>>>,
    files: Option<Vec<File>>,
    roots: Option<Vec<(Origin, PathBuf)>>,
    diagnostics: HashMap<i64, Arc<[Diagnostic]>>,
    again_ms: i64,
}

struct Active<'a> {
    buffer: i64,
    /// Without the selection.
    file: ActiveFile,
    selection: Seen<'a>,
}

enum Seen<'a> {
    Nothing,
    /// As before.
    Same,
    New(Highlight<'a>),
    /// The buffer was changed since; what stands at its place now.
    Changed(Highlight<'a>),
}

impl<'a> Collected<'a> {
    fn read_roots(packed: &[u8]) -> Result<Option<Vec<(Origin, PathBuf)>>, Malformed> {
        let mut from = Reader { packed, at: 0 };
        if from.int()? != FORMAT {
            return Err(from.malformed("format 1"));
        }
        from.flag()?;
        from.section(Reader::active)?;
        from.section(|from| from.list(Reader::file))?;
        from.section(|from| from.list(Reader::root))
    }

    fn read(packed: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader { packed, at: 0 };
        if from.int()? != FORMAT {
            return Err(from.malformed("format 1"));
        }
        Ok(Self {
            focused: from.flag()?,
            active: from.section(Reader::active)?,
            files: from.section(|from| from.list(Reader::file))?,
            roots: from.section(|from| from.list(Reader::root))?,
            diagnostics: from.list(Reader::diagnostics)?.into_iter().collect(),
            again_ms: from.int()?,
        })
    }
}

/// Reads packed values one after the other.
struct Reader<'a> {
    packed: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    /// The digits up to `mark`.
    fn number(&mut self, mark: u8, what: &'static str) -> Result<i64, Malformed> {
        let rest = self.packed.get(self.at..).unwrap_or_default();
        let end = rest.iter().take(24).position(|&byte| byte == mark);
        let number = end
            .and_then(|end| std::str::from_utf8(&rest[..end]).ok())
            .and_then(|digits| digits.parse().ok());
        match (end, number) {
            (Some(end), Some(number)) => {
                self.at += end + 1;
                Ok(number)
            }
            _ => Err(self.malformed(what)),
        }
    }

    fn int(&mut self) -> Result<i64, Malformed> {
        self.number(b',', "a number")
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        Ok(self.int()? != 0)
    }

    /// A line or column number.
    fn index(&mut self) -> Result<u32, Malformed> {
        let value = self.int()?;
        u32::try_from(value).map_err(|_| self.malformed("a line or column"))
    }

    fn size(&mut self) -> Result<usize, Malformed> {
        let value = self.int()?;
        usize::try_from(value).map_err(|_| self.malformed("a size"))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.number(b':', "a string")?;
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        match end.and_then(|end| self.packed.get(self.at..end)) {
            Some(bytes) => {
                self.at += bytes.len();
                Ok(bytes)
            }
            None => Err(self.malformed("a string's bytes")),
        }
    }

    fn string(&mut self) -> Result<String, Malformed> {
        Ok(lossy(self.bytes()?).into_owned())
    }

    fn path(&mut self) -> Result<PathBuf, Malformed> {
        Ok(PathBuf::from(OsStr::from_bytes(self.bytes()?)))
    }

    /// A part that is there only when it was due.
    fn section<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        (0..self.size()?).map(|_| read(self)).collect()
    }

    /// A line and the text before the cursor in it.
    fn cursor(&mut self) -> Result<Position, Malformed> {
        Ok(Position::new(self.index()?, utf16_len(self.bytes()?)))
    }

    fn active(&mut self) -> Result<Option<Active<'a>>, Malformed> {
        if !self.flag()? {
            // No file; then there is no selection either.
            return self.selection().map(|_| None);
        }
        Ok(Some(Active {
            buffer: self.int()?,
            file: ActiveFile {
                path: self.path()?,
                language: self.string()?,
                modified: self.flag()?,
                cursor: self.cursor()?,
                selection: None,
            },
            selection: self.selection()?,
        }))
    }

    fn selection(&mut self) -> Result<Seen<'a>, Malformed> {
        match self.int()? {
            0 => Ok(Seen::Nothing),
            1 => Ok(Seen::Same),
            2 => Ok(Seen::New(self.highlight()?)),
            3 => Ok(Seen::Changed(self.highlight()?)),
            _ => Err(self.malformed("a kind of selection")),
        }
    }

    fn corner(&mut self) -> Result<Corner, Malformed> {
        Ok(Corner {
            line: self.index()?,
            byte: self.size()?,
            beyond: self.index()?,
            bytes: self.size()?,
        })
    }

    fn highlight(&mut self) -> Result<Highlight<'a>, Malformed> {
        let shape = match self.int()? {
            0 => Shape::Characters,
            1 => Shape::Lines,
            2 => Shape::Block,
            _ => return Err(self.malformed("a shape")),
        };
        let corners = [self.corner()?, self.corner()?];
        let to_line_ends = self.flag()?;
        let exclusive = self.flag()?;
        let old = self.flag()?;
        let virtual_edit = self.flag()?;
        let tabs = Tabs {
            stop: self.index()?,
            stops: self.string()?.split(',').filter_map(|stop| stop.parse().ok()).collect(),
        };
        let last_line = self.index()?;
        let count = self.size()?;
        let texts = self.bytes()?;
        let mut rows: Vec<Row<'a>> = texts
            .split(|&byte| byte == b'\n')
            .take(count)
            .map(|text| Row { text, cells: None })
            .collect();
        let mut last_row = self.section(Reader::bytes)?.map(|text| Row { text, cells: None });
        for _ in 0..self.size()? {
            let index = self.size()?;
            let cells = Some(self.bytes()?);
            match rows.get_mut(index) {
                Some(row) => row.cells = cells,
                None => last_row = last_row.map(|row| Row { cells, ..row }),
            }
        }
        Ok(Highlight {
            shape,
            corners,
            to_line_ends,
            exclusive,
            old,
            virtual_edit,
            tabs,
            last_line,
            rows,
            last_row,
        })
    }

    fn file(&mut self) -> Result<File, Malformed> {
        let buffer = self.int()?;
        let path = self.path()?;
        let language = self.string()?;
        let loaded = self.flag()?;
        let listed = self.flag()?;
        let visible = self.flag()?;
        let modified = self.flag()?;
        let last_visited = u64::try_from(self.int()?).unwrap_or(0);
        let cursor = self.cursor()?;
        let open =
            OpenFile { path, language, active: false, visible, modified, last_visited, cursor };
        Ok(File { buffer, listed, loaded, open })
    }

    fn root(&mut self) -> Result<(Origin, PathBuf), Malformed> {
        let origin = match self.int()? {
            0 => Origin::Chosen,
            1 => Origin::Own,
            2 => Origin::Wandering,
            3 => Origin::LanguageServer,
            4 => Origin::Initial,
            5 => Origin::Spelling,
            _ => return Err(self.malformed("where a root comes from")),
        };
        Ok((origin, self.path()?))
    }

    fn diagnostics(&mut self) -> Result<(i64, Arc<[Diagnostic]>), Malformed> {
        let buffer = self.int()?;
        let last_line = self.index()?;
        let mut list = self.list(Reader::diagnostic)?;
        let lines: HashMap<u32, &[u8]> =
            self.list(|from| Ok((from.index()?, from.bytes()?)))?.into_iter().collect();
        // What is read so far are byte columns, and nobody has made sure that they exist.
        let place = |at: Position| {
            let line = at.line.min(last_line);
            let text = lines.get(&line).copied().unwrap_or_default();
            let byte = if at.line > last_line { text.len() } else { at.character as usize };
            Position::new(line, utf16_from_byte(text, byte))
        };
        for Diagnostic { range, .. } in &mut list {
            *range = Range::between(place(range.start), place(range.end));
        }
        Ok((buffer, list.into()))
    }

    fn diagnostic(&mut self) -> Result<Diagnostic, Malformed> {
        let start = Position::new(self.index()?, self.index()?);
        let end = Position::new(self.index()?, self.index()?);
        let severity = match self.int()? {
            2 => Severity::Warning,
            3 => Severity::Info,
            4 => Severity::Hint,
            _ => Severity::Error,
        };
        let message = self.string()?;
        let source = self.section(Reader::string)?;
        let kind = self.int()?;
        let code = self.string()?;
        let code = match kind {
            1 => code.parse().ok().map(Code::Number),
            2 => Some(Code::Text(code)),
            _ => None,
        };
        // Not ordered yet: the columns are bytes.
        Ok(Diagnostic { range: Range { start, end }, severity, message, source, code })
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Disk, Origin, RawState, Tracker, arrange};
    use crate::context::{Code, Position, Severity, Snapshot};

    /// A file system with a repository at /repo, and /link leading to /repo.
    struct Fake;

    impl Disk for Fake {
        fn work_tree(&self, folder: &Path) -> Option<PathBuf> {
            let dotfiles = folder.starts_with("/home/me").then(|| PathBuf::from("/home/me"));
            folder.starts_with("/repo").then(|| PathBuf::from("/repo")).or(dotfiles)
        }

        fn real(&self, path: &Path) -> PathBuf {
            path.strip_prefix("/link")
                .map_or_else(|_| path.to_path_buf(), |rest| Path::new("/repo").join(rest))
        }

        fn home(&self) -> Option<PathBuf> {
            Some(PathBuf::from("/home/me"))
        }
    }

    fn roots(collected: &[(Origin, &str)]) -> Vec<String> {
        let collected: Vec<_> =
            collected.iter().map(|(origin, path)| (*origin, PathBuf::from(path))).collect();
        arrange(&collected, &Fake).iter().map(|root| root.path.display().to_string()).collect()
    }

    #[test]
    fn the_working_directory_leads_and_its_work_tree_follows() {
        use Origin::{Initial, LanguageServer, Own};
        assert_eq!(
            roots(&[
                (Own, "/repo/sub"),
                (Own, "/else"),
                (LanguageServer, "/x"),
                (Initial, "/first")
            ]),
            ["/repo/sub", "/repo", "/else", "/x", "/first"]
        );
    }

    #[test]
    fn no_root_comes_twice_and_the_file_systems_root_only_when_it_is_all_there_is() {
        use Origin::{Initial, LanguageServer, Own};
        assert_eq!(roots(&[(Own, "/repo/"), (LanguageServer, "/repo"), (Initial, "/")]), ["/repo"]);
        assert_eq!(roots(&[(Own, "/"), (Initial, "/")]), ["/"]);
    }

    #[test]
    fn a_home_under_version_control_is_no_project() {
        use Origin::{Initial, Own};
        assert_eq!(roots(&[(Own, "/home/me/x"), (Initial, "/home/me/x")]), ["/home/me/x"]);
    }

    #[test]
    fn autochdir_does_not_make_the_project_vanish() {
        use Origin::{Initial, Spelling, Wandering};
        assert_eq!(
            roots(&[(Wandering, "/repo/sub"), (Initial, "/repo"), (Spelling, "/repo")]),
            ["/repo"]
        );
        assert_eq!(roots(&[(Wandering, "/else"), (Initial, "/repo")]), ["/repo", "/else"]);
    }

    #[test]
    fn the_users_choice_is_the_only_root() {
        use Origin::{Chosen, Initial, Own};
        assert_eq!(roots(&[(Chosen, "/mine"), (Own, "/repo"), (Initial, "/repo")]), ["/mine"]);
    }

    #[test]
    fn a_root_is_spelt_as_the_shell_spells_it() {
        use Origin::{Initial, Own, Spelling};
        let collected = [(Own, "/repo"), (Initial, "/repo"), (Spelling, "/link")]
            .map(|(origin, path)| (origin, PathBuf::from(path)));
        let roots = arrange(&collected, &Fake);
        assert_eq!(roots.len(), 1);
        assert_eq!((&roots[0].path, &roots[0].real), (&"/link".into(), &"/repo".into()));
    }

    fn string(bytes: &[u8]) -> Vec<u8> {
        [format!("{}:", bytes.len()).as_bytes(), bytes].concat()
    }

    /// A collected state with one file, `/a`, in buffer 1: `selection` is packed already.
    fn state(selection: &[u8], diagnostics: &[u8]) -> RawState {
        let name = string(b"/a");
        RawState::new(
            [
                b"1,1,1,1,1,",
                &name[..],
                b"3:lua0,4,",
                &string("é😀".as_bytes()),
                selection,
                b"1,1,1,",
                &name,
                b"3:lua1,1,1,0,7,4,0:0,",
                diagnostics,
                b"0,",
            ]
            .concat(),
        )
    }

    fn applied(tracker: &mut Tracker, raw: &RawState) -> Snapshot {
        tracker.apply(raw, &Fake).unwrap().snapshot
    }

    const NO_SELECTION: &[u8] = b"0,";
    const SAME: &[u8] = b"1,";
    /// Line 4 linewise, in a buffer whose line 4 is "hello" / "other".
    const NEW: &[u8] = b"2,1,4,0,0,0,4,0,0,0,0,0,0,0,8,0:9,1,5:hello0,0,";
    const CHANGED_ELSEWHERE: &[u8] = b"3,1,4,0,0,0,4,0,0,0,0,0,0,0,8,0:9,1,5:hello0,0,";
    const CHANGED: &[u8] = b"3,1,4,0,0,0,4,0,0,0,0,0,0,0,8,0:9,1,5:other0,0,";

    fn text(snapshot: &Snapshot) -> Option<&str> {
        Some(&*snapshot.active.as_ref()?.selection.as_ref()?.text)
    }

    #[test]
    fn the_cursor_is_counted_in_utf16() {
        let snapshot = applied(&mut Tracker::default(), &state(NO_SELECTION, b"0,"));
        assert_eq!(snapshot.active.unwrap().cursor, Position::new(4, 3));
        assert!(snapshot.files[0].active && snapshot.files[0].cursor == Position::new(4, 3));
    }

    #[test]
    fn a_selection_stays_until_it_is_gone_or_its_text_is_another() {
        let mut tracker = Tracker::default();
        assert_eq!(text(&applied(&mut tracker, &state(NEW, b"0,"))), Some("hello"));
        assert_eq!(text(&applied(&mut tracker, &state(SAME, b"0,"))), Some("hello"));
        assert_eq!(text(&applied(&mut tracker, &state(CHANGED_ELSEWHERE, b"0,"))), Some("hello"));
        assert_eq!(text(&applied(&mut tracker, &state(CHANGED, b"0,"))), None);
        assert_eq!(text(&applied(&mut tracker, &state(SAME, b"0,"))), None);
        applied(&mut tracker, &state(NEW, b"0,"));
        assert_eq!(text(&applied(&mut tracker, &state(NO_SELECTION, b"0,"))), None);
    }

    #[test]
    fn diagnostics_are_clamped_ordered_and_counted_in_utf16() {
        // Buffer 1, last line 1; three items; then the lines they touch.
        let packed = [
            b"1,1,1,3,",
            // From behind "é😀" back to behind "é", severity 2, no source, a number for a code.
            &b"0,6,0,2,2,3:one0,1,2:42"[..],
            // Beyond the buffer.
            b"900,0,901,5,1,3:two1,2:ls2,1:E",
            b"1,0,1,99,4,5:a\0\xFF\nb0,0,0:",
            b"2,0,",
            &string("é😀x".as_bytes()),
            b"1,3:abc",
        ]
        .concat();
        let snapshot = applied(&mut Tracker::default(), &state(NO_SELECTION, &packed));
        let list = &snapshot.diagnostics[Path::new("/a")];
        let at = |i: usize| {
            let range = list[i].range;
            (range.start.line, range.start.character, range.end.line, range.end.character)
        };
        assert_eq!((at(0), at(1), at(2)), ((0, 1, 0, 3), (1, 3, 1, 3), (1, 0, 1, 3)));
        assert_eq!(
            (list[0].severity, list[0].code.clone()),
            (Severity::Warning, Some(Code::Number(42)))
        );
        assert_eq!(
            (list[1].source.as_deref(), list[1].code.clone()),
            (Some("ls"), Some(Code::Text("E".into())))
        );
        assert_eq!((&*list[2].message, list[2].code.clone()), ("a\0\u{FFFD}\nb", None));
    }

    #[test]
    fn a_file_without_an_answer_is_not_clean() {
        let mut tracker = Tracker::default();
        assert!(applied(&mut tracker, &state(NO_SELECTION, b"0,")).diagnostics.is_empty());
        let clean = applied(&mut tracker, &state(NO_SELECTION, b"1,1,9,0,0,"));
        assert!(clean.diagnostics[Path::new("/a")].is_empty());
        // Kept when nothing new was collected.
        assert_eq!(applied(&mut tracker, &state(NO_SELECTION, b"0,")).diagnostics.len(), 1);
    }

    #[test]
    fn a_malformed_state_changes_nothing() {
        let mut tracker = Tracker::default();
        let before = applied(&mut tracker, &state(NEW, b"0,"));
        for packed in [&b"2,"[..], b"", b"1,1,1,1,1,99:/a", b"1,1,1,1,1,-4:/a", b"1,1,0,1,5,"] {
            assert!(tracker.apply(&RawState::new(packed.to_vec()), &Fake).is_err());
        }
        assert_eq!(applied(&mut tracker, &state(SAME, b"0,")), before);
    }
}
