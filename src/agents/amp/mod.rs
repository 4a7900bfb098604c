//! Amp: a protocol of its own over the WebSocket, without reviews.
//!
//! Runs on the tokio runtime; `run` is the whole life of a connection, which the server has let in
//! by the token in its query. Amp asks for diagnostics and opens files, and is told what the user
//! is at; it has no way to show a proposal. `wire` is what the messages look like.

mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::wire::{Ask, Reply, Request};
use super::mcp::tools::{by_another_name, paths_of};
use super::mcp::{ClientEvent, ClientInfo, Dialect, Family, Link, Peer, Shared, lock};
use super::{Host, OpenFile};
use crate::context::Snapshot;
use crate::files;
use crate::review::Owner;

/// Answers that may wait for a slow reader before we stop reading its requests.
const OUTBOX: usize = 32;
/// Requests in work at a time.
const AT_ONCE: usize = 16;
/// Between two notifications of one kind.
const PACE: Duration = Duration::from_millis(50);
/// How long quoting files may take.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Diagnostics in one answer; Amp waits two seconds for it.
const MAX_ENTRIES: usize = 1000;
/// The largest file whose lines are quoted with its diagnostics, in bytes.
const MAX_QUOTED: u64 = 4 << 20;

struct Session {
    owner: Owner,
    connected_at: SystemTime,
    shared: Arc<Shared>,
}

impl Peer for Session {
    fn client(&self) -> Option<ClientInfo> {
        Some(ClientInfo {
            id: self.owner.0,
            name: Family::Amp.agent().to_owned(),
            version: None,
            dialect: Dialect::Amp,
            family: Family::Amp,
            connected_at: self.connected_at,
            roots: Vec::new(),
            pid: None,
            pending: 0,
        })
    }

    fn is_introduced(&self) -> bool {
        true
    }

    /// It takes no notification that others take.
    fn send_now(&self, _: String) -> bool {
        false
    }
}

/// Listed for as long as this lives.
struct Presence(Arc<Session>);

impl Presence {
    fn enter(session: Arc<Session>) -> Self {
        lock(&session.shared.sessions).insert(session.owner.0, Arc::clone(&session) as _);
        let out = Self(session);
        out.tell(ClientEvent::Connected);
        out
    }

