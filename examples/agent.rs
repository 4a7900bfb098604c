//! A scripted agent: finds a running Neovim by its lock file, boards it as Pi or Claude Code would,
//! says what it is told, proposes an edit and does what a real agent does with the verdict.
//!
//! ```text
//! agent --as pi|claude --lock-dir DIR [--workspace DIR] [--quiet]
//!       [--propose FILE (--replace-with FILE | --append TEXT)] [--loop]
//! ```
//!
//! Without `--propose` it listens until Neovim closes the connection. Ends with 0 after an accepted
//! proposal, 1 after a rejected one, 2 when something went wrong.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use gangway::agents::mcp::Family;
use gangway::agents::mcp::dialect::SelectionChanged;
use gangway::agents::mcp::rpc::{self, Incoming, Params, ToolResult};
use gangway::agents::mcp::tools::OpenDiffArguments;
use gangway::server::auth::header;
use gangway::server::lockfile::{self, Lock};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

pub type Failure = Box<dyn std::error::Error>;

struct Options {
    family: Family,
    lock_dir: PathBuf,
    workspace: PathBuf,
    propose: Option<PathBuf>,
    change: Change,
    repeat: bool,
    quiet: bool,
}

enum Change {
    ReplaceWith(PathBuf),
    Append(String),
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, Failure> {
    let mut out = Options {
        family: Family::Pi,
        lock_dir: PathBuf::new(),
        workspace: std::env::current_dir()?,
        propose: None,
        change: Change::Append("a line by the example agent".into()),
        repeat: false,
        quiet: false,
    };
    while let Some(name) = args.next() {
        let mut value = || args.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--as" => {
                out.family = match value()?.as_str() {
                    "pi" => Family::Pi,
                    "claude" => Family::Claude,
                    other => return Err(format!("--as {other}: pi or claude").into()),
                }
            }
            "--lock-dir" => out.lock_dir = value()?.into(),
            "--workspace" => out.workspace = std::path::absolute(value()?)?,
            "--propose" => out.propose = Some(std::path::absolute(value()?)?),
            "--replace-with" => out.change = Change::ReplaceWith(value()?.into()),
            "--append" => out.change = Change::Append(value()?),
            "--loop" => out.repeat = true,
            "--quiet" => out.quiet = true,
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    if out.lock_dir.as_os_str().is_empty() {
        return Err("--lock-dir is missing (~/.pi/ide or ~/.claude/ide)".into());
    }
    Ok(out)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let code = match run(std::env::args().skip(1)).await {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            eprintln!("agent: {error}");
            2
        }
    };
    std::process::exit(code);
}

