//! Codex's socket: made where there is none, joined where there is one, over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gangway::agents::codex::{Codex, CodexConfig, CodexStatus};
use gangway::agents::{BoxFuture, Document, Host, HostError, OpenFile, Opened};
use gangway::context::{ActiveFile, Position, Range, Root, Selection, Snapshot};
use gangway::review::ReviewId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

const PATIENCE: Duration = Duration::from_secs(10);

/// An editor whose user has selected two words in `a.rs` of its folder.
struct Editor(PathBuf);

impl Host for Editor {
    fn snapshot(&self) -> BoxFuture<'_, Arc<Snapshot>> {
        let range = Range { start: Position::new(2, 0), end: Position::new(2, 9) };
        let selection = Selection { range, text: "two words".into(), truncated: false };
        let snapshot = Snapshot {
            sharing: true,
            active: Some(ActiveFile {
                path: self.0.join("a.rs"),
                language: "rust".into(),
                modified: false,
                cursor: Position::new(2, 9),
                selection: Some(selection),
            }),
            roots: vec![Root { path: self.0.clone(), real: self.0.clone() }],
            ..Snapshot::default()
        };
        Box::pin(async { Arc::new(snapshot) })
    }

    fn open_file(&self, _: OpenFile) -> BoxFuture<'_, Result<Option<Opened>, HostError>> {
        Box::pin(async { Err(HostError::Busy) })
    }

    fn save<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, Result<Option<bool>, HostError>> {
        Box::pin(async { Err(HostError::Busy) })
    }

    fn document<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, Result<Option<Document>, HostError>> {
        Box::pin(async { Ok(None) })
    }

    fn encodings<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async { Vec::new() })
    }

    fn edited<'a>(&'a self, _: &'a ReviewId) -> BoxFuture<'a, Option<Arc<str>>> {
        Box::pin(async { None })
    }
}

struct Place {
    _dir: tempfile::TempDir,
    config: CodexConfig,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let temporary = dir.path().join("tmp");
        std::fs::create_dir(&temporary).unwrap();
        let config = CodexConfig::new(Some(home), None, Some(temporary)).unwrap();
        let retry = Duration::from_millis(50);
        Self { _dir: dir, config: CodexConfig { retry, ..config } }
    }

    fn socket(&self) -> &Path {
        &self.config.sockets[0]
    }

    fn start(&self, folder: &str) -> Codex {
        Codex::start(self.config.clone(), Arc::new(Editor(folder.into())))
    }

    async fn serving(&self, codex: &Codex) {
        until("the socket", || codex.status() == CodexStatus::Serving(self.socket().into())).await;
    }

    async fn joined(&self, codex: &Codex) {
        until("the join", || codex.status() == CodexStatus::Joined(self.socket().into())).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    /// As Codex does with every prompt: connect, ask, read until the answer.
    async fn ask(&self, folder: &str) -> Value {
        let mut socket = UnixStream::connect(self.socket()).await.unwrap();
        write(&mut socket, &request(folder)).await;
        loop {
            let frame = read(&mut socket).await;
            if frame["type"] == "response" && frame["requestId"] == "r-1" {
                return frame;
            }
        }
    }
}

