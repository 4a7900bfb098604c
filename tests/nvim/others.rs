//! The agents that come over HTTP, or by other ways than Pi and Claude Code, in a real Neovim.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::*;

/// A Neovim in whose home every agent has been, with `a.txt` open.
fn editor() -> Nvim {
    let made = "for _, dir in ipairs({ '.gemini', '.qwen', '.copilot', '.local/share/amp' }) do
         vim.fn.mkdir(vim.env.HOME .. '/' .. dir, 'p')
       end
       vim.env.TMPDIR, vim.env.XDG_RUNTIME_DIR = vim.env.HOME .. '/tmp', vim.env.HOME .. '/run'
       vim.env.XDG_DATA_HOME = nil
       vim.fn.mkdir(vim.env.HOME .. '/tmp', 'p')
       vim.fn.mkdir(vim.env.HOME .. '/run', 'p')";
    Nvim::builder().before(made).file("a.txt", "one\ntwo\nthree\n").start()
}

fn only_file(nvim: &Nvim, dir: &str) -> (PathBuf, Value) {
    let dir = nvim.home.join(dir);
    nvim.wait_for(&format!("a file in {}", dir.display()), || {
        let mut files = std::fs::read_dir(&dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let path = files.find(|path| !path.ends_with(".tmp"))?;
        let json = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
        Some((path, json))
    })
}

trait Wire: Read + Write + Send {}
impl<T: Read + Write + Send> Wire for T {}

/// Where an agent goes, and with what.
struct Agent {
    port: u64,
    socket: Option<PathBuf>,
    authorization: String,
    session: Option<String>,
    next: u64,
}

impl Agent {
    fn request(&self, method: &str, body: &str) -> BufReader<Box<dyn Wire>> {
        let mut wire: Box<dyn Wire> = match &self.socket {
            Some(path) => {
                let socket = UnixStream::connect(path).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                Box::new(socket)
            }
            None => {
                let socket =
                    TcpStream::connect(("127.0.0.1", u16::try_from(self.port).unwrap())).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                Box::new(socket)
            }
        };
        let mut head = format!(
            "{method} /mcp HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nauthorization: {}\r\n\
             accept: application/json, text/event-stream\r\n",
            self.port, self.authorization
        );
        if let Some(session) = &self.session {
            head += &format!("mcp-session-id: {session}\r\n");
        }
        if !body.is_empty() {
            head += "content-type: application/json\r\n";
            head += &format!("content-length: {}\r\n", body.len());
        }
        wire.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
        BufReader::new(wire)
    }

    /// The answer's head, and its JSON if it has some at once or in a stream.
    fn post(&self, message: &Value) -> (String, Option<Value>) {
        let mut reader = self.request("POST", &message.to_string());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "no answer");
        }
        let mut body = String::new();
        reader.read_to_string(&mut body).unwrap();
        let line = body.lines().find_map(|line| {
            let line = line.strip_prefix("data: ").unwrap_or(line);
            line.starts_with('{').then_some(line)
        });
        (head, line.map(|line| serde_json::from_str(line).unwrap()))
    }

    fn connect(mut self) -> (Self, Stream) {
        let (head, answer) = self.post(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {"protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "streamable-http-client", "version": "1"}}}));
        assert!(answer.unwrap()["result"].is_object(), "{head}");
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        self.session = session.map(str::to_owned);
        let stream = Stream(self.request("GET", ""));
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert!(self.post(&done).0.starts_with("HTTP/1.1 202"));
        (self, stream)
    }

    fn tool(&mut self, name: &str, arguments: &Value) -> Value {
        self.next += 1;
        let (head, answer) = self.post(&json!({"jsonrpc": "2.0", "id": self.next,
            "method": "tools/call", "params": {"name": name, "arguments": arguments}}));
        answer.unwrap_or_else(|| panic!("no answer: {head}"))["result"].clone()
    }
}

struct Stream(BufReader<Box<dyn Wire>>);

impl Stream {
    /// The parameters of the next notification of that name that `is` wants.
    fn note(&mut self, method: &str, is: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let message: Value = serde_json::from_str(data).unwrap();
            if message["method"] == method && is(&message["params"]) {
                return message["params"].clone();
            }
        }
    }
}

fn gemini(nvim: &Nvim, dir: &str) -> Agent {
    let (path, lock) = only_file(nvim, dir);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let folders = lock["workspacePath"].as_str().unwrap();
    assert!(folders.split(':').any(|folder| Path::new(folder) == nvim.cwd), "{folders}");
    Agent {
        port: lock["port"].as_u64().unwrap(),
        socket: None,
        authorization: format!("Bearer {}", lock["authToken"].as_str().unwrap()),
        session: None,
        next: 0,
    }
}

