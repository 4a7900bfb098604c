-- What the mapping of some typed keys can say: "commands" and the text of each `<Cmd>`, or "lua" and
-- every string its function knows (its constants and upvalues, those of functions in them and of the
-- functions of modules that it names).
local typed = ...
local COMMAND = '\128\253h'
local MOST = 64

local function find(keys)
  local lhs = vim.fn.keytrans(keys)
  for _, mode in ipairs({ vim.api.nvim_get_mode().mode:sub(1, 1), 'n', 'i', 'x' }) do
    local map = vim.fn.maparg(lhs, mode, false, true)
    if map.rhs or map.callback then return map end
  end
end

local function strings(fn, found, depth)
  local ok, util = pcall(require, 'jit.util')
  local function see(value)
    if type(value) == 'string' and #found < MOST then
      found[#found + 1] = value
    elseif type(value) == 'function' and depth > 0 then
      strings(value, found, depth - 1)
    end
  end
  local function constants(of)
    local at = -1
    while ok and #found < MOST do
      local constant = util.funck(of, at)
      if constant == nil then return end
      if type(constant) == 'proto' then constants(constant) else see(constant) end
      at = at - 1
    end
  end
  local info = debug.getinfo(fn, 'S')
  if info.what == 'C' then return end
  constants(fn)
  for at = 1, 60 do
    local name, value = debug.getupvalue(fn, at)
    if not name then return end
    see(value)
  end
end

-- `require('saver').save()` knows the names only: what stands behind them.
local function through_modules(found)
  local names = vim.list_slice(found)
  for _, module in ipairs(names) do
    local loaded = package.loaded[module]
    for _, field in ipairs(type(loaded) == 'table' and names or {}) do
      local fn = rawget(loaded, field)
      if type(fn) == 'function' then strings(fn, found, 1) end
    end
  end
end

local map = find(typed)
-- `<Plug>(save)` and the like: what stands behind the name.
for _ = 1, 3 do
  if not map or map.callback or map.expr == 1 or map.noremap == 1 then break end
  local rhs = vim.api.nvim_replace_termcodes(map.rhs, true, true, true)
  if rhs:find(COMMAND, 1, true) then break end
  map = find(rhs) or map
end
local found = {}
if not map or map.expr == 1 then return 'commands', found end
if map.callback then
  strings(map.callback, found, 2)
  through_modules(found)
  return 'lua', found
end
local rhs = vim.api.nvim_replace_termcodes(map.rhs, true, true, true)
local from = 1
while true do
  local _, start = rhs:find(COMMAND, from, true)
  local stop = start and rhs:find('\r', start, true)
  if not stop then break end
  found[#found + 1] = rhs:sub(start + 1, stop - 1)
  from = stop
end
return 'commands', found