fn request(folder: &str) -> Value {
    json!({"type": "request", "requestId": "r-1", "sourceClientId": "codex-tui", "version": 0,
        "method": "ide-context", "params": {"workspaceRoot": folder}})
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !done() {
        assert!(tokio::time::Instant::now() < end, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn write(socket: &mut UnixStream, message: &Value) {
    let bytes = message.to_string().into_bytes();
    socket.write_u32_le(u32::try_from(bytes.len()).unwrap()).await.unwrap();
    socket.write_all(&bytes).await.unwrap();
}

async fn read(socket: &mut UnixStream) -> Value {
    let read = async {
        let length = socket.read_u32_le().await.unwrap();
        let mut bytes = vec![0; length as usize];
        socket.read_exact(&mut bytes).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    };
    tokio::time::timeout(PATIENCE, read).await.expect("no message")
}

fn context_of(folder: &str) -> Value {
    let at = |character: u32| json!({"line": 2, "character": character});
    let range = json!({"start": at(0), "end": at(9)});
    json!({"type": "broadcast", "ideContext": {"openTabs": [], "activeFile": {
        "label": "a.rs", "path": "a.rs", "fsPath": format!("{folder}/a.rs"),
        "selection": range, "selections": [range], "activeSelectionContent": "two words"}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_our_own_answers_and_goes_with_us() {
    let place = Place::new();
    let codex = place.start("/work/a");
    place.serving(&codex).await;
    let dir = place.socket().parent().unwrap();
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(
        place.ask("/work/a").await,
        json!({"type": "response", "requestId": "r-1", "resultType": "success",
            "method": "ide-context", "handledByClientId": "gangway.nvim",
            "result": context_of("/work/a")})
    );
    assert_eq!(
        place.ask("/elsewhere").await,
        json!({"type": "response", "requestId": "r-1", "resultType": "error",
            "error": "no-client-found"})
    );
    codex.stop().await;
    assert!(!place.socket().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_elses_router_is_joined_and_answered() {
    let place = Place::new();
    let dir = place.socket().parent().unwrap();
    std::fs::create_dir_all(dir).unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let router = UnixListener::bind(place.socket()).unwrap();
    let codex = place.start("/work/a");
    let (mut socket, _) = router.accept().await.unwrap();
    let hello = read(&mut socket).await;
    assert_eq!((&hello["method"], &hello["version"]), (&json!("initialize"), &json!(0)));
    assert_eq!(hello["sourceClientId"], "initializing-client");
    let welcome = json!({"type": "response", "requestId": hello["requestId"],
        "resultType": "success", "method": "initialize", "handledByClientId": "router",
        "result": {"clientId": "c-7"}});
    write(&mut socket, &welcome).await;
    write(&mut socket, &json!({"type": "broadcast", "method": "x", "params": {}})).await;
    for (folder, can) in [("/work/a/sub", true), ("/elsewhere", false)] {
        let ask = json!({"type": "client-discovery-request", "requestId": "d",
            "request": request(folder)});
        write(&mut socket, &ask).await;
        assert_eq!(
            read(&mut socket).await,
            json!({"type": "client-discovery-response", "requestId": "d",
                "response": {"canHandle": can}})
        );
    }
    write(&mut socket, &request("/work/a")).await;
    let answer = read(&mut socket).await;
    assert_eq!(answer["handledByClientId"], "c-7");
    assert_eq!(answer["result"], context_of("/work/a"));
    codex.stop().await;
    assert!(place.socket().exists(), "it is not ours to remove");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_neovims_share_it_and_the_second_takes_over() {
    let place = Place::new();
    let first = place.start("/work/a");
    place.serving(&first).await;
    let second = place.start("/work/b");
    place.joined(&second).await;
    assert_eq!(place.ask("/work/a").await["result"], context_of("/work/a"));
    assert_eq!(place.ask("/work/b").await["result"], context_of("/work/b"));
    assert_eq!(place.ask("/work/c").await["error"], "no-client-found");
    first.stop().await;
    place.serving(&second).await;
    assert_eq!(place.ask("/work/b").await["result"], context_of("/work/b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_left_is_replaced_and_what_is_no_socket_is_not() {
    let place = Place::new();
    let dir = place.socket().parent().unwrap();
    std::fs::create_dir_all(dir).unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    drop(UnixListener::bind(place.socket()).unwrap());
    let codex = place.start("/work/a");
    place.serving(&codex).await;
    codex.stop().await;
    std::fs::write(place.socket(), "precious").unwrap();
    let codex = place.start("/work/a");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(codex.status(), CodexStatus::Waiting);
    codex.stop().await;
    assert_eq!(std::fs::read(place.socket()).unwrap(), b"precious");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_others_could_have_put_there_is_not_joined() {
    let place = Place::new();
    let dir = place.config.sockets[1].parent().unwrap();
    std::fs::create_dir_all(dir).unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let _router = UnixListener::bind(&place.config.sockets[1]).unwrap();
    let codex = place.start("/work/a");
    place.serving(&codex).await;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    codex.stop().await;
    let codex = place.start("/work/a");
    let joined = CodexStatus::Joined(place.config.sockets[1].clone());
    until("the second place", || codex.status() == joined).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_somebody_listens_at_is_left_alone_though_others_may_write_beside_it() {
    let place = Place::new();
    let dir = place.socket().parent().unwrap();
    std::fs::create_dir_all(dir).unwrap();
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o770)).unwrap();
    let _router = UnixListener::bind(place.socket()).unwrap();
    let inode = || std::fs::symlink_metadata(place.socket()).unwrap().ino();
    let before = inode();
    let codex = place.start("/work/a");
    tokio::time::sleep(Duration::from_millis(300)).await;
    codex.stop().await;
    assert_eq!(inode(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_disturbs_nobody() {
    let place = Place::new();
    let codex = place.start("/work/a");
    place.serving(&codex).await;
    let mut noisy = UnixStream::connect(place.socket()).await.unwrap();
    for frame in ["5", "no JSON", "{}", r#"{"type":"response","requestId":"x"}"#] {
        noisy.write_u32_le(u32::try_from(frame.len()).unwrap()).await.unwrap();
        noisy.write_all(frame.as_bytes()).await.unwrap();
    }
    // Longer than anything for us, but allowed.
    noisy.write_u32_le(5 << 20).await.unwrap();
    noisy.write_all(&vec![b' '; 5 << 20]).await.unwrap();
    write(&mut noisy, &request("/work/a")).await;
    assert_eq!(read(&mut noisy).await["resultType"], "success");
    noisy.write_u32_le(u32::MAX).await.unwrap();
    assert_eq!(noisy.read(&mut [0; 8]).await.unwrap(), 0, "no end of it");
    assert_eq!(place.ask("/work/a").await["resultType"], "success");
}
