//! The door: an HTTP server on this machine's loopback that lets agents in, and the lock files
//! that lead them to it.
//!
//! Runs on the tokio runtime. Knows sockets, tokens and files, not what agents say: a connection
//! that has proved itself goes to the handler as a `Link`; `socket` carries WebSockets, `streamable`
//! sessions over plain requests. Everything a stranger can make us spend
//! before that (time, memory, connections) is limited.

pub mod auth;
mod lobby;
pub mod lockfile;
mod socket;
mod streamable;
mod wire;

use std::fs::Permissions;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tower_service::Service;

use crate::agents::BoxFuture;
use crate::agents::mcp::{Family, Link, Transport};
pub use auth::Credentials;
use auth::Door;
use lobby::{Lobby, Place, ShownOut};
use wire::{Socket, Wire};

/// The largest message and frame, in bytes; a proposal and its file fit.
pub const MAX_MESSAGE: usize = 64 << 20;
/// A request's head, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// A socket's name in its directory.
const SOCKET: &str = "ide.sock";
/// The shortest limit there is (macOS), in bytes.
const MAX_SOCKET_NAME: usize = 100;
/// What the system holds for a connection, in bytes. Far less than its default, which would hide
/// for a long time that a peer has stopped reading, or is reading slowly.
const SEND_BUFFER: u32 = 256 << 10;
/// What is left on a connection that was turned away is read for this long.
const REFUSED: Duration = Duration::from_millis(150);

/// What a connection may take. The defaults are for life; tests are in more of a hurry.
#[derive(Debug, Clone)]
pub struct Limits {
    /// From accepting a connection to its upgrade.
    pub handshake: Duration,
    /// Connections that have not proved themselves yet; for one more the oldest has to go.
    pub strangers: usize,
    /// Agents at a time.
    pub sessions: usize,
    /// The unit of the following, counted only while we run.
    pub tick: Duration,
    /// Ticks between two pings.
    pub ping_every: u32,
    /// Ticks without a byte from the peer: a few pings' worth.
    pub dead_after: u32,
    /// Ticks in which nothing of a waiting message got through.
    pub stuck_after: u32,
    /// Between two signs of life in a stream that has nothing to say; clients and the proxies of
    /// some of them cut silent ones after minutes.
    pub keep_alive: Duration,
    /// How long a session that has had a stream may be without anything open. Clients that lose it
    /// are back within a second.
    pub absence: Duration,
    /// The same for one that never had a stream.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            strangers: 64,
            sessions: 64,
            tick: Duration::from_secs(1),
            ping_every: 30,
            dead_after: 100,
            stuck_after: 30,
            keep_alive: Duration::from_secs(20),
            absence: Duration::from_secs(5),
            silence: Duration::from_secs(60),
        }
    }
}

pub struct ServerConfig {
    /// The port to try first: the one a stopped server had.
    pub port_hint: Option<u16>,
    pub credentials: Credentials,
    pub limits: Limits,
}

type Handler = Arc<dyn Fn(Link) -> BoxFuture<'static, ()> + Send + Sync>;

struct Context {
    port: u16,
    credentials: Credentials,
    limits: Limits,
    handler: Handler,
    sessions: Arc<Semaphore>,
    http: streamable::Sessions,
    stop: watch::Sender<bool>,
}

/// A running server. Dropping it cuts all connections at once; `stop` is the polite way.
pub struct Server {
    context: Arc<Context>,
    /// Ends the listening alone.
    deaf: watch::Sender<bool>,
    accepting: Vec<JoinHandle<JoinSet<()>>>,
}

