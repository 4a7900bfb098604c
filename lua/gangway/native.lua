-- Finds and loads the library: by absolute path, once, never inside a coroutine (Neovim would crash
-- when that coroutine is collected).
local M = {}

local here = debug.getinfo(1, 'S').source:sub(2)
M.root = vim.fn.fnamemodify(here, ':p:h:h:h')

local SYMBOL = 'luaopen_gangway_native'
local extension = vim.fn.has('mac') == 1 and 'dylib' or 'so'
M.file_name = 'libgangway.' .. extension

---@class gangway.Attempt
---@field path string
---@field problem string

--- What the last load() tried in vain, best first; for :checkhealth.
---@type gangway.Attempt[]
M.tried = {}

--- The library the user names: `vim.g.gangway_library`, else `$GANGWAY_LIBRARY`.
---@return string? path absolute
---@return string? source the name of the setting
function M.supplied()
  local path, source = vim.g.gangway_library, 'vim.g.gangway_library'
  if not path or path == '' then
    path, source = vim.env.GANGWAY_LIBRARY, '$GANGWAY_LIBRARY'
  end
  if path and path ~= '' then return vim.fn.fnamemodify(path, ':p'), source end
end

--- Where the library is looked for, best first: only where the user says, else the installed one
--- (lib/) and cargo's, whichever was made last.
---@return string[]
function M.candidates()
  local supplied = M.supplied()
  if supplied then return { supplied } end
  local target = vim.env.CARGO_TARGET_DIR
  local paths = {
    M.root .. '/lib/' .. M.file_name,
    (target and target ~= '' and target or M.root .. '/target') .. '/release/' .. M.file_name,
    M.root .. '/target/release/' .. M.file_name,
  }
  local out, made = {}, {}
  for order, path in ipairs(paths) do
    if not made[path] then
      local stat = vim.uv.fs_stat(path)
      made[path] = { stat and stat.mtime.sec or 0, -order }
      out[#out + 1] = path
    end
  end
  table.sort(out, function(a, b)
    local x, y = made[a], made[b]
    return x[1] > y[1] or x[1] == y[1] and x[2] > y[2]
  end)
  return out
end

--- How to get a library, as advice at the end of a message.
---@return string
function M.advice()
  local supplied, source = M.supplied()
  if supplied then return ('%s names it: correct or unset that, then restart Neovim.'):format(source) end
  return ('Run :lua require("gangway.build").install() or, with Rust, cargo build --release in\n%s, then restart Neovim.'):format(
    M.root
  )
end

--- An ELF file ends with its section headers. One that was cut short (a full disk, a download that
--- broke off) is mapped all the same, and Neovim dies of SIGBUS at the first missing page.
---@param path string
---@param size integer
local function is_cut_short(path, size)
  local file = io.open(path, 'rb')
  local head = file and file:read(64) or ''
  if file then file:close() end
  if #head < 64 or head:sub(1, 6) ~= '\127ELF\2\1' then return false end
  local function number(at, bytes)
    local value = 0
    for i = bytes, 1, -1 do
      value = value * 256 + head:byte(at + i)
    end
    return value
  end
  return size < number(0x28, 8) + number(0x3A, 2) * number(0x3C, 2)
end

---@param path string
---@return table? native
---@return string? problem
local function try(path)
  local stat, _, code = vim.uv.fs_stat(path)
  if not stat then return nil, code == 'ENOENT' and 'not found' or ('cannot be read (%s)'):format(code) end
  if stat.type ~= 'file' then return nil, 'is a ' .. stat.type end
  if stat.size == 0 then return nil, 'is empty' end
  if is_cut_short(path, stat.size) then return nil, 'is cut short' end
  local open, err = package.loadlib(path, SYMBOL)
  if not open then return nil, (tostring(err):gsub('\n.*', '')) end
  local ok, failed = pcall(open)
  if not ok then return nil, (tostring(failed):gsub('\n.*', '')) end
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

---@return string? problem its first line tells what, the others what to do
local function unfit(native, path)
  local want = require('gangway.version')
  if native.version == want then return nil end
  return ('the library is version %s, the plugin is %s (%s).\n'):format(tostring(native.version), want, path)
    .. M.advice()
end

--- The table that a library registers; one that finds another's, of any version, hands out that.
---@param native table?
local function register(native)
  package.loaded.gangway_native = native
  debug.getregistry().gangway_native = native
end

--- The library's functions, or why not, in one sentence or a few lines.
---@return table? native
---@return string? problem
function M.load()
  if M.native then return M.native end
  if vim.fn.has('nvim-0.10') == 0 then
    return nil, ('needs Neovim 0.10 or newer; this is %s'):format(tostring(vim.version()))
  end
  -- Where Lua was made to forget it, as reloading a plugin does, it is there and running all the same.
  local there = package.loaded.gangway_native or debug.getregistry().gangway_native
  if there then
    package.loaded.gangway_native = there
    local problem = unfit(there, there.path or 'loaded before')
    if problem then return nil, problem end
    M.native = there
    return there
  end
  if M.in_coroutine() then return nil, 'cannot be loaded inside a coroutine; try again from the main loop' end
  M.tried = {}
  local lines, other = {}, nil
  for _, path in ipairs(M.candidates()) do
    local native, problem = try(path)
    if native then
      native.path = native.path or path
      if not unfit(native, path) then
        M.native = native
        return native
      end
      other, problem = other or native, ('is version %s'):format(native.version)
      register(nil)
    end
    M.tried[#M.tried + 1] = { path = path, problem = tostring(problem) }
    lines[#lines + 1] = ('  %s: %s'):format(path, problem)
  end
  if other then
    register(other) -- so that no later call loads them again
    return nil, unfit(other, other.path)
  end
  return nil,
    ('its library could not be loaded:\n%s\n%s :checkhealth gangway tells more.'):format(
      table.concat(lines, '\n'),
      M.advice()
    )
end

return M