fn review_is_shown(nvim: &Nvim) {
    nvim.wait_until("the panes", || nvim.panes().len() == 2);
    // What was never seen is shown by a command, and not decided.
    nvim.wait_until("the user to see them", || nvim.status()["reviews"][0]["seen"] == json!(true));
}

#[test]
fn gemini_and_qwen_see_the_file_and_get_the_users_answer() {
    for dir in ["tmp/gemini/ide", ".qwen/ide"] {
        let nvim = editor();
        let (mut agent, mut stream) = gemini(&nvim, dir).connect();
        let path = nvim.path("a.txt");
        nvim.cmd("normal! 2G");
        stream.note("ide/contextUpdate", |params| {
            let file = &params["workspaceState"]["openFiles"][0];
            file["path"] == json!(path) && file["cursor"]["line"] == 2
        });
        for (command, method) in
            [("IdeAccept", "ide/diffAccepted"), ("IdeReject", "ide/diffRejected")]
        {
            let text = "one\nTWO\nthree\n";
            let answer = agent.tool("openDiff", &json!({"filePath": path, "newContent": text}));
            assert_eq!(answer, json!({"content": []}));
            review_is_shown(&nvim);
            nvim.cmd(command);
            let params = stream.note(method, |_| true);
            assert_eq!(params["filePath"], json!(path));
            assert_eq!(params.get("content").is_some(), command == "IdeAccept");
            nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        }
        let status = nvim.status();
        assert_eq!(status["clients"].as_array().unwrap().len(), 1, "{status}");
        let lines = "return table.concat(require('gangway.commands').status_lines(), '\\n')";
        let told = nvim.lua::<String>(lines, ());
        let agent_is_qwen = dir.starts_with(".qwen");
        assert!(told.contains(if agent_is_qwen { "Qwen Code" } else { "Gemini CLI" }), "{told}");
        assert_eq!(told.contains("in its default approval mode"), agent_is_qwen, "{told}");
        agent.tool("openDiff", &json!({"filePath": path, "newContent": "x\n"}));
        review_is_shown(&nvim);
        let exit = nvim.quit("qa!");
        assert_eq!(exit.code, Some(0));
        stream.note("ide/diffRejected", |_| true);
    }
}

#[test]
fn edits_made_here_are_returned_when_the_user_accepts_in_the_terminal() {
    let nvim = editor();
    let (mut agent, _stream) = gemini(&nvim, "tmp/gemini/ide").connect();
    let path = nvim.write("dos.txt", "one\r\ntwo\r\n");
    let close = json!({"filePath": path, "suppressNotification": true});
    for (typed, told) in [(Some("2GAmine"), json!("one\r\nTWOmine\r\n")), (None, Value::Null)] {
        let text = "one\r\nTWO\r\n";
        agent.tool("openDiff", &json!({"filePath": path, "newContent": text}));
        review_is_shown(&nvim);
        if let Some(keys) = typed {
            nvim.keys_in(&nvim.right_panes()[0], keys);
            nvim.input("<Esc>");
            nvim.wait_until("the edit", || nvim.lines(nvim.right_panes()[0].buf)[1] == "TWOmine");
        }
        let answer = agent.tool("closeDiff", &close);
        let answer: Value =
            serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(answer, json!({"content": told}));
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    }
    assert_eq!(nvim.read("dos.txt"), b"one\r\ntwo\r\n");
}

#[test]
fn copilot_comes_through_a_socket_that_goes_with_neovim() {
    let nvim = editor();
    let (lock_path, lock) = only_file(&nvim, ".copilot/ide");
    let socket = PathBuf::from(lock["socketPath"].as_str().unwrap());
    let dir = socket.parent().unwrap().to_owned();
    assert!(dir.starts_with(&nvim.home), "{}", dir.display());
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let agent = Agent {
        port: 1,
        socket: Some(socket),
        authorization: lock["headers"]["Authorization"].as_str().unwrap().to_owned(),
        session: None,
        next: 0,
    };
    let (mut agent, mut stream) = agent.connect();
    let path = nvim.path("a.txt");
    stream.note("selection_changed", |params| params["filePath"] == json!(path));
    let asked = std::thread::spawn({
        let path = path.clone();
        move || {
            agent.tool(
                "open_diff",
                &json!({"original_file_path": path, "new_file_contents": "two\n",
                    "tab_name": "t"}),
            )
        }
    });
    review_is_shown(&nvim);
    nvim.cmd("IdeAccept");
    let answer = asked.join().unwrap();
    let answer: Value =
        serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(answer["result"], "SAVED");
    nvim.cmd("IdeSend");
    stream.note("add_file_reference", |params| params["filePath"] == json!(path));

    // A cleaner of temporary files has been here.
    std::fs::remove_dir_all(&dir).unwrap();
    nvim.cmd("doautocmd FocusGained");
    let again = nvim.wait_for("another socket", || {
        let lock: Value = serde_json::from_slice(&std::fs::read(&lock_path).ok()?).ok()?;
        let path = PathBuf::from(lock["socketPath"].as_str()?);
        path.exists().then_some(path)
    });
    let authorization = lock["headers"]["Authorization"].as_str().unwrap().to_owned();
    let (_agent, mut stream) =
        Agent { port: 1, socket: Some(again.clone()), authorization, session: None, next: 0 }
            .connect();
    stream.note("selection_changed", |params| params["filePath"] == json!(path));

    assert_eq!(nvim.quit("qa!").code, Some(0));
    assert!(!lock_path.exists() && !dir.exists() && !again.parent().unwrap().exists());
}