impl Server {
    /// Listens on 127.0.0.1. The port of the hint when it is free, else any.
    ///
    /// `handler` serves one connection: the future ends when the connection does, or soon after
    /// its `Link::stop` has become true. It may be dropped at any time.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start<F>(
        config: ServerConfig,
        handler: impl Fn(Link) -> F + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let ServerConfig { port_hint, credentials, limits } = config;
        let listener = match port_hint.map(listen) {
            Some(Ok(listener)) => listener,
            Some(Err(error)) => {
                tracing::info!(port_hint, %error, "the port of before is taken");
                listen(0)?
            }
            None => listen(0)?,
        };
        let port = listener.local_addr()?.port();
        let sessions = Arc::new(Semaphore::new(limits.sessions));
        let handler: Handler = Arc::new(move |link| Box::pin(handler(link)));
        let stop = watch::Sender::new(false);
        let http = streamable::Sessions::default();
        let context = Context { port, credentials, limits, handler, sessions, http, stop };
        let deaf = watch::Sender::new(false);
        let mut server = Self { context: Arc::new(context), deaf, accepting: Vec::new() };
        server.listen(Listener::Tcp(listener));
        tracing::info!(port, "listening");
        Ok(server)
    }

    /// Listens on a Unix socket as well, which must be in a directory that only the user can
    /// enter: that is what keeps others out before they are asked for a token.
    ///
    /// # Errors
    /// When the socket cannot be made: the name is taken or too long.
    pub fn listen_unix(&mut self, path: &Path) -> io::Result<()> {
        let listener = UnixListener::bind(path)?;
        // Some umasks take the owner's bits as well.
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        self.listen(Listener::Unix(listener));
        Ok(())
    }

    fn listen(&mut self, listener: Listener) {
        let accepting = accept(listener, Arc::clone(&self.context), self.deaf.subscribe());
        self.accepting.push(tokio::spawn(accepting));
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.context.port
    }

    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.context.credentials
    }

    /// Stops listening first (an agent that is told to go comes back within milliseconds), then
    /// lets every session answer what it owes and close. What is left at the deadline is cut.
    pub async fn stop(mut self, deadline: Duration) {
        self.deaf.send_replace(true);
        let mut all = Vec::new();
        for accepting in &mut self.accepting {
            all.extend(accepting.await);
        }
        self.context.stop.send_replace(true);
        let gone = async {
            for connections in &mut all {
                while connections.join_next().await.is_some() {}
            }
        };
        if tokio::time::timeout(deadline, gone).await.is_err() {
            tracing::warn!("cutting connections");
            for connections in &mut all {
                connections.shutdown().await;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for accepting in &self.accepting {
            accepting.abort();
        }
    }
}

/// A name for a socket in a new directory that only the user can enter, below the first of `bases`
/// that takes one. `name` makes the directory recognisable.
///
/// # Errors
/// When there is no such place: names of sockets are short.
pub fn place_for_socket(bases: &[&Path], name: &str) -> io::Result<PathBuf> {
    let mut trouble = io::Error::other("no directory for a socket");
    for base in bases {
        let made = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(base);
        let made = made.and_then(|dir| {
            std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700))?;
            Ok(dir.keep().join(SOCKET))
        });
        match made {
            Ok(path) if path.as_os_str().len() <= MAX_SOCKET_NAME => return Ok(path),
            Ok(path) => remove_socket(&path),
            Err(error) => trouble = error,
        }
    }
    Err(trouble)
}

