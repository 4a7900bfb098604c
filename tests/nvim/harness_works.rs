//! The harness itself, in a Neovim without the plugin: a test is worth what its instruments are.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::{Value, json};

use crate::harness::*;

/// The text of the panic that `f` ends with.
fn panic_of(f: impl FnOnce()) -> String {
    let error = catch_unwind(AssertUnwindSafe(f)).expect_err("this should have panicked");
    match error.downcast::<String>() {
        Ok(text) => *text,
        Err(error) => error.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
    }
}

fn exists(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid.cast_signed()).unwrap()).is_ok()
}

#[test]
fn lua_takes_arguments_and_returns_values() {
    let nvim = Nvim::builder().plain().start();
    let sum: i64 = nvim.lua("local a, b = ...; return a + b", (2, 3));
    assert_eq!(sum, 5);
    let back: Value =
        nvim.lua("return ...", (json!({ "text": "é\u{0}x", "list": [1, 2.5, true, null] }),));
    assert_eq!(back["text"], "é\u{0}x");
    assert_eq!(nvim.lua::<Vec<i64>>("return { vim.api.nvim_get_current_buf() }", ()), [1]);
    assert_eq!(nvim.eval("1 + 1"), json!(2));
    let version: String = nvim.lua("return tostring(vim.version())", ());
    println!("Neovim {version}");
}

#[test]
fn every_neovim_has_a_home_of_its_own() {
    let nvim = Nvim::builder().plain().start();
    for what in ["config", "data", "state", "cache", "log"] {
        let path: String = nvim.lua("return vim.fn.stdpath(...)", (what,));
        assert!(path.starts_with(nvim.home.to_str().unwrap()), "{what}: {path}");
    }
    let home: String = nvim.lua("return vim.uv.os_homedir()", ());
    assert_eq!(home, nvim.home.to_str().unwrap());
    let runtime: String = nvim.lua("return vim.env.VIMRUNTIME", ());
    assert!(std::path::Path::new(&runtime).join("filetype.lua").exists(), "{runtime}");
}

#[test]
fn keys_files_and_notifications_go_through() {
    let nvim = Nvim::builder().plain().file("a.txt", "one\ntwo\n").start();
    nvim.input("ohello<Esc>");
    nvim.wait_until("the typed line", || nvim.lines(0) == ["one", "hello", "two"]);
    assert_eq!(nvim.mode(), "n");
    nvim.cmd("write");
    assert_eq!(nvim.read("a.txt"), b"one\nhello\ntwo\n");
    nvim.lua::<Value>("vim.notify('look here', vim.log.levels.WARN)", ());
    assert_eq!(nvim.notifications(), ["look here"]);
    assert!(nvim.messages().contains("look here"));
    nvim.edit("b [1] %.txt");
    assert_eq!(nvim.lua::<String>("return vim.fn.expand('%:t')", ()), "b [1] %.txt");
    nvim.lua::<Value>("vim.rpcnotify(..., 'news', 1)", (nvim.channel(),));
    assert_eq!(nvim.rpc_notifications(), [("news".to_owned(), json!([1]))]);
}

#[test]
fn the_terminal_shows_what_is_typed() {
    let nvim = Nvim::builder().plain().tty(12, 60).file("a.txt", "one\ntwo\n").start();
    nvim.wait_for_text("two");
    nvim.type_keys("Owritten by hand\x1b");
    nvim.wait_for_text("written by hand");
    let (row, col) = nvim.screen_find("hand").unwrap();
    assert_eq!((row, col), (0, 11));
    assert_eq!(nvim.screen_cell(row, col).unwrap().text, "h");
    nvim.type_slowly(":set hlsearch\r/hand\r", Duration::from_millis(5));
    let plain = nvim.screen_cell(0, 0).unwrap();
    nvim.wait_until("the match to be lit", || {
        let cell = nvim.screen_cell(row, col).unwrap();
        cell.background != plain.background || cell.inverse != plain.inverse
    });
    nvim.resize(20, 70);
    nvim.wait_until("the new size", || nvim.eval("&columns") == json!(70));
}

