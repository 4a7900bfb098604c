//! Fuzzing what a peer can send: messages of a session, frames behind the upgrade, requests before
//! it. How it goes about it: `tests/fuzz/mod.rs`.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Once;
use std::time::Duration;

use futures_util::{StreamExt, sink, stream};
use gangway::agents::mcp::rpc::{self, Incoming};
use gangway::agents::mcp::{Closed, Family, Link, Owed};
use gangway::review::Verdict;
use gangway::server::Limits;
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use super::fuzz;
use super::support::{PATIENCE, Rig, until};

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Everything runs on the test's own thread, so that a panic anywhere in the server is seen.
fn runtime() -> Runtime {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with(|panics| panics.set(panics.get() + 1));
            usual(info);
        }));
    });
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs `check` and takes a panic in any task of the server for a failure.
fn unharmed(
    runtime: &Runtime,
    check: impl Future<Output = Result<(), TestCaseError>>,
) -> Result<(), TestCaseError> {
    let before = PANICS.with(Cell::get);
    runtime.block_on(check)?;
    prop_assert_eq!(PANICS.with(Cell::get), before, "a panic in the server");
    Ok(())
}

#[test]
fn fuzz_session_any_messages_leave_it_answering_and_the_desk_empty() {
    let runtime = runtime();
    let rig = runtime.block_on(Rig::new());
    fuzz::run("session", |bytes| unharmed(&runtime, session(&rig, bytes)));
}

/// A line is a message.
async fn session(rig: &Rig, bytes: &[u8]) -> Result<(), TestCaseError> {
    let family = Family::ALL[bytes.len() % Family::ALL.len()];
    let messages: Vec<String> =
        bytes.split(|b| *b == b'\n').map(|line| String::from_utf8_lossy(line).into()).collect();
    let last = match family {
        Family::Amp => json!({"clientRequest": {"id": "the last", "ping": {"message": "x"}}}),
        _ => json!({"jsonrpc": "2.0", "id": "the last", "method": "ping"}),
    };
    let mut asked: HashMap<String, usize> = HashMap::new();
    for text in &messages {
        if let Incoming::Request { id, .. } | Incoming::Invalid { id, .. } = rpc::parse(text) {
            let id = id.value().unwrap_or_default().to_string();
            *asked.entry(id).or_default() += 1;
        }
    }
    let count = messages.len();
    let (feed, fed) = mpsc::unbounded_channel();
    for message in messages.into_iter().chain([last.to_string()]) {
        feed.send(message).unwrap();
    }
    let inbound = stream::unfold(fed, |mut fed| async move { Some((fed.recv().await?, fed)) });
    let (sender, mut out) = mpsc::unbounded_channel::<String>();
    let outbound = sink::unfold(sender, |sender, text| async move {
        sender.send(text).map(|()| sender).map_err(|_| Closed)
    });
    let (_stop, stop) = watch::channel(false);
    let owed = Owed::default();
    let link = Link {
        family,
        inbound: inbound.boxed(),
        outbound: Box::pin(outbound),
        news: None,
        stop,
        owed: owed.clone(),
    };
    let serving = rig.mcp.serve(link);
    tokio::pin!(serving);
    let mut heard: Vec<Value> = Vec::new();
    let reached = async {
        while let Some(text) = out.recv().await {
            let message = heard_as(&text);
            let is_last =
                message["id"] == "the last" || message["serverResponse"]["id"] == "the last";
            heard.push(message);
            if is_last {
                return true;
            }
        }
        false
    };
    tokio::select! {
        () = &mut serving => prop_assert!(false, "the session ended"),
        reached = tokio::time::timeout(PATIENCE, reached) => prop_assert_eq!(reached, Ok(true)),
    }
    // The user says something to each question, and the peer hangs up.
    for (review, _) in rig.desk.pending() {
        rig.desk.decide(&review.id, Verdict::Accept { text: "x".into() });
    }
    drop(feed);
    prop_assert!(tokio::time::timeout(PATIENCE, serving).await.is_ok(), "it does not end");
    while let Ok(text) = out.try_recv() {
        heard.push(heard_as(&text));
    }
    // Calls that were still reading a file notice it as soon as they are done.
    until("the end of its calls", || (owed.count() == 0).then_some(())).await;
    prop_assert!(rig.desk.is_empty(), "a question outlived its connection");
    if family == Family::Amp {
        return Ok(());
    }
    let (notes, answers): (Vec<_>, Vec<_>) =
        heard.into_iter().partition(|message| message.get("method").is_some());
    prop_assert!(notes.iter().all(|note| note["jsonrpc"] == "2.0"));
    prop_assert!(answers.len() <= count + 1, "{answers:?}");
    let mut given: HashMap<String, usize> = HashMap::new();
    for answer in &answers {
        prop_assert_eq!(&answer["jsonrpc"], "2.0");
        let ways = ["result", "error"].iter().filter(|way| answer.get(**way).is_some());
        prop_assert_eq!(ways.count(), 1);
        no_panic(answer)?;
        *given.entry(answer["id"].to_string()).or_default() += 1;
    }
    for (id, times) in given.into_iter().filter(|(id, _)| id != "null" && id != "\"the last\"") {
        let asked = asked.get(&id).copied();
        // A number beyond 64 bits is echoed as it came, but not read as it came.
        prop_assert!(
            asked.is_none_or(|asked| times <= asked),
            "{id}: {times} answers to {asked:?}"
        );
    }
    Ok(())
}

