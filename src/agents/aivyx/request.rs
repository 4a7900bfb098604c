//! The request file of aivyx-coder: found, trusted or not, and understood.
//!
//! Blocking file calls, used by `approvals` on tokio's blocking threads. aivyx writes the file in
//! place and sets its mode afterwards, so a reader may meet half of it: that is told apart from a
//! file that is whole and wrong.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::files;
use crate::review::Kind;
use crate::review::text::OldText;

/// Larger requests are left to the terminal, in bytes.
pub(super) const MAX_REQUEST: u64 = 64 << 20;

/// Write permission for anybody but the owner.
const OTHERS_WRITE: Mode = Mode::WGRP.union(Mode::WOTH);

/// Tells one state of a file from another without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

impl Stamp {
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // other types on other systems
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: stat.st_size,
            // Not the time of the last write: a change of mode must count too.
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }
}

/// Which question it is: the same id with another content is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// aivyx's UUID for it; not empty.
    pub(super) id: String,
    content: u64,
}

impl Question {
    fn new(id: String, bytes: &[u8]) -> Self {
        // Keyed by chance, so that nobody finds two contents that look the same.
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self { id, content: KEY.hash_one(bytes) }
    }
}

/// A request that can be shown.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) question: Question,
    pub(super) kind: Kind,
    /// When the file was written.
    pub(super) asked: SystemTime,
}

/// What is found at a request's path.
#[derive(Debug)]
pub(super) enum Found {
    /// No file.
    Nothing,
    /// As it was when `known` was taken.
    Same,
    /// Perhaps still being written: look again soon.
    Partial(Stamp),
    /// Not for us, and why.
    Refused(Option<Stamp>, String),
    Whole(Stamp, Box<Request>),
}

/// Looks for the request named `name` in `dir`. `known`: the state that was dealt with already.
/// `root` is the working directory of the aivyx that asks.
pub(super) fn look(dir: &Path, name: &str, root: &Path, known: Option<&Stamp>) -> Found {
    let dir = match open_trusted(dir) {
        Ok(Some(dir)) => dir,
        Ok(None) => return Found::Nothing,
        Err(why) => return Found::Refused(None, why),
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // Relative to the directory that was checked, so that nobody swaps it in between.
    let file = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Found::Nothing,
        Err(Errno::LOOP) => return Found::Refused(None, "it is a symbolic link".to_owned()),
        Err(error) => return Found::Refused(None, error.to_string()),
    };
    let stat = match rustix::fs::fstat(&file) {
        Ok(stat) => stat,
        Err(error) => return Found::Refused(None, error.to_string()),
    };
    let stamp = Stamp::of(&stat);
    if known == Some(&stamp) {
        return Found::Same;
    }
    let refused = |why: &str| Found::Refused(Some(stamp.clone()), why.to_owned());
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refused("it is not a regular file");
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return refused("it belongs to another user");
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(OTHERS_WRITE) {
        // Under a generous umask, for the moment between writing and chmod.
        return Found::Partial(stamp);
    }
    let mut bytes = Vec::new();
    match File::from(file).take(MAX_REQUEST + 1).read_to_end(&mut bytes) {
        Ok(read) if read as u64 > MAX_REQUEST => return refused("it is larger than 64 MiB"),
        Ok(_) => {}
        Err(error) => return refused(&error.to_string()),
    }
    match parse(&bytes, root) {
        Ok((id, kind)) => {
            let (question, asked) = (Question::new(id, &bytes), modified(&stat));
            Found::Whole(stamp, Box::new(Request { question, kind, asked }))
        }
        Err(Unusable::Incomplete) => Found::Partial(stamp),
        Err(Unusable::Wrong(why)) => refused(&why),
    }
}

/// The directory, opened, if only the user can put files there. `Ok(None)`: there is none.
fn open_trusted(dir: &Path) -> Result<Option<OwnedFd>, String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(dir, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", dir.display())),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|error| error.to_string())?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(format!("{} belongs to another user", dir.display()));
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(OTHERS_WRITE) {
        let dir = dir.display();
        return Err(format!("others can write to {dir}; `chmod go-w` it"));
    }
    Ok(Some(fd))
}

#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // other types on other systems
fn modified(stat: &Stat) -> SystemTime {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let nanos = u32::try_from(stat.st_mtime_nsec as i64).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)
}

#[derive(Debug, PartialEq, Eq)]
enum Unusable {
    Incomplete,
    Wrong(String),
}

