-- Opening and saving files for an agent. Paths and texts come from outside: they are only ever
-- compared, searched for literally, or handed to functions that take them literally.

local api, fn, uv = vim.api, vim.fn, vim.uv

local GROUP = "gangway.documents"

--- Modification time and size of each file when its buffer was read or written. Neovim compares
--- the same before it writes, but asks with a prompt that would wait for the user for ever.
local known = {}

--- What each buffer's file is without symbolic links, asked when it was read, written or named: a
--- question to a file system may take for ever, and this one would be about all that is open.
local real_names = {}

local function stamp(path)
  local stat = uv.fs_stat(path)
  return stat and { stat.mtime.sec, stat.mtime.nsec, stat.size } or nil
end

local function same_stamp(a, b)
  return a ~= nil and b ~= nil and a[1] == b[1] and a[2] == b[2] and a[3] == b[3]
end

local function remember(buf)
  if vim.bo[buf].buftype == "" then
    known[buf] = stamp(api.nvim_buf_get_name(buf))
  end
end

local function resolve(buf)
  local name = vim.bo[buf].buftype == "" and api.nvim_buf_get_name(buf) or ""
  real_names[buf] = name:byte(1) == 47 and uv.fs_realpath(name) or nil
end

local function learn(buf)
  remember(buf)
  resolve(buf)
end

local function install()
  local group = api.nvim_create_augroup(GROUP, { clear = true })
  local function on(events, callback)
    api.nvim_create_autocmd(events, {
      group = group,
      desc = "gangway: remember what was read, so that saving never has to ask",
      callback = function(event)
        callback(event.buf)
      end,
    })
  end
  on({ "BufReadPost", "BufWritePost" }, learn)
  on("BufFilePost", resolve)
  on("BufUnload", function(buf)
    known[buf], real_names[buf] = nil, nil
  end)
  for _, buf in ipairs(api.nvim_list_bufs()) do
    if api.nvim_buf_is_loaded(buf) then
      learn(buf)
    end
  end
end

--- The buffer of a file: by its literal name, else by the file it really is (`real`, nil where that
--- is not known). Never by pattern, as bufnr() would.
local function find(path, real)
  local other
  for _, buf in ipairs(api.nvim_list_bufs()) do
    if vim.bo[buf].buftype == "" then
      local name = api.nvim_buf_get_name(buf)
      if name == path then
        return buf
      end
      if real and (real_names[buf] == real or name == real) then
        other = other or buf
      end
    end
  end
  return other
end

local function loaded(path, real)
  local buf = find(path, real)
  return buf and api.nvim_buf_is_loaded(buf) and buf or nil
end

--- Neovim's message without where in which script it came up.
local function reason(message)
  message = tostring(message):gsub("\n.*", "")
  return message:match("Vim%b():(E%d+:.*)") or message:match("(E%d+:.*)") or message
end

------------------------------------------------------------------------------------- opening

--- Why `path` cannot be opened; nil when it can.
local function refusal(path)
  local stat, why = uv.fs_stat(path)
  if not stat then
    if why and why:find("^ENOENT") then
      return "does not exist"
    end
    return "cannot be reached (" .. tostring(why):gsub(":.*", "") .. ")"
  elseif stat.type == "directory" then
    return "is a directory"
  elseif stat.type ~= "file" then
    return "is no plain file"
  elseif not uv.fs_access(path, "R") then
    return "cannot be read: permission denied"
  end
end

--- Loads a file into a listed buffer without a prompt.
local function load(path, real)
  local buf = find(path, real) or fn.bufadd(path)
  if not api.nvim_buf_is_loaded(buf) then
    -- About another Neovim's swap file there would be a screenful, with a prompt below.
    local shortmess = vim.o.shortmess
    vim.opt.shortmess:append("A")
    local ok, why = pcall(vim.cmd, ("silent call bufload(%d)"):format(buf))
    vim.o.shortmess = shortmess
    if not ok and not api.nvim_buf_is_loaded(buf) then
      error(why, 0)
    end
    -- That one has the first name for a swap file; then this is a second look, not for writing.
    local swap = fn.swapname(buf)
    if swap ~= "" and swap:sub(-4) ~= ".swp" then
      vim.bo[buf].readonly = true
    end
  end
  vim.bo[buf].buflisted = true
  return buf
