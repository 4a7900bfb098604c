//! The socket under strain: sizes, sleep, load, and peers that vanish. Who may open one and what a
//! frame may be: `handshake`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::ws::{Frame, PING, Raw, upgrade_request};
use crate::harness::*;

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","#,
    r#""capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#
);

fn signal(nvim: &Nvim, signal: Signal) {
    kill_process(Pid::from_raw(nvim.pid() as i32).unwrap(), signal).unwrap();
}

#[test]
fn t09_messages_of_every_length_arrive_whole_both_ways() {
    let nvim = Nvim::builder().write("a.txt", "one\n").start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    for length in [126, 65_535, 65_536, 20_000_000] {
        let text = format!("{}\n", "a line of some length\n".repeat(length / 22 + 1));
        let text = text[text.len() - length..].to_owned();
        let pending = agent.open_diff(nvim.path("a.txt"), &text);
        nvim.accept_unread();
        let verdict = pending.verdict_within(Duration::from_secs(30));
        assert!(verdict == Verdict::Saved(text), "{length} bytes");
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.right_panes().is_empty());
    }
    // Over the limit the connection says so: 1009, not silence.
    let over = Client::builder(&nvim, Dialect::Pi).silent().connect();
    let mut frame = Frame::text("");
    frame.declared = Some((64 << 20) + 1);
    over.send_frame(&frame);
    assert_eq!(over.wait_closed().map(|(code, _)| code), Some(1009));
    agent.ping();
}

#[test]
fn t09_a_slow_reader_gets_its_big_answer_to_the_last_byte() {
    let nvim = Nvim::builder().write("a.txt", "one\n").start();
    let lock = nvim.lock(Dialect::Claude);
    let mut raw = Raw::connect_with(lock.port, Some(8192));
    assert!(raw.upgrade(&[(Dialect::Claude.auth_header(), &lock.token)]).contains(" 101 "));
    let text = "slow reader line\n".repeat(120_000);
    let arguments = json!({
        "old_file_path": nvim.path("a.txt"), "new_file_path": nvim.path("a.txt"),
        "new_file_contents": text, "tab_name": "t",
    });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "openDiff", "arguments": arguments } });
    raw.send(Frame::text(INITIALIZE).encode());
    raw.send(Frame::text(&call.to_string()).encode());
    nvim.accept_unread();
    let mut heard = Vec::new();
    let whole = || text.lines().count();
    let count = |bytes: &[u8]| bytes.windows(16).filter(|w| w == b"slow reader line").count();
    let end = Instant::now() + Duration::from_secs(30);
    while heard.len() < text.len() || count(&heard) < whole() {
        assert!(Instant::now() < end, "{} of {} lines", count(&heard), whole());
        let more = raw.listen(Duration::from_millis(40));
        assert!(!more.closed, "closed after {} bytes", heard.len());
        heard.extend(more.bytes);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(count(&heard), whole());
}

/// What a sleeping machine looks like from inside: everything stops, and later goes on.
fn sleep_for(time: Duration) {
    let nvim = Nvim::builder().write("a.txt", "one\n").start();
    let agents = [Client::connect(&nvim, Dialect::Pi), Client::connect(&nvim, Dialect::Claude)];
    let pending = agents[0].open_diff(nvim.path("a.txt"), "two\n");
    let review = nvim.shown(&pending);
    signal(&nvim, Signal::STOP);
    for agent in &agents {
        agent.send_frame(&Frame::new(PING, *b"before"));
    }
    std::thread::sleep(time);
    signal(&nvim, Signal::CONT);
    // Longer than a tick of the watch, so that it had its chance to be wrong.
    nvim.settle(Duration::from_millis(2500));
    for agent in &agents {
        assert!(!agent.is_closed(), "thrown out because the machine slept");
        agent.ping();
    }
    assert!(!pending.is_answered());
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("two\n".into()));
}

#[test]
fn t11_nobody_is_thrown_out_because_the_machine_slept() {
    sleep_for(Duration::from_secs(4));
}

#[test]
#[ignore = "takes two minutes"]
fn t11_a_sleep_longer_than_the_patience_with_a_dead_peer_costs_nobody_the_connection() {
    sleep_for(Duration::from_secs(115));
}

