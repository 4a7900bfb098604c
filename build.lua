-- Plugin managers run this after they have installed or updated the plugin (lazy.nvim finds it by
-- itself); without one: nvim -l build.lua
local script = debug.getinfo(1, 'S').source:sub(2)
local here = vim.fn.fnamemodify(script, ':p:h')
pcall(vim.cmd.helptags, here .. '/doc')
local ok, problem = pcall(dofile(here .. '/lua/gangway/build.lua').install)
if ok then return end
if (_G.arg or {})[0] == script then -- run by -l, which would put a traceback under it
  io.stderr:write('\n', problem, '\n')
  os.exit(1)
end
error(problem, 0)
