-- In visual mode: what is selected starts elsewhere now, at 1-based `line` and byte column `col`.
local line, col = ...
local mode, cursor = vim.fn.mode(), vim.fn.getpos('.')
vim.cmd('normal! \27')
vim.fn.setpos('.', { 0, line, col, 0 })
vim.cmd('normal! ' .. mode)
vim.fn.setpos('.', cursor)