#[test]
fn a_crash_is_reported_with_its_signal() {
    let nvim = Nvim::builder().plain().start();
    let text = panic_of(|| {
        nvim.lua::<Value>("vim.uv.kill(vim.fn.getpid(), 'sigsegv'); vim.uv.sleep(5000)", ());
    });
    assert!(text.contains("Neovim is gone"), "{text}");
    assert!(text.contains("killed by signal 11"), "{text}");
    let text = panic_of(|| drop(nvim));
    assert!(text.contains("ended by itself"), "{text}");
}

#[test]
fn a_hang_is_reported_and_ended() {
    let nvim = Nvim::builder().plain().start();
    let pid = nvim.pid();
    let began = Instant::now();
    let hang = nvim.try_lua_within(Duration::from_millis(300), "while true do end", ());
    assert_eq!(hang, Err(RpcError::TimedOut));
    let text = panic_of(|| drop(nvim));
    assert!(text.contains("hangs"), "{text}");
    assert!(!exists(pid), "a hanging Neovim was left behind");
    assert!(began.elapsed() < Duration::from_secs(12));
}

#[test]
fn an_error_in_lua_is_reported_with_its_text() {
    let nvim = Nvim::builder().plain().start();
    let text = panic_of(|| nvim.lua("error('no such luck')", ()));
    assert!(text.contains("no such luck"), "{text}");
    let text = panic_of(|| {
        Nvim::builder().plain().before("vim.cmd('cquit 3')").start();
    });
    assert!(text.contains("ended at start"), "{text}");
    let text = panic_of(|| {
        Nvim::builder().plain().before("error('no such luck')").start();
    });
    assert!(text.contains("init.lua failed") && text.contains("no such luck"), "{text}");
}

#[test]
fn nothing_survives_a_test_that_panics() {
    for tty in [false, true] {
        let mut pid = 0;
        panic_of(|| {
            let builder = Nvim::builder().plain();
            let nvim = if tty { builder.tty(10, 40) } else { builder }.start();
            pid = nvim.pid();
            assert!(exists(pid));
            panic!("the test fails");
        });
        assert!(
            poll(Duration::from_secs(2), || (!exists(pid)).then_some(())).is_some(),
            "tty {tty}: still there"
        );
    }
}

#[test]
fn the_end_of_a_neovim_is_told_exactly() {
    let exit = Nvim::builder().plain().start().quit("cquit 7");
    assert_eq!((exit.code, exit.signal), (Some(7), None));
    let exit = Nvim::builder().plain().start().kill(Signal::KILL);
    assert_eq!(exit.signal.as_deref(), Some("9"));
    let exit = Nvim::builder().plain().tty(10, 40).start().quit("qa!");
    assert_eq!((exit.code, exit.signal), (Some(0), None));
}

#[test]
fn a_neovim_at_a_prompt_is_no_hang() {
    let nvim = Nvim::builder().plain().tty(10, 40).start();
    nvim.cmd_nowait("echo \"one\\ntwo\\nthree\"");
    nvim.wait_until("the hit-enter prompt", || nvim.blocked());
    nvim.dismiss_prompts();
    assert!(!nvim.blocked());
    nvim.input("\"");
    nvim.wait_until("a key to be awaited", || nvim.blocked());
}