    fn tell(&self, event: fn(ClientInfo) -> ClientEvent) {
        if let Some(client) = self.0.client() {
            (self.0.shared.listener)(event(client));
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        lock(&self.0.shared.sessions).remove(&self.0.owner.0);
        self.tell(ClientEvent::Disconnected);
    }
}

/// Serves `link` to its end. Dropping the future is an end as well.
pub(super) async fn run(shared: Arc<Shared>, link: Link) {
    let Link { mut inbound, mut outbound, mut stop, .. } = link;
    let (outbox, mut letters) = mpsc::channel::<String>(OUTBOX);
    let (latest, mut notes) = mpsc::channel::<String>(1);
    let session = Arc::new(Session {
        owner: Owner::unique(),
        connected_at: SystemTime::now(),
        shared: Arc::clone(&shared),
    });
    let _presence = Presence::enter(session);
    let read = async {
        let mut work = JoinSet::new();
        loop {
            tokio::select! {
                text = inbound.next(), if work.len() < AT_ONCE => {
                    let Some(text) = text else { return };
                    let (host, outbox) = (Arc::clone(&shared.host), outbox.clone());
                    work.spawn(async move {
                        if let Some(answer) = answer(&*host, &text).await {
                            let _ = outbox.send(answer).await;
                        }
                    });
                }
                Some(_) = work.join_next() => {}
            }
        }
    };
    let write = async {
        loop {
            let text = tokio::select! {
                biased;
                Some(letter) = letters.recv() => letter,
                Some(note) = notes.recv() => note,
                else => return,
            };
            if outbound.send(text).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
        () = feed(&shared, latest) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Says who we are, then what the user sees whenever that is something new. Never ends.
async fn feed(shared: &Shared, latest: mpsc::Sender<String>) {
    let mut snapshots = shared.snapshots.clone();
    let mut last = [wire::metadata(), String::new(), String::new()];
    if latest.send(last[0].clone()).await.is_err() {
        return;
    }
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let now = [wire::metadata(), wire::visible_files(&snapshot), wire::selection(&snapshot)];
        for (was, is) in last.iter_mut().zip(now) {
            if *was != is {
                let Ok(permit) = latest.reserve().await else { return };
                permit.send(is.clone());
                *was = is;
            }
        }
        let next = Instant::now() + PACE;
        if snapshots.changed().await.is_err() {
            // No more news will come, but the connection goes on.
            std::future::pending::<()>().await;
        }
        tokio::time::sleep_until(next).await;
    }
}

/// `None` for what is no request: nobody waits for an answer to it.
async fn answer(host: &dyn Host, text: &str) -> Option<String> {
    let Request { id, ask } = wire::request(text)?;
    let reply = match ask {
        Ask::Ping(message) => Reply::ok("ping", &serde_json::json!({"message": message})),
        Ask::Diagnostics(path) => diagnostics(host, &path).await,
        Ask::Open(uri) => match open(host, &uri).await {
            Ok(()) => Reply::ok("openURI", &serde_json::json!({"success": true})),
            Err(why) => {
                Reply::ok("openURI", &serde_json::json!({"success": false, "message": why}))
            }
        },
        Ask::Wrong(why) => Reply::Error(-32602, why),
        Ask::Unknown => Reply::Error(-32601, "unknown method".into()),
    };
    Some(reply.text(&id))
}

/// Of one file, or of all below a folder.
async fn diagnostics(host: &dyn Host, path: &str) -> Reply {
    let snapshot: Arc<Snapshot> = host.snapshot().await;
    let asked = paths_of(path);
    let collect = move || {
        let told = snapshot.diagnostics.iter().filter(|(_, list)| !list.is_empty());
        let below = |file: &Path| asked.iter().any(|path| file.starts_with(path));
        let mut found: Vec<_> = told.clone().filter(|(file, _)| below(file)).collect();
        if found.is_empty() {
            let mut is_meant = by_another_name(&asked, |file, path| file.starts_with(path));
            found = told.filter(|(file, _)| is_meant(file)).collect();
        }
        let mut room = MAX_ENTRIES;
        let entries = found.into_iter().map_while(|(file, list)| {
            let list = &list[..list.len().min(room)];
            room -= list.len();
            (!list.is_empty()).then(|| {
                // What is on disk is near enough, and not a matter for Neovim's thread.
                let bytes = files::read_plain(file, MAX_QUOTED).unwrap_or_default();
                wire::entry(file, list, &String::from_utf8_lossy(&bytes))
            })
        });
        entries.collect::<Vec<Value>>()
    };
    // The file system may hang.
    let collected = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(collect)).await;
    let entries = collected.ok().and_then(Result::ok).unwrap_or_default();
    Reply::ok("getDiagnostics", &serde_json::json!({"entries": entries}))
}

async fn open(host: &dyn Host, uri: &str) -> Result<(), String> {
    let (path, line) = place(uri).ok_or_else(|| format!("not a file:// uri: {uri}"))?;
    let looked = path.clone();
    let look = tokio::task::spawn_blocking(move || files::check_plain(&looked, true));
    match look.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("cannot look at {}", path.display())),
    }
    let what = OpenFile { path, line, make_frontmost: true, ..OpenFile::default() };
    host.open_file(what).await.map(|_| ()).map_err(|error| error.to_string())
}

/// The file a uri names and the 0-based line in its fragment (`#L10`, `#L10-L12`, `#L10:5`).
fn place(uri: &str) -> Option<(PathBuf, Option<u32>)> {
    let url = url::Url::parse(uri).ok().filter(|url| url.scheme() == "file")?;
    let path = url.to_file_path().ok()?;
    let line = url.fragment().and_then(|fragment| {
        let digits = fragment.strip_prefix(['L', 'l'])?;
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse::<u32>().ok()?.checked_sub(1)
    });
    Some((path, line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::mcp::dialect::file_url;
    use proptest::prelude::*;

    #[test]
    fn a_uri_names_a_file_and_maybe_a_line() {
        let place = |uri| place(uri).map(|(path, line)| (path.display().to_string(), line));
        assert_eq!(place("file:///a%20b/c.rs"), Some(("/a b/c.rs".into(), None)));
        assert_eq!(place("file:///c.rs#L10"), Some(("/c.rs".into(), Some(9))));
        assert_eq!(place("file:///c.rs#l10:5-L12"), Some(("/c.rs".into(), Some(9))));
        assert_eq!(place("file:///c.rs#L0"), Some(("/c.rs".into(), None)));
        assert_eq!(place("file:///c.rs#x"), Some(("/c.rs".into(), None)));
        for other in ["https://example.com/x", "/c.rs", "file://host/x", ""] {
            assert_eq!(place(other), None, "{other}");
        }
    }

    #[test]
    fn fuzz_uri_any_uri_names_an_absolute_file_or_none() {
        crate::fuzz::run("uri", |bytes| {
            let uri = String::from_utf8_lossy(bytes);
            if let Some((path, _)) = place(&uri) {
                prop_assert!(path.is_absolute());
                // What was escaped stays what it is; a URL of ours cannot say `..`.
                if !path.components().any(|part| part == std::path::Component::ParentDir) {
                    let again = file_url(&path).and_then(|uri| place(&uri));
                    prop_assert_eq!(again, Some((path, None)));
                }
            }
            Ok(())
        });
    }
}
