//! The router we are where there is no other: it answers what it can and passes on the rest.
//!
//! One task for each connection, on the runtime; all of them are gone when `run` is dropped. A
//! request goes to the first client that says it can handle it; broadcasts go to everybody else.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Host, Made, answer, is_ours, lock, wire};

/// Messages that wait for a slow client; one that falls behind further is disconnected.
const OUTBOX: usize = 64;
const CLIENTS: usize = 64;
/// For some client to say that it can handle a request; Codex itself waits five seconds.
const DISCOVERY: Duration = Duration::from_secs(1);
/// For the answer of the one that could.
const RESPONSE: Duration = Duration::from_secs(4);
/// How often to see whether the socket is still there for others to find.
const CHECK: Duration = Duration::from_secs(5);
/// How we sign.
const ROUTER: &str = "gangway.nvim";

#[derive(Default)]
struct State {
    next: u64,
    clients: BTreeMap<u64, Client>,
    /// By the id of a discovery or of a request that was passed on: who waits for what comes.
    waiting: HashMap<String, mpsc::Sender<(u64, Value)>>,
}

struct Client {
    outbox: mpsc::Sender<Value>,
    /// It has introduced itself; Codex does not, it only asks.
    serves: bool,
}

type Shared = Arc<Mutex<State>>;

/// Serves whoever comes, until somebody has taken the socket's place.
pub(super) async fn run(listener: UnixListener, host: &Arc<dyn Host>, made: &Made) {
    let state = Shared::default();
    let mut connections = JoinSet::new();
    let mut check = tokio::time::interval(CHECK);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) if is_ours(&socket) && connections.len() < CLIENTS => {
                    connections.spawn(connection(socket, Arc::clone(&state), Arc::clone(host)));
                }
                Ok(_) => {}
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => {}
            _ = check.tick() => if !made.is_there() {
                return;
            },
        }
    }
}

/// A client is known for as long as this lives.
struct Presence(Shared, u64);

impl Drop for Presence {
    fn drop(&mut self) {
        lock(&self.0).clients.remove(&self.1);
    }
}

async fn connection(socket: UnixStream, state: Shared, host: Arc<dyn Host>) {
    let (mut reader, mut writer) = socket.into_split();
    let (outbox, mut letters) = mpsc::channel(OUTBOX);
    let number = {
        let mut state = lock(&state);
        state.next += 1;
        let number = state.next;
        state.clients.insert(number, Client { outbox: outbox.clone(), serves: false });
        number
    };
    let _presence = Presence(Arc::clone(&state), number);
    let mut work = JoinSet::new();
    let read = async {
        loop {
            let Ok(frame) = wire::read(&mut reader).await else { return };
            let Some(frame) = frame else { continue };
            match frame["type"].as_str() {
                Some("request") => {
                    while work.try_join_next().is_some() {}
                    let (state, host, outbox) =
                        (Arc::clone(&state), Arc::clone(&host), outbox.clone());
                    work.spawn(async move {
                        let reply = request(frame, number, &state, &host).await;
                        let _ = outbox.send(reply).await;
                    });
                }
                Some("response" | "client-discovery-response") => {
                    let id = frame["requestId"].as_str().unwrap_or_default();
                    let waiting = lock(&state).waiting.get(id).cloned();
                    if let Some(waiting) = waiting {
                        let _ = waiting.try_send((number, frame));
                    }
                }
                Some("broadcast") => {
                    for (other, client) in &lock(&state).clients {
                        if *other != number && client.serves {
                            let _ = client.outbox.try_send(frame.clone());
                        }
                    }
                }
                _ => {}
            }
        }
    };
    let write = async {
        while let Some(message) = letters.recv().await {
            if wire::write(&mut writer, &message).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}

/// The response to a request, whoever gives it.
async fn request(frame: Value, from: u64, state: &Shared, host: &Arc<dyn Host>) -> Value {
    if frame["method"] == "initialize" {
        if let Some(client) = lock(state).clients.get_mut(&from) {
            client.serves = true;
        }
        return wire::initialized(&frame, ROUTER, &format!("client-{from}"));
    }
    let own = answer(&frame, ROUTER, host).await;
    if own["resultType"] == "success" {
        return own;
    }
    let others: Vec<(u64, mpsc::Sender<Value>)> = {
        let state = lock(state);
        let others = state.clients.iter().filter(|(n, client)| **n != from && client.serves);
        others.map(|(number, client)| (*number, client.outbox.clone())).collect()
    };
    let (id, question) = wire::discovery(&frame);
    let (said, mut heard) = mpsc::channel(others.len().max(1));
    let waiting = Waiting::enter(state, &id, said);
    let mut asked = 0;
    for (_, outbox) in &others {
        asked += usize::from(outbox.try_send(question.clone()).is_ok());
    }
    let find = async {
        for _ in 0..asked {
            let (number, reply) = heard.recv().await?;
            if reply["response"]["canHandle"] == json!(true) {
                return Some(number);
            }
        }
        None
    };
    let found = tokio::time::timeout(DISCOVERY, find).await.ok().flatten();
    drop(waiting);
    let handler = found.and_then(|found| others.into_iter().find(|(number, _)| *number == found));
    let Some((_, outbox)) = handler else { return own };
    let id = frame["requestId"].as_str().unwrap_or_default().to_owned();
    let (said, mut heard) = mpsc::channel(1);
    let _waiting = Waiting::enter(state, &id, said);
    if outbox.send(frame.clone()).await.is_err() {
        return own;
    }
    match tokio::time::timeout(RESPONSE, heard.recv()).await {
        Ok(Some((_, response))) => response,
        _ => wire::refusal(&frame, "request-timeout"),
    }
}

/// Somebody waits for messages with this id for as long as this lives.
struct Waiting(Shared, String);

impl Waiting {
    fn enter(state: &Shared, id: &str, said: mpsc::Sender<(u64, Value)>) -> Self {
        lock(state).waiting.insert(id.to_owned(), said);
        Self(Arc::clone(state), id.to_owned())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.0).waiting.remove(&self.1);
    }
}
