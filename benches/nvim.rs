//! What the plugin costs, as ratios to what Neovim itself takes for the same thing, in the same
//! run.
//!
//! `make bench` runs it. Each number is the median of several runs in a Neovim with its terminal UI
//! in a pty, because a headless one draws nothing. It reports; it never fails.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark ends when something is not as it should be"
)]
#![allow(
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "the harness offers more than this takes"
)]

#[path = "../tests/nvim/harness/mod.rs"]
mod harness;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use harness::{Client, Dialect, Nvim, Verdict};
use serde_json::{Value, json};

const RUNS: usize = 5;
const LONG: Duration = Duration::from_secs(60);

fn main() {
    let version: String = {
        let nvim = Nvim::builder().plain().start();
        nvim.lua("return tostring(vim.version())", ())
    };
    println!("Neovim {version}, median of {RUNS} runs\n");
    println!("{:<44} {:>10} {:>10} {:>7}  {:>7}", "", "ours", "floor", "ratio", "budget");
    row(|| open_diff("1 MB", 1 << 20, false));
    row(|| open_diff("10 MB", 10 << 20, true));
    row(diagnostics);
    row(snapshot);
    row(cursor_moved);
    row(start);
}

/// A measurement that breaks costs its own row only.
fn row(measure: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(measure)).is_err() {
        println!("(not measured: see above)");
    }
}

