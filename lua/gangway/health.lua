-- :checkhealth gangway. `collect()` returns what there is to know as a table, `check()` renders it;
-- both work without the library.
local M = {}

local gangway = require('gangway')
local native = require('gangway.native')
local places = require('gangway.places')

--- Agents that show diffs only in a mode they do not start in.
M.modes = {
  {
    client = 'Claude Code',
    note = 'Claude Code shows diffs here only in its manual permission mode (shift+tab in Claude Code changes it)',
  },
  {
    client = 'Qwen Code',
    note = 'Qwen Code shows diffs here only in its default approval mode (shift+tab in Qwen Code changes it)',
  },
}

---@class gangway.health.Agent
---@field name string
---@field enabled boolean|"auto"
---@field directory string? where it meets us
---@field exists boolean that directory is there
---@field served boolean

---@class gangway.health.Lock
---@field path string
---@field mode string? octal; nil when the file is missing
---@field directory_mode string?

---@class gangway.Health
---@field neovim string
---@field supported boolean
---@field version string the Lua side's
---@field root string where the plugin is
---@field library { version: string?, path: string?, source: string?, problem: string?, tried: gangway.Attempt[] }
---@field running boolean
---@field port integer?
---@field sharing boolean
---@field locks gangway.health.Lock[]
---@field rivals string[] lock files of other running editors that Claude Code finds for this folder
---@field agents gangway.health.Agent[]
---@field clients table[]
---@field reviews integer
---@field notes string[]
---@field options string[] what is wrong with the configuration
---@field proxies string[] variables that send loopback connections to a proxy
---@field log string
---@field errors string[] the log's last

---@param path string
---@return string?
local function mode_of(path)
  local stat = vim.uv.fs_stat(path)
  return stat and ('%o'):format(bit.band(stat.mode, 511)) or nil
end

---@param path string
local function is_directory(path)
  local stat = vim.uv.fs_stat(path)
  return stat ~= nil and stat.type == 'directory'
end

local function rivumi_directory()
  for _, name in ipairs({ '.rivumi', '.looplane' }) do
    local path = vim.fn.getcwd() .. '/' .. name
    if is_directory(path) then return path .. '/ide' end
  end
end

