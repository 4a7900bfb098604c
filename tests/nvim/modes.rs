//! A review that arrives while the user is doing something: not one key of theirs may change a pane
//! or decide, and what they typed ends where it was meant. Real terminal, real keys.

use std::time::Duration;

use serde_json::json;

use crate::harness::*;

const OLD: &str = "alpha beta\ngamma\ndelta\n";
const NEW: &str = "ALPHA beta\ngamma\ndelta\nepsilon\n";
const PAUSE: Duration = Duration::from_millis(700);

struct Desk {
    nvim: Nvim,
    agent: Client,
}

#[test]
fn an_announcement_is_seen_where_the_mode_has_the_message_line() {
    for keys in ["ix", "Rx"] {
        let Desk { nvim, agent } = desk();
        nvim.type_keys(keys);
        let before = nvim.lines(0);
        let _pending = agent.open_diff(nvim.path("a.txt"), NEW);
        nvim.wait_until("the announcement", || {
            nvim.screen_find("Pi proposes a change to a.txt").is_some_and(|(row, _)| row < 3)
        });
        // It stays for a while, whatever is typed.
        nvim.type_keys("yz");
        nvim.settle(Duration::from_secs(1));
        assert!(nvim.screen_find("Pi proposes a change to a.txt").is_some());
        assert_eq!(nvim.lines(0).len(), before.len());
        nvim.wait_until("it to go", || {
            nvim.screen_find("Pi proposes a change to a.txt").is_none_or(|(row, _)| row > 3)
        });
    }
}

/// A user in `u.txt`, an agent that is about to propose a change to `a.txt`.
fn desk() -> Desk {
    let nvim = Nvim::builder()
        .tty(24, 80)
        .write("a.txt", OLD)
        .file("u.txt", "word1 word2\nsecond\n")
        .start();
    let agent = Client::connect(&nvim, Dialect::Pi);
    Desk { nvim, agent }
}

impl Desk {
    fn propose(&self) -> Pending {
        let pending = self.agent.open_diff(self.nvim.path("a.txt"), NEW);
        self.nvim.settle(Duration::from_millis(150));
        pending
    }

    fn user_lines(&self) -> Vec<String> {
        let buf = self.nvim.eval("bufnr('u.txt')").as_i64().unwrap();
        self.nvim.lines(buf)
    }

    fn in_view(&self) -> bool {
        let code = "for _, w in ipairs(vim.api.nvim_tabpage_list_wins(0)) do
            if vim.bo[vim.api.nvim_win_get_buf(w)].buftype == 'acwrite' then return true end end
            return false";
        self.nvim.lua(code, json!([]))
    }

    /// Nothing was decided or edited; then it comes into view by itself, and rejecting it brings
    /// the user back.
    fn untouched_then_shown(&self, pending: &Pending, what: &str) -> Review {
        assert!(!pending.is_answered(), "{what}: decided by stray keys");
        self.nvim.wait_until(&format!("{what}: the review to come into view"), || self.in_view());
        let review = self.nvim.shown(pending);
        assert_eq!(self.nvim.lines(review.right.buf).join("\n") + "\n", NEW, "{what}: right pane");
        assert_eq!(self.nvim.lines(review.left.buf).join("\n") + "\n", OLD, "{what}: left pane");
        review
    }

    fn stays_away(&self, what: &str, time: Duration) {
        self.nvim.settle(time);
        assert!(!self.in_view(), "{what}: the review came into view");
    }
}

#[test]
fn d10_a_sentence_typed_with_a_pause_ends_where_it_was_meant() {
    let desk = desk();
    desk.nvim.type_slowly("Go half a sentence", Duration::from_millis(15));
    let pending = desk.propose();
    desk.stays_away("insert mode, user pausing", PAUSE);
    desk.nvim.type_slowly(" and the rest", Duration::from_millis(15));
    desk.nvim.type_keys("\x1b");
    desk.nvim.settle(Duration::from_millis(100));
    assert_eq!(desk.user_lines()[2], " half a sentence and the rest");
    desk.untouched_then_shown(&pending, "after insert mode");
}

#[test]
fn d10_an_operator_waits_for_its_motion_in_the_users_file() {
    let desk = desk();
    desk.nvim.type_keys("ggd");
    let pending = desk.propose();
    desk.stays_away("operator pending", PAUSE);
    desk.nvim.type_keys("w");
    desk.nvim.settle(Duration::from_millis(100));
    assert_eq!(desk.user_lines()[0], "word2");
    desk.untouched_then_shown(&pending, "after d and w");
}