/// A message of the server's. Its id comes back as it was sent, also a number that is JSON and that
/// serde_json cannot hold: such a message is looked at no further.
fn heard_as(text: &str) -> Value {
    let raw: Box<serde_json::value::RawValue> = serde_json::from_str(text).unwrap();
    let unlooked = || json!({"jsonrpc": "2.0", "id": null, "result": {}});
    serde_json::from_str(raw.get()).unwrap_or_else(|_| unlooked())
}

/// -32603 is how a panic in a call is answered.
fn no_panic(answer: &Value) -> Result<(), TestCaseError> {
    prop_assert!(answer["error"]["code"] != -32603, "{answer}");
    Ok(())
}

/// A hurried server: what a stranger does not finish is cut at once.
fn hurried() -> Limits {
    let tick = Duration::from_millis(20);
    Limits {
        handshake: Duration::from_secs(2),
        tick,
        absence: tick,
        silence: tick,
        ..Limits::default()
    }
}

/// What the server says to `bytes` until it closes.
async fn said(tcp: &mut tokio::net::TcpStream, bytes: &[u8]) -> Result<Vec<u8>, TestCaseError> {
    let (mut reader, mut writer) = tcp.split();
    let write = async {
        // It may have closed already.
        let _ = writer.write_all(bytes).await;
        let _ = writer.shutdown().await;
    };
    let read = async {
        let mut out = Vec::new();
        let _ = reader.read_to_end(&mut out).await;
        out
    };
    let both = async { tokio::join!(read, write).0 };
    let out = tokio::time::timeout(PATIENCE, both).await;
    out.map_err(|_| TestCaseError::fail("the connection stays open"))
}

#[test]
fn fuzz_frames_any_bytes_behind_the_upgrade_end_the_connection_and_no_other() {
    let runtime = runtime();
    let rig = runtime.block_on(Rig::with(hurried()));
    let keeper = tokio::sync::Mutex::new((runtime.block_on(rig.client(Family::Claude)), 0_usize));
    fuzz::run("frames", |bytes| {
        unharmed(&runtime, async {
            let mut tcp = rig.upgraded(Family::ALL[bytes.len() % 2]).await;
            let out = said(&mut tcp, bytes).await?;
            frames_are_whole(&out)?;
            let (keeper, turn) = &mut *keeper.lock().await;
            *turn += 1;
            if *turn % 50 == 0 {
                let one = || (rig.mcp.client_count() == 1).then_some(());
                until("the end of the other connections", one).await;
                let pong = keeper.call("ping", json!({})).await;
                prop_assert_eq!(&pong["result"], &json!({}));
                prop_assert!(rig.desk.is_empty());
            }
            Ok(())
        })
    });
}

/// The server's own frames are proper ones: unmasked, with a known opcode, text that is JSON.
fn frames_are_whole(mut bytes: &[u8]) -> Result<(), TestCaseError> {
    while let [first, second, rest @ ..] = bytes {
        prop_assert!(first & 0x80 != 0 && first & 0x70 == 0 && second & 0x80 == 0);
        let (length, rest) = match (second, rest) {
            (126, [a, b, rest @ ..]) => (usize::from(u16::from_be_bytes([*a, *b])), rest),
            (127, [a, b, c, d, e, f, g, h, rest @ ..]) => {
                let length = u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
                (usize::try_from(length).unwrap(), rest)
            }
            (length, rest) => (usize::from(*length), rest),
        };
        prop_assert!(rest.len() >= length, "cut short");
        let (payload, rest) = rest.split_at(length);
        match first & 0xf {
            1 => prop_assert!(serde_json::from_slice::<Value>(payload).is_ok()),
            opcode => prop_assert!((8..=10).contains(&opcode), "opcode {opcode}"),
        }
        bytes = rest;
    }
    prop_assert!(bytes.is_empty(), "cut short");
    Ok(())
}

#[test]
fn fuzz_http_any_request_gets_a_proper_answer_or_none() {
    let runtime = runtime();
    let rig = runtime.block_on(Rig::with(hurried()));
    let replace = |bytes: &[u8], what: &str, with: &str| {
        let mut out = Vec::new();
        let mut rest = bytes;
        while let Some(at) = rest.windows(what.len()).position(|w| w == what.as_bytes()) {
            out.extend(&rest[..at]);
            out.extend(with.as_bytes());
            rest = &rest[at + what.len()..];
        }
        out.extend(rest);
        out
    };
    fuzz::run("http", |bytes| {
        let mut bytes = replace(bytes, "@PORT@", &rig.port.to_string());
        for family in Family::ALL {
            bytes = replace(&bytes, &format!("@{family:?}@"), rig.secret(family));
        }
        unharmed(&runtime, async {
            let mut tcp = rig.raw().await;
            let out = said(&mut tcp, &bytes).await?;
            if out.is_empty() {
                return Ok(());
            }
            let head = String::from_utf8_lossy(&out[..out.len().min(12)]).into_owned();
            let status =
                head.strip_prefix("HTTP/1.").and_then(|rest| rest[2..].parse::<u16>().ok());
            prop_assert!(matches!(status, Some(100..=499)), "{head:?}");
            let text = String::from_utf8_lossy(&out).to_lowercase();
            prop_assert!(!text.contains("access-control-"), "{text}");
            Ok(())
        })
    });
    runtime.block_on(async {
        assert_eq!(rig.client(Family::Pi).await.call("ping", json!({})).await["result"], json!({}));
    });
}
