//! Rivumi's snapshot files, read back as strictly as its own reader does: whatever
//! the editor holds, nothing we write is ever refused.
// Clippy lets tests unwrap, but not the helpers beside them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use gangway::agents::Enabled;
use gangway::agents::rivumi::push::{PushUrl, push};
use gangway::agents::rivumi::snapshots::{Payload, SnapshotFiles};
use gangway::agents::rivumi::{Rivumi, RivumiConfig};
use gangway::context::{
    ActiveFile, Code, Diagnostic, OpenFile, Position, Range, Root, Selection, Severity, Snapshot,
};
use proptest::prelude::*;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::time::sleep;

// --------------------------------------------------------------------------- the strict reader

type Checked<T = ()> = Result<T, String>;

fn need(condition: bool, why: &str) -> Checked {
    if condition { Ok(()) } else { Err(why.to_owned()) }
}

fn object<'a>(value: &'a Value, keys: &[&str]) -> Checked<&'a Map<String, Value>> {
    let object = value.as_object().ok_or("not an object")?;
    let unknown: Vec<_> = object.keys().filter(|key| !keys.contains(&key.as_str())).collect();
    need(unknown.is_empty(), &format!("unknown keys {unknown:?}"))?;
    Ok(object)
}

fn position(value: &Value) -> Checked<(u64, u64)> {
    let object = object(value, &["line", "character"])?;
    let number = |key: &str| object.get(key).and_then(Value::as_u64).ok_or("no whole number");
    Ok((number("line")?, number("character")?))
}

fn range(value: &Value) -> Checked {
    let object = object(value, &["start", "end"])?;
    let at = |key: &str| position(object.get(key).unwrap_or(&Value::Null));
    need(at("start")? <= at("end")?, "reversed")
}

fn text(value: &Value, least: usize, most: usize) -> Checked<String> {
    let text = value.as_str().ok_or("not a string")?;
    need((least..=most).contains(&text.chars().count()), "length")?;
    need(!text.contains('\0'), "NUL")?;
    // What Python's strip() leaves of it; then it must still say something.
    let strip = |c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
    let stripped = text.trim_matches(strip);
    need(stripped.chars().count() >= least, "empty")?;
    Ok(stripped.to_owned())
}

/// Python's `Path.resolve(strict=False)`: links are followed as far as there is anything.
fn resolve(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => {
                out.push(part);
                if let Ok(to) = std::fs::read_link(&out) {
                    out.pop();
                    out = resolve(&out.join(to));
                }
            }
        }
    }
    out
}

fn path(value: &Value, root: &Path) -> Checked {
    let written = value.as_str().ok_or("no path")?;
    let name = text(value, 1, 512)?;
    need(name == written, "another file by strip()")?;
    need(!name.starts_with("file:"), "taken for a URI")?;
    let drive = name.chars().nth(1) == Some(':');
    need(!drive && !name.starts_with("\\\\"), "a Windows path")?;
    need(!Path::new(&name).is_absolute(), "absolute: fine for Rivumi, but not what we send")?;
    let climbs = name.starts_with("../") || name.contains("/../") || name == "..";
    need(!climbs && name != ".", "climbs")?;
    need(resolve(&root.join(&name)).starts_with(resolve(root)), "leads outside")
}

fn list(bytes: &[u8], key: &str, most: usize, limit: usize) -> Checked<Vec<Value>> {
    need(bytes.len() <= limit, "too many bytes")?;
    let json: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    need(json.get("uri").is_none(), "a uri for all")?;
    let list = json.get(key).and_then(Value::as_array).ok_or("no list")?;
    need(list.len() <= most, "too many items")?;
    Ok(list.clone())
}