#[test]
#[ignore = "takes two minutes"]
fn t11_a_really_dead_peer_is_found() {
    let nvim = Nvim::start();
    // Its host is gone: the connection stays open, and nothing comes any more.
    let dead = Client::builder(&nvim, Dialect::Pi).rude().connect();
    let alive = Client::connect(&nvim, Dialect::Claude);
    let begun = Instant::now();
    let gone = poll(Duration::from_secs(130), || {
        (nvim.status()["clients"].as_array().map(Vec::len) == Some(1)).then_some(())
    });
    assert!(gone.is_some(), "still listed after {:?}", begun.elapsed());
    assert!(begun.elapsed() > Duration::from_secs(60), "after {:?}", begun.elapsed());
    dead.lenient();
    alive.ping();
    println!("a dead peer was found after {:?}", begun.elapsed());
}

fn blocked_for(time: Duration) {
    let nvim = Nvim::builder().write("a.txt", "one\n").start();
    let agents = [Client::connect(&nvim, Dialect::Pi), Client::connect(&nvim, Dialect::Claude)];
    nvim.cmd_nowait(&format!("lua vim.uv.sleep({})", time.as_millis()));
    std::thread::sleep(Duration::from_millis(200));
    let pending = agents[0].open_diff(nvim.path("a.txt"), "two\n");
    let (begun, mut slowest) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() + Duration::from_millis(700) < time {
        for agent in &agents {
            slowest = slowest.max(agent.ping());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(slowest < Duration::from_secs(1), "a pong took {slowest:?}");
    assert!(!pending.is_answered());
    let shown = poll(Duration::from_secs(20), || {
        nvim.try_lua("return #T.panes()", ()).is_ok_and(|n| n == json!(2)).then_some(())
    });
    assert!(shown.is_some(), "the review came into view afterwards");
    println!("blocked for {time:?}, the slowest pong took {slowest:?}");
}

#[test]
fn pongs_come_while_neovim_is_blocked() {
    blocked_for(Duration::from_secs(3));
}

#[test]
#[ignore = "takes a minute"]
fn pongs_come_while_neovim_is_blocked_for_a_minute() {
    blocked_for(Duration::from_secs(60));
}

#[test]
#[cfg(target_os = "linux")] // elsewhere nobody can take another process's descriptors away
fn t12_silent_connections_that_take_every_descriptor_keep_no_agent_out() {
    use rustix::process::{Resource, Rlimit, prlimit};

    let nvim = Nvim::start();
    let lock = nvim.lock(Dialect::Pi);
    let room = Rlimit { current: Some(64), maximum: Some(64) };
    prlimit(Pid::from_raw(nvim.pid().cast_signed()), Resource::Nofile, room).unwrap();
    let address = ("127.0.0.1", lock.port);
    let silent: Vec<_> = (0..150).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    // They would be let stand about for ten seconds each.
    let asked = Instant::now();
    Client::connect(&nvim, Dialect::Pi).ping();
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    drop(silent);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", nvim.pid())).unwrap().count();
    nvim.wait_until("the descriptors to come back", || descriptors() < 40);
}

#[test]
fn t18_a_client_that_vanishes_mid_call_leaves_neovim_and_others_unharmed() {
    let nvim = Nvim::builder().write("a.txt", "one\n").start();
    let keeper = Client::connect(&nvim, Dialect::Claude);
    let path = nvim.path("a.txt");
    let fds = nvim.counts().get("fds");
    // While its diff waits.
    for turn in 0..3 {
        let agent = Client::connect(&nvim, Dialect::Pi);
        let pending = agent.open_diff(&path, &format!("one\n{turn}\n"));
        nvim.shown(&pending);
        agent.rst();
        nvim.wait_until("its panes to go", || nvim.panes().is_empty());
    }
    // While a big answer is sent to it.
    for turn in 0..2 {
        let agent = Client::builder(&nvim, Dialect::Pi).deaf().connect();
        agent.send_text(INITIALIZE);
        agent.open_diff(&path, &format!("{}{turn}\n", "a line of twenty by\n".repeat(1_000_000)));
        nvim.accept_unread();
        agent.rst();
    }
    // In the middle of the handshake.
    let lock = nvim.lock(Dialect::Claude);
    let request = upgrade_request(lock.port, &[(Dialect::Claude.auth_header(), &lock.token)]);
    for length in (20..request.len()).step_by(7) {
        let mut raw = Raw::connect(lock.port);
        raw.send(&request.as_bytes()[..length]);
        socket2::SockRef::from(&raw.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    nvim.wait_until("their descriptors to be closed", || nvim.counts().get("fds") <= fds + 3);
    assert_eq!(nvim.status()["clients"].as_array().map(Vec::len), Some(1));
    assert!(!nvim.log().contains("panic"), "{}", nvim.log());
    keeper.ping();
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    let pending = keeper.open_diff(&path, "two\n");
    let review = nvim.shown(&pending);
    nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved("two\n".into()));
}

/// Three agents that ask as fast as they are answered. Returns the messages answered in a second
/// and the longest time Neovim's loop did not come round.
fn load(time: Duration) -> (f64, Duration) {
    let nvim = Nvim::builder()
        // Neovim's API, from whichever thread it may be called.
        .before(
            "local main = vim.uv.thread_self()
             _G.calls, _G.strays = 0, 0
             for name, f in pairs(vim.api) do
               if name:find('^nvim_') then
                 vim.api[name] = function(...)
                   _G.calls = _G.calls + 1
                   if not vim.uv.thread_self():equal(main) then _G.strays = _G.strays + 1 end
                   return f(...)
                 end
               end
             end",
        )
        .file("a.txt", "one\n")
        .start();
    let agents =
        [Dialect::Pi, Dialect::Claude, Dialect::Opencode].map(|d| Client::connect(&nvim, d));
    let path = nvim.path("a.txt");
    let answered = AtomicUsize::new(0);
    let run = |time: Duration| {
        let end = Instant::now() + time;
        std::thread::scope(|scope| {
            for agent in &agents {
                scope.spawn(|| {
                    while Instant::now() < end {
                        let uri = format!("file://{}", path.display());
                        let round: Vec<Pending> = (0..64)
                            .map(|i| match i % 16 {
                                0 => agent.tool_request(
                                    "checkDocumentDirty",
                                    json!({ "filePath": path }),
                                ),
                                1 => agent.tool_request("getDiagnostics", json!({ "uri": uri })),
                                2 => agent.tool_request("getOpenEditors", json!({})),
                                3 => agent.tool_request("getCurrentSelection", json!({})),
                                _ => agent.request("ping", json!({})),
                            })
                            .collect();
                        for pending in round {
                            let answer = pending.wait();
                            assert!(answer["result"].is_object(), "{answer}");
                            answered.fetch_add(1, Ordering::Relaxed);
                            agent.forget(&pending);
                        }
                    }
                });
            }
        });
    };
    run(time / 4);
    let before = nvim.counts();
    let calls: i64 = nvim.lua("return _G.calls", ());
    answered.store(0, Ordering::Relaxed);
    nvim.stall_start();
    let begun = Instant::now();
    run(time);
    let rate = answered.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    let stall = nvim.stall();
    let (more, strays): (i64, i64) = nvim.lua("return { _G.calls, _G.strays }", ());
    assert!(more > calls, "no call reached Neovim");
    assert_eq!(strays, 0, "calls from another thread than Neovim's");
    let after = nvim.counts();
    assert_eq!(before.grown(&after, 2), Vec::<String>::new());
    let grown = after.get("rss_kib") - before.get("rss_kib");
    assert!(grown < 20_000, "{grown} KiB more");
    println!(
        "{rate:.0} messages/s, {} API calls, longest stall {stall:?}, {grown} KiB more",
        more - calls
    );
    (rate, stall)
}

#[test]
fn three_agents_at_full_speed_touch_neovim_on_its_own_thread_alone() {
    let (_, stall) = load(Duration::from_secs(2));
    assert!(stall < Duration::from_millis(500), "{stall:?}");
}

#[test]
#[ignore = "measures, on the release library"]
fn ten_thousand_messages_a_second_from_three_agents() {
    let (rate, stall) = load(Duration::from_secs(20));
    assert!(rate > 10_000.0, "{rate:.0} a second");
    assert!(stall < Duration::from_millis(200), "{stall:?}");
}
