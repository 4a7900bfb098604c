//! What a client says stays text: in names, titles, winbars, messages and searches.

use serde_json::{Value, json};

use crate::harness::*;

#[test]
fn nothing_a_client_says_is_run_matched_or_turns_the_screen_around() {
    // Only announced, so that the message that names the agent is always there.
    let nvim = Nvim::builder()
        .tty(30, 200)
        .opts(json!({ "review": { "focus": "never" } }))
        .file("start.txt", "one\n")
        .start();
    let spells = [
        "%{execute('let g:ran = 1')}.txt",
        "%!execute('let g:ran = 1')",
        "%#Error#x%=y%<z.txt",
        "x | let g:ran = 1",
        "`touch ran`",
        "$(touch ran).txt",
        "=execute('let g:ran = 1')",
        "a\u{202e}txt.exe",
        "a\u{1b}]0;title\u{7}b",
        "a\u{85}b\u{2028}c",
        "\\v(.*)|^",
    ];
    let lock = nvim.lock(Dialect::Claude);
    for spell in spells {
        let agent = Client::to(lock.port, &lock.token, Dialect::Claude).silent().connect();
        agent.call(
            "initialize",
            json!({ "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": { "name": spell, "version": spell } }),
        );
        let pending = agent.open_diff_as(spell, nvim.path(spell), &format!("{spell}\n"));
        nvim.wait_until(&format!("{spell:?}: the panes"), || nvim.right_panes().len() == 1);
        nvim.cmd("redraw! | redrawstatus! | silent! IdeStatus");
        let shown: Vec<String> = nvim.lua(
            "local out = { vim.o.titlestring, require('gangway').statusline() }
             for _, win in ipairs(vim.api.nvim_list_wins()) do
               local bar = vim.wo[win].winbar
               out[#out + 1] = bar == '' and '' or vim.api.nvim_eval_statusline(bar, { winid = win, maxwidth = 200 }).str
             end
             for _, message in ipairs(T.notifications) do out[#out + 1] = message.message end
             return out",
            (),
        );
        for text in &shown {
            let odd =
                |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
            assert!(!text.contains(odd), "{spell:?} is shown as {text:?}");
        }
        agent.tool("openFile", json!({ "filePath": nvim.path("start.txt"), "startText": spell }));
        agent.tool("getDiagnostics", json!({ "uri": spell }));
        agent.tool("close_tab", json!({ "tab_name": spell }));
        pending.verdict();
        assert_eq!(nvim.eval("exists('g:ran')"), json!(0), "{spell:?} was run");
        assert!(!nvim.path("ran").exists(), "{spell:?} was run");
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
        agent.close(1000);
    }
    assert_eq!(
        nvim.lua::<Value>("return vim.fn.getreg('/')", ()),
        json!(""),
        "no search of theirs"
    );
}
