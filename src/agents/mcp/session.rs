//! One connection: its requests, its reviews, and what it is told.
//!
//! `run` is the whole life of a connection, on the runtime. Every tool call is a task of its own,
//! so that a diff that waits for the user blocks nothing; what a call must do in the order in which
//! it came happens before that, in `receive`. Memory is bounded whatever the peer does: the latest
//! selection only, a few answers, a limited number of open diffs; beyond that we stop reading.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::{FutureExt, Sink, SinkExt, Stream, StreamExt};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::asks::{Asks, Reply};
use super::dialect::{Dialect, Family, Moment, Told};
use super::requests::Requests;
use super::rpc::{self, Id, Incoming, Params, RpcError, ToolResult};
use super::tools::{self, Outcome, Running};
use super::{ClientEvent, ClientInfo, Closed, Link, Owed, Peer, Shared, lock};

use crate::review::desk::Desk;
use crate::review::{Owner, ReviewId, Withdrawal, is_invisible};

/// Answers that may wait for a slow reader before we stop reading its requests.
const OUTBOX: usize = 32;
/// Calls of one client in work at a time, open diffs aside.
const CALLS_AT_ONCE: usize = 64;
/// Between two `selection_changed`.
const PACE: Duration = Duration::from_millis(100);
/// When we stop: how long a call that waits for Neovim may still take.
const LAST_CALLS: Duration = Duration::from_millis(60);
/// When we stop: how long Pi gets to send the next edit of the same turn, to be refused like the
/// first. It came within 4 ms, and without an answer the edit would be made unreviewed.
const NEXT_EDIT: Duration = Duration::from_millis(50);

/// The versions of MCP that differ in nothing we use; the last one is offered to strangers. (2025-03-26
/// alone knows batches. No agent sends any, and one that has no newer version would leave for want
/// of its own; a batch gets an error.)
const PROTOCOLS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const ROOTS_REQUEST: &str = "gangway-roots";

/// What the client said about itself.
#[derive(Default)]
struct Introduction {
    done: bool,
    name: Option<String>,
    title: Option<String>,
    version: Option<String>,
    lists_roots: bool,
    roots: Vec<PathBuf>,
    pid: Option<u32>,
}

/// From when on selections may be sent; a new round sends the present one again.
#[derive(Clone, Copy, Default)]
struct Opening {
    round: u64,
    at: Option<Instant>,
}

pub(super) struct Session {
    shared: Arc<Shared>,
    owner: Owner,
    family: Family,
    connected_at: SystemTime,
    introduction: Mutex<Introduction>,
    requests: Requests,
    asks: Asks,
    outbox: mpsc::Sender<String>,
    /// Letters handed to the outbox that are not on their way yet.
    unsent: AtomicUsize,
    opening: watch::Sender<Opening>,
    stop: watch::Receiver<bool>,
    owed: Owed,
}

