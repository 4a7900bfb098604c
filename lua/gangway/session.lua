-- Removes what a session saved during a review brings back: a tab page of empty panes.
local M = {}

local function is_relic(buf)
  return vim.api.nvim_buf_get_name(buf):sub(1, 10) == 'gangway://' and vim.bo[buf].buftype == ''
end

--- Closes the windows of restored panes and wipes their buffers; live panes have a 'buftype'.
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
