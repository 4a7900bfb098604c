-- Lets Neovim notice that a file changed, without its prompt. 'undoreload' -1: with the default a
-- buffer of more than 10 000 lines would lose its undo history.
local buf = ...
-- Line ends and encoding may have changed as well ('edit' looks for them anew; 'reload', and
-- 'autoread', would read UTF-8 as latin1, and the user's next `:w` bring old line ends back), unless
-- it is an encoding that only the user can have named.
local function choice()
  local bo = vim.bo[buf]
  -- A deleted file is no reason to empty the buffer, which may be the last to hold the text.
  if bo.modified or vim.v.fcs_reason == 'deleted' then return '' end
  local found = { '', 'utf-8', vim.o.encoding, unpack(vim.split(vim.go.fileencodings, ',')) }
  return (bo.bomb or vim.tbl_contains(found, bo.fileencoding)) and 'edit' or 'reload'
end
local id = vim.api.nvim_create_autocmd('FileChangedShell', {
  buffer = buf,
  callback = function() vim.v.fcs_choice = choice() end,
})
local undoreload, autoread = vim.go.undoreload, vim.go.autoread
vim.go.undoreload, vim.go.autoread = -1, false
local own_autoread = vim.bo[buf].autoread
if own_autoread then vim.bo[buf].autoread = false end
local ok, err = pcall(vim.cmd, 'silent! checktime ' .. buf)
vim.go.undoreload, vim.go.autoread = undoreload, autoread
if own_autoread and vim.api.nvim_buf_is_valid(buf) then vim.bo[buf].autoread = true end
pcall(vim.api.nvim_del_autocmd, id)
if not ok then error(err, 0) end
