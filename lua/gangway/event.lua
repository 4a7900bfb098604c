-- `User` events. A handler of the user's that throws neither stops the others nor shows a traceback
-- at every review: what it said is returned once for each event.
local M = {}

local told = {}
local pending

function M.run() vim.api.nvim_exec_autocmds('User', pending) end

---@param pattern string
---@param data table
---@return string? failure the first time a handler of this event throws
function M.fire(pattern, data)
  pending = { pattern = pattern, data = data, modeline = false }
  local before = vim.v.errmsg
  vim.v.errmsg = ''
  local run =
    { cmd = 'lua', args = { "require('gangway.event').run()" }, mods = { emsg_silent = true, unsilent = true } }
  local ok, thrown = pcall(vim.api.nvim_cmd, run, {})
  local failure = ok and vim.v.errmsg or tostring(thrown)
  vim.v.errmsg = before
  if failure == '' or told[pattern] then return end
  told[pattern] = true
  return (failure:gsub('\n.*', ''):gsub('^[%a ]*[Ll]ua callback: ', ''))
end

return M
