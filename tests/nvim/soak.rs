//! What only shows after a while. `make soak` runs these.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::harness::*;

/// Every way a review can end.
const ENDINGS: [&str; 9] = [
    "accept",
    "edited accept",
    "reject",
    "close a window",
    "withdraw",
    "lose the agent",
    "close the tab page",
    "delete the buffer",
    "wipe the left buffer",
];

/// Opens one review of a file and ends it in the way `index` stands for.
fn one_review(nvim: &Nvim, agent: &Client, index: usize) {
    let how = ENDINGS[index % ENDINGS.len()];
    let text = format!("one\n{index}\n");
    let lost = (how == "lose the agent").then(|| Client::connect(nvim, Dialect::Pi));
    let path = nvim.path(["a.txt", "new.txt"][index % 2]);
    let pending = lost.as_ref().unwrap_or(agent).open_diff(path, &text);
    let pane = nvim.wait_for("the panes", || nvim.right_panes().into_iter().next());
    let run = |lua: &str| nvim.lua::<()>(lua, json!([pane.win, pane.buf]));
    let expected = match how {
        "accept" => {
            nvim.cmd("IdeAccept!");
            Verdict::Saved(text)
        }
        "edited accept" => {
            run("local _, buf = ...
                 vim.bo[buf].modifiable = true
                 vim.api.nvim_buf_set_lines(buf, -1, -1, true, { 'edited' })
                 vim.cmd('IdeAccept!')");
            Verdict::Saved(format!("{text}edited\n"))
        }
        "close a window" => {
            run("vim.api.nvim_win_close(..., true)");
            Verdict::Rejected
        }
        "close the tab page" => {
            run(
                "vim.cmd.tabclose(vim.api.nvim_tabpage_get_number(vim.api.nvim_win_get_tabpage((...))))",
            );
            Verdict::Rejected
        }
        "delete the buffer" => {
            run("local _, buf = ... vim.cmd.bdelete(buf)");
            Verdict::Rejected
        }
        "wipe the left buffer" => {
            run("local tab = vim.api.nvim_win_get_tabpage((...))
                 vim.cmd.bwipeout(vim.api.nvim_win_get_buf(vim.api.nvim_tabpage_list_wins(tab)[1]))");
            Verdict::Rejected
        }
        "withdraw" => {
            agent.close_tab(&pending);
            Verdict::Rejected
        }
        "reject" => {
            nvim.cmd("IdeReject!");
            Verdict::Rejected
        }
        _ => Verdict::Rejected,
    };
    match lost {
        Some(lost) => lost.rst(),
        None => assert_eq!(pending.verdict(), expected, "{how}"),
    }
    nvim.wait_until(&format!("{how}: the panes to go"), || {
        nvim.panes().is_empty() && nvim.status()["reviews"] == json!([])
    });
}

/// What is counted at a quiet moment.
fn at_rest(nvim: &Nvim) -> Counts {
    nvim.settle(Duration::from_secs(1));
    // The harness's own records are no leak.
    nvim.lua::<()>(
        "T.notifications, T.events = {}, {} collectgarbage() collectgarbage()",
        json!([]),
    );
    nvim.counts()
}

fn reviews_leave_nothing_behind(rounds: usize) {
    let nvim = Nvim::builder().file("a.txt", "one\ntwo\n").start();
    let agent = Client::connect(&nvim, Dialect::Claude);
    // What Neovim, allocators and pools keep once they had it: Neovim's own autocommand for
    // treesitter comes with the first highlighting that finds its pane still there.
    nvim.lua::<()>("require('vim.treesitter.query')", json!([]));
    (0..rounds.div_ceil(2)).for_each(|index| one_review(&nvim, &agent, index));
    let before = at_rest(&nvim);
    let begun = Instant::now();
    (0..rounds).for_each(|index| one_review(&nvim, &agent, index));
    let took = begun.elapsed();
    let after = at_rest(&nvim);
    println!("{rounds} reviews in {took:?}: {:?} -> {:?}", before.0, after.0);
    assert_eq!(before.grown(&after, 0), Vec::<String>::new());
    let (kib, grown) = (before.get("rss_kib"), after.get("rss_kib") - before.get("rss_kib"));
    assert!(grown * 10 <= kib, "{grown} KiB more than {kib}");
}

#[test]
fn a_hundred_reviews_ended_in_every_way_leave_nothing_behind() {
    reviews_leave_nothing_behind(100);
}

#[test]
#[ignore = "takes a minute"]
fn a_thousand_reviews_ended_in_every_way_leave_nothing_behind() {
    reviews_leave_nothing_behind(1000);
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

/// Agents and a user who do whatever comes to mind, in an order that a seed repeats.
struct Day {
    nvim: Nvim,
    rng: SmallRng,
    agents: Vec<Client>,
    pending: Vec<(usize, Pending)>,
    asked: usize,
}

const FILES: usize = 6;

impl Day {
    fn begin(seed: u64) -> Self {
        println!("seed {seed}; again with SOAK_SEED={seed}");
        let mut builder = Nvim::builder();
        for i in 0..FILES {
            let text = format!("file {i}\n").repeat(40);
            builder = builder.write(format!("{i}.txt"), text);
        }
        let nvim = builder.after("vim.o.hidden = true").start();
        std::fs::create_dir(nvim.path("below")).unwrap();
        nvim.edit(nvim.path("0.txt"));
        let rng = SmallRng::seed_from_u64(seed);
        Self { nvim, rng, agents: Vec::new(), pending: Vec::new(), asked: 0 }
    }

    fn pick(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n.max(1))
    }

    /// The agent at `index` is gone: nothing of it is answered any more.
    fn lose(&mut self, index: usize) -> Client {
        self.pending.retain(|(agent, _)| *agent != index);
        for (agent, _) in &mut self.pending {
            if *agent > index {
                *agent -= 1;
            }
        }
        self.agents.remove(index)
    }

    fn agent_step(&mut self) {
        if self.agents.is_empty() || (self.agents.len() < 8 && self.pick(6) == 0) {
            let dialect = [Dialect::Pi, Dialect::Claude, Dialect::Opencode][self.pick(3)];
            self.agents.push(Client::connect(&self.nvim, dialect));
        }
        let at = self.pick(self.agents.len());
        match self.pick(12) {
            0 => {
                let agent = self.lose(at);
                match self.pick(3) {
                    0 => agent.rst(),
                    1 => agent.fin(),
                    _ => agent.close(1000),
                }
            }
            1 => {
                self.agents[at].tool("closeAllDiffTabs", json!({}));
            }
            2 => {
                self.agents[at].tool("getDiagnostics", json!({}));
            }
            3 if !self.pending.is_empty() => {
                let n = self.pick(self.pending.len());
                let (agent, pending) = self.pending.swap_remove(n);
                let cancelled = json!({ "requestId": pending.id, "reason": "changed my mind" });
                self.agents[agent].notify("notifications/cancelled", cancelled);
            }
            4 | 5 if !self.pending.is_empty() => {
                let n = self.pick(self.pending.len());
                let (agent, pending) = self.pending.swap_remove(n);
                self.agents[agent].close_tab(&pending);
                pending.wait();
            }
            _ if self.pending.len() < 12 => {
                let file = self.pick(FILES + 1);
                let path = self.nvim.path(format!("{file}.txt"));
                let tab = ["one", "two", "one "][self.pick(3)];
                self.asked += 1;
                let text = format!("proposal {}\n", self.asked).repeat(1 + self.pick(30));
                let pending = self.agents[at].open_diff_as(tab, path, &text);
                self.pending.push((at, pending));
            }
            _ => {}
        }
    }

    fn user_step(&mut self) {
        let commands = [
            "silent! split",
            "silent! vsplit",
            "silent! close",
            "silent! tabnew",
            "silent! tabclose",
            "silent! only",
            "silent! bnext",
            "IdeAccept!",
            "IdeReject!",
            "silent! cd below",
            "silent! cd ..",
            "silent! stopinsert",
            "silent! checktime",
        ];
        let keys = [
            "<C-w>w",
            "gt",
            "gT",
            "j",
            "G",
            "gg",
            "<Esc>",
            "V",
            "ix<Esc>",
            ":w<CR>",
            ":q<CR>",
            "u",
            "dd",
            "]c",
            "\\x",
            "\\a",
            "\\r",
            "<C-\\><C-n>",
        ];
        if self.pick(2) == 0 {
            let command = commands[self.pick(commands.len())];
            let _ = self.nvim.try_lua("pcall(vim.cmd, ...)", json!([command]));
        } else {
            let key = keys[self.pick(keys.len())];
            self.nvim.input(key);
            if self.nvim.blocked() {
                self.nvim.input("<CR>");
            }
        }
    }

    fn run(mut self, time: Duration, longest_stall: Option<Duration>) {
        for _ in 0..40 {
            self.agent_step();
        }
        let before = self.nvim.counts();
        self.nvim.stall_start();
        let end = Instant::now() + time;
        let mut steps = 0;
        while Instant::now() < end {
            steps += 1;
            if self.pick(3) == 0 {
                self.user_step()
            } else {
                self.agent_step()
            }
            self.pending.retain(|(_, pending)| !pending.is_answered());
            std::thread::sleep(Duration::from_millis(self.rng.random_range(0..12)));
        }
        let stall = self.nvim.stall();
        println!("{steps} steps, {} proposals, longest stall {stall:?}", self.asked);
        if let Some(limit) = longest_stall {
            assert!(stall < limit, "the main loop stood still for {stall:?}");
        }
        self.nvim.input("<C-\\><C-n>");
        self.nvim.cmd("IdeStop");
        for (_, pending) in &self.pending {
            pending.wait();
        }
        self.nvim.wait_until("the panes to go", || self.nvim.right_panes().is_empty());
        let names: Vec<String> = self.nvim.lua(
            "return vim.tbl_map(vim.api.nvim_buf_get_name, vim.api.nvim_list_bufs())",
            json!([]),
        );
        assert!(names.iter().all(|name| !name.contains("gangway://")), "{names:?}");
        let after = self.nvim.counts();
        for what in ["autocommands", "namespaces", "timers", "threads"] {
            assert!(
                after.get(what) <= before.get(what) + 6,
                "{what}: {} -> {}",
                before.get(what),
                after.get(what)
            );
        }
        for i in 0..FILES {
            let text = self.nvim.read(format!("{i}.txt"));
            assert!(
                text.starts_with(b"file") || !text.starts_with(b"proposal"),
                "{i}.txt was written"
            );
        }
    }
}

fn seed() -> u64 {
    let given = std::env::var("SOAK_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(rand::random)
}

#[test]
fn a_busy_quarter_of_a_minute() {
    Day::begin(seed()).run(Duration::from_secs(15), None);
}

#[test]
#[ignore = "takes ten minutes"]
fn a_busy_day() {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(600);
    Day::begin(seed()).run(Duration::from_secs(seconds), Some(Duration::from_millis(200)));
}
