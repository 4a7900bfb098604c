-- What an agent suggests at the cursor: shown as virtual text in insert mode until the user takes it,
-- types something else or leaves. Nothing is in the buffer before they take it.
local M = {}

local gangway = require('gangway')

--- Lines and bytes around the cursor that the agent sees.
local LINES_BEFORE, LINES_AFTER = 100, 50
local BYTES_BEFORE, BYTES_AFTER = 16384, 8192

local namespace = vim.api.nvim_create_namespace('gangway_suggestion')

---@class gangway.Suggestion
---@field buf integer
---@field row integer 0-based
---@field before string the cursor's line up to where it was asked
---@field after string the rest of that line
---@field count integer lines of the buffer
---@field texts string[]? nil while the agent thinks
---@field index integer
---@field keys table<string, string> what is mapped, by action
---@field theirs table<string, table> the user's own maps of the buffer, by key

---@type gangway.Suggestion?
local now

local function warn(message) require('gangway.message')(message, vim.log.levels.WARN) end

local function inserting() return vim.api.nvim_get_mode().mode:sub(1, 1) == 'i' end

--- Buffer, 0-based row and byte column of the cursor.
local function place()
  local cursor = vim.api.nvim_win_get_cursor(0)
  return vim.api.nvim_get_current_buf(), cursor[1] - 1, cursor[2]
end

