//! What we ask an agent, and who waits for its answer.
//!
//! One table a connection, any thread. An id is never used twice; an answer that nobody waits for
//! (any more) is dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::rpc::{self, Id, RpcError};
use super::{Peer, lock};

/// What came back: the `result`, or the `error`.
pub(super) type Reply = Result<Value, RpcError>;

#[derive(Default)]
pub(in crate::agents) struct Asks {
    next: AtomicU64,
    waiting: Mutex<HashMap<String, oneshot::Sender<Reply>>>,
}

impl Asks {
    /// A new id, and where its answer comes. Ends without one when the connection does.
    pub(super) fn begin(&self) -> (String, oneshot::Receiver<Reply>) {
        let id = format!("gangway-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, reply) = oneshot::channel();
        lock(&self.waiting).insert(id.clone(), sender);
        (id, reply)
    }

    pub(super) fn answered(&self, id: &Id, reply: Reply) {
        let Some(Value::String(id)) = id.value() else { return };
        if let Some(waits) = lock(&self.waiting).remove(&id) {
            let _ = waits.send(reply);
        }
    }

    /// True if it was not answered yet.
    pub(super) fn forget(&self, id: &str) -> bool {
        lock(&self.waiting).remove(id).is_some()
    }

    /// The connection has ended: nothing more will come.
    pub(super) fn end(&self) {
        lock(&self.waiting).clear();
    }
}

/// A question on its way. Dropped before its answer came, it is taken back (`request_cancelled`,
/// as pi-ide has it; protocols: Pi).
pub(super) struct Asked {
    peer: Arc<dyn Peer>,
    id: String,
    reply: oneshot::Receiver<Reply>,
}

impl Asked {
    /// `None` when the peer takes no questions, or does not read what it is sent.
    pub(super) fn new(peer: Arc<dyn Peer>, method: &str, params: &Value) -> Option<Self> {
        let (id, reply) = peer.asks()?.begin();
        let asked = Self { id, reply, peer };
        let text = rpc::request(&asked.id, method, params);
        if asked.peer.send_now(text) {
            return Some(asked);
        }
        asked.forget();
        None
    }

    /// `None` when the connection ended.
    pub(super) async fn reply(&mut self) -> Option<Reply> {
        (&mut self.reply).await.ok()
    }

    fn forget(&self) -> bool {
        self.peer.asks().is_some_and(|asks| asks.forget(&self.id))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.forget() {
            self.peer.send_now(rpc::notification("request_cancelled", &json!({"id": self.id})));
        }
    }
}
