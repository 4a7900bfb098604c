//! Codex CLI: asks for the editor's context through a socket that it shares with other programs.
//!
//! One tokio task, on the runtime. Where somebody has made the socket (the desktop application,
//! another editor, another Neovim) we join it as a client; only where there is none we make it and
//! pass messages between all who come, until we leave. Nothing is pushed: Codex asks for the
//! context with each prompt. Off unless the user wants it, because a router that is not the one
//! the others know can disturb them. `wire` is what the messages look like, `router` our own one.

mod router;
mod wire;

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agents::Host;
use crate::files;

/// How Codex is served.
#[derive(Debug, Clone)]
pub struct CodexConfig {
    /// Where Codex looks, in this order; the first is the one we make.
    pub sockets: Vec<PathBuf>,
    /// Before the next look when a socket could be neither joined nor made, or has closed.
    pub retry: Duration,
}

impl CodexConfig {
    /// From Neovim's `$CODEX_HOME`, `$HOME` and `$TMPDIR`; `None` without any home.
    #[must_use]
    pub fn new(
        codex_home: Option<PathBuf>,
        home: Option<PathBuf>,
        tmpdir: Option<PathBuf>,
    ) -> Option<Self> {
        let set = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
        let home = set(codex_home).or_else(|| set(home).map(|home| home.join(".codex")))?;
        let temporary = set(tmpdir).unwrap_or_else(|| "/tmp".into());
        let uid = rustix::process::getuid().as_raw();
        let sockets =
            vec![home.join("ipc/ipc.sock"), temporary.join(format!("codex-ipc/ipc-{uid}.sock"))];
        Some(Self { sockets, retry: Duration::from_secs(2) })
    }
}

/// What it is doing, for `status()`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CodexStatus {
    /// Neither joined nor made yet.
    #[default]
    Waiting,
    Joined(PathBuf),
    /// The socket is ours.
    Serving(PathBuf),
}

/// Codex, served. Dropping it stops it and removes the socket if it is ours.
pub struct Codex {
    status: Arc<Mutex<CodexStatus>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Codex {
    /// Starts to serve. Must be called within the tokio runtime.
    #[must_use]
    pub fn start(config: CodexConfig, host: Arc<dyn Host>) -> Self {
        let status = Arc::new(Mutex::new(CodexStatus::Waiting));
        let (stop, mut stopped) = watch::channel(false);
        let told = Arc::clone(&status);
        let task = tokio::spawn(async move {
            tokio::select! {
                () = serve(&config, &host, &told) => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        });
        Self { status, stop, task }
    }

    #[must_use]
    pub fn status(&self) -> CodexStatus {
        lock(&self.status).clone()
    }

    /// Leaves the socket, and removes it if it is ours.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Codex {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(config: &CodexConfig, host: &Arc<dyn Host>, status: &Mutex<CodexStatus>) {
    loop {
        if let Some((path, socket)) = join(&config.sockets).await {
            tracing::info!(path = %path.display(), "joined Codex's socket");
            *lock(status) = CodexStatus::Joined(path);
            if let Err(error) = be_client(socket, host).await {
                tracing::debug!(%error, "Codex's socket");
            }
        } else if let Some(path) = config.sockets.first() {
            match make(path).await {
                Ok((listener, made)) => {
                    tracing::info!(path = %path.display(), "made Codex's socket");
                    *lock(status) = CodexStatus::Serving(path.clone());
                    router::run(listener, host, &made).await;
                }
                Err(error) => tracing::debug!(%error, "cannot make Codex's socket"),
            }
        }
        *lock(status) = CodexStatus::Waiting;
        tokio::time::sleep(config.retry).await;
    }
}

/// The first socket that somebody of ours listens at, in a directory that nobody else can change.
async fn join(sockets: &[PathBuf]) -> Option<(PathBuf, UnixStream)> {
    let uid = rustix::process::getuid().as_raw();
    for path in sockets {
        let trusted = || {
            let dir = std::fs::symlink_metadata(path.parent()?).ok()?;
            let socket = std::fs::symlink_metadata(path).ok()?;
            let private = dir.is_dir() && dir.uid() == uid && dir.mode() & 0o022 == 0;
            (private && socket.file_type().is_socket() && socket.uid() == uid).then_some(())
        };
        if trusted().is_none() {
            continue;
        }
        if let Ok(socket) = UnixStream::connect(path).await
            && is_ours(&socket)
        {
            return Some((path.clone(), socket));
        }
    }
    None
}

fn is_ours(socket: &UnixStream) -> bool {
    let uid = rustix::process::getuid().as_raw();
    socket.peer_cred().is_ok_and(|peer| peer.uid() == uid)
}

/// A socket file of ours; removed when dropped, unless another has taken its place.
struct Made {
    path: PathBuf,
    inode: u64,
}

impl Made {
    /// The socket at our path is still the one we listen at.
    fn is_there(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens where nobody does.
async fn make(path: &Path) -> io::Result<(UnixListener, Made)> {
    if let Some(dir) = path.parent() {
        files::private_dir(dir)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => match UnixStream::connect(path).await {
            // It was left by one that crashed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            // It was not joined, for others could have put it there; it is not ours to remove.
            _ => return Err(io::Error::other(format!("{} is another's", path.display()))),
        },
        Ok(_) => return Err(io::Error::other(format!("{} is no socket", path.display()))),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    // Some umasks take the owner's bits as well.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let inode = std::fs::symlink_metadata(path)?.ino();
    Ok((listener, Made { path: path.into(), inode }))
}

/// Answers what the router of somebody else passes on.
async fn be_client(socket: UnixStream, host: &Arc<dyn Host>) -> io::Result<()> {
    let (mut reader, mut writer) = socket.into_split();
    wire::write(&mut writer, &wire::initialize()).await?;
    let mut id = String::new();
    loop {
        let Some(frame) = wire::read(&mut reader).await? else { continue };
        match frame["type"].as_str() {
            Some("response") if frame["method"] == "initialize" => {
                id = frame["result"]["clientId"].as_str().unwrap_or_default().to_owned();
            }
            Some("client-discovery-request") => {
                let snapshot = host.snapshot().await;
                let can = wire::can_answer(&frame["request"], &snapshot);
                let answer = json!({"type": "client-discovery-response",
                    "requestId": frame["requestId"], "response": {"canHandle": can}});
                wire::write(&mut writer, &answer).await?;
            }
            Some("request") => {
                let answer = answer(&frame, &id, host).await;
                wire::write(&mut writer, &answer).await?;
            }
            _ => {}
        }
    }
}

/// The response to a request for the context, or that we are the wrong ones to ask.
async fn answer(request: &Value, id: &str, host: &Arc<dyn Host>) -> Value {
    let snapshot = host.snapshot().await;
    if wire::can_answer(request, &snapshot) {
        wire::context_response(request, id, &snapshot)
    } else {
        wire::refusal(request, "no-client-found")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