/// All of it; the tests of the server call this as well. True: the proposal was accepted.
pub async fn run(args: impl Iterator<Item = String>) -> Result<bool, Failure> {
    let options = options(args)?;
    loop {
        let outcome = board(&options).await;
        match outcome {
            // A person stops it; Neovim may come and go.
            Err(error) if options.repeat => {
                println!("-- {error}; looking for a Neovim again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            outcome => return outcome,
        }
    }
}

async fn board(options: &Options) -> Result<bool, Failure> {
    let (port, lock) = discover(options).await?;
    let mut agent = Agent::connect(options, port, &lock).await?;
    agent.initialize().await?;
    // Claude Code takes a selection no sooner than this after its handshake.
    agent.listen(Duration::from_millis(700)).await?;
    let Some(path) = &options.propose else {
        agent.diagnostics(None).await?;
        return match agent.listen(Duration::MAX).await {
            Ok(()) => Ok(true),
            Err(error) => {
                agent.say(&format!("-- {error}"));
                Ok(true)
            }
        };
    };
    for turn in 1.. {
        agent.diagnostics(None).await?;
        let accepted = agent.propose(path, &options.change, turn).await?;
        if !options.repeat {
            agent.socket.close(None).await?;
            return Ok(accepted);
        }
        agent.listen(Duration::from_secs(3)).await?;
    }
    Ok(true)
}

/// The lock file of the Neovim that works in our folder; waits a little for one to come up.
async fn discover(options: &Options) -> Result<(u16, Lock), Failure> {
    let cwd = options.workspace.to_string_lossy().into_owned();
    let covers = |folder: &String| {
        cwd == *folder || cwd.starts_with(&format!("{}/", folder.trim_end_matches('/')))
    };
    for _ in 0..100 {
        let mut found: Vec<(u16, Lock)> = lockfile::locks_in(&options.lock_dir)
            .filter(|(_, lock)| lock.workspace_folders.iter().any(covers))
            .filter(|(_, lock)| gangway::files::is_alive(lock.pid))
            .collect();
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => return Ok(only),
            (Some(_), false) => return Err(format!("several Neovims work in {cwd}").into()),
            (None, _) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    Err(format!("no lock file in {} covers {cwd}", options.lock_dir.display()).into())
}

struct Agent<'a> {
    options: &'a Options,
    socket: WebSocketStream<TcpStream>,
    next: u64,
    /// What the file was before the last accepted change.
    replaced: Option<String>,
}

impl<'a> Agent<'a> {
    async fn connect(options: &'a Options, port: u16, lock: &Lock) -> Result<Self, Failure> {
        let mut request = format!("ws://127.0.0.1:{port}/").into_client_request()?;
        request.headers_mut().insert(header(options.family), lock.auth_token.parse()?);
        if options.family == Family::Claude {
            request.headers_mut().insert("Sec-WebSocket-Protocol", "mcp".parse()?);
        }
        let tcp = TcpStream::connect(("127.0.0.1", port)).await?;
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let handshake = tokio_tungstenite::client_async_with_config(request, tcp, Some(config));
        let (socket, _) = handshake.await?;
        let agent = Self { options, socket, next: 0, replaced: None };
        agent.say(&format!("-- aboard {} on port {port}", lock.ide_name));
        Ok(agent)
    }

    fn say(&self, line: &str) {
        if !self.options.quiet {
            println!("{line}");
        }
    }

    async fn initialize(&mut self) -> Result<(), Failure> {
        let (name, version) = match self.options.family {
            Family::Pi => ("pi-ide", "2024-11-05"),
            _ => ("claude-code", "2025-11-25"),
        };
        let mut params = json!({"protocolVersion": version, "capabilities": {},
            "clientInfo": {"name": name, "version": env!("CARGO_PKG_VERSION")}});
        if self.options.family == Family::Claude {
            params["capabilities"] = json!({"roots": {"listChanged": true}});
        }
        let result = self.call("initialize", params).await?;
        let server = &result["serverInfo"];
        self.say(&format!("<- {} {}", text(&server["name"]), text(&server["version"])));
        if self.options.family == Family::Claude {
            self.notify("notifications/initialized", json!({})).await?;
            self.notify("ide_connected", json!({"pid": std::process::id()})).await?;
            let tools = self.call("tools/list", json!({})).await?;
            let names: Vec<&str> =
                tools["tools"].as_array().into_iter().flatten().map(|t| text(&t["name"])).collect();
            self.say(&format!("<- tools: {}", names.join(", ")));
        }
        Ok(())
    }

    /// One whole proposal: question, verdict, and what the agent does then.
    async fn propose(&mut self, path: &Path, change: &Change, turn: u32) -> Result<bool, Failure> {
        let old = std::fs::read_to_string(path).unwrap_or_default();
        let mut new = match change {
            Change::ReplaceWith(other) => std::fs::read_to_string(other)?,
            Change::Append(line) => {
                let gap = if old.is_empty() || old.ends_with('\n') { "" } else { "\n" };
                format!("{old}{gap}{line}\n")
            }
        };
        // The change is made already: with --loop there is still something to see.
        if new == old {
            new = self.replaced.clone().unwrap_or(new);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let tab_name = match self.options.family {
            Family::Pi => format!("pi-edit:call_{turn}"),
            _ => format!("✻ [Claude Code] {name} ({turn:06x}) ⧉"),
        };
        if self.options.family == Family::Claude {
            self.tool("closeAllDiffTabs", json!({})).await?;
        }
        self.say(&format!("-> openDiff {}: {} bytes for {}", path.display(), new.len(), old.len()));
        let path_text = path.to_string_lossy().into_owned();
        let arguments = OpenDiffArguments {
            old_file_path: path_text.clone(),
            new_file_path: path_text,
            new_file_contents: new.clone(),
            tab_name: tab_name.clone(),
        };
        let result = self.tool("openDiff", serde_json::to_value(arguments)?).await?;
        let blocks: Vec<&str> = result.content.iter().map(|block| block.text.as_str()).collect();
        let accepted = match blocks[..] {
            ["FILE_SAVED", text] => Some(text.to_owned()),
            _ => None,
        };
        match (&accepted, &blocks[..]) {
            (Some(text), _) if *text == new => println!("<- accepted as proposed"),
            (Some(_), _) => println!("<- accepted with edits by the user"),
            (None, ["DIFF_REJECTED", .., why]) if blocks.len() > 2 => {
                println!("<- rejected: {why}")
            }
            (None, ["DIFF_REJECTED", ..]) => println!("<- rejected"),
            (None, other) => return Err(format!("no verdict: {}", other.concat()).into()),
        }
        // Claude Code does it twice.
        for _ in 0..if self.options.family == Family::Claude { 2 } else { 1 } {
            self.tool("close_tab", json!({"tab_name": tab_name})).await?;
        }
        let Some(text) = accepted else { return Ok(false) };
        self.diagnostics(Some(path)).await?;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, &text)?;
        self.say(&format!("-- wrote {} bytes to {}", text.len(), path.display()));
        self.replaced = Some(old);
        Ok(true)
    }

    async fn diagnostics(&mut self, path: Option<&Path>) -> Result<(), Failure> {
        let arguments = match path {
            Some(path) => json!({"uri": format!("file://{}", path.display())}),
            None => json!({}),
        };
        let result = self.tool("getDiagnostics", arguments).await?;
        let found: Value = serde_json::from_str(&result.content.first().ok_or("no answer")?.text)?;
        let files: Vec<(&str, &Value)> = match &found {
            Value::Object(map) => map.iter().map(|(uri, list)| (uri.as_str(), list)).collect(),
            Value::Array(files) => {
                files.iter().map(|file| (text(&file["uri"]), &file["diagnostics"])).collect()
            }
            _ => return Err("diagnostics in an unknown shape".into()),
        };
        for (uri, list) in files {
            for item in list.as_array().into_iter().flatten().take(20) {
                let line = item["range"]["start"]["line"].as_u64().unwrap_or(0) + 1;
                let (severity, message) = (text(&item["severity"]), text(&item["message"]));
                self.say(&format!("<- {severity} at {uri}:{line}: {message}"));
            }
        }
        Ok(())
    }

    async fn tool(&mut self, name: &str, arguments: Value) -> Result<ToolResult, Failure> {
        let result = self.call("tools/call", json!({"name": name, "arguments": arguments})).await?;
        Ok(serde_json::from_value(result)?)
    }

    /// Sends a request and waits for its response, telling of what else comes meanwhile.
    async fn call(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        // Pi's ids are strings, Claude Code counts from 0.
        let id = match self.options.family {
            Family::Pi => json!(format!("00000000-0000-4000-8000-{:012}", self.next)),
            _ => json!(self.next),
        };
        self.next += 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.socket.send(Message::text(request.to_string())).await?;
        loop {
            let message = self.receive().await?;
            match message {
                Incoming::Response { id: Some(other), result, error }
                    if other.value().as_ref() == Some(&id) =>
                {
                    if let Some(error) = error {
                        return Err(format!("{method}: {} ({})", error.message, error.code).into());
                    }
                    return Ok(result.unwrap_or_default());
                }
                other => self.told(other).await?,
            }
        }
    }

    async fn notify(&mut self, method: &str, params: Value) -> Result<(), Failure> {
        self.socket.send(Message::text(rpc::notification(method, &params))).await?;
        Ok(())
    }

    async fn receive(&mut self) -> Result<Incoming, Failure> {
        loop {
            match self.socket.next().await.ok_or("Neovim closed the connection")?? {
                Message::Text(text) => return Ok(rpc::parse(&text)),
                Message::Close(frame) => {
                    let code = frame.map_or(1005, |frame| frame.code.into());
                    return Err(format!("Neovim closed the connection ({code})").into());
                }
                _ => {}
            }
        }
    }

    async fn listen(&mut self, time: Duration) -> Result<(), Failure> {
        let all = async {
            loop {
                let message = self.receive().await?;
                self.told(message).await?;
            }
        };
        tokio::time::timeout(time, all).await.unwrap_or(Ok(()))
    }

    /// Says what Neovim said, and answers what it asked.
    async fn told(&mut self, message: Incoming) -> Result<(), Failure> {
        match message {
            Incoming::Notification { method, params } => match method.as_str() {
                "selection_changed" => self.say(&format!("<- {}", selection(&params)?)),
                _ => self.say(&format!("<- {method} {}", Value::Object(object(&params)?))),
            },
            Incoming::Request { id, method, .. } => {
                let uri = format!("file://{}", self.options.workspace.display());
                let answer = match method.as_str() {
                    "roots/list" => rpc::result(&id, &json!({"roots": [{"uri": uri}]})),
                    "ping" => rpc::result(&id, &json!({})),
                    _ => {
                        let error = rpc::RpcError::new(rpc::METHOD_NOT_FOUND, "unknown method");
                        rpc::error(&id, &error)
                    }
                };
                self.socket.send(Message::text(answer)).await?;
            }
            Incoming::Response { .. } | Incoming::Invalid { .. } => {}
        }
        Ok(())
    }
}

fn object(params: &Params) -> Result<serde_json::Map<String, Value>, Failure> {
    params.object().map_err(|error| error.message.into())
}

/// In the words an agent would put into its prompt.
fn selection(params: &Params) -> Result<String, Failure> {
    let said: SelectionChanged = serde_json::from_value(Value::Object(object(params)?))?;
    let Some(path) = said.file_path else { return Ok("no file is open".into()) };
    let Some(range) = said.selection else { return Ok(format!("in {path}")) };
    let (first, last) = (range.start.line + 1, range.end.line + 1);
    if range.is_empty {
        return Ok(format!("in {path}, line {first}"));
    }
    let words: String = said.text.chars().take(60).collect();
    Ok(format!("lines {first}-{last} of {path} are selected: {words:?}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
