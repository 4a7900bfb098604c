-- Removes what a session saved during a review brings back: a tab page of panes without a review.
local M = {}

local function is_relic(buf)
  if vim.api.nvim_buf_get_name(buf):sub(1, 10) ~= 'gangway://' then return false end
  local native = package.loaded.gangway_native
  return type(native) ~= 'table' or not native.is_pane(buf)
end

--- Closes the windows of restored panes and wipes their buffers.
function M.clean()
  for _, buf in ipairs(vim.api.nvim_list_bufs()) do
    if is_relic(buf) then
      for _, win in ipairs(vim.fn.win_findbuf(buf)) do
        if not pcall(vim.api.nvim_win_close, win, true) then
          pcall(vim.api.nvim_win_set_buf, win, vim.api.nvim_create_buf(true, false))
        end
      end
      pcall(vim.api.nvim_buf_delete, buf, { force = true })
    end
  end
end

return M
