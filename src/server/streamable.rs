//! MCP's streamable HTTP: sessions whose messages come in requests and go out in a stream.
//!
//! Runs on the tokio runtime. A session is a `Link` like any other to the handler; here its
//! messages are carried: POST brings one and waits for its answer, GET is the stream of everything
//! that answers nothing, DELETE ends it. Connections serve one request each, so a session has none
//! of its own: it ends when it says so or when nothing of it is open any more. No library for
//! this: what one would add (resuming, several streams, batches) none of these agents asks for,
//! and which answers are on their way when Neovim leaves is to be known here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, sink, stream};
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::auth::Token;
use super::{Context, Limits, MAX_MESSAGE, turn_away};
use crate::agents::mcp::rpc::{self, Id, Incoming, RpcError};
use crate::agents::mcp::{Closed, Family, Link, Outbound, Owed};

/// The session of a request or an answer.
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// For a request's body to arrive.
const BODY: Duration = Duration::from_secs(60);
/// Bodies that are read at a time; they are held in memory whole.
const UPLOADS: usize = 8;
/// Requests of one session at a time: more than a session takes calls.
const REQUESTS: usize = 512;
/// Messages of one session that wait to be looked at.
const INBOX: usize = 16;
/// An answer that takes longer comes in a stream, which can be kept alive: some clients give up on
/// a response that does not begin within five minutes, and people think longer.
const PROMPT: Duration = Duration::from_millis(500);
/// A client without a session asked for something that needs one (as other servers put it).
const NO_SESSION: i32 = -32000;
const UNKNOWN_SESSION: i32 = -32001;

/// All sessions of a server.
pub(super) struct Sessions {
    lines: Arc<Mutex<BTreeMap<String, Arc<Line>>>>,
    /// Aborted with the server.
    tasks: Mutex<JoinSet<()>>,
    uploads: tokio::sync::Semaphore,
}

impl Default for Sessions {
    fn default() -> Self {
        let uploads = tokio::sync::Semaphore::new(UPLOADS);
        Self { lines: Arc::default(), tasks: Mutex::default(), uploads }
    }
}

/// Answers a request to `/mcp` whose token was right.
pub(super) async fn handle(context: &Arc<Context>, family: Family, request: Request) -> Response {
    match *request.method() {
        Method::POST => post(context, family, request).await,
        Method::GET => match find(context, family, request.headers()) {
            Ok(line) => listen(context, &line, request.headers()),
            Err(lost) => lost.into_response(),
        },
        Method::DELETE => match find(context, family, request.headers()) {
            Ok(line) => {
                line.hang_up();
                StatusCode::OK.into_response()
            }
            Err(lost) => lost.into_response(),
        },
        _ => {
            let allowed = [(header::ALLOW, "GET, POST, DELETE")];
            (StatusCode::METHOD_NOT_ALLOWED, allowed).into_response()
        }
    }
}

/// Why a request has no session.
enum Lost {
    Unnamed,
    Unknown,
}

impl IntoResponse for Lost {
    fn into_response(self) -> Response {
        let (status, code, message) = match self {
            Lost::Unnamed => (StatusCode::BAD_REQUEST, NO_SESSION, "Mcp-Session-Id is missing"),
            Lost::Unknown => {
                let message = "no such session; initialize a new one";
                (StatusCode::NOT_FOUND, UNKNOWN_SESSION, message)
            }
        };
        failure(status, &Id::null(), &RpcError::new(code, message))
    }
}

/// The session a request names. A session is only known to the family it belongs to.
fn find(context: &Context, family: Family, headers: &HeaderMap) -> Result<Arc<Line>, Lost> {
    let mut named = headers.get_all(SESSION).iter();
    let (Some(id), None) = (named.next(), named.next()) else { return Err(Lost::Unnamed) };
    let line = id.to_str().ok().and_then(|id| lock(&context.http.lines).get(id).cloned());
    line.filter(|line| line.family == family).ok_or(Lost::Unknown)
}

