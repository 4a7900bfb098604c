//! aivyx-coder's questions in a real Neovim: what the user sees and does, and what its file says.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gangway::agents::aivyx::key::project_key;
use serde_json::{Value, json};

use crate::harness::*;

const OLD: &str = "one\ntwo\nthree\n";
const NEW: &str = "one\nTWO\nthree\n";

/// A stand-in that behaves as aivyx-coder does: writes its request in place, then sets its mode,
/// looks for the response every 250 ms and removes both files once it has an answer.
struct Aivyx {
    request: PathBuf,
    response: PathBuf,
    context: PathBuf,
    asked: usize,
}

fn pair() -> (Nvim, Aivyx) {
    let nvim = Nvim::builder()
        .before(
            "vim.fn.mkdir(vim.env.XDG_STATE_HOME .. '/aivyx-coder/editor-approval', 'p', '0700')",
        )
        .file("a.txt", OLD)
        .start();
    let state: String = nvim.lua("return vim.env.XDG_STATE_HOME", ());
    let state = PathBuf::from(state).join("aivyx-coder");
    let key = project_key(&std::fs::canonicalize(&nvim.cwd).unwrap());
    let approval = state.join("editor-approval");
    let aivyx = Aivyx {
        request: approval.join(format!("{key}-request.json")),
        response: approval.join(format!("{key}-response.json")),
        context: state.join("editor-context").join(format!("{key}.json")),
        asked: 0,
    };
    (nvim, aivyx)
}

impl Aivyx {
    fn ask(&mut self, mut request: Value) -> String {
        use std::os::unix::fs::PermissionsExt;
        self.asked += 1;
        let id = format!("00000000-0000-4000-8000-{:012}", self.asked);
        request["schema_version"] = json!(1);
        request["request_id"] = json!(id);
        std::fs::write(&self.request, request.to_string()).unwrap();
        std::fs::set_permissions(&self.request, std::fs::Permissions::from_mode(0o600)).unwrap();
        id
    }

    fn write(&mut self, nvim: &Nvim) -> String {
        let target = nvim.path("a.txt");
        self.ask(json!({ "action_kind": "write", "target": target, "old_content": OLD, "new_content": NEW }))
    }

    /// The decision for `id`, as aivyx would find it within `time`.
    fn decision(&self, id: &str, time: Duration) -> Option<String> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(250));
            let Ok(text) = std::fs::read_to_string(&self.response) else { continue };
            let response: Value = serde_json::from_str(&text).expect("half a response");
            if response["schema_version"] == json!(1) && response["request_id"] == json!(id) {
                return response["decision"].as_str().map(str::to_owned);
            }
        }
        None
    }

    fn resolve(&self, nvim: &Nvim) {
        let _ = std::fs::remove_file(&self.request);
        let _ = std::fs::remove_file(&self.response);
        nvim.wait_until("the review to go", || nvim.status()["reviews"] == json!([]));
    }
}

const SOON: Duration = Duration::from_secs(4);

fn in_view(nvim: &Nvim, id: &str) {
    nvim.wait_until("the question to come into view", || {
        let reviews = &nvim.status()["reviews"];
        reviews[0]["id"] == json!(id) && reviews[0]["seen"] == json!(true)
    });
    nvim.settle(ARMED);
}

#[test]
fn every_decision_reaches_aivyx_and_its_panes_are_read_only() {
    let (nvim, mut aivyx) = pair();
    for (keys, decision) in
        [("\\a", "allow"), ("\\r", "deny"), ("\\A", "always_allow"), (":w<CR>", "allow")]
    {
        let id = aivyx.write(&nvim);
        in_view(&nvim, &id);
        let right = nvim.right_panes().remove(0);
        assert!(!right.modifiable, "edits could not be sent");
        nvim.goto(right.win);
        nvim.input(keys);
        assert_eq!(aivyx.decision(&id, SOON).as_deref(), Some(decision), "{keys}");
        aivyx.resolve(&nvim);
        assert!(nvim.panes().is_empty());
    }
    assert_eq!(nvim.read("a.txt"), OLD.as_bytes(), "aivyx writes, not the editor");
}

