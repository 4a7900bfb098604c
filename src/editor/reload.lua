-- Lets Neovim notice that a file changed, without its prompt. 'undoreload' -1: with the default a
-- buffer of more than 10 000 lines would lose its undo history.
local buf = ...
local id = vim.api.nvim_create_autocmd('FileChangedShell', {
  buffer = buf,
  callback = function() vim.v.fcs_choice = vim.bo[buf].modified and '' or 'reload' end,
})
local undoreload = vim.go.undoreload
vim.go.undoreload = -1
local ok, err = pcall(vim.cmd, 'silent! checktime ' .. buf)
vim.go.undoreload = undoreload
pcall(vim.api.nvim_del_autocmd, id)
if not ok then error(err, 0) end