/// All kinds in one: which fields there must be depends on `action_kind`. Unknown fields are
/// fine (`will_delete` is one: it says nothing that `delete` does not).
#[derive(Deserialize)]
struct Raw {
    request_id: String,
    target: String,
    action_kind: String,
    old_content: Option<String>,
    new_content: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    description: Option<String>,
}

fn parse(bytes: &[u8], root: &Path) -> Result<(String, Kind), Unusable> {
    // Three steps, so that a future version is called that and not broken.
    let wrong = |why: String| Unusable::Wrong(why);
    if serde_json::from_slice::<IgnoredAny>(bytes).is_err() {
        return Err(Unusable::Incomplete);
    }
    #[derive(Deserialize)]
    struct Version {
        schema_version: u64,
    }
    match serde_json::from_slice::<Version>(bytes) {
        Ok(Version { schema_version: 1 }) => {}
        Ok(Version { schema_version }) => {
            return Err(wrong(format!("its schema version is {schema_version}, not 1")));
        }
        Err(error) => return Err(wrong(error.to_string())),
    }
    let raw: Raw = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    if raw.request_id.trim().is_empty() {
        return Err(wrong("its request_id is empty".to_owned()));
    }
    let missing = |field: &str| wrong(format!("a {} without {field}", raw.action_kind));
    let kind = match raw.action_kind.as_str() {
        "write" | "delete" => {
            let path = PathBuf::from(&raw.target);
            if !path.is_absolute() {
                return Err(wrong("its target is not an absolute path".to_owned()));
            }
            let old = raw.old_content.ok_or_else(|| missing("old_content"))?;
            if raw.action_kind == "delete" {
                Kind::Delete { old: on_disk(&path, old), path }
            } else {
                let new: Arc<str> = raw.new_content.ok_or_else(|| missing("new_content"))?.into();
                Kind::Write { old: on_disk(&path, old), old_path: path.clone(), path, new }
            }
        }
        "execute" => Kind::Command {
            program: raw.command.ok_or_else(|| missing("command"))?,
            args: raw.args.ok_or_else(|| missing("args"))?,
            cwd: Some(root.to_path_buf()),
        },
        "mcp_tool" => Kind::Tool {
            description: raw.description.ok_or_else(|| missing("description"))?,
            target: raw.target,
        },
        other => return Err(wrong(format!("its action_kind {other:?} is unknown"))),
    };
    Ok((raw.request_id, kind))
}

