//! What only shows after a while. `make soak` runs these.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

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
    /// What this step draws its choices from: as many for each step, whatever had happened by then.
    dice: Vec<u32>,
    agents: Vec<Client>,
    pending: Vec<(usize, Pending)>,
    /// Taken back: never answered, or answered just before.
    cancelled: Vec<Pending>,
    /// What the window and Neovim looked like in the morning.
    calm: Value,
    asked: usize,
    connected: usize,
}

const FILES: usize = 6;
const AGENTS: usize = 8;
/// Between two looks at whether everything is as it was.
const REST: Duration = Duration::from_secs(20);
const STALL: Duration = Duration::from_millis(200);

/// `:q` in the last window but for reviews leaves Neovim: the day would be over.
const STAY: &str = "
  vim.api.nvim_create_autocmd('QuitPre', { callback = function()
    local ours = function(win)
      return vim.bo[vim.api.nvim_win_get_buf(win)].buftype ~= 'acwrite' and not vim.wo[win].diff
    end
    if ours(0) and #vim.tbl_filter(ours, vim.api.nvim_list_wins()) == 1 then vim.cmd.split() end
  end })";

impl Day {
    fn begin(seed: u64) -> Self {
        println!("again with GANGWAY_SEED={seed}");
        let mut builder = Nvim::builder();
        for i in 0..FILES {
            let text = format!("file {i}\n").repeat(40);
            builder = builder.write(format!("{i}.txt"), text);
        }
        let nvim = builder.after(STAY).after("vim.o.hidden, vim.o.swapfile = true, false").start();
        std::fs::create_dir(nvim.path("below")).unwrap();
        nvim.edit(nvim.path("0.txt"));
        let (rng, calm) = (SmallRng::seed_from_u64(seed), Value::Null);
        let (dice, agents, pending, cancelled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { nvim, rng, dice, agents, pending, cancelled, calm, asked: 0, connected: 0 }
    }

    fn pick(&mut self, n: usize) -> usize {
        self.dice.pop().map_or(0, |die| die as usize % n.max(1))
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
        if self.agents.is_empty() || (self.agents.len() < AGENTS && self.pick(3) == 0) {
            let dialect = [Dialect::Pi, Dialect::Claude, Dialect::Opencode][self.pick(3)];
            self.agents.push(Client::connect(&self.nvim, dialect));
            self.connected += 1;
        }
        let at = self.pick(self.agents.len());
        match self.pick(16) {
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
            3 => {
                let file = self.pick(FILES + 1);
                let path = self.nvim.path(format!("{file}.txt"));
                self.agents[at].tool("openFile", json!({ "filePath": path, "startText": "file" }));
            }
            4 | 5 if !self.pending.is_empty() => {
                let n = self.pick(self.pending.len());
                let (agent, pending) = self.pending.swap_remove(n);
                let cancelled = json!({ "requestId": pending.id, "reason": "changed my mind" });
                self.agents[agent].notify("notifications/cancelled", cancelled);
                self.cancelled.push(pending);
            }
            6 | 7 if !self.pending.is_empty() => {
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
            "silent! tcd below",
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
            "ZQ",
            "<C-w>c",
            "ohello<Esc>",
        ];
        if self.pick(2) == 0 {
            let command = commands[self.pick(commands.len())];
            let _ = self.nvim.try_lua("pcall(vim.cmd, ...)", json!([command]));
        } else {
            let key = keys[self.pick(keys.len())];
            self.nvim.input(key);
            // Until it has been read: what a prompt or half a command waits for is given to it.
            std::thread::sleep(Duration::from_millis(5));
            self.nvim.dismiss_prompts();
        }
    }

    /// Everything asked is taken back, and the user has one window with one file: what that looks
    /// like.
    fn rest(&mut self) -> Value {
        for agent in &self.agents {
            agent.tool("closeAllDiffTabs", json!({}));
        }
        for (_, pending) in self.pending.drain(..) {
            pending.wait();
        }
        self.cancelled.clear();
        // A pane in which the user types stays until they have done so.
        for key in ["<Esc>", "<C-\\><C-n>"] {
            self.nvim.input(key);
        }
        self.nvim.dismiss_prompts();
        self.nvim.wait_until("the panes to go", || self.nvim.right_panes().is_empty());
        let root = self.nvim.cwd.display().to_string();
        self.nvim.lua::<Value>(
            // What the day's user leaves behind (nameless buffers, undo histories) and what the harness
            // has noted is no leak of ours.
            "vim.cmd('silent! tabonly! | silent! only! | silent! %bwipeout!')
             T.notifications, T.events = {}, {}
             vim.cmd.cd(...) vim.cmd('silent! lcd .')
             vim.cmd.edit({ '0.txt', bang = true, magic = { file = false } }) vim.cmd('normal! gg0')
             collectgarbage() collectgarbage()",
            (root,),
        );
        let reviews = || self.nvim.status()["reviews"] == json!([]);
        self.nvim.wait_until("no review in the status", reviews);
        // Agents are answered first, the editor is told right after.
        self.nvim.settle(Duration::from_millis(100));
        let seen = self.nvim.snapshot().0;
        let window = &seen["tabs"][0]["windows"];
        assert_eq!(
            (seen["tabs"].as_array().map(Vec::len), window.as_array().map(Vec::len)),
            (Some(1), Some(1))
        );
        let names: Vec<String> = self
            .nvim
            .lua("return vim.tbl_map(vim.api.nvim_buf_get_name, vim.api.nvim_list_bufs())", ());
        assert!(names.iter().all(|name| !name.contains("gangway://")), "{names:?}");
        for i in 0..FILES {
            // The user writes files, with their own text; no agent's proposal is ever written.
            let text = self.nvim.read(format!("{i}.txt"));
            assert!(!String::from_utf8_lossy(&text).contains("proposal"), "{i}.txt was written");
        }
        let mode = self.nvim.mode();
        json!({ "window": window[0]["options"], "global": seen["options"], "mode": mode })
    }

    fn run(mut self, time: Duration, is_strict: bool) {
        let (mut steps, mut longest) = (0, Duration::ZERO);
        self.calm = self.rest();
        let (begun, mut last_rest) = (Instant::now(), Instant::now());
        let mut before: Option<Counts> = None;
        self.nvim.stall_start();
        loop {
            steps += 1;
            self.dice = (0..12).map(|_| self.rng.random()).collect();
            let pause = Duration::from_millis(self.pick(12) as u64);
            if self.pick(3) == 0 {
                self.user_step()
            } else {
                self.agent_step()
            }
            self.pending.retain(|(_, pending)| !pending.is_answered());
            std::thread::sleep(pause);
            let over = begun.elapsed() >= time;
            if !over && last_rest.elapsed() < REST.min(time / 4) {
                continue;
            }
            self.nvim.dismiss_prompts();
            let stall = self.nvim.stall();
            longest = longest.max(stall);
            assert!(!is_strict || stall < STALL, "the main loop stood still for {stall:?}");
            let calm = self.rest();
            let mut counts = self.nvim.counts();
            *counts.0.entry("fds".to_owned()).or_default() -= self.agents.len() as i64;
            Snapshot(self.calm.clone()).assert_same(&Snapshot(calm), "layout and options");
            if let Some(before) = &before {
                for (what, slack) in [
                    ("autocommands", 6),
                    ("namespaces", 2),
                    ("timers", 4),
                    ("threads", 6),
                    ("fds", 12),
                    ("windows", 0),
                    ("tabs", 0),
                    ("keymaps", 0),
                ] {
                    let (then, now) = (before.get(what), counts.get(what));
                    assert!(now <= then + slack, "{what}: {then} -> {now}");
                }
                let grown = counts.get("rss_kib") - before.get("rss_kib");
                assert!(grown < 40_000, "{grown} KiB more");
            } else {
                // What the first quarter has touched is there; from now on nothing grows.
                before = Some(counts.clone());
            }
            if over {
                let grown =
                    before.map_or(0, |before| counts.get("rss_kib") - before.get("rss_kib"));
                println!(
                    "{steps} steps, {} agents, {} proposals, longest stall {longest:?}, {grown} KiB more",
                    self.connected, self.asked
                );
                break;
            }
            last_rest = Instant::now();
            self.nvim.stall_start();
        }
        self.nvim.cmd("IdeStop");
        for agent in self.agents.drain(..) {
            agent.wait_closed();
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|value| value.parse().ok())
}

fn day(time: Duration, is_strict: bool) {
    Day::begin(number("GANGWAY_SEED").unwrap_or_else(|| rand::random::<u32>().into()))
        .run(time, is_strict);
}

#[test]
fn a_busy_quarter_of_a_minute() {
    day(Duration::from_secs(15), false);
}

#[test]
#[ignore = "takes ten minutes"]
fn a_busy_day() {
    day(Duration::from_secs(number("GANGWAY_SECONDS").unwrap_or(600)), true);
}
