//! aivyx-coder as a stand-in that behaves as its contract says: it writes requests in place and
//! sets their mode afterwards, looks for a response every 250 ms, and removes both files once it
//! has an answer from anywhere. Driven through decisions, races and faults.
// Clippy lets tests unwrap, but not the helpers beside them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use gangway::agents::Enabled;
use gangway::agents::aivyx::key::project_key;
use gangway::agents::aivyx::{Aivyx, AivyxConfig};
use gangway::context::{ActiveFile, OpenFile, Position, Root, Snapshot};
use gangway::review::desk::Desk;
use gangway::review::{Kind, Review, Verdict};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn accept() -> Verdict {
    Verdict::Accept { text: "".into() }
}

fn root(path: &Path) -> Root {
    Root { path: path.into(), real: path.into() }
}

/// The agent's side.
struct Agent {
    dir: PathBuf,
    key: String,
}

impl Agent {
    fn new(state: &Path, cwd: &Path) -> Self {
        Self { dir: state.join("editor-approval"), key: project_key(&cwd.canonicalize().unwrap()) }
    }

    fn request(&self) -> PathBuf {
        self.dir.join(format!("{}-request.json", self.key))
    }

    fn response(&self) -> PathBuf {
        self.dir.join(format!("{}-response.json", self.key))
    }

    fn body(id: &str) -> Value {
        json!({ "schema_version": 1, "request_id": id, "target": "/nowhere/a.txt",
            "action_kind": "write", "old_content": "one\n", "new_content": "two\n" })
    }

    /// In place, then the mode: what aivyx does.
    fn write(&self, body: &Value) {
        std::fs::create_dir_all(&self.dir).unwrap();
        std::fs::write(self.request(), body.to_string()).unwrap();
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.request(), private).unwrap();
    }

    fn ask(&self, id: &str) {
        self.write(&Self::body(id));
    }

    /// What aivyx does until it has its answer.
    async fn poll(&self, id: &str, patience: Duration) -> Option<String> {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if let Ok(bytes) = std::fs::read(self.response())
                && let Ok(json) = serde_json::from_slice::<Value>(&bytes)
                && json["schema_version"] == 1
                && json["request_id"] == id
            {
                return json["decision"].as_str().map(str::to_owned);
            }
            sleep(ms(250)).await;
        }
        None
    }

    /// Anybody has answered.
    fn resolve(&self) {
        let _ = std::fs::remove_file(self.request());
        let _ = std::fs::remove_file(self.response());
    }
}

/// The editor's side, without an editor.
struct Editor {
    dir: tempfile::TempDir,
    desk: Desk,
    sender: watch::Sender<Arc<Snapshot>>,
    aivyx: Aivyx,
}