/// The left pane: what the file holds now, since that is what will be lost, even where it has
/// changed since aivyx read it. `told`, aivyx's own copy, where the file cannot be read as UTF-8;
/// an empty one stands for a file that is not there yet.
fn on_disk(path: &Path, told: String) -> OldText {
    match files::read_plain(path, MAX_REQUEST).map(String::from_utf8) {
        Ok(Ok(text)) => {
            if text != told {
                tracing::info!("{} has changed since aivyx-coder read it", path.display());
            }
            OldText::new(&text)
        }
        Err(error) if error.is_missing() && told.is_empty() => OldText::Missing,
        _ => OldText::new(&told),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(body: &serde_json::Value) -> Result<(String, Kind), Unusable> {
        parse(body.to_string().as_bytes(), Path::new("/project"))
    }

    #[test]
    fn every_kind_is_understood() {
        let body = |kind: &str, content: serde_json::Value| {
            let mut body = json!({ "schema_version": 1, "request_id": "u", "target": "/nowhere/x",
                "action_kind": kind, "extra": [1] });
            body.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
            body
        };
        let (id, kind) =
            read(&body("write", json!({ "old_content": "a", "new_content": "b" }))).unwrap();
        assert_eq!(id, "u");
        assert!(matches!(kind, Kind::Write { old: OldText::Text { text, .. }, new, .. }
            if &*text == "a" && &*new == "b"));
        let new = read(&body("write", json!({ "old_content": "", "new_content": "b" })));
        assert!(matches!(new.unwrap().1, Kind::Write { old: OldText::Missing, .. }));
        let delete = read(&body("delete", json!({ "old_content": "a", "will_delete": true })));
        assert!(matches!(delete.unwrap().1, Kind::Delete { .. }));
        let execute = read(&body("execute", json!({ "command": "rm", "args": ["-r", "a b"] })));
        assert!(matches!(execute.unwrap().1, Kind::Command { program, args, cwd }
            if program == "rm" && args == ["-r", "a b"] && cwd == Some("/project".into())));
        let tool = read(&body("mcp_tool", json!({ "description": "d" })));
        assert!(matches!(tool.unwrap().1, Kind::Tool { description, .. } if description == "d"));
        for (kind, content, why) in [
            ("write", json!({ "old_content": "a" }), "new_content"),
            ("delete", json!({}), "old_content"),
            ("execute", json!({ "command": "rm" }), "args"),
            ("execute", json!({ "command": "rm", "args": "x" }), "invalid type"),
            ("mcp_tool", json!({}), "description"),
            ("teleport", json!({}), "teleport"),
            ("write", json!({ "target": "a", "old_content": "", "new_content": "" }), "absolute"),
            ("mcp_tool", json!({ "description": "d", "request_id": 5 }), "invalid type"),
            ("mcp_tool", json!({ "description": "d", "request_id": "" }), "empty"),
            ("mcp_tool", json!({ "description": "d", "schema_version": 2 }), "version is 2"),
        ] {
            match read(&body(kind, content)) {
                Err(Unusable::Wrong(said)) => assert!(said.contains(why), "{said}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
    }

    #[test]
    fn half_a_file_is_not_a_wrong_file() {
        let body = json!({ "schema_version": 1, "request_id": "é", "target": "t",
            "action_kind": "mcp_tool", "description": "d" })
        .to_string();
        for end in 0..body.len() {
            let half = parse(&body.as_bytes()[..end], Path::new("/"));
            assert_eq!(half.err(), Some(Unusable::Incomplete), "{end}");
        }
    }

    #[test]
    fn only_files_of_the_user_in_a_directory_of_the_user_count() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("approval");
        std::fs::create_dir(&dir).unwrap();
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        chmod(&dir, 0o700);
        let look = |known: Option<&Stamp>| look(&dir, "r.json", Path::new("/"), known);
        assert!(matches!(look(None), Found::Nothing));
        let file = dir.join("r.json");
        let body = json!({ "schema_version": 1, "request_id": "u", "target": "t",
            "action_kind": "mcp_tool", "description": "d" });
        std::fs::write(&file, body.to_string()).unwrap();
        chmod(&file, 0o600);
        let Found::Whole(stamp, request) = look(None) else { panic!("not seen") };
        assert_eq!(request.question.id, "u");
        assert!(request.asked.elapsed().unwrap() < Duration::from_secs(60));
        assert!(matches!(look(Some(&stamp)), Found::Same));
        chmod(&file, 0o620);
        assert!(matches!(look(Some(&stamp)), Found::Partial(_)), "a change of mode is seen");
        chmod(&file, 0o600);
        for mode in [0o777, 0o770, 0o702] {
            chmod(&dir, mode);
            assert!(matches!(look(None), Found::Refused(..)), "{mode:o}");
        }
        chmod(&dir, 0o755);
        assert!(matches!(look(None), Found::Whole(..)));
        std::fs::rename(&file, temp.path().join("else.json")).unwrap();
        std::os::unix::fs::symlink(temp.path().join("else.json"), &file).unwrap();
        assert!(matches!(look(None), Found::Refused(..)));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(matches!(look(None), Found::Refused(..)));
        std::fs::remove_dir(&file).unwrap();
        std::fs::File::create(&file).unwrap().set_len(MAX_REQUEST + 1).unwrap();
        chmod(&file, 0o600);
        assert!(matches!(look(None), Found::Refused(_, why) if why.contains("64 MiB")));
        if rustix::process::geteuid().is_root() {
            std::fs::write(&file, body.to_string()).unwrap();
            std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
            assert!(matches!(look(None), Found::Refused(_, why) if why.contains("another user")));
        }
    }

    #[test]
    fn the_left_side_is_what_is_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        std::fs::write(&path, "now\n").unwrap();
        assert_eq!(on_disk(&path, "then\n".into()), OldText::new("now\n"));
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(on_disk(&path, "then\n".into()), OldText::new("then\n"));
        assert_eq!(on_disk(&dir.path().join("b"), String::new()), OldText::Missing);
        assert_eq!(on_disk(&dir.path().join("b"), "told".into()), OldText::new("told"));
    }

    #[test]
    fn fuzz_request_any_bytes_are_a_request_or_are_not() {
        crate::fuzz::run("request", |bytes| {
            let whole = serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
            match parse(bytes, Path::new("/project")) {
                Err(Unusable::Incomplete) => prop_assert!(!whole),
                Err(Unusable::Wrong(why)) => prop_assert!(whole && !why.is_empty()),
                Ok((id, kind)) => {
                    prop_assert!(whole && !id.trim().is_empty());
                    if let Kind::Write { path, .. } | Kind::Delete { path, .. } = kind {
                        prop_assert!(path.is_absolute());
                    }
                }
            }
            Ok(())
        });
    }
}