async fn post(context: &Arc<Context>, family: Family, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let is = |name: HeaderName, what: &str| {
        let mut values = parts.headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
        values.any(|value| value.to_ascii_lowercase().contains(what))
    };
    if !is(header::CONTENT_TYPE, "application/json") {
        return turn_away(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let streams = is(header::ACCEPT, "text/event-stream");
    let text = match read(context, body).await {
        Ok(text) => text,
        Err(status) => return turn_away(status),
    };
    // Whose id the answer will have, and whether there is to be one at all.
    let (answer_to, method) = match rpc::parse(&text) {
        Incoming::Request { id, method, .. } => (Some(id), method),
        Incoming::Invalid { id, .. } => (Some(id), String::new()),
        Incoming::Notification { .. } | Incoming::Response { .. } => (None, String::new()),
    };
    let known = parts.headers.contains_key(SESSION);
    let line = match (known, &answer_to) {
        (true, _) => match find(context, family, &parts.headers) {
            Ok(line) => line,
            Err(lost) => return lost.into_response(),
        },
        (false, Some(_)) if method == "initialize" => match begin(context, family) {
            Ok(line) => line,
            Err(status) => return turn_away(status),
        },
        // A question of newer clients before they know what they talk to. They go on with
        // `initialize` when it is an ordinary answer.
        (false, Some(id)) if method == "server/discover" => {
            let error = RpcError::new(rpc::METHOD_NOT_FOUND, "unknown method server/discover");
            return failure(StatusCode::OK, id, &error);
        }
        (false, id) => {
            let error = RpcError::new(NO_SESSION, "Mcp-Session-Id is missing; initialize first");
            let id = id.clone().unwrap_or_else(Id::null);
            return failure(StatusCode::BAD_REQUEST, &id, &error);
        }
    };
    let mut response = match answer_to {
        Some(id) => ask(context, &line, id, text, streams).await,
        None => match line.receive(text).await {
            Ok(()) => StatusCode::ACCEPTED.into_response(),
            Err(Closed) => ended(&Id::null()),
        },
    };
    if let Ok(id) = HeaderValue::from_str(&line.id) {
        response.headers_mut().insert(SESSION, id);
    }
    response
}

async fn read(context: &Context, body: Body) -> Result<String, StatusCode> {
    // Told in advance: not worth waiting for.
    if body.size_hint().lower() > MAX_MESSAGE as u64 {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let upload = async {
        let _place = context.http.uploads.acquire().await;
        axum::body::to_bytes(body, MAX_MESSAGE).await
    };
    match tokio::time::timeout(BODY, upload).await {
        Ok(Ok(bytes)) => String::from_utf8(bytes.into()).map_err(|_| StatusCode::BAD_REQUEST),
        // Too long, or the client hung up: then nobody reads this.
        Ok(Err(_)) => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

/// Passes a request on and answers with what comes back.
async fn ask(context: &Context, line: &Arc<Line>, id: Id, text: String, streams: bool) -> Response {
    let Some((mut waiting, mut answer)) = Waiting::enter(line, id.clone()) else {
        return turn_away(StatusCode::TOO_MANY_REQUESTS);
    };
    if line.receive(text).await.is_err() {
        return ended(&id);
    }
    let answered = if streams {
        tokio::time::timeout(PROMPT, &mut answer).await.ok()
    } else {
        Some((&mut answer).await)
    };
    match answered {
        Some(Ok(text)) => {
            waiting.answered = true;
            ([(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        Some(Err(_)) => ended(&id),
        None => {
            let keep_alive = context.limits.keep_alive;
            // The state is there until the answer is; dropping it takes the question back.
            let state = Some((waiting, answer));
            events(stream::unfold(state, move |state| async move {
                let (mut waiting, mut answer) = state?;
                match tokio::time::timeout(keep_alive, &mut answer).await {
                    Ok(Ok(text)) => {
                        waiting.answered = true;
                        Some((event(&text), None))
                    }
                    Ok(Err(_)) => None,
                    Err(_) => Some((KEEP_ALIVE, Some((waiting, answer)))),
                }
            }))
        }
    }
}

/// Opens the stream of a session. An older one ends: its client has lost it.
fn listen(context: &Context, line: &Arc<Line>, headers: &HeaderMap) -> Response {
    let mut accepts = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
    if !accepts.any(|value| value.contains("text/event-stream") || value.contains("*/*")) {
        return turn_away(StatusCode::NOT_ACCEPTABLE);
    }
    let number = {
        let mut out = lock(&line.out);
        out.streams += 1;
        out.listening = true;
        out.streams
    };
    line.changed.send_replace(());
    let (ear, changed) = (Ear { line: Arc::clone(line), number }, line.changed.subscribe());
    let keep_alive = context.limits.keep_alive;
    let mut response =
        events(stream::unfold((ear, changed), move |(ear, mut changed)| async move {
            loop {
                changed.mark_unchanged();
                match ear.next()? {
                    Some(text) => return Some((event(&text), (ear, changed))),
                    None => tokio::select! {
                        _ = changed.changed() => {}
                        () = tokio::time::sleep(keep_alive) => {
                            return Some((KEEP_ALIVE, (ear, changed)));
                        }
                    },
                }
            }
        }));
    if let Ok(id) = HeaderValue::from_str(&line.id) {
        response.headers_mut().insert(SESSION, id);
    }
    response
}

/// A new session, with a task that lives as long as it does.
fn begin(context: &Arc<Context>, family: Family) -> Result<Arc<Line>, StatusCode> {
    let Ok(place) = Arc::clone(&context.sessions).try_acquire_owned() else {
        tracing::warn!("too many agents");
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    };
    let id = Token::generate().map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?.secret().to_owned();
    let (inbox, messages) = mpsc::channel(INBOX);
    let line = Arc::new(Line {
        family,
        id: id.clone(),
        inbox: Mutex::new(Some(inbox)),
        out: Mutex::new(Out { idle_since: Instant::now(), ..Out::default() }),
        changed: watch::Sender::default(),
    });
    let link = Link {
        family,
        inbound: Box::pin(stream::unfold(messages, |mut messages| async move {
            messages.recv().await.map(|message| (message, messages))
        })),
        outbound: letters(Arc::clone(&line)),
        news: Some(news(Arc::clone(&line))),
        stop: context.stop.subscribe(),
        owed: Owed::default(),
    };
    let lines = Arc::clone(&context.http.lines);
    lock(&lines).insert(id, Arc::clone(&line));
    let serving = (context.handler)(link);
    let (served, limits) = (Arc::clone(&line), context.limits.clone());
    let mut tasks = lock(&context.http.tasks);
    while tasks.try_join_next().is_some() {}
    tasks.spawn(async move {
        let (_place, _ending) = (place, Ending { lines, line: Arc::clone(&served) });
        tokio::select! {
            () = serving => {}
            () = served.deserted(&limits) => tracing::info!("a session was left"),
        }
    });
    Ok(line)
}

/// Answers go to the request that asked, everything else to the stream.
fn letters(line: Arc<Line>) -> Outbound {
    Box::pin(sink::unfold(line, |line, text: String| async move {
        line.deliver(text)?;
        Ok(line)
    }))
}

/// Takes a message when the one before is on its way.
fn news(line: Arc<Line>) -> Outbound {
    Box::pin(sink::unfold(line, |line, text: String| async move {
        let mut changed = line.changed.subscribe();
        loop {
            changed.mark_unchanged();
            {
                let mut out = lock(&line.out);
                if out.closed {
                    return Err(Closed);
                }
                if out.news.is_none() {
                    out.news = Some(text);
                    break;
                }
            }
            changed.changed().await.map_err(|_| Closed)?;
        }
        line.changed.send_replace(());
        Ok(line)
    }))
}

/// What a session's requests and its task share.
struct Line {
    family: Family,
    id: String,
    /// Gone when the client has ended the session.
    inbox: Mutex<Option<mpsc::Sender<String>>>,
    out: Mutex<Out>,
    /// Whenever something in `out` changes.
    changed: watch::Sender<()>,
}

struct Out {
    /// Requests that wait for their answer, oldest first.
    waiting: Vec<(u64, Id, oneshot::Sender<String>)>,
    next: u64,
    /// For the stream, in order; must get there.
    letters: VecDeque<String>,
    /// For the stream; the next one is worth more.
    news: Option<String>,
    /// How many streams there were; the last one is the one that counts.
    streams: u64,
    listening: bool,
    /// No more will come: the stream ends when it has passed on what is there.
    closed: bool,
    /// Since when there has been neither a stream nor a request.
    idle_since: Instant,
}

impl Default for Out {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            next: 0,
            letters: VecDeque::new(),
            news: None,
            streams: 0,
            listening: false,
            closed: false,
            idle_since: Instant::now(),
        }
    }
}

impl Line {
    async fn receive(&self, text: String) -> Result<(), Closed> {
        let inbox = lock(&self.inbox).clone().ok_or(Closed)?;
        inbox.send(text).await.map_err(|_| Closed)
    }

    fn hang_up(&self) {
        lock(&self.inbox).take();
    }

    fn deliver(&self, text: String) -> Result<(), Closed> {
        let mut out = lock(&self.out);
        if out.closed {
            return Err(Closed);
        }
        match rpc::answers(&text) {
            Some(id) => {
                // Whoever asked may have gone; then nobody wants to know.
                if let Some(at) = out.waiting.iter().position(|(_, asked, _)| *asked == id) {
                    let (_, _, asker) = out.waiting.remove(at);
                    out.idle_since = Instant::now();
                    let _ = asker.send(text);
                }
            }
            None => out.letters.push_back(text),
        }
        drop(out);
        self.changed.send_replace(());
        Ok(())
    }

    /// Returns when nothing of the session has been open for so long that it must be over: agents
    /// that crash say nothing, but what they had open closes with them.
    async fn deserted(&self, limits: &Limits) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let deadline = {
                let out = lock(&self.out);
                let patience = if out.streams > 0 { limits.absence } else { limits.silence };
                let busy = out.listening || !out.waiting.is_empty();
                (!busy).then_some(out.idle_since + patience)
            };
            match deadline {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => return,
                    _ = changed.changed() => {}
                },
                None => {
                    let _ = changed.changed().await;
                }
            }
        }
    }
}

/// A session is known for as long as this lives; whoever waits for it then is told.
struct Ending {
    lines: Arc<Mutex<BTreeMap<String, Arc<Line>>>>,
    line: Arc<Line>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.lines).remove(&self.line.id);
        self.line.hang_up();
        let mut out = lock(&self.line.out);
        out.closed = true;
        out.waiting.clear();
        drop(out);
        self.line.changed.send_replace(());
    }
}

/// A request that waits. Dropped without an answer (the client hung up) it takes its question
/// back: nobody would hear the answer.
struct Waiting {
    line: Arc<Line>,
    number: u64,
    id: Id,
    answered: bool,
}

impl Waiting {
    fn enter(line: &Arc<Line>, id: Id) -> Option<(Self, oneshot::Receiver<String>)> {
        let (asker, answer) = oneshot::channel();
        let mut out = lock(&line.out);
        if out.waiting.len() >= REQUESTS {
            return None;
        }
        let number = out.next;
        out.next += 1;
        if !out.closed {
            out.waiting.push((number, id.clone(), asker));
        }
        drop(out);
        line.changed.send_replace(());
        Some((Self { line: Arc::clone(line), number, id, answered: false }, answer))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut out = lock(&self.line.out);
        out.waiting.retain(|(number, _, _)| *number != self.number);
        out.idle_since = Instant::now();
        let over = out.closed;
        drop(out);
        self.line.changed.send_replace(());
        if self.answered || over {
            return;
        }
        if let (Some(id), Some(inbox)) = (self.id.value(), lock(&self.line.inbox).as_ref()) {
            let params = json!({"requestId": id, "reason": "the client hung up"});
            let _ = inbox.try_send(rpc::notification("notifications/cancelled", &params));
        }
    }
}

/// An open stream.
struct Ear {
    line: Arc<Line>,
    number: u64,
}

impl Ear {
    /// What to send now; `None` when it is over, `Some(None)` when there is nothing yet.
    #[allow(clippy::option_option, reason = "three cases, read in one place")]
    fn next(&self) -> Option<Option<String>> {
        let mut out = lock(&self.line.out);
        if out.streams != self.number {
            return None;
        }
        let letter = out.letters.pop_front();
        let text = letter.or_else(|| out.news.take());
        if text.is_none() && out.closed {
            return None;
        }
        drop(out);
        if text.is_some() {
            // There is room again.
            self.line.changed.send_replace(());
        }
        Some(text)
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut out = lock(&self.line.out);
        if out.streams == self.number {
            out.listening = false;
            out.idle_since = Instant::now();
        }
        drop(out);
        self.line.changed.send_replace(());
    }
}

const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// JSON has no line breaks outside of strings, and none inside either.
fn event(text: &str) -> Bytes {
    format!("event: message\ndata: {text}\n\n").into()
}

fn events(stream: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let body = Body::from_stream(stream.map(Ok::<_, std::convert::Infallible>));
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, body).into_response()
}

fn failure(status: StatusCode, id: &Id, error: &RpcError) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], rpc::error(id, error)).into_response()
}

fn ended(id: &Id) -> Response {
    let error = RpcError::new(UNKNOWN_SESSION, "the session has ended; initialize a new one");
    failure(StatusCode::NOT_FOUND, id, &error)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