/// Removes a socket of `place_for_socket`, and its directory.
pub fn remove_socket(path: &Path) {
    if path.file_name() == Some(SOCKET.as_ref()) {
        let _ = std::fs::remove_file(path);
        let _ = path.parent().map(std::fs::remove_dir);
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // Connections of the server before this one may still be dying.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    socket.listen(1024)
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Wire> {
        Ok(Wire::new(match self {
            Listener::Tcp(listener) => Socket::Tcp(listener.accept().await?.0),
            Listener::Unix(listener) => Socket::Unix(listener.accept().await?.0),
        }))
    }

    fn door(&self, port: u16) -> Door {
        match self {
            Listener::Tcp(_) => Door::Loopback(port),
            Listener::Unix(_) => Door::Unix,
        }
    }
}

async fn accept(
    listener: Listener,
    context: Arc<Context>,
    mut hears: watch::Receiver<bool>,
) -> JoinSet<()> {
    let lobby = Lobby::new(context.limits.strangers);
    let router =
        Router::new().route("/", any(enter)).fallback(enter).with_state(Arc::clone(&context));
    let mut connections = JoinSet::new();
    let door = listener.door(context.port);
    loop {
        tokio::select! {
            () = told(&mut hears) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok(wire) => {
                    let context = Arc::clone(&context);
                    connections.spawn(serve(wire, door, router.clone(), context, lobby.enter()));
                }
                // Out of descriptors: those who only stand about may be who has them.
                Err(error) if is_exhausted(&error) && lobby.show_one_out() => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                // The same without anybody to send away, or the peer was faster.
                Err(error) => {
                    tracing::debug!(%error, "accept");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    connections
}

/// This process, or the machine, has no descriptor left.
fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

/// Waits for the word; also ends when nobody can give it any more.
async fn told(word: &mut watch::Receiver<bool>) {
    let _ = word.wait_for(|said| *said).await;
}

/// Where what a request leads to comes out: axum answers requests in places of its own, but the
/// connection is to live in the task that can be stopped.
#[derive(Clone)]
struct Visit {
    door: Door,
    /// Until it has proved itself.
    stranger: Arc<Place>,
    upgraded: Slot<Upgraded>,
    /// The request is one that takes its time.
    admitted: Slot<()>,
}

/// Takes one thing, once.
struct Slot<T>(Arc<Mutex<Option<oneshot::Sender<T>>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Slot<T> {
    fn new() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    fn take(&self) -> Option<oneshot::Sender<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct Upgraded {
    socket: WebSocket,
    family: Family,
    /// One of the places for agents, taken until the end of the connection.
    place: OwnedSemaphorePermit,
}

async fn serve(
    wire: Wire,
    door: Door,
    router: Router,
    context: Arc<Context>,
    (place, shown_out): (Place, ShownOut),
) {
    let stranger = Arc::new(place);
    let (upgraded_slot, upgraded) = Slot::new();
    let (admitted_slot, admitted) = Slot::new();
    let visit = Visit {
        door,
        stranger: Arc::clone(&stranger),
        upgraded: upgraded_slot,
        admitted: admitted_slot,
    };
    let service = hyper::service::service_fn(move |mut request: hyper::Request<_>| {
        request.extensions_mut().insert(visit.clone());
        router.clone().call(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(context.limits.handshake / 2)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(wire.clone()), service)
        .with_upgrades();
    let mut stop = context.stop.subscribe();
    let handshake = async {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "handshake");
        }
        // An error when it was turned away: then nobody holds the slot any more.
        upgraded.await.ok()
    };
    tokio::pin!(handshake);
    let upgraded = tokio::select! {
        biased;
        Ok(()) = admitted => {
            // Its session ends it, also when the server stops.
            handshake.await;
            return wire.close(REFUSED).await;
        }
        upgraded = tokio::time::timeout(context.limits.handshake, &mut handshake) => upgraded,
        () = shown_out.asked() => return tracing::debug!("a silent connection had to go"),
        () = told(&mut stop) => return,
    };
    match upgraded {
        Ok(Some(Upgraded { socket, family, place })) => {
            let handler = &context.handler;
            socket::carry(socket, wire, family, &context.limits, handler, stop).await;
            drop(place);
        }
        Ok(None) => wire.close(REFUSED).await,
        // Too slow: no more time for it.
        Err(_) => {}
    }
}

/// No reason given, no second try on this connection.
fn turn_away(status: StatusCode) -> Response {
    let mut response = (status, [(header::CONNECTION, "close")]).into_response();
    if status == StatusCode::UPGRADE_REQUIRED {
        response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    response
}

/// Answers every request there can be: turns it away, upgrades it, or passes it to its session.
async fn enter(
    State(context): State<Arc<Context>>,
    Extension(visit): Extension<Visit>,
    uri: Uri,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: Request,
) -> Response {
    let family = match auth::admit(&uri, &headers, visit.door, &context.credentials) {
        Ok(family) => family,
        Err(refusal) => {
            tracing::info!(?refusal, "refused a connection");
            return turn_away(refusal.status());
        }
    };
    visit.stranger.leave();
    match (uri.path(), family.transport()) {
        ("/", Transport::WebSocket) => {}
        ("/mcp", Transport::Http) => {
            let Some(admitted) = visit.admitted.take() else {
                return turn_away(StatusCode::BAD_REQUEST);
            };
            let _ = admitted.send(());
            let mut response = streamable::handle(&context, family, request).await;
            // One request a connection: none can be sent into one that is just being closed.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            return response;
        }
        _ => return turn_away(StatusCode::NOT_FOUND),
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => {
            return turn_away(match rejection.into_response().status() {
                StatusCode::METHOD_NOT_ALLOWED => StatusCode::METHOD_NOT_ALLOWED,
                _ => StatusCode::UPGRADE_REQUIRED,
            });
        }
    };
    let Ok(place) = Arc::clone(&context.sessions).try_acquire_owned() else {
        tracing::warn!("too many agents");
        return turn_away(StatusCode::SERVICE_UNAVAILABLE);
    };
    let Some(exit) = visit.upgraded.take() else {
        return turn_away(StatusCode::BAD_REQUEST);
    };
    // Echoed only to those who offer it: Claude Code hangs up without, others with.
    let upgrade = upgrade.protocols(["mcp"]);
    upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE).on_upgrade(
        async move |socket| {
            let _ = exit.send(Upgraded { socket, family, place });
        },
    )
}