#[test]
fn a_snapshot_tells_the_first_difference() {
    let nvim = Nvim::builder().plain().file("a.txt", "one\ntwo\nthree\n").start();
    let before = nvim.snapshot_with_keys(&["ga"]);
    assert_eq!(before.diff(&nvim.snapshot_with_keys(&["ga"])), None);
    nvim.cmd("setlocal nowrap");
    let difference = before.diff(&nvim.snapshot_with_keys(&["ga"])).unwrap();
    assert_eq!(difference, r#"tabs[0].windows[0].options.wrap: "true" -> "false""#);
    assert_eq!(before.diff_ignoring(&nvim.snapshot_with_keys(&["ga"]), &["wrap"]), None);
    nvim.cmd("setlocal wrap");
    for (command, undo, sign) in [
        ("nnoremap <buffer> ga gg", "nunmap <buffer> ga", "mappings"),
        ("let @q = 'x'", "call setreg('q', [])", "registers"),
        ("3", "1", "view.lnum"),
        ("vsplit", "close", "tabs[0].current"),
        ("set scrolloff=9", "set scrolloff=0", "scrolloff"),
        ("1,2fold", "normal! zE", "folds"),
    ] {
        nvim.cmd(command);
        let difference = before.diff(&nvim.snapshot_with_keys(&["ga"])).unwrap_or_default();
        assert!(difference.contains(sign), "{command}: {difference:?}");
        nvim.cmd(undo);
        let rest = before.diff_ignoring(
            &nvim.snapshot_with_keys(&["ga"]),
            // What these commands leave behind by right.
            &["jumps", "previous_window", "registers", "foldenable", "curswant"],
        );
        assert_eq!(rest, None, "{undo}");
    }
    nvim.cmd("badd b.txt");
    let difference = before.diff_ignoring(&nvim.snapshot(), &["tabs"]).unwrap();
    assert!(
        difference.starts_with("buffers: 1 -> 2") && difference.contains("b.txt"),
        "{difference}"
    );
}

#[test]
fn panes_are_told_apart() {
    let nvim = Nvim::builder().plain().start();
    nvim.lua::<Value>(
        "vim.api.nvim_buf_set_lines(0, 0, -1, false, { 'one', 'two', 'three' })
         vim.bo.buftype = 'nofile'
         vim.cmd('diffthis | vnew')
         vim.api.nvim_buf_set_lines(0, 0, -1, false, { 'one', 'TWO', 'three' })
         vim.bo.buftype = 'acwrite'
         vim.cmd('diffthis')",
        (),
    );
    let right = nvim.right_panes();
    assert_eq!((nvim.panes().len(), right.len()), (2, 1));
    assert_eq!(nvim.lines(right[0].buf)[1], "TWO");
    assert_eq!(nvim.changed_lines(&right[0]), [2]);
}

#[test]
#[cfg(target_os = "linux")] // which counts a process's threads, memory and descriptors
fn counts_see_what_grows() {
    // (0.10 miscounts until there is a first namespace.)
    let nvim = Nvim::builder().plain().before("vim.api.nvim_create_namespace('first')").start();
    let before = nvim.counts();
    assert!(before.get("threads") > 0 && before.get("rss_kib") > 1000 && before.get("fds") > 2);
    nvim.lua::<Value>(
        "vim.api.nvim_create_autocmd('BufEnter', { callback = function() end })
         vim.api.nvim_create_namespace('more')
         _G.leak = io.open('/dev/null')",
        (),
    );
    let grown = before.grown(&nvim.counts(), 0).join(", ");
    for name in ["autocommands", "namespaces", "fds"] {
        assert!(grown.contains(name), "{name} in {grown}");
    }
}

#[test]
fn a_stall_of_the_main_loop_is_measured() {
    let nvim = Nvim::builder().plain().start();
    nvim.stall_start();
    nvim.settle(Duration::from_millis(50));
    nvim.lua::<Value>("vim.uv.sleep(200)", ());
    let stall = nvim.stall();
    assert!(stall >= Duration::from_millis(195) && stall < Duration::from_millis(400), "{stall:?}");
}

#[test]
fn frames_are_encoded_as_the_standard_says() {
    for length in [0, 5, 125, 126, 65535, 65536] {
        let payload = vec![b'x'; length];
        let bytes = ws::Frame::new(ws::BINARY, payload.clone()).encode();
        let header = 6 + if length > 65535 {
            8
        } else if length > 125 {
            2
        } else {
            0
        };
        assert_eq!(bytes.len(), header + length);
        let mut unmasked = ws::Frame::new(ws::BINARY, payload.clone());
        unmasked.masked = false;
        let encoded = unmasked.encode();
        let frame = ws::read_frame(&mut &encoded[..]).unwrap();
        assert_eq!(
            (frame.opcode, frame.fin, frame.masked, frame.payload),
            (ws::BINARY, true, false, payload)
        );
    }
}

/// A server of another make, with the lock file of `nvim`; what it gets it gives to `answer`.
fn stand_in(
    nvim: &Nvim,
    dialect: Dialect,
    answer: impl Fn(&Value) -> Vec<Value> + Send + 'static,
) -> std::thread::JoinHandle<String> {
    use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
    use tokio_tungstenite::tungstenite::{Message, accept_hdr};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let lock =
        nvim.lock_dir(dialect).join(format!("{}.lock", listener.local_addr().unwrap().port()));
    std::fs::create_dir_all(lock.parent().unwrap()).unwrap();
    std::fs::write(lock, json!({ "pid": nvim.pid(), "authToken": "t0ken" }).to_string()).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let header = dialect.auth_header();
        #[expect(clippy::result_large_err, reason = "tungstenite's signature")]
        let check = |request: &Request, mut response: Response| {
            assert_eq!(request.headers()[header], "t0ken");
            if let Some(offered) = request.headers().get("sec-websocket-protocol") {
                response.headers_mut().insert("sec-websocket-protocol", offered.clone());
            }
            Ok(response)
        };
        let mut socket = accept_hdr(stream, check).unwrap();
        loop {
            match socket.read() {
                Ok(Message::Text(text)) => {
                    for reply in answer(&serde_json::from_str(&text).unwrap()) {
                        socket.send(Message::text(reply.to_string())).unwrap();
                    }
                }
                Ok(_) => {}
                Err(error) => return error.to_string(),
            }
        }
    })
}

