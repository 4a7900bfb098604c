-- Says something where 'showmode' wipes the message line off at once (insert, visual, terminal mode): at
-- the right end of the topmost line of the current window, for some seconds. Nothing in the buffer
-- changes and no window opens.
local text, milliseconds = ...
if not vim.o.showmode or vim.api.nvim_get_mode().mode:find('^[nc]') then return end
for _, ui in ipairs(vim.api.nvim_list_uis()) do
  if ui.ext_messages then return end
end
local buf = vim.api.nvim_get_current_buf()
local namespace = vim.api.nvim_create_namespace('gangway_announcement')
local room = vim.api.nvim_win_get_width(0) - 2
if vim.api.nvim_strwidth(text) > room then text = vim.fn.strcharpart(text, 0, room - 1) .. '…' end
local mark = vim.api.nvim_buf_set_extmark(buf, namespace, vim.fn.line('w0') - 1, 0, {
  virt_text = { { ' ' .. text .. ' ', 'GangwayWarning' } },
  virt_text_pos = 'right_align',
  hl_mode = 'combine',
})
vim.defer_fn(function() pcall(vim.api.nvim_buf_del_extmark, buf, namespace, mark) end, milliseconds)
