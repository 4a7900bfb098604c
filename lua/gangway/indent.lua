-- 'indentexpr' of a proposal: what the user's own buffer of the file would say. It may count on more
-- than the pane has (variables that an indent script sets), and -1 leaves the line to 'autoindent'.
local M = {}

local SID_MODELINE = -1

---@param source integer the user's buffer
---@return integer
function M.of(source)
  if not vim.api.nvim_buf_is_loaded(source) then return -1 end
  -- Neovim evaluates what a modeline has set in its sandbox; here it would get out of it.
  local set_by = vim.api.nvim_get_option_info2('indentexpr', { buf = source }).last_set_sid
  if set_by == SID_MODELINE then return -1 end
  local ok, indent = pcall(vim.api.nvim_eval, vim.bo[source].indentexpr)
  return ok and tonumber(indent) or -1
end

return M
