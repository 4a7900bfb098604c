-- Fills a scratch buffer from one string: splitting here is far cheaper than one Lua string a line
-- from Rust (10 MB: 20 ms against 200 ms).
local buf, text = ...
local lines, n, from = {}, 0, 1
local find, sub = string.find, string.sub
while true do
  local at = find(text, '\n', from, true)
  if not at then break end
  n = n + 1
  lines[n] = sub(text, from, at - 1)
  from = at + 1
end
lines[n + 1] = sub(text, from)
local bo = vim.bo[buf]
local undolevels, modifiable = bo.undolevels, bo.modifiable
bo.modifiable = true
bo.undolevels = -1 -- the first u must not empty the pane
if vim.api.nvim_buf_line_count(buf) > 1 then
  vim.api.nvim_buf_set_lines(buf, 0, -1, true, lines)
else
  -- Not in the place of a single line: U would bring that back.
  vim.api.nvim_buf_set_lines(buf, 0, 0, true, lines)
  vim.api.nvim_buf_set_lines(buf, -2, -1, true, {})
  for _, win in ipairs(vim.fn.win_findbuf(buf)) do
    vim.api.nvim_win_set_cursor(win, { 1, 0 })
  end
end
bo.undolevels = undolevels
bo.modifiable = modifiable
bo.modified = false
