//! A blocking msgpack-RPC client for one Neovim.

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmpv::Value as Mp;
use serde_json::{Value, json};

/// Why a call brought no result.
#[derive(Debug, Clone, PartialEq)]
pub enum RpcError {
    /// Neovim did not answer in time: it hangs, or a prompt holds it.
    TimedOut,
    /// The socket is closed: Neovim has ended.
    Gone,
    /// Neovim answered with an error.
    Error(String),
}

type Waiting = Arc<Mutex<Option<HashMap<u64, Sender<Result<Value, String>>>>>>;

pub struct Rpc {
    writer: Mutex<UnixStream>,
    /// `None` once the socket is closed.
    waiting: Waiting,
    notifications: Arc<Mutex<Vec<(String, Value)>>>,
    next: AtomicU64,
}

impl Rpc {
    pub fn connect(socket: &Path) -> std::io::Result<Self> {
        let writer = UnixStream::connect(socket)?;
        writer.set_write_timeout(Some(Duration::from_secs(30)))?;
        let reader = writer.try_clone()?;
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let notifications = Arc::new(Mutex::new(Vec::new()));
        let (waiting_too, notifications_too) = (waiting.clone(), notifications.clone());
        std::thread::spawn(move || read(reader, &waiting_too, &notifications_too));
        Ok(Self { writer: Mutex::new(writer), waiting, notifications, next: AtomicU64::new(1) })
    }

    pub fn call(&self, method: &str, args: Value, limit: Duration) -> Result<Value, RpcError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = channel();
        match self.waiting.lock().unwrap().as_mut() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(RpcError::Gone),
        };
        self.send(&Mp::Array(vec![0.into(), id.into(), method.into(), to_mp(args)]))?;
        match receiver.recv_timeout(limit) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(message)) => Err(RpcError::Error(message)),
            Err(RecvTimeoutError::Timeout) => Err(RpcError::TimedOut),
            Err(RecvTimeoutError::Disconnected) => Err(RpcError::Gone),
        }
    }

    /// Sends a call without waiting for what becomes of it.
    pub fn notify(&self, method: &str, args: Value) -> Result<(), RpcError> {
        self.send(&Mp::Array(vec![2.into(), method.into(), to_mp(args)]))
    }

    /// What Neovim sent by `rpcnotify()`.
    pub fn notifications(&self) -> Vec<(String, Value)> {
        self.notifications.lock().unwrap().clone()
    }

    fn send(&self, message: &Mp) -> Result<(), RpcError> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, message).unwrap();
        self.writer.lock().unwrap().write_all(&bytes).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => RpcError::TimedOut,
            _ => RpcError::Gone,
        })
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        // Ends the reading thread, which holds the same socket.
        let _ = self.writer.lock().unwrap().shutdown(std::net::Shutdown::Both);
    }
}

fn read(stream: UnixStream, waiting: &Waiting, notifications: &Mutex<Vec<(String, Value)>>) {
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    while let Ok(Mp::Array(message)) = rmpv::decode::read_value(&mut reader) {
        match message.as_slice() {
            [kind, id, error, result] if kind.as_u64() == Some(1) => {
                let reply = match error {
                    Mp::Nil => Ok(to_json(result)),
                    Mp::Array(parts) if parts.len() == 2 => Err(text(&to_json(&parts[1]))),
                    other => Err(text(&to_json(other))),
                };
                let sender = id
                    .as_u64()
                    .and_then(|id| waiting.lock().unwrap().as_mut().and_then(|w| w.remove(&id)));
                if let Some(sender) = sender {
                    let _ = sender.send(reply);
                }
            }
            [kind, method, args] if kind.as_u64() == Some(2) => {
                notifications.lock().unwrap().push((text(&to_json(method)), to_json(args)));
            }
            _ => {}
        }
    }
    *waiting.lock().unwrap() = None; // drops the senders: whoever waits learns that Neovim is gone
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Bytes that are no UTF-8 are replaced; handles of buffers, windows and tab pages become their
/// numbers.
fn to_json(value: &Mp) -> Value {
    match value {
        Mp::Nil => Value::Null,
        Mp::Boolean(b) => json!(b),
        Mp::Integer(n) => n.as_i64().map_or_else(|| json!(n.as_u64()), |n| json!(n)),
        Mp::F32(x) => json!(x),
        Mp::F64(x) => json!(x),
        Mp::String(s) => json!(String::from_utf8_lossy(s.as_bytes())),
        Mp::Binary(b) => json!(String::from_utf8_lossy(b)),
        Mp::Array(items) => Value::Array(items.iter().map(to_json).collect()),
        Mp::Map(entries) => entries.iter().map(|(k, v)| (text(&to_json(k)), to_json(v))).collect(),
        Mp::Ext(_, data) => {
            rmpv::decode::read_value(&mut &data[..]).map_or(Value::Null, |v| to_json(&v))
        }
    }
}

fn to_mp(value: Value) -> Mp {
    match value {
        Value::Null => Mp::Nil,
        Value::Bool(b) => b.into(),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => n.into(),
            (_, Some(n)) => n.into(),
            _ => n.as_f64().unwrap().into(),
        },
        Value::String(s) => s.into(),
        Value::Array(items) => Mp::Array(items.into_iter().map(to_mp).collect()),
        Value::Object(entries) => {
            Mp::Map(entries.into_iter().map(|(k, v)| (k.into(), to_mp(v))).collect())
        }
    }
}
