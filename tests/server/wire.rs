//! WebSocket frames: good, odd, broken, huge, stuck.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use gangway::agents::mcp::Family;
use gangway::server::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use super::support::{Rig, at, frame, read_frame, read_out, texts, until};

const FIN: u8 = 0x80;

#[tokio::test(flavor = "multi_thread")]
async fn fragments_with_a_ping_between_and_a_character_across_two() {
    let rig = Rig::new().await;
    let mut tcp = rig.upgraded(Family::Claude).await;
    let text = json!({"jsonrpc": "2.0", "id": "é漢", "method": "ping"}).to_string();
    let text = text.as_bytes();
    let cut = text.windows(3).position(|w| w == "漢".as_bytes()).unwrap() + 1;
    tcp.write_all(&frame(0, 1, &text[..cut])).await.unwrap();
    tcp.write_all(&frame(FIN, 9, b"mid")).await.unwrap();
    assert_eq!(read_frame(&mut tcp).await, (10, b"mid".to_vec()));
    tcp.write_all(&frame(0, 0, &text[cut..cut + 4])).await.unwrap();
    tcp.write_all(&frame(FIN, 0, &text[cut + 4..])).await.unwrap();
    let (opcode, payload) = read_frame(&mut tcp).await;
    assert_eq!(opcode, 1);
    let answer: Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": "é漢", "result": {}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_the_protocol_is_closed_with_its_code_and_others_do_not_notice() {
    let rig = Rig::new().await;
    let mut other = rig.client(Family::Claude).await;
    let mut unmasked = frame(FIN, 1, b"{}");
    unmasked[1] &= 0x7f;
    let mut absurd = vec![FIN | 1, 0x80 | 127];
    absurd.extend((65_u64 << 20).to_be_bytes());
    absurd.extend([1, 2, 3, 4]);
    let cases: Vec<(&str, Vec<u8>, u16)> = vec![
        ("unknown opcode", frame(FIN, 3, b"x"), 1002),
        ("unknown control opcode", frame(FIN, 11, b""), 1002),
        ("RSV1", frame(FIN | 0x40, 1, b"{}"), 1002),
        ("RSV3 on a ping", frame(FIN | 0x10, 9, b""), 1002),
        ("long ping", frame(FIN, 9, &[b'x'; 126]), 1002),
        ("fragmented ping", frame(0, 9, b"x"), 1002),
        ("1-byte close", frame(FIN, 8, b"\x03"), 1002),
        ("stray continuation", frame(FIN, 0, b"x"), 1002),
        ("message in a message", [frame(0, 1, b"{"), frame(FIN, 1, b"{}")].concat(), 1002),
        ("unmasked", unmasked, 1002),
        ("binary", frame(FIN, 2, b"{}"), 1003),
        ("bad UTF-8", frame(FIN, 1, b"{\"a\":\"\xc3\x28\"}"), 1007),
        (
            "bad UTF-8 over fragments",
            [frame(0, 1, b"\"\xe2\x82"), frame(FIN, 0, b"\"")].concat(),
            1007,
        ),
        ("too big", absurd, 1009),
    ];
    for (what, bytes, code) in cases {
        let mut tcp = rig.upgraded(Family::Pi).await;
        tcp.write_all(&bytes).await.unwrap();
        // More than the server will read: it must not reset the connection over that.
        let _ = tcp.write_all(&[0; 1000]).await;
        let (opcode, payload) = read_frame(&mut tcp).await;
        assert_eq!((opcode, &payload[..2]), (8, &code.to_be_bytes()[..]), "{what}");
        assert!(read_out(&mut tcp).await.is_empty(), "{what}");
    }
    assert_eq!(other.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_frame_is_answered() {
    let rig = Rig::new().await;
    let mut tcp = rig.upgraded(Family::Pi).await;
    tcp.write_all(&frame(FIN, 8, &[&1000_u16.to_be_bytes()[..], b"bye"].concat())).await.unwrap();
    let (opcode, payload) = read_frame(&mut tcp).await;
    assert_eq!((opcode, &payload[..2]), (8, &1000_u16.to_be_bytes()[..]));
    assert!(read_out(&mut tcp).await.is_empty());
    let mut empty = rig.upgraded(Family::Claude).await;
    empty.write_all(&frame(FIN, 8, b"")).await.unwrap();
    assert_eq!(read_frame(&mut empty).await.0, 8);
    read_out(&mut empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_every_length_arrive_whole_both_ways() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let path = rig.file("a.txt", "one\n");
    for size in [0, 125, 126, 65_535, 65_536, 20_000_000] {
        let text = "0123456789abcde\n".repeat(size / 16 + 1)[..size].to_owned();
        let id = client.ask_diff(&path, &text, "t").await;
        let review = rig.reviews(1).await.remove(0);
        rig.accept(&review, &text);
        let answer = texts(&client.answer(&id).await);
        assert!(answer == ["FILE_SAVED", &text], "{size} bytes: {} back", answer[1].len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_limit_is_closed_with_1009() {
    let rig = Rig::new().await;
    let mut tcp = rig.upgraded(Family::Pi).await;
    let part = frame(0, 0, &vec![b' '; 1 << 20]);
    let (mut reader, mut writer) = tcp.split();
    let write = async {
        writer.write_all(&frame(0, 1, b"{")).await?;
        for _ in 0..65 {
            writer.write_all(&part).await?;
        }
        std::io::Result::Ok(())
    };
    let read = async {
        let mut out = Vec::new();
        let _ = reader.read_to_end(&mut out).await;
        out
    };
    let (_, out) = tokio::join!(write, read);
    assert_eq!(&out[..4], [0x88, 2, 0x03, 0xf1], "1009");
}

/// Hurried watch: a tick is 20 ms. A second of patience is more than a loaded machine keeps a
/// thread waiting.
fn hurried() -> Limits {
    let tick = Duration::from_millis(20);
    Limits { tick, ping_every: 5, dead_after: 50, stuck_after: 50, ..Limits::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_a_big_answer_gets_it() {
    // It is too busy reading to answer pings.
    let rig = Rig::with(hurried()).await;
    let mut client = rig.connect_with_buffer(32 << 10, Family::Claude).await;
    client.introduce("x", "2024-11-05").await;
    let path = rig.file("a.txt", "one\n");
    let text = "slow reader line\n".repeat(600_000);
    client.ask_diff(&path, &text, "t").await;
    let review = rig.reviews(1).await.remove(0);
    rig.accept(&review, &text);
    let mut tcp = client.socket.into_inner();
    let mut out: Vec<u8> = Vec::new();
    let begun = std::time::Instant::now();
    while out.len() < text.len() {
        let mut part = vec![0; 65_536];
        let read = tcp.read(&mut part).await.unwrap();
        assert_ne!(read, 0, "dropped after {} bytes", out.len());
        out.extend(&part[..read]);
        tokio::time::sleep(Duration::from_millis(12)).await;
    }
    assert!(begun.elapsed() > Duration::from_millis(1500), "not slow: {:?}", begun.elapsed());
    let lines = out.windows(16).filter(|window| window == b"slow reader line").count();
    assert!(lines > 560_000, "{lines}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_is_dropped_and_others_are_served() {
    let rig = Rig::with(hurried()).await;
    let mut stuck = rig.connect_narrow(Family::Pi).await;
    stuck.introduce("pi-ide", "2024-11-05").await;
    let mut other = rig.client(Family::Pi).await;
    let text = "x".repeat(1 << 20);
    let begun = std::time::Instant::now();
    let mut line = 0;
    while rig.mcp.client_count() == 2 {
        line += 1;
        rig.show(at("/work/a.txt", line, Some((line, 1, &text))));
        other.listen(Duration::from_millis(20)).await;
        assert!(begun.elapsed() < Duration::from_secs(10), "never dropped");
    }
    assert!(begun.elapsed() > Duration::from_millis(400), "dropped at once");
    assert_eq!(other.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_answers_no_pings_is_dropped_unless_the_user_owes_it_an_answer() {
    let rig = Rig::with(hurried()).await;
    let mut dead = rig.connect(Family::Pi).await;
    dead.introduce("pi-ide", "2024-11-05").await;
    let mut waiting = rig.connect(Family::Pi).await;
    waiting.introduce("pi-ide", "2024-11-05").await;
    let path = rig.file("a.txt", "one\n");
    let diff = waiting.ask_diff(&path, "two\n", "t").await;
    let review = rig.reviews(1).await.remove(0);
    until("the dead peer's end", || (rig.mcp.client_count() == 1).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    rig.accept(&review, "two\n");
    assert_eq!(texts(&waiting.answer(&diff).await), ["FILE_SAVED", "two\n"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_peer_that_answers_pings_stays() {
    let rig = Rig::with(hurried()).await;
    let mut client = rig.client(Family::Pi).await;
    assert!(client.listen(Duration::from_millis(2500)).await.is_empty());
    assert_eq!(rig.mcp.client_count(), 1);
    assert_eq!(client.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn nobody_is_thrown_out_because_the_machine_slept() {
    let rig = Rig::with(hurried()).await;
    let mut client = rig.client(Family::Pi).await;
    for _ in 0..3 {
        // The one thread of this test: client and server stop together, as in a sleep.
        std::thread::sleep(Duration::from_millis(1500));
        assert!(client.listen(Duration::from_millis(150)).await.is_empty());
    }
    assert_eq!(client.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_are_answered_while_everything_else_waits() {
    let rig = Rig::new().await;
    rig.host.busy.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut client = rig.client(Family::Pi).await;
    for _ in 0..50 {
        client.ask_tool("getOpenEditors", json!({})).await;
    }
    for turn in 0..100_u8 {
        client.socket.send(Message::Ping(vec![turn].into())).await.unwrap();
        let pong = tokio::time::timeout(Duration::from_secs(2), client.socket.next()).await;
        assert_eq!(pong.unwrap().unwrap().unwrap(), Message::Pong(vec![turn].into()));
    }
    assert_eq!(client.call("ping", json!({})).await["result"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_vanish_mid_call_leave_others_unharmed() {
    let rig = Rig::new().await;
    let mut keeper = rig.client(Family::Claude).await;
    let path = rig.file("a.txt", "one\n");
    for _ in 0..3 {
        let mut client = rig.client(Family::Pi).await;
        client.ask_diff(&path, "two\n", "t").await;
        rig.reviews(1).await;
        client.reset();
        rig.reviews(0).await;
    }
    let big = "some line of text\n".repeat(200_000);
    for _ in 0..3 {
        let mut client = rig.connect_narrow(Family::Pi).await;
        client.introduce("pi-ide", "2024-11-05").await;
        client.ask_diff(&path, &big, "t").await;
        let review = rig.reviews(1).await.remove(0);
        rig.accept(&review, &big);
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.reset();
    }
    until("their end", || (rig.mcp.client_count() == 1).then_some(())).await;
    assert_eq!(keeper.call("ping", json!({})).await["result"], json!({}));
}