#[test]
fn d10_commands_typed_one_after_another_reach_the_users_file_whenever_it_arrives() {
    let desk = desk();
    let between = Duration::from_millis(60);
    desk.nvim.type_keys("gg0");
    desk.nvim.settle(PAUSE);
    desk.nvim.type_slowly("xx", between);
    let pending = desk.agent.open_diff(desk.nvim.path("a.txt"), NEW);
    desk.nvim.type_slowly("xxxx", between);
    desk.nvim.settle(between);
    assert_eq!(desk.user_lines()[0], "word2");
    let review = desk.untouched_then_shown(&pending, "after the last of them");
    desk.nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    desk.nvim.wait_until("the panes to go", || desk.nvim.panes().is_empty());
    // A command that waits for a character holds up all that arrives, and lets it in at once then.
    desk.nvim.type_keys("0f");
    let pending = desk.agent.open_diff(desk.nvim.path("a.txt"), NEW);
    std::thread::sleep(PAUSE);
    desk.nvim.type_slowly("dx", between);
    desk.nvim.settle(between);
    assert_eq!(desk.user_lines()[0], "wor2");
    desk.untouched_then_shown(&pending, "after fdx");
}

#[test]
fn a_half_typed_command_is_finished_undisturbed() {
    let desk = desk();
    desk.nvim.type_keys(":let g:answer = 4");
    let pending = desk.propose();
    desk.stays_away("command line", PAUSE);
    desk.nvim.type_keys("2\r");
    desk.nvim.settle(Duration::from_millis(100));
    assert_eq!(desk.nvim.eval("g:answer"), json!(42));
    desk.untouched_then_shown(&pending, "after the command line");
}

#[test]
fn a_selection_is_kept_while_it_grows_and_again_after_the_review() {
    let desk = desk();
    desk.nvim.type_keys("ggVj");
    let pending = desk.propose();
    for key in ["k", "j", "k", "j"] {
        desk.nvim.settle(Duration::from_millis(250));
        assert_eq!(desk.nvim.mode(), "V", "the selection was ended");
        desk.nvim.type_keys(key);
    }
    // People select, then ask the agent in the other window: a standing selection is no typing.
    let review = desk.untouched_then_shown(&pending, "a selection left standing");
    desk.nvim.reject(&review);
    assert_eq!(pending.verdict(), Verdict::Rejected);
    desk.nvim.wait_until("the selection to be back", || desk.nvim.mode() == "V");
    assert_eq!(desk.nvim.eval("[line('v'), line('.')]"), json!([1, 2]));
}

#[test]
fn d10_what_is_typed_to_a_terminal_reaches_it() {
    let desk = desk();
    desk.nvim.cmd("terminal cat");
    desk.nvim.type_keys("i");
    desk.nvim.settle(Duration::from_millis(100));
    desk.nvim.type_slowly("hello", Duration::from_millis(20));
    let pending = desk.propose();
    desk.stays_away("composing in a terminal", PAUSE);
    desk.nvim.type_slowly("world\r", Duration::from_millis(20));
    // The last key was Enter: the agent has the prompt, the user waits for it.
    let review = desk.untouched_then_shown(&pending, "after Enter in a terminal");
    assert!(
        desk.nvim
            .eval("join(getbufline(bufnr('term://'), 1, '$'))")
            .to_string()
            .contains("helloworld")
    );
    desk.nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    desk.nvim.wait_until("terminal mode again", || desk.nvim.mode() == "t");
    desk.nvim.type_keys("again\r");
    desk.nvim.wait_until("typed text to reach the terminal", || {
        desk.nvim.eval("join(getbufline(bufnr('term://'), 1, '$'))").to_string().contains("again")
    });
}

#[test]
fn a_prompt_is_answered_by_the_user_and_the_agents_socket_keeps_answering() {
    let desk = desk();
    desk.nvim.type_keys(":echo \"one\\ntwo\\nthree\"\r");
    desk.nvim.wait_until("the hit-enter prompt", || desk.nvim.blocked());
    let pending = desk.agent.open_diff(desk.nvim.path("a.txt"), NEW);
    assert!(desk.agent.ping() < Duration::from_millis(500));
    pending.assert_unanswered(PAUSE);
    desk.nvim.type_keys("\r");
    desk.untouched_then_shown(&pending, "after a hit-enter prompt");
}

#[test]
fn the_command_line_window_is_left_alone() {
    let desk = desk();
    desk.nvim.type_keys("q:");
    desk.nvim.settle(Duration::from_millis(100));
    let pending = desk.propose();
    desk.stays_away("command-line window", PAUSE);
    assert_eq!(desk.nvim.eval("getcmdwintype()"), json!(":"));
    desk.nvim.type_keys(":q\r");
    desk.untouched_then_shown(&pending, "after the command-line window");
}

