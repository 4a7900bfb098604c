-- Plugin managers run this after they have installed or updated the plugin (lazy.nvim finds it by
-- itself); without one: nvim -l build.lua
local script = debug.getinfo(1, 'S').source:sub(2)
local here = vim.fn.fnamemodify(script, ':p:h')
pcall(vim.cmd.helptags, here .. '/doc')
local installed = dofile(here .. '/lua/gangway/build.lua').install()
if not installed and (_G.arg or {})[0] == script then -- run by -l
  io.stderr:write('\n') -- which messages do not end with
  os.exit(1)
end