fn report(what: &str, ours: f64, floor: f64, unit: &str, budget: &str) {
    let ratio = if floor > 0.0 { format!("{:.2}", ours / floor) } else { "-".to_owned() };
    let number = |n: f64| if n > 0.0 { format!("{n:.1} {unit}") } else { "-".to_owned() };
    println!("{what:<44} {:>10} {:>10} {ratio:>7}  {budget:>7}", number(ours), number(floor));
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// About `size` bytes of text in lines of 64, and the same with every 500th line changed.
fn texts(size: usize) -> (String, String) {
    let line = |i: usize, word: &str| format!("local line_{i:07} = {word} -- {}\n", "x".repeat(28));
    let lines = size / line(0, "before").len();
    let before: String = (0..lines).map(|i| line(i, "before")).collect();
    let after = (0..lines).map(|i| line(i, if i % 500 == 250 { "AFTER!" } else { "before" }));
    (before, after.collect())
}

/// Notes when a redraw ends with both panes on the screen.
const WATCH: &str = "
  _G.shown_at = nil
  vim.api.nvim_set_decoration_provider(vim.api.nvim_create_namespace('bench'), {
    on_end = function()
      if shown_at then return end
      local n = 0
      for _, win in ipairs(vim.api.nvim_tabpage_list_wins(0)) do
        if vim.wo[win].diff then n = n + 1 end
      end
      if n == 2 then shown_at = vim.uv.hrtime() end
    end,
  })";

/// The least Neovim must do to show a diff: the file in one window, the text in another, both in
/// diff mode, drawn. `steps` is how long each part took, in milliseconds.
const FLOOR: &str = "
  local path, proposal = ...
  local lines = vim.fn.readfile(proposal)
  local steps, last = {}, vim.uv.hrtime()
  local function step()
    local now = vim.uv.hrtime()
    steps[#steps + 1] = (now - last) / 1e6
    last = now
  end
  vim.cmd('tabnew')
  vim.cmd.edit({ args = { path }, magic = { file = false, bar = false } })
  step()
  vim.cmd('diffthis | rightbelow vnew')
  vim.bo.buftype, vim.bo.undolevels = 'nofile', -1
  vim.api.nvim_buf_set_lines(0, 0, -1, false, lines)
  step()
  vim.cmd('diffthis | redraw')
  step()
  local total = 0
  for _, n in ipairs(steps) do total = total + n end
  local longest = math.max(unpack(steps))
  last = vim.uv.hrtime()
  local text = table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), '\\n')
  step()
  return { total = total, longest = longest, read = steps[#steps], bytes = #text }";

fn open_diff(size: &str, bytes: usize, all_rows: bool) {
    let (before, after) = texts(bytes);
    let (mut shown, mut stall, mut accept) = (Vec::new(), Vec::new(), Vec::new());
    let mut floors: [Vec<f64>; 3] = Default::default();
    for _ in 0..RUNS {
        let nvim =
            Nvim::builder().plain().tty(40, 160).write("a.lua", &before).write("b", &after).start();
        let floor: Value = nvim.lua_within(LONG, FLOOR, (nvim.path("a.lua"), nvim.path("b")));
        for (numbers, part) in floors.iter_mut().zip(["total", "longest", "read"]) {
            numbers.push(floor[part].as_f64().unwrap());
        }
        drop(nvim);

        let nvim = Nvim::builder()
            .tty(40, 160)
            .opts(json!({ "review": { "focus": "always" } }))
            .after(WATCH)
            .write("a.lua", &before)
            .start();
        let agent = Client::connect(&nvim, Dialect::Pi);
        nvim.settle(Duration::from_millis(300));
        nvim.stall_start();
        // Both clocks are the system's monotonic one; they only count from different instants.
        let (asked, now): (Instant, f64) = (Instant::now(), nvim.lua("return vim.uv.hrtime()", ()));
        let pending = agent.open_diff(nvim.path("a.lua"), &after);
        // Not asked for all the time: that would be work on the same thread. And not awaited in Lua:
        // Neovim does not redraw meanwhile.
        let at: f64 = harness::poll(LONG, || {
            std::thread::sleep(Duration::from_millis(50));
            nvim.lua_within::<Option<f64>>(LONG, "return shown_at", ())
        })
        .expect("both panes");
        shown.push((at - now) / 1e6);
        stall.push(ms(nvim.stall()));
        assert!(asked.elapsed() < LONG);
        let right = nvim.right_panes().into_iter().next().expect("a right pane");
        nvim.goto(right.win);
        nvim.settle(harness::ARMED);
        let typed = Instant::now();
        nvim.input("<C-\\><C-n>:w<CR>");
        let verdict = pending.verdict_within(LONG);
        assert!(matches!(verdict, Verdict::Saved(text) if text == after), "the answer differs");
        accept.push(ms(pending.answered_at().expect("answered") - typed));
        agent.close_tab(&pending);
    }
    let [total, longest, read] = floors.map(median);
    report(
        &format!("openDiff {size}, request to both panes shown"),
        median(shown),
        total,
        "ms",
        "1.50",
    );
    if all_rows {
        report(&format!("longest main-loop stall, {size}"), median(stall), longest, "ms", "1.50");
        report(&format!("accept to answer, {size}"), median(accept), read, "ms", "1.50");
    }
}

fn diagnostics() {
    const SET: &str = "
      local items = {}
      for i = 1, 10000 do
        items[i] = { lnum = i % 900, col = 3, end_col = 9, severity = i % 4 + 1, source = 'bench',
          code = 'E' .. i, message = 'something is not as it should be, number ' .. i }
      end
      local lines = {}
      for i = 1, 1000 do lines[i] = 'local line = ' .. i end
      vim.api.nvim_buf_set_lines(0, 0, -1, false, lines)
      vim.cmd('silent write')
      vim.diagnostic.config({ virtual_text = false, underline = false, signs = false })
      vim.diagnostic.set(vim.api.nvim_create_namespace('bench'), 0, items)";
    let nvim = Nvim::builder().tty(40, 160).file("a.lua", "x\n").start();
    nvim.lua::<Value>(SET, ());
    let agent = Client::connect(&nvim, Dialect::Claude);
    nvim.settle(Duration::from_secs(1));
    let (mut floor, mut answer) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        floor.push(nvim.lua::<f64>(
            "local t = vim.uv.hrtime(); vim.diagnostic.get(); return (vim.uv.hrtime() - t) / 1e6",
            (),
        ));
        let asked = Instant::now();
        let pending = agent.tool_request("getDiagnostics", json!({}));
        pending.wait_within(LONG);
        answer.push(ms(pending.answered_at().expect("answered") - asked));
        nvim.settle(Duration::from_millis(200));
    }
    report(
        "getDiagnostics, 10 000 items, to the answer",
        median(answer),
        median(floor),
        "ms",
        "2.50",
    );
}

/// The main thread's part of a snapshot in a file of 50 000 lines with 10 000 diagnostics: all of it
/// once, and what a cursor move makes due.
fn snapshot() {
    const COLLECT: &str = include_str!("../src/editor/collect.lua");
    const SET: &str = "
      local items, lines = {}, {}
      for i = 1, 10000 do
        items[i] = { lnum = i * 5 - 1, col = 3, end_col = 9, severity = i % 4 + 1, source = 'bench',
          code = 'E' .. i % 300, message = 'something is not as it should be, number ' .. i }
      end
      for i = 1, 50000 do lines[i] = 'local line = ' .. i end
      vim.api.nvim_buf_set_lines(0, 0, -1, false, lines)
      vim.cmd('silent write')
      vim.diagnostic.config({ virtual_text = false, underline = false, signs = false })
      vim.diagnostic.set(vim.api.nvim_create_namespace('bench'), 0, items)
      Chunk = loadstring((...))()(function() end, {})
      Chunk.install()
      Chunk.collect(true)";
    const MEASURE: &str = "
      local function timed(work)
        collectgarbage()
        local t = vim.uv.hrtime()
        work()
        return (vim.uv.hrtime() - t) / 1e6
      end
      local floor = timed(vim.diagnostic.get)
      vim.api.nvim_exec_autocmds('DiagnosticChanged', { buffer = 0 })
      local all = timed(function() Chunk.collect(true) end)
      vim.cmd('normal! 1000j')
      local moved = timed(function() Chunk.collect(false) end)
      return { floor, all, moved }";
    let nvim = Nvim::builder().plain().tty(40, 160).file("a.lua", "x\n").start();
    nvim.lua_within::<Value>(LONG, SET, (COLLECT,));
    let runs: Vec<[f64; 3]> = (0..RUNS).map(|_| nvim.lua_within(LONG, MEASURE, ())).collect();
    let column = |n: usize| median(runs.iter().map(|run| run[n]).collect());
    report("snapshot, 50 000 lines, 10 000 diagnostics", column(1), column(0), "ms", "2.50");
    report("the same after a cursor move", column(2), 0.0, "ms", "");
}

/// The time of one CursorMoved on the main thread, in microseconds, without what it takes to fire
/// it.
fn cursor_moved() {
    const FIRE: &str = "
      local n = 20000
      local function fire()
        local t = vim.uv.hrtime()
        for _ = 1, n do vim.api.nvim_exec_autocmds('CursorMoved', { modeline = false }) end
        return (vim.uv.hrtime() - t) / 1e3 / n
      end
      fire()
      return fire()";
    let measure =
        |nvim: &Nvim| median((0..RUNS).map(|_| nvim.lua_within(LONG, FIRE, ())).collect());
    let plain = Nvim::builder().plain().tty(40, 160).file("a.lua", "x\n").start();
    // Neovim's own plugin listens too: only ours is to be measured.
    plain.cmd("NoMatchParen");
    let nothing: f64 = measure(&plain);
    plain.lua::<Value>(
        "vim.api.nvim_create_autocmd('CursorMoved', { callback = function() end })",
        (),
    );
    let floor: f64 = measure(&plain);
    let nvim = Nvim::builder().tty(40, 160).file("a.lua", "x\n").start();
    nvim.lock(Dialect::Pi);
    nvim.cmd("NoMatchParen");
    let ours: f64 = measure(&nvim);
    report("one CursorMoved, main thread", ours - nothing, floor - nothing, "µs", "1.50");
}

/// How long `setup` takes on the main thread, and until the lock files are there.
fn start() {
    let (mut setup, mut lock) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let nvim = Nvim::builder()
            .before("_G.bench_t0 = vim.uv.hrtime()")
            .after(
                "_G.bench_setup = (vim.uv.hrtime() - bench_t0) / 1e6
                 local folder, timer = vim.env.HOME .. '/.pi/ide', vim.uv.new_timer()
                 timer:start(0, 1, function()
                   local entries = vim.uv.fs_scandir(folder)
                   if entries and vim.uv.fs_scandir_next(entries) then
                     timer:close()
                     _G.bench_lock = (vim.uv.hrtime() - bench_t0) / 1e6
                   end
                 end)",
            )
            .start();
        lock.push(nvim.wait_for("the lock file", || nvim.lua("return bench_lock", ())));
        setup.push(nvim.lua::<f64>("return bench_setup", ()));
    }
    report("start: setup() on the main thread", median(setup), 0.0, "ms", "3 ms");
    report("start: setup() to the lock file", median(lock), 0.0, "ms", "");
}
