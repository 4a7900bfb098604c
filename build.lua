-- lazy.nvim runs this after it has installed or updated the plugin; it finds a build.lua by itself.
local here = debug.getinfo(1, 'S').source:sub(2)
dofile(vim.fn.fnamemodify(here, ':p:h') .. '/lua/gangway/build.lua').install()