end

--- Whether a window is one to edit files in: judged by what it is, not by who made it.
local function is_normal(win)
  local buf = api.nvim_win_get_buf(win)
  local wo = vim.wo[win]
  return api.nvim_win_get_config(win).relative == ""
    and vim.bo[buf].buftype == ""
    and not wo.winfixbuf
    and not wo.winfixwidth
    and not wo.winfixheight
    and not wo.diff
    and not wo.previewwindow
end

--- Whether another buffer may take this window's place without loss or refusal.
local function may_replace(win)
  local buf = api.nvim_win_get_buf(win)
  local hiding = vim.bo[buf].bufhidden
  return not vim.bo[buf].modified
    or #fn.win_findbuf(buf) > 1
    or (hiding == "hide" or (hiding == "" and vim.o.hidden))
end

--- Shows `buf` and goes there: where it is shown already, else in the window the user is in or
--- came from, else in any normal one, else in a new one. Who is in a terminal's own mode stays there:
--- they talk to what runs in it.
local function show(buf)
  local wins = api.nvim_tabpage_list_wins(0)
  local current = api.nvim_get_current_win()
  local target
  for _, win in ipairs({ current, unpack(wins) }) do
    if api.nvim_win_get_buf(win) == buf and api.nvim_win_get_config(win).relative == "" then
      target = win
      break
    end
  end
  if not target then
    for _, win in ipairs({ current, fn.win_getid(fn.winnr("#")), unpack(wins) }) do
      if win ~= 0 and is_normal(win) and may_replace(win) then
        target = win
        break
      end
    end
    if target then
      api.nvim_win_set_buf(target, buf)
    end
  end
  if not target then
    -- Beside a window that can be split; a floating one cannot.
    local beside = current
    for _, win in ipairs({ current, unpack(wins) }) do
      if api.nvim_win_get_config(win).relative == "" then
        beside = win
        break
      end
    end
    target = api.nvim_open_win(buf, false, { split = "above", win = beside })
    -- Some of what marks a window as special is inherited.
    for _, name in ipairs({ "winfixbuf", "winfixwidth", "winfixheight", "diff", "previewwindow" }) do
      vim.wo[target][name] = false
    end
  end
  local mode = api.nvim_get_mode().mode
  if mode:sub(1, 1) ~= "t" then
    -- Insert mode would carry over.
    if mode:find("^[iR]") then
      vim.cmd.stopinsert()
    end
    api.nvim_set_current_win(target)
  end
  return target
end