impl Editor {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut AivyxConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("project")).unwrap();
        std::fs::create_dir(dir.path().join("state")).unwrap();
        Self::open(dir, change)
    }

    fn open(dir: tempfile::TempDir, change: impl FnOnce(&mut AivyxConfig)) -> Self {
        let base = dir.path().canonicalize().unwrap();
        let roots = vec![root(&base.join("project"))];
        let (sender, receiver) = watch::channel(Arc::new(Snapshot {
            sharing: true,
            roots,
            focused: true,
            ..Snapshot::default()
        }));
        let mut config = AivyxConfig {
            enabled: Enabled::On,
            state_dir: Some(base.join("state")),
            ..AivyxConfig::default()
        };
        change(&mut config);
        let desk = Desk::default();
        let aivyx = Aivyx::start(config, desk.clone(), receiver);
        Self { dir, desk, sender, aivyx }
    }

    fn base(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    fn agent(&self) -> Agent {
        Agent::new(&self.base().join("state"), &self.base().join("project"))
    }

    fn ids(&self) -> Vec<String> {
        self.desk.pending().iter().map(|(review, _)| review.id.to_string()).collect()
    }

    async fn until(&self, ids: &[&str]) {
        let end = Instant::now() + Duration::from_secs(6);
        while self.ids() != ids {
            assert!(Instant::now() < end, "wanted {ids:?}, pending {:?}", self.ids());
            sleep(ms(10)).await;
        }
    }

    async fn shown(&self, id: &str) -> Arc<Review> {
        self.until(&[id]).await;
        Arc::clone(&self.desk.pending()[0].0)
    }

    fn decide(&self, id: &str, verdict: Verdict) -> bool {
        self.desk.decide(&gangway::review::ReviewId(id.into()), verdict)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x08_each_decision_reaches_the_agent_and_only_it() {
    let editor = Editor::new();
    let agent = editor.agent();
    let kinds = [
        json!({ "action_kind": "write", "old_content": "", "new_content": "x" }),
        json!({ "action_kind": "delete", "old_content": "x", "will_delete": true }),
        json!({ "action_kind": "execute", "command": "rm", "args": ["-r", "a b"], "target": "rm" }),
        json!({ "action_kind": "mcp_tool", "description": "find", "target": "search" }),
    ];
    let verdicts = [
        (accept(), "allow"),
        (Verdict::Reject, "deny"),
        (Verdict::AlwaysAllow, "always_allow"),
        (accept(), "allow"),
    ];
    for (number, (kind, (verdict, word))) in kinds.into_iter().zip(verdicts).enumerate() {
        let id = format!("id-{number}");
        let mut body = Agent::body(&id);
        body.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
        agent.write(&body);
        let review = editor.shown(&id).await;
        assert_eq!(&*review.origin, "aivyx-coder");
        assert!(!review.editable && review.can_always);
        if let Kind::Command { cwd, .. } = &review.kind {
            assert_eq!(cwd.as_deref(), Some(&*editor.base().join("project")));
        }
        assert_eq!(agent.poll(&id, ms(300)).await, None, "answered by itself");
        assert!(editor.decide(&id, verdict));
        assert_eq!(agent.poll(&id, ms(2000)).await.as_deref(), Some(word));
        let json: Value =
            serde_json::from_slice(&std::fs::read(agent.response()).unwrap()).unwrap();
        assert_eq!(json, json!({ "schema_version": 1, "request_id": id, "decision": word }));
        assert_eq!(std::fs::metadata(agent.response()).unwrap().mode() & 0o777, 0o600);
        let names = std::fs::read_dir(&agent.dir).unwrap().count();
        assert_eq!(names, 2, "leftovers");
        sleep(ms(100)).await;
        assert!(editor.desk.is_empty(), "an answered request is not shown again");
        agent.resolve();
    }
    sleep(ms(1700)).await;
    assert!(editor.desk.is_empty());
    editor.aivyx.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_the_view_leaves_the_question_to_the_terminal() {
    let editor = Editor::new();
    let agent = editor.agent();
    agent.ask("a");
    editor.shown("a").await;
    editor.decide("a", Verdict::Dismissed);
    sleep(ms(1800)).await;
    assert!(!agent.response().exists() && agent.request().exists());
    assert!(editor.desk.is_empty(), "shown again");
    agent.resolve();
    agent.ask("b");
    editor.shown("b").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x06_half_a_request_is_read_again_and_a_new_one_replaces_the_old() {
    let editor = Editor::new();
    let agent = editor.agent();
    sleep(ms(100)).await;
    let text = Agent::body("first").to_string();
    std::fs::create_dir_all(&agent.dir).unwrap();
    std::fs::write(agent.request(), "").unwrap();
    sleep(ms(150)).await;
    std::fs::write(agent.request(), &text[..text.len() / 2]).unwrap();
    sleep(ms(400)).await;
    assert!(editor.desk.is_empty());
    agent.ask("first");
    editor.shown("first").await;
    agent.ask("second");
    editor.shown("second").await;
    assert!(editor.decide("second", accept()));
    assert_eq!(agent.poll("second", ms(2000)).await.as_deref(), Some("allow"));
    assert!(!editor.decide("first", accept()), "the old view is gone");
    agent.resolve();
    // A file that never becomes whole is given up, and the next one is seen all the same.
    std::fs::write(agent.request(), "{\"schema_version\":1").unwrap();
    sleep(ms(1200)).await;
    agent.ask("third");
    editor.shown("third").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_already_is_shown_with_its_age() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("project")).unwrap();
    let agent = Agent::new(&dir.path().join("state"), &dir.path().join("project"));
    agent.ask("old");
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::open(agent.request()).unwrap().set_modified(hour_ago).unwrap();
    std::fs::set_permissions(&agent.dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let editor = Editor::open(dir, |_| {});
    let review = editor.shown("old").await;
    let off = review.asked.duration_since(hour_ago).unwrap_or_else(|error| error.duration());
    assert!(off < Duration::from_secs(1), "{off:?}");
    assert_eq!(agent.poll("old", ms(600)).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_verdict_writes_nothing() {
    let editor = Editor::new();
    let agent = editor.agent();
    // Answered in the terminal, long before and a moment before the key.
    agent.ask("a");
    editor.shown("a").await;
    agent.resolve();
    editor.until(&[]).await;
    assert!(!editor.decide("a", accept()));
    for round in 0..20 {
        let id = format!("race-{round}");
        agent.ask(&id);
        editor.shown(&id).await;
        agent.resolve();
        editor.decide(&id, accept());
        editor.until(&[]).await;
        sleep(ms(20)).await;
        assert!(!agent.response().exists(), "round {round}");
    }
    // Another request took its place a moment before the key.
    agent.ask("b");
    editor.shown("b").await;
    agent.ask("c");
    editor.decide("b", accept());
    editor.shown("c").await;
    assert!(!agent.response().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_text_under_the_same_id_is_another_question() {
    let editor = Editor::new();
    let agent = editor.agent();
    let ask = |text: &str| {
        let mut body = Agent::body("same");
        body["new_content"] = json!(text);
        agent.write(&body);
    };
    let proposed = |text: &str| {
        let pending = editor.desk.pending();
        let found = pending.iter().find(|(review, _)| &*review.kind.proposed() == text);
        (pending.len() == 1).then_some(found)?.map(|(review, _)| review.id.0.to_string())
    };
    let shown = async |text: &str| {
        let end = Instant::now() + ms(4000);
        while proposed(text).is_none() {
            assert!(Instant::now() < end, "{text:?} is not shown");
            sleep(ms(5)).await;
        }
        proposed(text).unwrap()
    };
    ask("harmless\n");
    shown("harmless\n").await;
    ask("evil\n");
    // A moment before the key, and long before it.
    editor.decide("same", accept());
    let id = shown("evil\n").await;
    assert!(!agent.response().exists(), "answered unseen");
    ask("worse\n");
    let last = shown("worse\n").await;
    assert!(!editor.decide(&id, accept()), "a key meant for the text before");
    assert!(editor.decide(&last, Verdict::Reject));
    assert_eq!(agent.poll("same", ms(2000)).await.as_deref(), Some("deny"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_in_one_directory() {
    let editor = Editor::new();
    let (a, b) = (editor.agent(), editor.agent());
    a.ask("a");
    editor.shown("a").await;
    b.ask("b");
    editor.shown("b").await;
    assert!(editor.decide("b", Verdict::Reject));
    let (for_a, for_b) = tokio::join!(a.poll("a", ms(800)), b.poll("b", ms(2000)));
    assert_eq!((for_a, for_b.as_deref()), (None, Some("deny")));
    b.resolve();
    // A is answered in its terminal and takes B's next request with it: lost, never answered.
    b.ask("b2");
    editor.shown("b2").await;
    a.resolve();
    editor.until(&[]).await;
    assert!(!b.response().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_nobody_fetches_goes_two_seconds_after_its_request() {
    let editor = Editor::new();
    let agent = editor.agent();
    agent.ask("a");
    editor.shown("a").await;
    editor.decide("a", accept());
    assert_eq!(agent.poll("a", ms(2000)).await.as_deref(), Some("allow"));
    sleep(ms(2300)).await;
    assert!(agent.response().exists(), "the request is still there");
    std::fs::remove_file(agent.request()).unwrap();
    sleep(ms(1500)).await;
    assert!(agent.response().exists());
    sleep(ms(1500)).await;
    assert!(!agent.response().exists());
    // Another's response is not ours to remove.
    agent.ask("b");
    editor.shown("b").await;
    editor.decide("b", accept());
    agent.poll("b", ms(2000)).await.unwrap();
    std::fs::write(agent.response(), json!({ "request_id": "other" }).to_string()).unwrap();
    std::fs::remove_file(agent.request()).unwrap();
    sleep(ms(3000)).await;
    assert!(agent.response().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_neovim_denies_nothing() {
    let editor = Editor::new();
    let agent = editor.agent();
    agent.ask("a");
    editor.shown("a").await;
    editor.aivyx.leave();
    editor.desk.shutdown();
    agent.ask("b");
    sleep(ms(300)).await;
    editor.aivyx.stop().await;
    assert!(agent.request().exists() && !agent.response().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_desk_denies_nothing() {
    let editor = Editor::new();
    let agent = editor.agent();
    sleep(ms(100)).await;
    editor.desk.shutdown();
    agent.ask("a");
    sleep(ms(600)).await;
    assert!(agent.request().exists() && !agent.response().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_just_before_the_end_is_written() {
    for _ in 0..10 {
        let editor = Editor::new();
        let agent = editor.agent();
        agent.ask("a");
        editor.shown("a").await;
        editor.decide("a", Verdict::Reject);
        let begun = Instant::now();
        editor.aivyx.stop().await;
        assert!(begun.elapsed() < ms(300));
        assert_eq!(agent.poll("a", ms(10)).await.as_deref(), Some("deny"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x10_what_is_not_for_us_is_ignored() {
    let editor = Editor::new();
    let agent = editor.agent();
    sleep(ms(100)).await;
    let ignored = async |what: &str| {
        sleep(ms(1000)).await;
        assert_eq!(editor.ids(), Vec::<String>::new(), "{what}: shown");
        assert!(!agent.response().exists(), "{what}: answered");
        agent.resolve();
    };
    for (field, value) in [
        ("schema_version", json!(2)),
        ("schema_version", json!("1")),
        ("action_kind", json!("teleport")),
        ("request_id", json!(5)),
        ("request_id", json!("")),
        ("target", json!("relative.txt")),
    ] {
        let mut body = Agent::body("x");
        body[field] = value;
        agent.write(&body);
        ignored(field).await;
    }
    let elsewhere = editor.base().join("elsewhere.json");
    std::fs::write(&elsewhere, Agent::body("x").to_string()).unwrap();
    symlink(&elsewhere, agent.request()).unwrap();
    ignored("a symbolic link").await;
    Agent { key: project_key(Path::new("/other")), dir: agent.dir.clone() }.ask("x");
    ignored("another project").await;
    for mode in [0o777, 0o770] {
        std::fs::set_permissions(&agent.dir, std::fs::Permissions::from_mode(mode)).unwrap();
        agent.ask("x");
        ignored("a directory others can write to").await;
    }
    std::fs::set_permissions(&agent.dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        agent.ask("x");
        std::os::unix::fs::chown(agent.request(), Some(12345), None).unwrap();
        sleep(ms(100)).await;
        // Seen for a moment as the user's own file, perhaps: as the terminal answers.
        editor.until(&[]).await;
        ignored("another user's file").await;
    }
    agent.ask("good");
    editor.shown("good").await;
    std::fs::set_permissions(&agent.dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    editor.decide("good", accept());
    sleep(ms(300)).await;
    assert!(!agent.response().exists(), "the directory is no longer to be trusted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approvals_can_be_off() {
    let editor = Editor::with(|config| config.approvals = false);
    let agent = editor.agent();
    agent.ask("a");
    sleep(ms(600)).await;
    assert!(editor.desk.is_empty() && !editor.aivyx.status().watching);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_serves_an_aivyx_that_comes_later() {
    let editor = Editor::with(|config| {
        config.enabled = Enabled::Auto;
        config.poll = ms(200);
    });
    let state = editor.base().join("state");
    std::fs::remove_dir(&state).unwrap();
    send(&editor, "a.txt", 0);
    sleep(ms(500)).await;
    assert!(!state.exists(), "nothing is made for an agent that is not there");
    assert!(!editor.aivyx.status().active);
    let agent = editor.agent();
    agent.ask("a");
    editor.shown("a").await;
    assert!(context_file(&editor).exists());
    let status = editor.aivyx.status();
    assert!(status.active && status.watching && status.context_files == 1, "{status:?}");
    // Removed with all in it, and made again.
    std::fs::remove_dir_all(&state).unwrap();
    editor.until(&[]).await;
    agent.ask("b");
    editor.shown("b").await;
    std::fs::remove_dir_all(&agent.dir).unwrap();
    editor.until(&[]).await;
    agent.ask("c");
    editor.shown("c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn off_is_off() {
    let editor = Editor::with(|config| config.enabled = Enabled::Off);
    editor.agent().ask("a");
    send(&editor, "a.txt", 0);
    sleep(ms(400)).await;
    assert!(editor.desk.is_empty() && !context_file(&editor).exists());
    editor.aivyx.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_follow_the_roots() {
    let editor = Editor::new();
    let other = editor.base().join("other");
    std::fs::create_dir(&other).unwrap();
    let agent = Agent::new(&editor.base().join("state"), &other);
    agent.ask("a");
    sleep(ms(300)).await;
    assert!(editor.desk.is_empty());
    let roots = |paths: &[&PathBuf]| {
        let roots = paths.iter().map(|path| root(path)).collect();
        editor.sender.send_modify(|snapshot| Arc::make_mut(snapshot).roots = roots);
    };
    let project = editor.base().join("project");
    roots(&[&project, &other]);
    editor.shown("a").await;
    roots(&[&project]);
    editor.until(&[]).await;
    assert!(!agent.response().exists());
    roots(&[&other]);
    editor.shown("a").await;
    editor.decide("a", accept());
    assert_eq!(agent.poll("a", ms(2000)).await.as_deref(), Some("allow"));
}

// ------------------------------------------------------------------------------------ context

fn context_file(editor: &Editor) -> PathBuf {
    editor.base().join("state/editor-context").join(editor.agent().key + ".json")
}

fn send(editor: &Editor, name: &str, line: u32) {
    let path = editor.base().join("project").join(name);
    let cursor = Position::new(line, 0);
    let language = String::new();
    editor.sender.send_modify(|snapshot| {
        let snapshot = Arc::make_mut(snapshot);
        snapshot.files = vec![OpenFile {
            path: path.clone(),
            language: language.clone(),
            active: true,
            visible: true,
            modified: false,
            last_visited: 1,
            cursor,
        }];
        snapshot.active =
            Some(ActiveFile { path, language, modified: false, cursor, selection: None });
    });
}

/// As aivyx takes it, or why it does not.
fn take(bytes: &[u8]) -> Result<u64, String> {
    let json: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if json["schema_version"] != 1 || !json["workspace_root"].is_string() {
        return Err(format!("fields: {json}"));
    }
    if json["file"] != "a.txt" || json["cursor"]["column"] != 1 {
        return Err(format!("values: {json}"));
    }
    json["cursor"]["line"].as_u64().ok_or_else(|| format!("line: {json}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x04_a_reader_never_sees_half_a_context() {
    let editor = Editor::with(|config| config.debounce = Duration::ZERO);
    let path = context_file(&editor);
    send(&editor, "a.txt", 0);
    while !path.exists() {
        sleep(ms(5)).await;
    }
    let reader = tokio::task::spawn_blocking(move || {
        let (mut seen, mut last, mut checks) = (HashSet::new(), 0, 0);
        while last < 1000 || checks < 1000 {
            let bytes = std::fs::read(&path).expect("always there");
            last = take(&bytes).expect("always whole");
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            seen.insert(last);
            checks += 1;
        }
        seen.len()
    });
    for line in 1..1000 {
        send(&editor, "a.txt", line);
        sleep(ms(1)).await;
    }
    let seen = tokio::time::timeout(Duration::from_secs(30), reader).await.unwrap().unwrap();
    assert!(seen > 100, "{seen} states seen");
    let path = context_file(&editor);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "leftovers");
    editor.aivyx.stop().await;
    assert!(!path.exists(), "removed at exit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_that_cannot_be_written_is_written_later() {
    let editor = Editor::new();
    let path = context_file(&editor);
    let dir = path.parent().unwrap();
    std::fs::write(dir, "in the way").unwrap();
    send(&editor, "a.txt", 0);
    sleep(ms(400)).await;
    std::fs::remove_file(dir).unwrap();
    send(&editor, "a.txt", 1);
    sleep(ms(600)).await;
    assert_eq!(take(&std::fs::read(&path).unwrap()), Ok(2));
    editor.sender.send_modify(|snapshot| {
        let roots = snapshot.roots.clone();
        *snapshot = Arc::new(Snapshot { roots, ..Snapshot::default() });
    });
    let end = Instant::now() + ms(90);
    while path.exists() && Instant::now() < end {
        sleep(ms(5)).await;
    }
    assert!(!path.exists(), "sharing was switched off: at once, not after the debounce");
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_keeps_the_context_alive() {
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_000_000);
    let begun = tokio::time::Instant::now();
    // The blocking threads have no paused clock: the test moves this one.
    let now = Arc::new(std::sync::Mutex::new(wall));
    let clock = Arc::clone(&now);
    let editor = Editor::with(|config| config.clock = Arc::new(move || *clock.lock().unwrap()));
    send(&editor, "a.txt", 0);
    let (mut dates, mut oldest) = (Vec::new(), 0);
    for _ in 0..1200 {
        sleep(Duration::from_secs(1)).await;
        *now.lock().unwrap() = wall + begun.elapsed();
        let Ok(bytes) = std::fs::read(context_file(&editor)) else { continue };
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        let date = json["updated_at"].as_str().unwrap().to_owned();
        let format = &time::format_description::well_known::Rfc3339;
        let written: SystemTime = time::OffsetDateTime::parse(&date, format).unwrap().into();
        let age = (wall + begun.elapsed()).duration_since(written).unwrap().as_secs();
        oldest = oldest.max(age);
        if dates.last() != Some(&date) {
            dates.push(date);
        }
    }
    assert!(oldest < 180, "{oldest} s old");
    assert!((9..=11).contains(&dates.len()), "in twenty minutes: {dates:?}");
}