fn read_diagnostics(bytes: &[u8], root: &Path) -> Checked<Vec<Value>> {
    let items = list(bytes, "diagnostics", 200, 256 * 1024)?;
    for item in &items {
        let keys = ["path", "range", "message", "severity", "source", "code"];
        let object = object(item, &keys)?;
        path(object.get("path").unwrap_or(&Value::Null), root)?;
        range(object.get("range").unwrap_or(&Value::Null))?;
        text(object.get("message").unwrap_or(&Value::Null), 1, 2000)?;
        if let Some(severity) = object.get("severity") {
            need(severity.as_u64().is_some_and(|n| (1..=4).contains(&n)), "severity")?;
        }
        if let Some(source) = object.get("source") {
            text(source, 0, 128)?;
        }
        match object.get("code") {
            None | Some(Value::Null) => {}
            Some(code) if code.is_i64() || code.is_u64() => {}
            Some(code) => {
                text(code, 0, 128)?;
            }
        }
    }
    let severity = |item: &Value| item["severity"].as_u64();
    need(items.is_sorted_by_key(severity), "errors are not first")?;
    Ok(items)
}

fn read_open_files(bytes: &[u8], root: &Path) -> Checked<Vec<Value>> {
    let items = list(bytes, "files", 32, 128 * 1024)?;
    for item in &items {
        let object = object(item, &["path", "uri", "active", "cursor", "selection"])?;
        path(object.get("path").unwrap_or(&Value::Null), root)?;
        need(object.get("active").is_none_or(Value::is_boolean), "active")?;
        if let Some(cursor) = object.get("cursor") {
            position(cursor)?;
        }
        if let Some(selection) = object.get("selection") {
            range(selection)?;
        }
    }
    Ok(items)
}

#[test]
fn the_reader_refuses_what_rivumi_refuses() {
    let root = Path::new("/nowhere");
    let good = "{\"path\":\"a\",\"range\":{\"start\":{\"line\":1,\"character\":0},\
        \"end\":{\"line\":1,\"character\":0}},\"message\":\"m\",\"severity\":1}";
    let read =
        |item: &str| read_diagnostics(format!("{{\"diagnostics\":[{item}]}}").as_bytes(), root);
    assert!(read(good).is_ok());
    for (from, to) in [
        ("\"a\"", "\"../a\""),
        ("\"a\"", "\"/etc/hosts\""),
        ("\"a\"", "\" a\""),
        ("\"a\"", "\"file:a\""),
        ("\"a\"", "\"c:a\""),
        ("\"a\"", "\"\""),
        ("\"line\":1,\"character\":0}}", "\"line\":0,\"character\":0}}"),
        ("\"line\":1", "\"line\":-1"),
        ("\"m\"", "\"\""),
        ("\"m\"", "\"x\\u0000\""),
        ("\"severity\":1", "\"severity\":5"),
        ("\"severity\":1", "\"tags\":[]"),
        ("\"severity\":1", "\"uri\":\"file:///nowhere/a\""),
    ] {
        assert!(good.contains(from), "{from}");
        assert!(read(&good.replacen(from, to, 1)).is_err(), "{from} -> {to}");
    }
}

// ------------------------------------------------------------------------- random snapshots

/// Anything a buffer, a language server or a file system may come up with.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => ".{0,40}",
        3 => "[ \\t\\n\u{0}\u{1c}\u{85}\u{a0}\u{3000}a]{0,8}",
        1 => ("[a\u{0}é💥\"\\\\\u{7}]", 1_usize..3000).prop_map(|(text, n)| text.repeat(n)),
    ]
}

fn any_position() -> impl Strategy<Value = Position> {
    prop_oneof![(0_u32..5, 0_u32..5), (any::<u32>(), any::<u32>())]
        .prop_map(|(line, character)| Position { line, character })
}

fn any_range() -> impl Strategy<Value = Range> {
    (any_position(), any_position()).prop_map(|(start, end)| Range { start, end })
}

/// Below the root, beside it, through links, and with names no sane person gives.
fn any_path(root: PathBuf) -> impl Strategy<Value = PathBuf> {
    let part = prop_oneof![
        6 => "[a-c]{1,3}",
        1 => Just("..".to_owned()),
        1 => Just("out".to_owned()),
        1 => Just("in".to_owned()),
        1 => Just("loop".to_owned()),
        1 => Just("dangling".to_owned()),
        2 => "[^/\u{0}]{1,12}",
        1 => "(file:|c:|\\\\| |\u{a0}|\n|~)[a-z ]{0,3}",
        1 => "[xé]{100,300}",
    ];
    (0..10_u8, proptest::collection::vec(part, 1..5)).prop_map(move |(base, parts)| {
        let base = match base {
            0 => PathBuf::from("/"),
            1 => root.parent().unwrap().join("root-sibling"),
            2 => root.parent().unwrap().join("alias"),
            _ => root.clone(),
        };
        parts.iter().fold(base, |path, part| path.join(part))
    })
}