#[test]
fn gemini_and_copilot_hear_nothing_of_a_private_file() {
    let nvim = editor();
    let (gemini_agent, mut gemini_stream) = gemini(&nvim, "tmp/gemini/ide").connect();
    let (_, lock) = only_file(&nvim, ".copilot/ide");
    let copilot = Agent {
        port: 1,
        socket: Some(PathBuf::from(lock["socketPath"].as_str().unwrap())),
        authorization: lock["headers"]["Authorization"].as_str().unwrap().to_owned(),
        session: None,
        next: 0,
    };
    let (mut copilot, mut copilot_stream) = copilot.connect();
    let path = nvim.path("a.txt");
    gemini_stream
        .note("ide/contextUpdate", |p| p["workspaceState"]["openFiles"][0]["path"] == json!(path));
    copilot_stream.note("selection_changed", |p| p["filePath"] == json!(path));
    nvim.write(".env", "TOKEN=hunter2\n");
    nvim.edit(".env");
    nvim.lua::<Value>(
        "vim.diagnostic.set(vim.api.nvim_create_namespace('d'), 0, {
           { lnum = 0, col = 0, message = 'hunter2 found', severity = 1 } })",
        (),
    );
    nvim.input("V");
    // Each is told that the file it knew is not the active one any more, and of no other.
    let update = gemini_stream.note("ide/contextUpdate", |p| {
        p["workspaceState"]["openFiles"][0]["isActive"] != json!(true)
    });
    let files = update["workspaceState"]["openFiles"].as_array().unwrap();
    assert!(files.iter().all(|file| file["path"] == json!(path)), "{update}");
    copilot_stream.note("selection_changed", |p| p["filePath"] == json!(nvim.cwd));
    nvim.settle(Duration::from_millis(400));
    for tool in ["get_selection", "get_diagnostics"] {
        let told = copilot.tool(tool, &json!({})).to_string();
        assert!(!told.contains(".env") && !told.contains("hunter2"), "{tool}: {told}");
    }
    // What comes after it is the next thing they hear.
    nvim.input("<Esc>");
    nvim.edit("b.txt");
    let next = nvim.path("b.txt");
    let update = gemini_stream.note("ide/contextUpdate", |_| true);
    assert_eq!(update["workspaceState"]["openFiles"][0]["path"], json!(next), "{update}");
    let told = copilot_stream.note("selection_changed", |_| true);
    assert_eq!(told["filePath"], json!(next));
    drop(gemini_agent);
}

#[test]
fn an_agent_that_comes_later_is_noticed_and_none_gets_a_directory_before() {
    let nvim = Nvim::start();
    nvim.lock(Dialect::Pi);
    nvim.settle(Duration::from_millis(300));
    for dir in [".gemini", ".qwen", ".copilot", ".codex"] {
        assert!(!nvim.home.join(dir).exists(), "{dir}");
    }
    std::fs::create_dir(nvim.home.join(".qwen")).unwrap();
    let (path, _) = only_file(&nvim, ".qwen/ide");
    let listed = nvim.status()["lock_files"].clone();
    assert!(listed.as_array().unwrap().contains(&json!(path)), "{listed}");
}

#[test]
fn the_defaults_in_lua_are_the_defaults_of_the_library() {
    let nvim = Nvim::builder()
        .opts(json!({"agents": {"codex": {"enabled": "yes"}, "amp": {"enabled": 1}}}))
        .start();
    let told = nvim.notifications().join("\n");
    for name in ["agents.codex.enabled", "agents.amp.enabled"] {
        assert!(told.contains(name), "{told}");
    }
    let default = nvim.lua::<Value>("return require('gangway.config').defaults.agents", ());
    for name in ["gemini", "qwen", "copilot", "amp"] {
        assert_eq!(default[name], json!({"enabled": "auto"}));
    }
    assert_eq!(default["codex"], json!({"enabled": false}));
}