/// Serves `link` to its end. Dropping the future is an end as well.
pub(super) async fn run(shared: Arc<Shared>, link: Link) {
    let Link { family, inbound, outbound, news, mut stop, owed } = link;
    let (outbox, letters) = mpsc::channel(OUTBOX);
    let (latest, notes) = mpsc::channel(1);
    let session = Arc::new(Session::new(shared, family, outbox, stop.clone(), owed));
    let _presence = Presence::enter(Arc::clone(&session));
    let working = async {
        tokio::select! {
            () = session.read(inbound) => {}
            Err(Closed) = session.write(outbound, news, letters, notes) => {}
            () = session.feed(latest) => {}
        }
    };
    tokio::pin!(working);
    tokio::select! {
        () = &mut working => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    let quiet = session.stop_asking();
    tokio::select! {
        () = &mut working => {}
        () = session.settled(quiet) => {}
    }
}

/// A connection is listed, and owns its reviews, for as long as this lives.
struct Presence(Arc<Session>);

impl Presence {
    fn enter(session: Arc<Session>) -> Self {
        lock(&session.shared.sessions).insert(session.owner.0, Arc::clone(&session) as _);
        Self(session)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let session = &self.0;
        let client = session.client();
        lock(&session.shared.sessions).remove(&session.owner.0);
        // A call that runs on another thread right now must not bring its diff to the desk later.
        session.requests.withdraw(None, Withdrawal::OwnerLost);
        session.asks.end();
        session.shared.desk.withdraw_all(session.owner, Withdrawal::OwnerLost);
        if let Some(client) = client {
            (session.shared.listener)(ClientEvent::Disconnected(client));
        }
    }
}

impl Peer for Session {
    fn is_introduced(&self) -> bool {
        lock(&self.introduction).done
    }

    fn client(&self) -> Option<ClientInfo> {
        let name = self.origin();
        let pending = self.shared.desk.pending();
        let introduction = lock(&self.introduction);
        introduction.done.then(|| ClientInfo {
            id: self.owner.0,
            name,
            version: introduction.version.as_deref().map(clean),
            dialect: Dialect::of(self.family, introduction.name.as_deref()),
            family: self.family,
            connected_at: self.connected_at,
            roots: introduction.roots.clone(),
            pid: introduction.pid,
            pending: pending.iter().filter(|(review, _)| review.owner == self.owner).count(),
        })
    }

    fn send_now(&self, notification: String) -> bool {
        self.unsent.fetch_add(1, Ordering::AcqRel);
        let sent = self.outbox.try_send(notification).is_ok();
        if !sent {
            self.unsent.fetch_sub(1, Ordering::AcqRel);
        }
        sent
    }

    fn asks(&self) -> Option<&Asks> {
        Some(&self.asks)
    }
}

impl Session {
    fn new(
        shared: Arc<Shared>,
        family: Family,
        outbox: mpsc::Sender<String>,
        stop: watch::Receiver<bool>,
        owed: Owed,
    ) -> Self {
        Self {
            owner: Owner::unique(),
            family,
            connected_at: SystemTime::now(),
            introduction: Mutex::default(),
            requests: Requests::default(),
            asks: Asks::default(),
            outbox,
            unsent: AtomicUsize::new(0),
            opening: watch::Sender::default(),
            stop,
            owed,
            shared,
        }
    }

    // ---- who it is

    pub(super) fn dialect(&self) -> Dialect {
        Dialect::of(self.family, lock(&self.introduction).name.as_deref())
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    /// The user wants this agent's diffs here.
    pub(super) fn diffs_wanted(&self) -> bool {
        self.dialect() != Dialect::Claude || self.shared.claude_diffs.load(Ordering::Relaxed)
    }

    pub(super) fn desk(&self) -> &Desk {
        &self.shared.desk
    }

    pub(super) fn host(&self) -> &Arc<dyn super::Host> {
        &self.shared.host
    }

    pub(super) fn owed(&self) -> &Owed {
        &self.owed
    }

    /// The agent as users know it.
    pub(super) fn origin(&self) -> String {
        let introduction = lock(&self.introduction);
        let says = introduction.title.as_deref().or(introduction.name.as_deref());
        match Dialect::of(self.family, introduction.name.as_deref()) {
            Dialect::Opencode => "opencode".to_owned(),
            Dialect::Claude => match (introduction.name.as_deref(), says) {
                (Some("claude-code"), _) | (_, None) => "Claude Code".to_owned(),
                (_, Some(says)) => clean(says),
            },
            _ => self.family.agent().to_owned(),
        }
    }

    // ---- what it asks

    async fn read(self: &Arc<Self>, mut inbound: impl Stream<Item = String> + Unpin) {
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                text = inbound.next(), if self.has_room(calls.len()) => match text {
                    Some(text) => self.receive(&text, &mut calls).await,
                    None => return,
                },
                Some(_) = calls.join_next() => {}
            }
        }
    }

    fn has_room(&self, running: usize) -> bool {
        running.saturating_sub(self.requests.diffs()) < CALLS_AT_ONCE
    }

    async fn receive(self: &Arc<Self>, text: &str, calls: &mut JoinSet<()>) {
        match rpc::parse(text) {
            Incoming::Request { id, method, params } => {
                tracing::debug!(method = clean(&method), "request");
                match self.request(&id, &method, &params) {
                    Ok(Answer::Now(result)) => self.send(rpc::result(&id, &result)).await,
                    Ok(Answer::Later(seq, running)) => {
                        let session = Arc::clone(self);
                        calls.spawn(async move { session.finish(seq, running).await });
                    }
                    Err(error) => self.send(rpc::error(&id, &error)).await,
                }
                self.answered(&method);
            }
            Incoming::Notification { method, params } => self.notified(&method, &params).await,
            Incoming::Response { id: Some(id), result, error } => {
                self.response(&id, error.map_or_else(|| Ok(result.unwrap_or_default()), Err));
            }
            Incoming::Response { id: None, .. } => {}
            Incoming::Invalid { id, error } => self.send(rpc::error(&id, &error)).await,
        }
    }

    fn request(
        self: &Arc<Self>,
        id: &Id,
        method: &str,
        params: &Params,
    ) -> Result<Answer, RpcError> {
        match method {
            "initialize" => Ok(Answer::Now(self.initialize(&params.object()?))),
            "ping" => Ok(Answer::Now(json!({}))),
            "tools/list" => {
                Ok(Answer::Now(json!({"tools": tools::listing(self.family, self.diffs_wanted())})))
            }
            // Not offered, but asked for by clients that do not look at what is.
            "prompts/list" => Ok(Answer::Now(json!({"prompts": []}))),
            "resources/list" => Ok(Answer::Now(json!({"resources": []}))),
            "resources/templates/list" => Ok(Answer::Now(json!({"resourceTemplates": []}))),
            "tools/call" => self.call(id, params.object()?),
            other => {
                let message = format!("unknown method {}", clean(other));
                Err(RpcError::new(rpc::METHOD_NOT_FOUND, message))
            }
        }
    }

    fn initialize(&self, params: &Map<String, Value>) -> Value {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let client = params.get("clientInfo");
        let said = |key| text(client.and_then(|client| client.get(key)));
        let mut introduction = lock(&self.introduction);
        introduction.name = said("name");
        introduction.title = said("title");
        introduction.version = said("version");
        introduction.lists_roots =
            params.get("capabilities").and_then(|c| c.get("roots")).is_some_and(Value::is_object);
        let asked = text(params.get("protocolVersion")).unwrap_or_default();
        let known = PROTOCOLS.into_iter().find(|known| *known == asked);
        json!({
            "protocolVersion": known.unwrap_or(PROTOCOLS[PROTOCOLS.len() - 1]),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": self.family.server_name(), "version": env!("CARGO_PKG_VERSION")},
        })
    }

    fn call(self: &Arc<Self>, id: &Id, mut params: Map<String, Value>) -> Result<Answer, RpcError> {
        let name = match params.get("name") {
            Some(Value::String(name)) => name,
            Some(other) => {
                let is = rpc::name_of(other);
                return Err(RpcError::params(format!("name must be a string, not {is}")));
            }
            None => return Err(RpcError::params("name is missing")),
        };
        let tool = tools::find(self.family, name)
            .ok_or_else(|| RpcError::params(format!("unknown tool {}", clean(name))))?;
        let arguments = match params.remove("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(map)) => map,
            Some(other) => {
                let is = rpc::name_of(&other);
                return Err(RpcError::params(format!("arguments must be an object, not {is}")));
            }
        };
        let seq = self.requests.begin(id.clone());
        match tool.start(self, seq, arguments) {
            Ok(running) => Ok(Answer::Later(seq, running)),
            Err(error) => {
                self.requests.take(seq);
                Err(error)
            }
        }
    }

    /// Runs a call to its end and answers it, whatever happens in it.
    async fn finish(&self, seq: u64, running: Running) {
        let outcome = tokio::select! {
            outcome = AssertUnwindSafe(running).catch_unwind() => outcome.unwrap_or_else(|_| {
                tracing::error!("a tool call panicked");
                Outcome::Result(self.apology(seq, "an internal error in gangway.nvim; see :IdeLog"))
            }),
            () = self.out_of_patience() => {
                Outcome::Result(self.apology(seq, "Neovim is stopping"))
            }
        };
        // Until the answer is on its way the session is not settled: a large one takes a while to
        // write down, and a stop must not slip in between.
        let _answering = self.owed.one_more();
        let Some(request) = self.requests.take(seq) else { return };
        if let Outcome::Result(result) = outcome
            && !request.cancelled
        {
            self.send(rpc::result(&request.id, &result)).await;
        }
    }

    /// The answer to a call that cannot have its own.
    fn apology(&self, seq: u64, why: &str) -> ToolResult {
        match self.requests.diff_name(seq) {
            Some(name) => self.dialect().no_review(&name, why),
            None => ToolResult::failed(why),
        }
    }

    async fn out_of_patience(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|stop| *stop).await.is_err() {
            // Whoever could stop us is gone, and the connection with it.
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(LAST_CALLS).await;
    }

    async fn notified(&self, method: &str, params: &Params) {
        tracing::debug!(method = clean(method), "notification");
        match method {
            "notifications/initialized" => {
                self.opens(Moment::Initialized);
                self.ask_roots().await;
            }
            "ide_connected" => {
                let pid = params.object().ok().and_then(|params| params.get("pid")?.as_u64());
                lock(&self.introduction).pid = pid.and_then(|pid| pid.try_into().ok());
                self.opens(Moment::Initialized);
            }
            "notifications/roots/list_changed" => self.ask_roots().await,
            "notifications/cancelled" => {
                if let Some(id) = params.object().ok().as_ref().and_then(|p| p.get("requestId")) {
                    self.cancel(id);
                }
            }
            _ => {}
        }
    }

    async fn ask_roots(&self) {
        if lock(&self.introduction).lists_roots {
            self.send(rpc::request(ROOTS_REQUEST, "roots/list", &json!({}))).await;
        }
    }

    fn response(&self, id: &Id, reply: Reply) {
        if id.value() != Some(Value::from(ROOTS_REQUEST)) {
            return self.asks.answered(id, reply);
        }
        let roots = reply.as_ref().ok().and_then(|result| result.get("roots")?.as_array());
        let uris = roots.into_iter().flatten().filter_map(|root| root.get("uri")?.as_str());
        let roots = uris.filter_map(|uri| tools::paths_of(uri).pop()).take(64).collect();
        lock(&self.introduction).roots = roots;
    }

    // ---- diffs: between the request and the desk

    pub(super) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Books an `openDiff`. An error says why there is no room.
    pub(super) fn book_diff(&self, seq: u64, name: &str, bytes: usize) -> Result<(), String> {
        let early = self.stop.borrow().then_some(Withdrawal::Closed);
        if self.requests.book(seq, name, bytes, self.owed.count(), early) {
            Ok(())
        } else {
            Err("too many diffs of this agent wait for an answer".into())
        }
    }

    /// The diff is on the desk. If it was taken back in that moment, it is off again.
    pub(super) fn diff_opened(&self, seq: u64, id: &ReviewId) {
        if let Some(why) = self.requests.opened(seq, id) {
            self.desk().withdraw_one(self.owner, id, why);
        }
    }

    /// This connection's diff of that name, if it is on the desk.
    pub(super) fn diff_named(&self, name: &str) -> Option<ReviewId> {
        let pending = self.desk().pending();
        let mine = pending.iter().find(|(r, _)| r.owner == self.owner && &*r.name == name);
        mine.map(|(review, _)| review.id.clone())
    }

    /// Takes back this connection's diffs of one name, or all. Returns how many those were.
    pub(super) fn close_diffs(&self, name: Option<&str>, why: Withdrawal) -> usize {
        self.requests.withdraw(name, why)
            + match name {
                Some(name) => self.desk().withdraw(self.owner, name, why),
                None => self.desk().withdraw_all(self.owner, why),
            }
    }

    fn cancel(&self, id: &Value) {
        for review in self.requests.cancel(id) {
            self.desk().withdraw_one(self.owner, &review, Withdrawal::Cancelled);
        }
    }

    // ---- what it is told

    /// Waits for room in the outbox. An error means that the connection is ending: its owner sees
    /// that in better places.
    async fn send(&self, text: String) {
        self.unsent.fetch_add(1, Ordering::AcqRel);
        if self.outbox.send(text).await.is_err() {
            self.unsent.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// A notification that must get there.
    pub(super) async fn notify<T: Serialize>(&self, method: &str, params: &T) {
        self.send(rpc::notification(method, params)).await;
    }

    async fn write(
        &self,
        mut outbound: impl Sink<String, Error = Closed> + Unpin,
        news: Option<impl Sink<String, Error = Closed> + Unpin>,
        mut letters: mpsc::Receiver<String>,
        mut notes: mpsc::Receiver<String>,
    ) -> Result<(), Closed> {
        if let Some(mut news) = news {
            let letters = async {
                while let Some(letter) = letters.recv().await {
                    outbound.send(letter).await?;
                    self.unsent.fetch_sub(1, Ordering::AcqRel);
                }
                Ok(())
            };
            let notes = async {
                while let Some(note) = notes.recv().await {
                    news.send(note).await?;
                }
                Ok(())
            };
            return futures_util::future::try_join(letters, notes).await.map(|_| ());
        }
        loop {
            tokio::select! {
                biased;
                Some(letter) = letters.recv() => {
                    outbound.send(letter).await?;
                    self.unsent.fetch_sub(1, Ordering::AcqRel);
                }
                Some(note) = notes.recv() => outbound.send(note).await?,
                else => return Ok(()),
            }
        }
    }

    fn answered(&self, method: &str) {
        match method {
            "initialize" => {
                let first = !std::mem::replace(&mut lock(&self.introduction).done, true);
                self.opens(Moment::InitializeAnswered);
                if let Some(client) = self.client().filter(|_| first) {
                    tracing::info!(name = client.name, "agent connected");
                    (self.shared.listener)(ClientEvent::Connected(client));
                }
            }
            "tools/list" => self.opens(Moment::ToolsListed),
            _ => {}
        }
    }

    fn opens(&self, moment: Moment) {
        if let Some(delay) = self.dialect().opens(moment) {
            let at = Some(Instant::now() + delay);
            self.opening.send_modify(|opening| *opening = Opening { round: opening.round + 1, at });
        }
    }

    /// Tells the client what the user is at whenever that is something new: at most one note in
    /// `PACE`, only when the one before is on its way, and always the latest state. Never ends.
    async fn feed(&self, latest: mpsc::Sender<String>) {
        let mut snapshots = self.shared.snapshots.clone();
        let mut openings = self.opening.subscribe();
        let mut last: Option<Told> = None;
        let mut sent_round = 0;
        let (mut again, mut repeats) = (None, [].iter());
        let mut next = Instant::now();
        loop {
            let opening = *openings.borrow_and_update();
            let ready = match opening.at {
                Some(at) => at.max(next),
                // Not ready at all: wait for the moment that makes it so.
                None => Instant::now() + Duration::from_secs(3600),
            };
            if ready > Instant::now() {
                tokio::select! {
                    () = tokio::time::sleep_until(ready) => {}
                    Ok(()) = openings.changed() => {}
                }
                continue;
            }
            let Ok(permit) = latest.reserve().await else { break };
            let snapshot = snapshots.borrow_and_update().clone();
            let dialect = self.dialect();
            let told = dialect.tells(&snapshot);
            let opened = opening.round != sent_round;
            if opened {
                repeats = dialect.repeats().iter();
            }
            let due = opened || again.is_some_and(|at| at <= Instant::now());
            if due {
                again = repeats.next().map(|pause| Instant::now() + *pause);
            }
            if told != last || (due && told.is_some()) {
                permit.send(dialect.note(told.as_ref(), &snapshot));
                last = told;
                next = Instant::now() + PACE;
            }
            sent_round = opening.round;
            tokio::select! {
                Ok(()) = snapshots.changed() => {}
                Ok(()) = openings.changed() => {}
                () = tokio::time::sleep_until(again.unwrap_or(next)), if again.is_some() => {}
                else => break,
            }
        }
        // No more news will come, but the connection goes on.
        std::future::pending::<()>().await;
    }

    // ---- the end

    /// Takes back everything it asked: each call is answered. Returns how long to listen for a
    /// follow-up afterwards.
    fn stop_asking(&self) -> Duration {
        let waited = self.requests.diffs() > 0;
        self.close_diffs(None, Withdrawal::Closed);
        if waited && self.family == Family::Pi { NEXT_EDIT } else { Duration::ZERO }
    }

    /// Every call is answered, every answer on its way, and nothing came for `quiet`.
    async fn settled(&self, quiet: Duration) {
        let mut since = None;
        loop {
            // What is owed may be a notification: then its request was answered long ago.
            let busy = !self.requests.is_empty()
                || self.owed.count() > 0
                || self.unsent.load(Ordering::Acquire) > 0;
            match since {
                _ if busy => since = None,
                Some(since) if Instant::now() >= since + quiet => return,
                Some(_) => {}
                None => since = Some(Instant::now()),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

enum Answer {
    Now(Value),
    Later(u64, Running),
}

/// A word of the client's for people to read: one short line without characters that hide or turn
/// it around.
pub(super) fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && !is_invisible(*c)).take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{BoxFuture, Document, Host, HostError, OpenFile, Opened};
    use crate::context::Snapshot;
    use crate::review::text::OldText;
    use crate::review::{Kind, Proposal, Verdict};
    use futures_util::{sink, stream};
    use proptest::prelude::*;
    use std::path::Path;

    struct NoHost;

    impl Host for NoHost {
        fn snapshot(&self) -> BoxFuture<'_, Arc<Snapshot>> {
            Box::pin(async { Arc::default() })
        }
        fn open_file(&self, _: OpenFile) -> BoxFuture<'_, Result<Option<Opened>, HostError>> {
            Box::pin(async { Err(HostError::Busy) })
        }
        fn save<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, Result<Option<bool>, HostError>> {
            Box::pin(async { Err(HostError::Stopping) })
        }
        fn document<'a>(
            &'a self,
            _: &'a Path,
        ) -> BoxFuture<'a, Result<Option<Document>, HostError>> {
            Box::pin(async { Ok(None) })
        }
        fn encodings<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, Vec<String>> {
            Box::pin(async { Vec::new() })
        }
        fn edited<'a>(&'a self, _: &'a ReviewId) -> BoxFuture<'a, Option<Arc<str>>> {
            Box::pin(async { None })
        }
    }

    struct Wired {
        _stop: watch::Sender<bool>,
        serving: BoxFuture<'static, ()>,
        out: mpsc::UnboundedReceiver<String>,
    }

    /// A session that is sent `messages` and then nothing more; `reads` says whether its peer
    /// takes what it is sent.
    fn wired(messages: impl Stream<Item = String> + Send + 'static, reads: bool) -> Wired {
        let snapshots = watch::Sender::default();
        let mcp = super::super::Mcp::new(
            Desk::default(),
            snapshots.subscribe(),
            Arc::new(NoHost),
            drop::<ClientEvent>,
        );
        let (stop, stopped) = watch::channel(false);
        let (sender, out) = mpsc::unbounded_channel();
        let link = Link {
            family: Family::Pi,
            inbound: Box::pin(messages),
            outbound: Box::pin(sink::unfold(sender, move |sender, text: String| async move {
                if !reads {
                    std::future::pending::<()>().await;
                }
                sender.send(text).map(|()| sender).map_err(|_| Closed)
            })),
            news: None,
            stop: stopped,
            owed: Owed::default(),
        };
        let serving = Box::pin(async move { mcp.serve(link).await });
        Wired { _stop: stop, serving, out }
    }

    /// All answers to `messages`, until there have been none for a moment.
    fn answers(messages: Vec<String>) -> Vec<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let messages = stream::iter(messages).chain(stream::pending());
            let Wired { _stop, serving, mut out, .. } = wired(messages, true);
            let mut answers = Vec::new();
            tokio::select! {
                () = serving => panic!("the session ended"),
                () = async {
                    while let Ok(Some(text)) =
                        tokio::time::timeout(Duration::from_millis(20), out.recv()).await
                    {
                        answers.push(serde_json::from_str(&text).unwrap());
                    }
                } => {}
            }
            answers
        })
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_not_read_from_either() {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let flood =
            stream::repeat(r#"{"id":1,"method":"tools/list"}"#.to_owned()).map(move |text| {
                count.fetch_add(1, Ordering::Relaxed);
                text
            });
        let Wired { _stop, serving, .. } = wired(flood, false);
        assert!(tokio::time::timeout(Duration::from_millis(200), serving).await.is_err());
        let taken = taken.load(Ordering::Relaxed);
        assert!((OUTBOX..OUTBOX + 4).contains(&taken), "{taken}");
    }

    #[tokio::test]
    async fn neither_are_calls_taken_on_without_end() {
        let call = r#"{"id":1,"method":"tools/call","params":{"name":"getOpenEditors"}}"#;
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let flood = stream::repeat(call.to_owned()).map(move |text| {
            count.fetch_add(1, Ordering::Relaxed);
            text
        });
        let Wired { _stop, serving, .. } = wired(flood, false);
        assert!(tokio::time::timeout(Duration::from_millis(200), serving).await.is_err());
        let taken = taken.load(Ordering::Relaxed);
        assert!(taken <= OUTBOX + CALLS_AT_ONCE + 4, "{taken}");
    }

    /// A session without a connection, with one diff booked.
    fn booked(desk: &Desk) -> (Arc<Session>, u64) {
        let snapshots = watch::Sender::default().subscribe();
        let listener = drop::<ClientEvent>;
        let mcp = super::super::Mcp::new(desk.clone(), snapshots, Arc::new(NoHost), listener);
        let stop = watch::channel(false).1;
        let outbox = mpsc::channel(1).0;
        let session = Arc::new(Session::new(mcp.0, Family::Pi, outbox, stop, Owed::default()));
        let seq = session.requests.begin(Id::null());
        session.book_diff(seq, "t", 1).unwrap();
        (session, seq)
    }

    /// What the call does once it has read the file. Returns the verdict, if there is one.
    fn open(session: &Session, seq: u64) -> Option<Verdict> {
        let verdict = Arc::new(Mutex::new(None));
        let answer = Arc::clone(&verdict);
        let path = PathBuf::from("/a");
        let review = session.desk().open(
            Proposal {
                owner: session.owner(),
                origin: "Pi".into(),
                name: "t".into(),
                id: None,
                kind: Kind::Write {
                    old_path: path.clone(),
                    path,
                    old: OldText::Missing,
                    new: "x".into(),
                },
                editable: true,
                can_always: false,
                asked: SystemTime::now(),
            },
            Box::new(move |verdict| *lock(&answer) = Some(verdict)),
        );
        session.diff_opened(seq, &review.id);
        lock(&verdict).take()
    }

    #[test]
    fn a_diff_that_reaches_the_desk_too_late_is_taken_off_again() {
        let desk = Desk::default();
        let withdrawn = |why| Some(Verdict::Withdrawn(why));
        let (session, seq) = booked(&desk);
        assert_eq!(open(&session, seq), None);
        drop(Presence::enter(Arc::clone(&session)));
        assert!(desk.is_empty(), "there before the end");

        // The call runs on another thread while these happen.
        let (session, seq) = booked(&desk);
        drop(Presence::enter(Arc::clone(&session)));
        assert_eq!(open(&session, seq), withdrawn(Withdrawal::OwnerLost));
        let (session, seq) = booked(&desk);
        assert_eq!(session.close_diffs(Some("other"), Withdrawal::Closed), 0);
        assert_eq!(session.close_diffs(Some("t"), Withdrawal::Closed), 1);
        assert_eq!(open(&session, seq), withdrawn(Withdrawal::Closed));
        let (session, seq) = booked(&desk);
        session.cancel(&Value::Null);
        assert_eq!(open(&session, seq), withdrawn(Withdrawal::Cancelled));
        let (session, seq) = booked(&desk);
        session.stop_asking();
        assert_eq!(open(&session, seq), withdrawn(Withdrawal::Closed));
        assert!(desk.is_empty());
    }

    fn json_like() -> impl Strategy<Value = String> {
        let value = prop_oneof![
            Just("null".to_owned()),
            Just("{}".to_owned()),
            Just("[]".to_owned()),
            "-?[0-9]{1,20}(\\.[0-9]{1,3})?(e[0-9]{1,2})?",
            "\"(\\PC|\\\\u00[0-9a-f]{2}){0,8}\"",
            Just(r#"{"name":"openDiff","arguments":{"tab_name":5}}"#.to_owned()),
            Just(r#"{"name":"close_tab","arguments":{"tab_name":"\ud800"}}"#.to_owned()),
            Just(r#"{"name":"getDiagnostics","arguments":{"uri":"file:///%zz%c3"}}"#.to_owned()),
        ];
        let method = prop_oneof![
            Just("\"initialize\"".to_owned()),
            Just("\"tools/call\"".to_owned()),
            Just("\"notifications/cancelled\"".to_owned()),
            Just("\"ide_connected\"".to_owned()),
            value.clone(),
        ];
        let member = prop_oneof![
            value.clone().prop_map(|v| format!("\"id\":{v}")),
            method.prop_map(|v| format!("\"method\":{v}")),
            value.clone().prop_map(|v| format!("\"params\":{v}")),
            value.prop_map(|v| format!("\"jsonrpc\":{v}")),
            Just("\"jsonrpc\":\"2.0\"".to_owned()),
        ];
        prop_oneof![
            8 => proptest::collection::vec(member, 0..6).prop_map(|m| format!("{{{}}}", m.join(","))),
            1 => "\\PC{0,20}",
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_comes_the_session_goes_on(messages in proptest::collection::vec(json_like(), 0..8)) {
            let last = r#"{"jsonrpc":"2.0","id":"the last one","method":"ping"}"#;
            let count = messages.len();
            let messages = messages.into_iter().chain([last.to_owned()]).collect();
            let answers = answers(messages);
            prop_assert!(answers.len() <= count + 1, "{answers:?}");
            prop_assert!(answers.iter().any(|answer| answer["id"] == "the last one"), "{answers:?}");
            for answer in answers {
                prop_assert_eq!(&answer["jsonrpc"], "2.0");
                let ways = ["result", "error"].iter().filter(|way| answer.get(**way).is_some());
                prop_assert_eq!(ways.count(), 1);
            }
        }
    }
}