#[test]
fn closing_the_view_leaves_the_question_to_the_terminal() {
    let (nvim, mut aivyx) = pair();
    let id = aivyx.ask(json!({ "action_kind": "execute", "target": "cargo test", "command": "cargo", "args": ["test", "a b", "x\u{202e}y"] }));
    in_view(&nvim, &id);
    let lines = nvim.lines(nvim.eval("bufnr()").as_i64().unwrap()).join("\n");
    for part in ["program   cargo", "arg 1     test", "“a b”", "x<202e>y"] {
        assert!(lines.contains(part), "{part} in {lines}");
    }
    nvim.input("<CR>");
    assert_eq!(aivyx.decision(&id, Duration::from_millis(600)), None, "<CR> decides nothing");
    nvim.input(":q<CR>");
    assert_eq!(aivyx.decision(&id, Duration::from_millis(800)), None);
    aivyx.resolve(&nvim);
}

#[test]
fn a_quit_with_a_bang_denies_as_its_key_does() {
    for keys in [":q!<CR>", "ZQ"] {
        let (nvim, mut aivyx) = pair();
        let id = aivyx.write(&nvim);
        in_view(&nvim, &id);
        nvim.settle(ARMED);
        nvim.input(keys);
        let decision = aivyx.decision(&id, Duration::from_secs(3));
        assert_eq!(decision.as_deref(), Some("deny"), "{keys}");
    }
}

#[test]
fn a_question_answered_in_the_terminal_goes_and_a_late_key_writes_nothing() {
    let (nvim, mut aivyx) = pair();
    let id = aivyx.write(&nvim);
    in_view(&nvim, &id);
    aivyx.resolve(&nvim);
    nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    nvim.input("\\a");
    nvim.cmd("silent! IdeAccept");
    nvim.settle(Duration::from_millis(300));
    assert!(!aivyx.response.exists());
}

#[test]
fn an_answer_that_cannot_be_written_is_told_to_the_user() {
    let (nvim, mut aivyx) = pair();
    std::fs::create_dir(&aivyx.response).unwrap();
    let id = aivyx.write(&nvim);
    in_view(&nvim, &id);
    nvim.input("\\a");
    nvim.wait_until("word of it", || {
        nvim.notifications().iter().any(|said| said.contains("answer it in its terminal"))
    });
    // The next one is answered as ever.
    std::fs::remove_dir(&aivyx.response).unwrap();
    aivyx.resolve(&nvim);
    let id = aivyx.write(&nvim);
    in_view(&nvim, &id);
    nvim.input("\\a");
    assert_eq!(aivyx.decision(&id, SOON).as_deref(), Some("allow"));
}

#[test]
fn leaving_neovim_denies_nothing() {
    let (nvim, mut aivyx) = pair();
    let id = aivyx.write(&nvim);
    in_view(&nvim, &id);
    assert!(aivyx.context.exists(), "the context is there while Neovim is");
    assert_eq!(nvim.quit("qa!").code, Some(0));
    assert_eq!(aivyx.decision(&id, Duration::from_millis(600)), None);
    assert!(!aivyx.context.exists(), "and goes with it");
}

#[test]
fn a_new_request_replaces_the_old_one() {
    let (nvim, mut aivyx) = pair();
    let first = aivyx.write(&nvim);
    in_view(&nvim, &first);
    let second = aivyx.ask(json!({ "action_kind": "delete", "target": nvim.path("a.txt"), "old_content": OLD, "will_delete": true }));
    in_view(&nvim, &second);
    nvim.wait_until("the old panes to go", || nvim.right_panes().len() == 1);
    nvim.cmd("IdeReject");
    assert_eq!(aivyx.decision(&second, SOON).as_deref(), Some("deny"));
    assert_eq!(aivyx.decision(&first, Duration::from_millis(300)), None);
    aivyx.resolve(&nvim);
}

#[test]
fn an_aivyx_in_a_terminal_elsewhere_has_a_context_of_its_own() {
    let (nvim, aivyx) = pair();
    nvim.write("sub/x.txt", "x\n");
    nvim.edit("sub/x.txt");
    nvim.lua::<Value>(
        "vim.cmd('botright new') return vim.fn.termopen({ 'cat' }, { cwd = ... })",
        json!([nvim.path("sub")]),
    );
    let key = project_key(&std::fs::canonicalize(nvim.path("sub")).unwrap());
    let context = aivyx.context.with_file_name(format!("{key}.json"));
    nvim.wait_until("a context for the terminal's folder", || {
        std::fs::read_to_string(&context).is_ok_and(|text| text.contains("\"file\":\"x.txt\""))
    });
}
