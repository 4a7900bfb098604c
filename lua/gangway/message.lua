-- Tells the user something. An error comes a moment later: in the middle of a command or an
-- autocommand Neovim would report it as the failure of that.

---@param message string
---@param level integer? of vim.log.levels
return function(message, level)
  local function tell() vim.notify('gangway: ' .. message, level, { title = 'gangway' }) end
  if level == vim.log.levels.ERROR then return vim.schedule(tell) end
  tell()
end