fn any_diagnostic() -> impl Strategy<Value = Diagnostic> {
    let severity = prop_oneof![
        Just(Severity::Error),
        Just(Severity::Warning),
        Just(Severity::Info),
        Just(Severity::Hint)
    ];
    let code = prop_oneof![
        Just(None),
        any::<i64>().prop_map(|n| Some(Code::Number(n))),
        any_text().prop_map(|text| Some(Code::Text(text))),
    ];
    (any_range(), severity, any_text(), proptest::option::of(any_text()), code).prop_map(
        |(range, severity, message, source, code)| Diagnostic {
            range,
            severity,
            message,
            source,
            code,
        },
    )
}

fn any_snapshot(root: PathBuf) -> impl Strategy<Value = Snapshot> {
    let file = (any_path(root.clone()), any::<bool>(), any_position()).prop_map(
        |(path, visible, cursor)| OpenFile {
            path,
            language: String::new(),
            active: false,
            visible,
            modified: false,
            last_visited: 1,
            cursor,
        },
    );
    let list = proptest::collection::vec(any_diagnostic(), 0..12);
    let active = (any_path(root.clone()), any_position(), proptest::option::of(any_range()));
    (
        proptest::option::of(active),
        proptest::collection::vec(file, 0..50),
        proptest::collection::vec((any_path(root.clone()), list, 1..40_usize), 0..8),
    )
        .prop_map(move |(active, files, diagnostics)| {
            let mut by_path: BTreeMap<PathBuf, Arc<[Diagnostic]>> = BTreeMap::new();
            for (path, list, times) in diagnostics {
                let many: Vec<_> = list.iter().cycle().take(list.len() * times).cloned().collect();
                by_path.insert(path, many.into());
            }
            let alias = root.parent().unwrap().join("alias");
            Snapshot {
                sharing: true,
                active: active.map(|(path, cursor, range)| ActiveFile {
                    path,
                    language: String::new(),
                    modified: false,
                    cursor,
                    selection: range.map(|range| Selection {
                        range,
                        text: "".into(),
                        truncated: false,
                    }),
                }),
                files,
                diagnostics: by_path,
                roots: vec![Root { path: alias, real: root.clone() }],
                focused: true,
            }
        })
}

fn playground() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let root = base.join("root");
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::create_dir_all(root.join(".rivumi/ide")).unwrap();
    let link = |to: &Path, name: &str| {
        std::os::unix::fs::symlink(to, root.join(name)).unwrap();
    };
    link(&base, "out");
    link(&root.join("a"), "in");
    link(Path::new("loop"), "loop");
    link(Path::new("/nowhere/at/all"), "dangling");
    std::os::unix::fs::symlink(&root, base.join("alias")).unwrap();
    (dir, root)
}

#[test]
fn x11_whatever_the_editor_holds_rivumi_takes_it() {
    let (_dir, root) = playground();
    let mut runner = proptest::test_runner::TestRunner::default();
    runner
        .run(&any_snapshot(root.clone()), |snapshot| {
            let mut files = SnapshotFiles::new(Enabled::Auto, None);
            files.update(&snapshot);
            let read = |name: &str| std::fs::read(root.join(".rivumi/ide").join(name)).unwrap();
            let diagnostics = read_diagnostics(&read("diagnostics.json"), &root);
            let open_files = read_open_files(&read("open-files.json"), &root);
            prop_assert!(diagnostics.is_ok(), "diagnostics: {:?}", diagnostics);
            prop_assert!(open_files.is_ok(), "open files: {:?}", open_files);
            let active: Vec<_> =
                open_files.unwrap().into_iter().filter(|file| file["active"] == true).collect();
            prop_assert!(active.len() <= 1);
            Ok(())
        })
        .unwrap();
}