#[test]
fn a_macro_being_recorded_holds_no_key_of_ours() {
    let desk = desk();
    desk.nvim.type_keys("ggqq");
    let pending = desk.propose();
    desk.stays_away("recording", PAUSE);
    desk.nvim.type_keys("A!\x1bq");
    desk.untouched_then_shown(&pending, "after recording");
    assert_eq!(desk.nvim.eval("getreg('q')"), json!("A!\u{1b}"));
}

#[test]
fn a_plugin_that_waits_for_a_key_gets_it() {
    let desk = desk();
    desk.nvim.cmd("nnoremap gz <Cmd>let g:got = getcharstr()<CR>");
    desk.nvim.type_keys("gz");
    desk.nvim.settle(Duration::from_millis(100));
    let pending = desk.propose();
    desk.stays_away("waiting in getchar()", PAUSE);
    desk.nvim.type_keys("x");
    desk.nvim.settle(Duration::from_millis(100));
    assert_eq!(desk.nvim.eval("g:got"), json!("x"));
    desk.untouched_then_shown(&pending, "after getchar()");
}

#[test]
fn keys_that_fall_into_a_view_as_it_appears_do_nothing() {
    let desk = desk();
    let pending = desk.propose();
    desk.nvim.wait_until("the review to come into view", || desk.in_view());
    desk.nvim.type_slowly("ddxA!\x1b\\aZZ:w\r\\r", Duration::from_millis(10));
    desk.nvim.settle(Duration::from_millis(100));
    desk.nvim.dismiss_prompts();
    let review = desk.untouched_then_shown(&pending, "keys within the first moment");
    desk.nvim.settle(PAUSE);
    desk.nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
}

#[test]
fn a_user_who_looks_at_another_application_finds_the_review_in_view() {
    let desk = desk();
    desk.nvim.type_keys("Gotyping");
    desk.nvim.settle(Duration::from_millis(100));
    desk.nvim.cmd("doautocmd FocusLost");
    let pending = desk.agent.open_diff(desk.nvim.path("a.txt"), NEW);
    let review = desk.untouched_then_shown(&pending, "away, in insert mode");
    assert_eq!(desk.nvim.mode(), "n", "insert mode must not carry over into the pane");
    desk.nvim.cmd("doautocmd FocusGained");
    desk.nvim.accept(&review);
    assert_eq!(pending.verdict(), Verdict::Saved(NEW.into()));
    desk.nvim.wait_until("insert mode again", || desk.nvim.mode() == "i");
    desk.nvim.type_keys(" on\x1b");
    desk.nvim.wait_until("the sentence to go on", || desk.user_lines()[2] == "typing on");
}

#[test]
fn d10_a_file_that_an_agent_opens_takes_no_key_of_the_users() {
    for (begun, rest, becomes, typing) in [
        ("ihello", " world dd", "hello world ddword1 word2", true),
        ("RYY", "ZZdd", "YYZZddword2", true),
        ("d", "w", "word2", false),
    ] {
        let Desk { nvim, agent } = desk();
        let user: i64 = nvim.lua("return vim.api.nvim_get_current_buf()", ());
        nvim.type_keys(begun);
        let opening = agent.tool_request("openFile", json!({ "filePath": nvim.path("a.txt") }));
        nvim.settle(Duration::from_millis(300));
        nvim.type_keys(rest);
        opening.wait();
        let shown = if typing { "u.txt" } else { "a.txt" };
        nvim.wait_until(shown, || nvim.eval("expand('%:t')") == json!(shown));
        assert_eq!(nvim.lines(user)[0], becomes, "{begun}");
        let opened = nvim.eval("bufnr('a.txt')").as_i64().unwrap();
        assert_eq!(nvim.lines(opened).join("\n") + "\n", OLD, "{begun}");
        let told = nvim.notifications();
        assert_eq!(told.iter().any(|text| text.contains("has opened a.txt")), typing, "{told:?}");
    }
    // Who talks to an agent in a terminal goes on doing so.
    let Desk { nvim, agent } = desk();
    nvim.cmd("split | terminal cat");
    nvim.type_keys("ihello\r");
    agent.tool("openFile", json!({ "filePath": nvim.path("a.txt"), "startText": "gamma" }));
    nvim.type_keys("more");
    nvim.settle(Duration::from_millis(300));
    assert_eq!(nvim.mode(), "t");
    let shown = nvim.eval("win_findbuf(bufnr('a.txt'))")[0].clone();
    let cursor = nvim.lua::<Vec<i64>>("return vim.api.nvim_win_get_cursor(...)", (shown,));
    assert_eq!(cursor, [2, 0]);
}