/// A result for whatever has an id.
fn echo(request: &Value) -> Vec<Value> {
    match request.get("id") {
        Some(id) => {
            vec![json!({ "jsonrpc": "2.0", "id": id, "result": { "of": request["method"] } })]
        }
        None => vec![],
    }
}

#[test]
fn each_dialect_shakes_hands_and_initializes() {
    for dialect in [Dialect::Pi, Dialect::Claude, Dialect::Opencode] {
        let nvim = Nvim::builder().plain().start();
        let server = stand_in(&nvim, dialect, echo);
        let agent = Client::connect(&nvim, dialect);
        let big = "é".repeat(100_000);
        let response = agent.call("echo", json!({ "text": big }));
        assert_eq!(response["result"]["of"], "echo");
        assert!(agent.ping() < Duration::from_secs(1));
        agent.close(1000);
        assert_eq!(agent.wait_closed().map(|(code, _)| code), Some(1000));
        server.join().unwrap();
    }
}

#[test]
fn requests_of_the_server_are_answered_as_the_real_agents_do() {
    let nvim = Nvim::builder().plain().start();
    let (sender, receiver) = std::sync::mpsc::channel();
    let server = stand_in(&nvim, Dialect::Claude, move |message| {
        if message["method"] == "ask" {
            return vec![
                json!({ "method": "selection_changed", "params": { "text": "x" } }),
                json!({ "jsonrpc": "2.0", "id": "s1", "method": "roots/list" }),
            ];
        }
        if message["id"] == "s1" {
            sender.send(message.clone()).unwrap();
        }
        echo(message)
    });
    let agent = Client::connect(&nvim, Dialect::Claude);
    agent.notify("ask", Value::Null);
    let roots = receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(roots["result"]["roots"][0]["uri"], format!("file://{}", nvim.cwd.display()));
    assert_eq!(agent.requests().len(), 1);
    agent.wait_selection("the text x", |s| s["text"] == "x");
    agent.lenient(); // the stand-in answers our answer
    drop(agent);
    server.join().unwrap();
}

#[test]
fn a_second_answer_fails_the_test() {
    let nvim = Nvim::builder().plain().start();
    let server = stand_in(&nvim, Dialect::Pi, |message| {
        let mut replies = echo(message);
        if message["method"] == "twice" {
            replies.extend(echo(message));
        }
        replies
    });
    let agent = Client::connect(&nvim, Dialect::Pi);
    let pending = agent.request("twice", json!({}));
    assert!(poll(PATIENCE, || (pending.answers().len() == 2).then_some(())).is_some());
    let text = panic_of(|| drop(agent));
    assert!(text.contains("answered more than once"), "{text}");
    server.join().unwrap();
}

#[test]
fn a_reset_is_a_reset() {
    let nvim = Nvim::builder().plain().start();
    let server = stand_in(&nvim, Dialect::Pi, echo);
    Client::connect(&nvim, Dialect::Pi).rst();
    let error = server.join().unwrap().to_lowercase();
    assert!(error.contains("reset"), "{error}");
}