// --------------------------------------------------------------------------------- its life

fn snapshot(root: &Path, line: u32) -> Arc<Snapshot> {
    let active = ActiveFile {
        path: root.join("a.rs"),
        language: String::new(),
        modified: false,
        cursor: Position::new(line, 0),
        selection: None,
    };
    Arc::new(Snapshot {
        sharing: true,
        active: Some(active),
        roots: vec![Root { path: root.into(), real: root.into() }],
        focused: true,
        ..Snapshot::default()
    })
}

fn line(root: &Path) -> Option<u64> {
    let bytes = std::fs::read(root.join(".rivumi/ide/open-files.json")).ok()?;
    read_open_files(&bytes, root).unwrap().first()?["cursor"]["line"].as_u64()
}

#[tokio::test(start_paused = true)]
async fn files_are_written_in_quiet_moments() {
    let (_dir, root) = playground();
    let (sender, receiver) = watch::channel(snapshot(&root, 0));
    let rivumi = Rivumi::start(RivumiConfig::default(), receiver);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(rivumi.status().directories, [root.join(".rivumi/ide")]);
    assert_eq!(line(&root), Some(0));
    for n in 1..=8 {
        sender.send_replace(snapshot(&root, n));
        sleep(Duration::from_millis(900)).await;
        assert_eq!(line(&root), Some(0), "not while the user moves");
    }
    sleep(Duration::from_millis(150)).await;
    assert_eq!(line(&root), Some(8));
    // It never becomes quiet.
    for n in 9..=30 {
        sender.send_replace(snapshot(&root, n));
        sleep(Duration::from_millis(500)).await;
    }
    assert!(line(&root).unwrap() > 8);
    let off = Snapshot { roots: snapshot(&root, 0).roots.clone(), ..Snapshot::default() };
    sender.send_replace(Arc::new(off));
    sleep(Duration::from_millis(50)).await;
    assert_eq!(line(&root), None, "switched off: at once");
    sender.send_replace(snapshot(&root, 1));
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(line(&root), Some(1));
    rivumi.stop().await;
    assert_eq!(line(&root), None, "emptied at exit");
    assert!(root.join(".rivumi/ide/open-files.json").exists());
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_appears_is_noticed() {
    let (_dir, root) = playground();
    std::fs::remove_dir_all(root.join(".rivumi")).unwrap();
    let (_sender, receiver) = watch::channel(snapshot(&root, 4));
    let _rivumi = Rivumi::start(RivumiConfig::default(), receiver);
    sleep(Duration::from_secs(10)).await;
    assert!(!root.join(".rivumi").exists());
    std::fs::create_dir(root.join(".rivumi")).unwrap();
    sleep(Duration::from_secs(4)).await;
    assert_eq!(line(&root), Some(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_is_pushed_and_the_connection_closed() {
    let (_dir, root) = playground();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/v1/conversation/attach", listener.local_addr().unwrap());
    let (_sender, receiver) = watch::channel(snapshot(&root, 7));
    let config = RivumiConfig {
        websocket_url: Some(PushUrl::parse(&url).unwrap()),
        ..RivumiConfig::default()
    };
    let _rivumi = Rivumi::start(config, receiver);
    let (stream, _) =
        tokio::time::timeout(Duration::from_secs(3), listener.accept()).await.unwrap().unwrap();
    let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
    let message = socket.next().await.unwrap().unwrap().into_text().unwrap();
    let json: Value = serde_json::from_str(&message).unwrap();
    assert_eq!(json["type"], "ide_context");
    assert_eq!(json["open_files"]["files"][0]["cursor"]["line"], 7);
    assert!(json["diagnostics"]["diagnostics"].as_array().unwrap().is_empty());
    assert!(socket.next().await.unwrap().unwrap().is_close());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_given_up_after_a_second() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = PushUrl::parse(&format!("ws://{}/", listener.local_addr().unwrap())).unwrap();
    let begun = std::time::Instant::now();
    assert!(push(&url, "{}".to_owned()).await.is_err());
    assert!(begun.elapsed() < Duration::from_millis(1500));
    assert_eq!(Payload::nothing().open_files, "{\"files\":[]}\n");
}