---@param status gangway.Status
---@return gangway.health.Agent[]
local function agents(status)
  local options = gangway._options().agents
  local function noted(start)
    return vim.iter(status.notes or {}):any(function(note) return vim.startswith(note, start) end)
  end
  local function agent(key, name, directory, needed, served)
    local entry = type(options) == 'table' and options[key]
    local enabled = type(entry) ~= 'table' or entry.enabled
    return {
      name = name,
      enabled = enabled,
      directory = directory,
      exists = needed ~= nil and is_directory(needed),
      served = status.running and enabled ~= false and served,
    }
  end
  local pi, claude, aivyx, rivumi = places.pi(), places.claude(), places.aivyx(), rivumi_directory()
  local out = {
    agent('pi', 'Pi', pi, vim.fs.dirname(pi), true),
    agent('claude', 'Claude Code, opencode', claude, vim.fs.dirname(claude), true),
    agent('aivyx', 'aivyx-coder', aivyx, aivyx, noted('aivyx-coder is served')),
    agent('rivumi', 'Rivumi, looplane', rivumi, rivumi and vim.fs.dirname(rivumi), noted('Rivumi is served')),
  }
  for key, name in vim.spairs({ amp = 'Amp', copilot = 'Copilot CLI', gemini = 'Gemini CLI', qwen = 'Qwen Code' }) do
    local directory = places[key]()
    out[#out + 1] = agent(key, name, directory, directory, places.discovery_file(status.lock_files, key) ~= nil)
  end
  local codex = places.codex()
  out[#out + 1] = agent('codex', 'Codex', codex, codex, noted('Codex is served'))
  return out
end

local function alive(pid)
  if type(pid) ~= 'number' then return false end
  local ok, _, name = vim.uv.kill(pid, 0)
  return ok ~= nil or name == 'EPERM'
end

--- Claude Code connects by itself only where exactly one editor has the folder.
local function rivals()
  local found, cwd, directory = {}, vim.fn.getcwd(), places.claude()
  for path in vim.fs.dir(directory) do
    local full = directory .. '/' .. path
    local file = path:match('%.lock$') and io.open(full)
    local ok, lock = pcall(vim.json.decode, file and file:read(65536) or '')
    if file then file:close() end
    local folders = ok and type(lock) == 'table' and type(lock.workspaceFolders) == 'table' and lock.workspaceFolders
    local other = folders and lock.pid ~= vim.fn.getpid() and alive(lock.pid)
    for _, folder in ipairs(other and folders or {}) do
      if type(folder) == 'string' and vim.startswith(cwd .. '/', (folder:gsub('/*$', '/'))) then
        found[#found + 1] = ('%s (%s)'):format(full, tostring(lock.ideName))
        break
      end
    end
  end
  return found
end

---@return string[]
local function proxies()
  for _, name in ipairs({ 'no_proxy', 'NO_PROXY' }) do
    for entry in (vim.env[name] or ''):gmatch('[^,%s]+') do
      if entry == '*' or entry == '127.0.0.1' or entry == '127.0.0.0/8' then return {} end
    end
  end
  local names = { 'http_proxy', 'HTTP_PROXY', 'https_proxy', 'HTTPS_PROXY', 'all_proxy', 'ALL_PROXY' }
  return vim.tbl_filter(function(name) return places.set(name) ~= nil end, names)
end

---@param path string
---@return string[]
local function last_errors(path)
  -- A pipe in its place would be waited for.
  local stat = vim.uv.fs_lstat(path)
  local file = stat and stat.type == 'file' and io.open(path, 'rb')
  if not file then return {} end
  local size = file:seek('end') or 0
  file:seek('set', math.max(0, size - 65536))
  local text = file:read('*a') or ''
  file:close()
  local errors = {}
  for line in text:gmatch('[^\n]+') do
    if line:find('^%S+%s+ERROR ') then errors[#errors + 1] = line end
  end
  return vim.list_slice(errors, math.max(1, #errors - 4))
end

--- Where the library came from.
---@param path string?
local function source(path)
  local supplied, setting = native.supplied()
  if path and path == supplied then return 'named by ' .. setting end
  if path and path == native.root .. '/lib/' .. native.file_name then return 'installed by build.lua' end
  return path and 'built by cargo' or 'loaded before'
end

---@return gangway.Health
function M.collect()
  local library, problem = gangway._library(true)
  local status = gangway.status()
  local version = vim.version()
  return {
    neovim = ('%d.%d.%d%s'):format(version.major, version.minor, version.patch, version.prerelease and '-dev' or ''),
    supported = vim.fn.has('nvim-0.10') == 1,
    version = require('gangway.version'),
    root = native.root,
    library = {
      version = library and library.version,
      path = library and library.path,
      source = library and source(library.path),
      problem = problem,
      tried = native.tried,
    },
    running = status.running,
    port = status.port,
    sharing = status.sharing,
    locks = vim.tbl_map(
      function(path) return { path = path, mode = mode_of(path), directory_mode = mode_of(vim.fs.dirname(path)) } end,
      status.lock_files
    ),
    rivals = rivals(),
    agents = agents(status),
    clients = status.clients,
    reviews = #status.reviews,
    notes = status.notes or {},
    options = gangway.problems,
    proxies = proxies(),
    log = library and library.log_path() or vim.fn.stdpath('log') .. '/gangway.log',
    errors = last_errors(library and library.log_path() or vim.fn.stdpath('log') .. '/gangway.log'),
  }
end

--- As a user reads it.
---@param path string
local function short(path) return vim.fn.fnamemodify(path, ':~') end

local function installation(data)
  local h = vim.health
  h.start('Installation')
  if data.supported then
    h.ok('Neovim ' .. data.neovim)
  else
    h.error('Neovim ' .. data.neovim, 'gangway needs 0.10 or newer')
  end
  h.info(('Plugin %s in %s'):format(data.version, short(data.root)))
  local library = data.library
  if library.version then
    h.ok(('Library %s, %s: %s'):format(library.version, library.source, short(library.path or 'path unknown')))
    return
  end
  local problem = (library.problem or ''):gsub('\n.*', '')
  -- Each file that was tried has a line of its own below.
  local all = problem:match(':$') and 'No library could be loaded' or 'No library: ' .. problem
  h.error(all, { (native.advice():gsub('\n', ' ')) })
  for _, attempt in ipairs(library.tried) do
    h.info(('tried %s: %s'):format(attempt.path, attempt.problem))
  end
end

local function configuration(data)
  local h = vim.health
  h.start('Configuration')
  for index, line in ipairs(data.options) do
    line = line:gsub(' %(see :help gangway%-config%)$', '')
    h.warn(line, index == #data.options and { ':help gangway-config' } or nil)
  end
  if not data.library.version then
    h.info('the options cannot be checked without the library')
  elseif #data.options == 0 then
    h.ok('every option is known and valid')
  end
  if #data.proxies == 0 then
    h.ok('no proxy stands between agents and 127.0.0.1')
  else
    h.warn(
      table.concat(data.proxies, ', ')
        .. ' is set, and no_proxy does not name 127.0.0.1: some agents never reach Neovim',
      'export no_proxy="$no_proxy,127.0.0.1,localhost" NO_PROXY="$NO_PROXY,127.0.0.1,localhost" (:IdeAgent does that)'
    )
  end
end

local function server(data)
  local h = vim.health
  h.start('Server')
  if not data.running then
    h.warn('not running', { ':IdeStart starts it; with auto_start it starts when a UI is attached' })
    return
  end
  if data.port then
    h.ok(('listening on 127.0.0.1:%d'):format(data.port))
  else
    h.warn('not listening yet')
  end
  for _, lock in ipairs(data.locks) do
    local line = ('%s (%s, folder %s)'):format(
      short(lock.path),
      lock.mode or 'missing',
      lock.directory_mode or 'missing'
    )
    if lock.mode == '600' and lock.directory_mode == '700' then
      h.ok(line)
    elseif not lock.mode then
      h.error(line, 'agents cannot find this Neovim; the file is put back within seconds, else see :IdeLog')
    else
      h.error(line, 'others may read the token in it: chmod 700 the folder and 600 the file')
    end
  end
  for _, rival in ipairs(data.rivals) do
    h.warn('another editor is open for this folder: ' .. rival, {
      'Claude Code connects by itself only where there is one: pick in its /ide, or start it by :IdeAgent claude',
    })
  end
  for _, note in ipairs(data.notes) do
    h.info(note)
  end
end

local function connections(data)
  local h = vim.health
  h.start('Agents')
  for _, agent in ipairs(data.agents) do
    local where = agent.directory and (' through ' .. short(agent.directory)) or ''
    if agent.enabled == false then
      h.info(agent.name .. ': switched off')
    elseif agent.served then
      h.ok(agent.name .. ': served' .. where)
    elseif agent.enabled == 'auto' and not agent.exists then
      h.info(
        ('%s: no folder of its own%s, so it is left alone'):format(
          agent.name,
          where ~= '' and ' (' .. short(agent.directory) .. ')' or ' in this project'
        )
      )
    else
      h.info(agent.name .. ': not served' .. (data.running and ' yet' or ', nothing runs'))
    end
  end
  for _, client in ipairs(data.clients) do
    h.ok(('connected: %s %s%s'):format(client.name, client.version or '', client.root and ' in ' .. client.root or ''))
  end
  if #data.clients == 0 then h.info('nobody is connected') end
  if data.reviews > 0 then h.info(data.reviews .. ' review(s) waiting (:IdeReviews)') end
  for _, mode in ipairs(M.modes) do
    h.info(mode.note)
  end
  if data.sharing == nil then
    h.info('whether this project is shared is not known without the library')
  elseif data.sharing then
    h.ok('sharing is on for this project')
  else
    h.warn('sharing is off for this project: agents see nothing of it', ':IdeShare on')
  end
end

local function log(data)
  local h = vim.health
  h.start('Log')
  h.info(short(data.log))
  for _, line in ipairs(data.errors) do
    h.warn(line)
  end
  if #data.errors == 0 then h.ok('no errors in it lately') end
end

function M.check()
  local data = M.collect()
  installation(data)
  configuration(data)
  server(data)
  connections(data)
  log(data)
end

return M
