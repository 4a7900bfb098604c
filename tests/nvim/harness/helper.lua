-- Runs first in every Neovim under test: records what a user would be told, and describes what a user would see.

_G.T = { notifications = {}, events = {} }

do
  local original = vim.notify
  -- vim.notify is replaced again by whatever a test installs before the plugin; ours stays underneath.
  vim.notify = function(message, level, options)
    table.insert(T.notifications, { message = tostring(message), level = level or vim.log.levels.INFO })
    return original(message, level, options)
  end
end

vim.api.nvim_create_autocmd("User", {
  pattern = "Gangway*",
  callback = function(event)
    table.insert(T.events, { name = event.match, data = event.data })
  end,
})

local api = vim.api

-- JSON has one empty container; an empty map must not become a list.
local function map(t)
  return next(t) == nil and vim.empty_dict() or t
end

local function options(info, scope, target)
  local values = {}
  for name, option in pairs(info) do
    if option.scope == scope then
      local ok, value = pcall(api.nvim_get_option_value, name, target)
      values[name] = ok and tostring(value) or nil
    end
  end
  return map(values)
end

local function closed_folds()
  local folds, line, last = {}, 1, vim.fn.line("$")
  while line <= last and #folds < 1000 do
    local closed = vim.fn.foldclosedend(line)
    if closed > 0 then
      folds[#folds + 1] = { line, closed }
      line = closed
    end
    line = line + 1
  end
  return folds
end

-- Everything a review must leave as it was. `keys`: normal-mode mappings to look up in every loaded buffer.
function T.snapshot(keys)
  local info = api.nvim_get_all_options_info()
  local s = { tabs = {}, buffers = {}, registers = {}, mappings = {} }
  for i, tab in ipairs(api.nvim_list_tabpages()) do
    local t = { id = tab, layout = vim.fn.winlayout(i), windows = {}, current = api.nvim_tabpage_get_win(tab) }
    for _, win in ipairs(api.nvim_tabpage_list_wins(tab)) do
      t.windows[#t.windows + 1] = api.nvim_win_call(win, function()
        local jumps, at = unpack(vim.fn.getjumplist())
        return {
          id = win,
          buffer = api.nvim_win_get_buf(win),
          width = api.nvim_win_get_width(win),
          height = api.nvim_win_get_height(win),
          float = api.nvim_win_get_config(win).relative,
          view = vim.fn.winsaveview(),
          folds = closed_folds(),
          options = options(info, "win", { win = win }),
          alternate = vim.fn.bufnr("#"),
          jumps = { list = jumps, at = at },
        }
      end)
    end
    s.tabs[i] = t
  end
  for _, buf in ipairs(api.nvim_list_bufs()) do
    local loaded = api.nvim_buf_is_loaded(buf)
    local b = {
      id = buf,
      name = api.nvim_buf_get_name(buf),
      loaded = loaded,
      listed = vim.bo[buf].buflisted,
    }
    if loaded then
      b.lines = api.nvim_buf_line_count(buf)
      b.options = options(info, "buf", { buf = buf })
      if b.lines <= 20000 then
        b.text = vim.fn.sha256(table.concat(api.nvim_buf_get_lines(buf, 0, -1, false), "\n"))
      end
      for _, key in ipairs(keys or {}) do
        local found = api.nvim_buf_call(buf, function()
          return vim.fn.maparg(key, "n")
        end)
        s.mappings[buf .. " " .. key] = found ~= "" and found or nil
      end
    end
    s.buffers[#s.buffers + 1] = b
  end
  for name in ('"0123456789abcdefghijklmnopqrstuvwxyz-/'):gmatch(".") do
    local value = vim.fn.getreg(name, 1)
    if value ~= "" then
      s.registers[name] = { value, vim.fn.getregtype(name) }
    end
  end
  s.registers = map(s.registers)
  s.mappings = map(s.mappings)
  s.options = options(info, "global", {})
  s.window, s.previous_window = api.nvim_get_current_win(), vim.fn.win_getid(vim.fn.winnr("#"))
  s.tab, s.previous_tab = api.nvim_tabpage_get_number(0), vim.fn.tabpagenr("#")
  s.mode = api.nvim_get_mode().mode
  return s
end

-- All windows in diff mode, in all tab pages.
function T.panes()
  local panes = {}
  for _, tab in ipairs(api.nvim_list_tabpages()) do
    for _, win in ipairs(api.nvim_tabpage_list_wins(tab)) do
      if vim.wo[win].diff then
        local buf = api.nvim_win_get_buf(win)
        panes[#panes + 1] = {
          win = win,
          buf = buf,
          tab = tab,
          buftype = vim.bo[buf].buftype,
          name = api.nvim_buf_get_name(buf),
          filetype = vim.bo[buf].filetype,
          listed = vim.bo[buf].buflisted,
          modifiable = vim.bo[buf].modifiable,
          winbar = vim.wo[win].winbar,
        }
      end
    end
  end
  return panes
end

-- Line numbers shown as changed, added or filled in a diff window.
function T.changed(win)
  return api.nvim_win_call(win, function()
    local lines = {}
    for line = 1, vim.fn.line("$") do
      if vim.fn.diff_hlID(line, 1) > 0 then
        lines[#lines + 1] = line
      end
    end
    return lines
  end)
end

-- What must not grow. uv.walk aborts Neovim 0.10.4, so libuv's handles are counted from 0.11 on.
function T.counts()
  local handles = 0
  if vim.fn.has("nvim-0.11") == 1 then
    vim.uv.walk(function(handle)
      handles = handles + (handle:is_closing() and 0 or 1)
    end)
  end
  return {
    autocommands = #api.nvim_get_autocmds({}),
    buffers = #api.nvim_list_bufs(),
    windows = #api.nvim_list_wins(),
    tabs = #api.nvim_list_tabpages(),
    timers = #vim.fn.timer_info(),
    namespaces = vim.tbl_count(api.nvim_get_namespaces()),
    keymaps = #api.nvim_get_keymap("n") + #api.nvim_get_keymap("i") + #api.nvim_get_keymap("x"),
    handles = handles,
  }
end

-- How long this thread has waited for a processor so far, in nanoseconds: that is not Neovim's doing.
local function waited()
  local file = io.open("/proc/self/schedstat")
  local text = file and file:read("*l") or ""
  if file then
    file:close()
  end
  return tonumber(text:match("^%d+ (%d+)")) or 0
end

-- The longest time the main loop did not come round between T.stall_start() and T.stall(), in milliseconds.
function T.stall_start()
  local last, before, longest = vim.uv.hrtime(), waited(), 0
  local timer = assert(vim.uv.new_timer())
  local function tick()
    local now, then_ = vim.uv.hrtime(), waited()
    longest = math.max(longest, now - last - (then_ - before))
    last, before = now, then_
    return longest
  end
  timer:start(0, 1, tick)
  T.stall = function()
    timer:stop()
    timer:close()
    return tick() / 1e6
  end
end