--- Literal search over the whole text; the byte columns of what was found, 0-based, end exclusive.
local function locate(buf, what)
  local first = what.start_text or what.end_text
  if not first or first == "" then
    return nil
  end
  local function plain(text)
    return (text:gsub("\r\n", "\n"))
  end
  local lines = api.nvim_buf_get_lines(buf, 0, -1, false)
  local text = table.concat(lines, "\n")
  first = plain(first)
  local from, to = text:find(first, 1, true)
  if not from then
    return nil
  end
  if what.start_text and what.end_text and what.end_text ~= "" then
    local _, last = text:find(plain(what.end_text), to + 1, true)
    to = last or to
  end
  -- Offsets to lines and columns.
  local at, found = 0, {}
  for i, line in ipairs(lines) do
    local past = at + #line
    if not found.start and from - 1 <= past then
      found.start = { i - 1, from - 1 - at }
    end
    if to <= past then
      found.stop = { i - 1, what.select_to_end_of_line and #line or to - at }
      found.start_head = lines[found.start[1] + 1]:sub(1, found.start[2])
      found.stop_head = line:sub(1, found.stop[2])
      return found
    end
    at = past + 1
  end
end

--- Selects what was found as the user would.
local function select(win, buf, found)
  local start, stop = found.start, found.stop
  api.nvim_win_set_cursor(win, { start[1] + 1, start[2] })
  local is_empty = start[1] == stop[1] and start[2] == stop[2]
  if api.nvim_get_mode().mode == "n" and api.nvim_get_current_win() == win and not is_empty then
    local line, col = stop[1], stop[2]
    if vim.o.selection ~= "exclusive" then
      if col > 0 then
        -- NUL would end the string there; in parentheses, because gsub() counts as well.
        local head = (found.stop_head:gsub("%z", "\1"))
        col = col - #fn.strcharpart(head, fn.strchars(head) - 1)
      elseif line > 0 then
        line = line - 1
        col = #(api.nvim_buf_get_lines(buf, line, line + 1, false)[1] or "")
      end
    end
    vim.cmd("normal! v")
    api.nvim_win_set_cursor(win, { line + 1, col })
  end
end

---@param what { path: string, real?: string, start_text?: string, end_text?: string, line?: integer,
---  select_to_end_of_line: boolean, make_frontmost: boolean }
local function open(what)
  if not loaded(what.path, what.real) then
    local why = refusal(what.path)
    if why then
      return { refused = why }
    end
  end
  if what.make_frontmost and fn.getcmdwintype() ~= "" then
    return { refused = "cannot be shown while the command-line window is open" }
  end
  local ok, buf = pcall(load, what.path, what.real)
  if not ok then
    return { refused = "cannot be opened: " .. reason(buf) }
  end
  local found = locate(buf, what)
  if what.make_frontmost then
    local shown, win = pcall(show, buf)
    if not shown then
      return { refused = "cannot be shown: " .. reason(win) }
    end
    local placed, why = pcall(function()
      if found then
        select(win, buf, found)
      elseif what.line then
        local line = math.min(what.line + 1, api.nvim_buf_line_count(buf))
        api.nvim_win_set_cursor(win, { line, 0 })
      end
      if found or what.line then
        api.nvim_win_call(win, function()
          vim.cmd("normal! zvzz")
        end)
      end
    end)
    if not placed then
      return { refused = "was opened, but the place was not found: " .. reason(why) }
    end
  end
  return {
    language = vim.bo[buf].filetype,
    line_count = api.nvim_buf_line_count(buf),
    start_line = found and found.start[1],
    start_head = found and found.start_head,
    stop_line = found and found.stop[1],
    stop_head = found and found.stop_head,
  }
end

------------------------------------------------------------------------------------- saving

--- Returns whether something was written, or false and why not.
local function save(path, real)
  local buf = loaded(path, real)
  if not buf then
    return false, "is not open in Neovim"
  end
  if not vim.bo[buf].modified then
    return false
  end
  if vim.bo[buf].readonly then
    return false, "is read-only in Neovim"
  end
  local name = api.nvim_buf_get_name(buf)
  local now = stamp(name)
  if known[buf] and now and not same_stamp(known[buf], now) then
    return false, "has changed on disk since Neovim read it; the user has to decide"
  end
  -- With 'confirm' errors become dialogs.
  local confirm = vim.o.confirm
  vim.o.confirm = false
  local ok, why = pcall(api.nvim_buf_call, buf, function()
    vim.cmd({ cmd = "write", mods = { silent = true, noswapfile = false } })
  end)
  vim.o.confirm = confirm
  if not ok then
    return false, "could not be saved: " .. reason(why)
  end
  if api.nvim_buf_is_valid(buf) and vim.bo[buf].modified then
    return false, "could not be saved: something refused the write"
  end
  return true
end

return {
  install = install,
  open = open,
  save = save,
  --- nil when no buffer is loaded for `path`, else whether it is modified.
  modified = function(path, real)
    local buf = loaded(path, real)
    if buf then
      return vim.bo[buf].modified
    end
  end,
  --- The encodings to try, best first, separated by commas.
  encodings = function(path, real)
    local buf = loaded(path, real)
    local own = buf and vim.bo[buf].fileencoding or ""
    return (own ~= "" and own .. "," or "") .. vim.o.fileencodings
  end,
  remove = function()
    pcall(api.nvim_del_augroup_by_name, GROUP)
  end,
}
