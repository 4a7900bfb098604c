-- Highlights one pane without 'filetype': no ftplugin runs and no language server attaches.
local buf, path, language, treesitter = ...
if not language or language == '' then
  local ok, found = pcall(vim.filetype.match, { filename = path, buf = buf })
  language = ok and found or nil
end
if not language or language == '' then return end
if treesitter then
  local lang = vim.treesitter.language.get_lang(language) or language
  if pcall(vim.treesitter.start, buf, lang) then return end
end
if vim.g.syntax_on then vim.bo[buf].syntax = language end
