-- Finds and loads the library: by absolute path, once, never inside a coroutine (Neovim would crash
-- when that coroutine is collected).
local M = {}

local here = debug.getinfo(1, 'S').source:sub(2)
M.root = vim.fn.fnamemodify(here, ':p:h:h:h')

local SYMBOL = 'luaopen_gangway_native'
local extension = vim.fn.has('mac') == 1 and 'dylib' or 'so'
M.file_name = 'libgangway.' .. extension

--- Where the library is looked for, best first.
---@return string[]
function M.candidates()
  local target = vim.env.CARGO_TARGET_DIR
  local paths = {
    vim.g.gangway_library or vim.env.GANGWAY_LIBRARY or '',
    M.root .. '/lib/' .. M.file_name,
    (target and target ~= '' and target or M.root .. '/target') .. '/release/' .. M.file_name,
    M.root .. '/target/release/' .. M.file_name,
  }
  local seen, out = {}, {}
  for _, path in ipairs(paths) do
    if path ~= '' and not seen[path] then
      seen[path] = true
      out[#out + 1] = path
    end
  end
  return out
end

--- How to get a library, as advice at the end of a message.
function M.advice()
  return ("Build it: cd %s && cargo build --release, then restart Neovim (:checkhealth gangway tells more)."):format(
    M.root
  )
end

---@param path string
---@return table|nil native, string|nil problem
local function try(path)
  local stat = vim.uv.fs_stat(path)
  if not stat then return nil, 'not found' end
  if stat.type ~= 'file' then return nil, 'is a ' .. stat.type end
  if stat.size == 0 then return nil, 'is empty' end
  local open, err = package.loadlib(path, SYMBOL)
  if not open then return nil, (tostring(err):gsub('\n.*', '')) end
  local ok, failed = pcall(open)
  if not ok then return nil, tostring(failed):gsub('\n.*', '') end
  local native = package.loaded.gangway_native
  if type(native) ~= 'table' then return nil, 'does not register itself' end
  return native
end

--- A LuaJIT built with Lua 5.2 semantics names the main thread too, and says so.
---@return boolean
function M.in_coroutine()
  local thread, is_main = coroutine.running()
  return thread ~= nil and not is_main
end

---@return string|nil problem
local function unfit(native, path)
  local want = require('gangway.version')
  if native.version == want then return nil end
  return ("the library is version %s, the plugin is %s (%s). Rebuild it and restart Neovim: cd %s && cargo build --release"):format(
    tostring(native.version),
    want,
    path,
    M.root
  )
end

--- The library's functions, or why not, in one sentence or a few lines.
---@return table|nil native, string|nil problem
function M.load()
  if M.native then return M.native end
  if vim.fn.has('nvim-0.10') == 0 then
    return nil, ('needs Neovim 0.10 or newer; this is %s'):format(tostring(vim.version()))
  end
  if package.loaded.gangway_native then
    local native = package.loaded.gangway_native
    local problem = unfit(native, native.path or 'loaded before')
    if problem then return nil, problem end
    M.native = native
    return native
  end
  if M.in_coroutine() then return nil, 'cannot be loaded inside a coroutine; try again from the main loop' end
  local tried = {}
  for _, path in ipairs(M.candidates()) do
    local native, problem = try(path)
    if native then
      native.path = native.path or path
      problem = unfit(native, path)
      if problem then return nil, problem end
      M.native = native
      return native
    end
    tried[#tried + 1] = ('  %s: %s'):format(path, problem)
  end
  return nil, 'its library could not be loaded:\n' .. table.concat(tried, '\n') .. '\n' .. M.advice()
end

return M
