//! What only shows after a while. `make soak` runs these.

use std::time::Duration;

use serde_json::json;

use crate::harness::*;

#[test]
#[ignore = "takes minutes"]
fn five_hundred_reviews_leave_nothing_behind() {
    let nvim = Nvim::builder().file("a.txt", "one\ntwo\n").start();
    let agents = [Client::connect(&nvim, Dialect::Pi), Client::connect(&nvim, Dialect::Claude)];
    let round = |i: usize| {
        let agent = &agents[i % 2];
        let text = format!("one\n{i}\n");
        let pending = agent.open_diff(nvim.path("a.txt"), &text);
        let review = nvim.shown(&pending);
        if i.is_multiple_of(3) {
            nvim.reject(&review);
            assert_eq!(pending.verdict(), Verdict::Rejected);
        } else {
            nvim.accept(&review);
            assert_eq!(pending.verdict(), Verdict::Saved(text));
        }
        agent.close_tab(&pending);
        nvim.wait_until("the panes to go", || nvim.panes().is_empty());
    };
    (0..20).for_each(round);
    let before = nvim.counts();
    (0..500).for_each(round);
    nvim.settle(Duration::from_secs(1));
    let after = nvim.counts();
    assert_eq!(before.grown(&after, 2), Vec::<String>::new());
    let grown = after.get("rss_kib") - before.get("rss_kib");
    assert!(grown < 30_000, "{grown} KiB more");
    assert_eq!(nvim.status()["reviews"], json!([]));
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_connections_come_and_go() {
    let nvim = Nvim::start();
    let round = |i: usize| {
        let dialect = [Dialect::Pi, Dialect::Claude, Dialect::Opencode][i % 3];
        let agent = Client::connect(&nvim, dialect);
        match i % 4 {
            0 => agent.rst(),
            1 => agent.fin(),
            _ => agent.close(1000),
        }
    };
    (0..30).for_each(round);
    nvim.wait_until("all to be gone", || nvim.status()["clients"] == json!([]));
    let before = nvim.counts();
    (0..1000).for_each(round);
    nvim.wait_until("all to be gone", || nvim.status()["clients"] == json!([]));
    nvim.settle(Duration::from_secs(1));
    assert_eq!(before.grown(&nvim.counts(), 2), Vec::<String>::new());
}
