//! An upgraded connection: WebSocket frames on one side, whole messages on the other.
//!
//! Runs on the runtime, one task a connection. Answers pings whatever the session does, finds peers
//! that are dead or do not read, and sees to it that the right Close frame gets out before the
//! socket closes. Time is counted in own ticks: while the machine sleeps or Neovim is stopped there
//! are none, so nobody is thrown out for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt, SinkExt, StreamExt, sink, stream};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::wire::Wire;
use super::{Handler, Limits};
use crate::agents::mcp::{Closed, Family, Link, Owed};

/// RFC 6455, section 7.4.1.
mod code {
    pub(super) const AWAY: u16 = 1001;
    pub(super) const PROTOCOL: u16 = 1002;
    pub(super) const UNSUPPORTED: u16 = 1003;
    pub(super) const NOT_UTF8: u16 = 1007;
    pub(super) const TOO_BIG: u16 = 1009;
}

/// Beside the real codes: the peer closed, or is gone, and gets no Close frame.
const NONE: u16 = 0;
/// Beside the real codes: nothing has been decided yet.
const OPEN: u16 = 1;

/// For the Close frame, and for the peer's last words after it.
const FAREWELL: Duration = Duration::from_millis(150);

type Sender = Arc<Mutex<SplitSink<WebSocket, Message>>>;

/// Serves one connection to its end, and closes it.
pub(super) async fn carry(
    socket: WebSocket,
    wire: Wire,
    family: Family,
    limits: &Limits,
    handler: &Handler,
    stop: watch::Receiver<bool>,
) {
    let (sender, receiver) = socket.split();
    let sender: Sender = Arc::new(Mutex::new(sender));
    let ending = Arc::new(AtomicU16::new(OPEN));
    let owed = Owed::default();
    let link = Link {
        family,
        inbound: inbound(receiver, Arc::clone(&ending)),
        outbound: Box::pin(sink::unfold(
            Arc::clone(&sender),
            |sender: Sender, text: String| async move {
                let sent = sender.lock().await.send(Message::Text(text.into())).await;
                sent.map(|()| sender).map_err(|_| Closed)
            },
        )),
        news: None,
        stop,
        owed: owed.clone(),
    };
    let alive = tokio::select! {
        () = handler(link) => true,
        why = watch_over(&wire, &sender, &owed, limits) => {
            tracing::warn!(why, "dropping a client");
            false
        }
    };
    if !alive {
        return;
    }
    let code = match ending.load(Ordering::Relaxed) {
        NONE => None,
        OPEN => Some(code::AWAY),
        code => Some(code),
    };
    if let Some(code) = code {
        let frame = CloseFrame { code, reason: "".into() };
        let close = async { sender.lock().await.send(Message::Close(Some(frame))).await };
        let _ = tokio::time::timeout(FAREWELL, close).await;
    }
    // The WebSocket's handle goes first, so that nothing else reads from here on.
    drop(sender);
    wire.close(FAREWELL).await;
}

/// The peer's messages. Ends with the connection, and says in `ending` how.
fn inbound(
    receiver: SplitStream<WebSocket>,
    ending: Arc<AtomicU16>,
) -> crate::agents::mcp::Inbound {
    Box::pin(stream::unfold((receiver, ending), |(mut receiver, ending)| async move {
        loop {
            let end = match receiver.next().await {
                Some(Ok(Message::Text(text))) => {
                    return Some((text.as_str().to_owned(), (receiver, ending)));
                }
                Some(Ok(Message::Binary(_))) => code::UNSUPPORTED,
                // Answered by the WebSocket itself when it is read on.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_))) => continue,
                Some(Err(error)) => close_code(error),
                None => NONE,
            };
            ending.store(end, Ordering::Relaxed);
            return None;
        }
    }))
}

/// What a broken connection is closed with.
fn close_code(error: axum::Error) -> u16 {
    use tungstenite::Error;
    use tungstenite::error::ProtocolError;
    let error = error.into_inner();
    match error.downcast_ref::<Error>() {
        Some(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => NONE,
        Some(Error::Protocol(_)) => code::PROTOCOL,
        Some(Error::Utf8(_)) => code::NOT_UTF8,
        Some(Error::Capacity(_)) => code::TOO_BIG,
        _ => NONE,
    }
}

/// Sends pings, and ends with a reason when the peer is dead or has stopped reading. A peer that
/// waits for the user's decision is never given up: were it only suspended, it would take the lost
/// connection for leave to write (Pi does), and what it can pile up here is bounded.
async fn watch_over(wire: &Wire, sender: &Sender, owed: &Owed, limits: &Limits) -> &'static str {
    let mut ticks = tokio::time::interval(limits.tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut read, mut written) = wire.traffic();
    let (mut silent, mut stuck, mut unpinged) = (0, 0, 0);
    let mut last = Instant::now();
    loop {
        ticks.tick().await;
        // A late tick means that time passed in which the peer had no chance either.
        if last.elapsed() > limits.tick * 5 {
            (silent, stuck) = (0, 0);
        }
        last = Instant::now();
        let now = wire.traffic();
        silent = if now.0 == read { silent + 1 } else { 0 };
        match sender.try_lock() {
            // A message is on its way: is it moving? Then the peer is busy with that, and alive.
            Err(_) if now.1 == written => stuck += 1,
            Err(_) => (silent, stuck) = (0, 0),
            Ok(mut sender) => {
                stuck = 0;
                unpinged += 1;
                if unpinged >= limits.ping_every {
                    unpinged = 0;
                    // Once begun it goes out with whatever is written next.
                    let _ = sender.send(Message::Ping("gangway".into())).now_or_never();
                }
            }
        }
        (read, written) = now;
        if owed.count() > 0 {
            continue;
        }
        if stuck >= limits.stuck_after {
            return "it does not read what it is sent";
        }
        if silent >= limits.dead_after {
            return "it does not answer pings";
        }
    }
}