--- What was typed at the place since it was asked; nil when something else happened.
---@return string?
local function typed()
  local buf, row, col = place()
  if buf ~= now.buf or row ~= now.row or not inserting() then return end
  if vim.api.nvim_buf_line_count(buf) ~= now.count then return end
  local line = vim.api.nvim_get_current_line()
  local length = #line - #now.before - #now.after
  if length < 0 or not vim.startswith(line, now.before) or not vim.endswith(line, now.after) then return end
  if col ~= #now.before + length then return end
  return line:sub(#now.before + 1, col)
end

local function clear(buf)
  if vim.api.nvim_buf_is_valid(buf) then vim.api.nvim_buf_clear_namespace(buf, namespace, 0, -1) end
end

--- A tab is as wide as it would be; other control characters are shown for what they are.
local function visible(text, column)
  local out, width = {}, column
  for piece, tab in text:gmatch('([^\t]*)(\t?)') do
    local shown = vim.fn.strtrans(piece)
    out[#out + 1] = shown
    width = width + vim.fn.strdisplaywidth(shown)
    if tab ~= '' then
      local step = vim.bo.tabstop - width % vim.bo.tabstop
      out[#out + 1] = (' '):rep(step)
      width = width + step
    end
  end
  return table.concat(out)
end

local function hint()
  local parts = {}
  if now.keys.take then parts[#parts + 1] = now.keys.take .. ' takes it' end
  if now.keys.next and #now.texts > 1 then
    parts[#parts + 1] = ('%s next (%d of %d)'):format(now.keys.next, now.index, #now.texts)
  end
  return #parts > 0 and '  ' .. table.concat(parts, ', ') or ''
end

--- The lines of the present one that are left.
---@param done string what of it is typed already
local function rest(done) return vim.split(now.texts[now.index]:sub(#done + 1), '\n', { plain = true }) end

---@param done string
local function show(done)
  local lines = rest(done)
  local chunks = {}
  for i, line in ipairs(lines) do
    local column = i == 1 and vim.fn.strdisplaywidth(now.before .. done) or 0
    chunks[i] = { { visible(line, column), 'GangwaySuggestion' } }
  end
  table.insert(chunks[#chunks], { hint(), 'NonText' })
  clear(now.buf)
  vim.api.nvim_buf_set_extmark(now.buf, namespace, now.row, #now.before + #done, {
    virt_text = table.remove(chunks, 1),
    virt_text_pos = 'inline',
    virt_lines = #chunks > 0 and chunks or nil,
    right_gravity = false,
  })
end

local function map_keys()
  for action, key in pairs(gangway._library(true).suggestion_keys()) do
    local before = vim.fn.maparg(key, 'i', false, true)
    if before.buffer == 1 then now.theirs[key] = before end
    local mapped = pcall(vim.keymap.set, 'i', key, M[action], {
      buffer = now.buf,
      nowait = true,
      desc = 'gangway: suggestion, ' .. action,
    })
    if mapped then now.keys[action] = key end
  end
end

local function unmap_keys(was)
  if not vim.api.nvim_buf_is_valid(was.buf) then return end
  for _, key in pairs(was.keys) do
    pcall(vim.keymap.del, 'i', key, { buffer = was.buf })
    local theirs = was.theirs[key]
    if theirs then vim.api.nvim_buf_call(was.buf, function() vim.fn.mapset('i', false, theirs) end) end
  end
end

--- The suggestion goes, and the question if it is not answered yet.
function M.dismiss()
  local was = now
  if not was then return end
  now = nil
  pcall(vim.api.nvim_del_augroup_by_name, 'gangway_suggestion')
  clear(was.buf)
  unmap_keys(was)
  local native = not was.texts and gangway._library(true)
  if native then native.unsuggest() end
end

--- Puts it in, as a change of its own for undo.
function M.take()
  local done = now and now.texts and typed()
  if not done then return M.dismiss() end
  local lines = rest(done)
  local buf, row, col = place()
  M.dismiss()
  vim.go.undolevels = vim.go.undolevels
  vim.api.nvim_buf_set_text(buf, row, col, row, col, lines)
  local last = #lines == 1 and col + #lines[1] or #lines[#lines]
  vim.api.nvim_win_set_cursor(0, { row + #lines, last })
end

--- The next one that goes on from what is typed.
---@param done string
---@param from integer steps from the present one: 0 keeps it if it fits
---@return boolean found
local function turn(done, from)
  for step = from, from + #now.texts - 1 do
    local index = (now.index - 1 + step) % #now.texts + 1
    local text = now.texts[index]
    if #text > #done and vim.startswith(text, done) then
      now.index = index
      show(done)
      return true
    end
  end
  return false
end

function M.next()
  local done = now and now.texts and typed()
  if not done or not turn(done, 1) then M.dismiss() end
end

--- Something was typed, or the cursor moved; also called without either.
local function changed()
  if not now then return end
  local done = typed()
  if done == '' and not now.texts then return end
  if not done or not now.texts or not turn(done, 0) then M.dismiss() end
end

local function answered(asked, texts, problem)
  if now ~= asked then return end
  now.texts = texts or {}
  if problem or #now.texts == 0 then
    M.dismiss()
    return warn(problem or 'the agent has no suggestion')
  end
  map_keys()
  changed()
end

local function in_comment(buf, row, col)
  local at = math.max(col - 1, 0)
  local ok, captures = pcall(vim.treesitter.get_captures_at_pos, buf, row, at)
  for _, capture in ipairs(ok and captures or {}) do
    if capture.capture:find('comment', 1, true) then return true end
  end
  for _, id in ipairs(vim.fn.synstack(row + 1, at + 1)) do
    if vim.fn.synIDattr(id, 'name'):find('Comment', 1, true) then return true end
  end
  return false
end

--- Asks for a suggestion where the cursor is, in insert mode.
function M.ask()
  local native = gangway._library()
  if not native then return end
  local buf, row, col = place()
  local path = vim.api.nvim_buf_get_name(buf)
  if not inserting() then
    return warn('a suggestion continues what you type: ask in insert mode, by a map of your own')
  end
  if vim.bo.buftype ~= '' or path == '' or not vim.bo.modifiable then
    return warn('no suggestion here: this is no file you can change')
  end
  M.dismiss()
  local first = math.max(0, row - LINES_BEFORE)
  local lines = vim.api.nvim_buf_get_lines(buf, first, row + 1 + LINES_AFTER, false)
  local line = lines[row - first + 1]
  local before, after = line:sub(1, col), line:sub(col + 1)
  local above = table.concat(vim.list_slice(lines, 1, row - first), '\n') .. (row > first and '\n' or '') .. before
  local below = table.concat({ after, unpack(lines, row - first + 2) }, '\n')
  now = {
    buf = buf,
    row = row,
    before = before,
    after = after,
    count = vim.api.nvim_buf_line_count(buf),
    index = 1,
    keys = {},
    theirs = {},
  }
  local asked = now
  local problem = native.suggest({
    path = path,
    language = vim.bo.filetype,
    before = above:sub(-BYTES_BEFORE),
    after = below:sub(1, BYTES_AFTER),
    in_comment = in_comment(buf, row, col),
  }, function(texts, why) answered(asked, texts, why) end)
  if problem then
    now = nil
    return warn(problem)
  end
  vim.api.nvim_buf_set_extmark(buf, namespace, row, col, { virt_text = { { ' …', 'GangwaySuggestion' } } })
  local group = vim.api.nvim_create_augroup('gangway_suggestion', { clear = true })
  vim.api.nvim_create_autocmd({ 'CursorMovedI', 'TextChangedI', 'TextChangedP' }, { group = group, callback = changed })
  vim.api.nvim_create_autocmd({ 'InsertLeave', 'BufLeave', 'WinLeave' }, { group = group, callback = M.dismiss })
end

return M
