-- Terminals for agents: the environment by which an agent finds this Neovim, and :IdeAgent.
local M = {}

local LOOPBACK = { '127.0.0.1', 'localhost' }
-- How long :IdeAgent waits for the server that it has just started.
local PATIENCE_MS = 2000

--- What `no_proxy` says now, with this machine added.
---@return string
local function no_proxy()
  local now = vim.env.no_proxy or ''
  if now == '' then now = vim.env.NO_PROXY or '' end
  local entries, known = {}, {}
  for entry in now:gmatch('[^,%s]+') do
    entries[#entries + 1], known[entry] = entry, true
  end
  if known['*'] then return now end
  for _, name in ipairs(LOOPBACK) do
    if not known[name] then entries[#entries + 1] = name end
  end
  return table.concat(entries, ',')
end

--- The program that a command line starts, without its folder.
---@param cmd string
local function program(cmd) return cmd:match('^%s*(%S+)') end

--- The folders that an agent's discovery file names, as the agent wants them; nil if it is not served.
---@param paths string[]
---@param agent "gemini"|"qwen"
---@return string?
local function workspace_path(paths, agent)
  local path = require('gangway.places').discovery_file(paths, agent)
  local file = path and io.open(path, 'rb')
  if not file then return nil end
  local ok, content = pcall(vim.json.decode, file:read('*a') or '')
  file:close()
  local folders = ok and type(content) == 'table' and content.workspacePath
  return type(folders) == 'string' and folders or nil
end

--- Variables for a terminal in which an agent is to run, to lay over Neovim's own environment.
---@param cmd string|string[]|nil the command that will run there, if it is known
---@return table<string, string>
function M.env(cmd)
  -- As jobstart() takes it.
  if type(cmd) == 'table' then cmd = cmd[1] end
  if type(cmd) ~= 'string' then cmd = nil end
  local env = { no_proxy = no_proxy() }
  env.NO_PROXY = env.no_proxy
  local status = require('gangway').status()
  local port = status.port
  -- opencode takes the port for one without a token, and is refused: it finds the lock file by itself.
  if cmd and vim.fs.basename(program(cmd) or '') == 'opencode' then
    for _, variable in ipairs({ 'CLAUDE_CODE_SSE_PORT', 'OPENCODE_EDITOR_SSE_PORT' }) do
      if vim.env[variable] then env[variable] = '' end
    end
  elseif port then
    env.CLAUDE_CODE_SSE_PORT = tostring(port)
  end
  for agent, prefix in pairs({ gemini = 'GEMINI_CLI_IDE_', qwen = 'QWEN_CODE_IDE_' }) do
    local folders = port and workspace_path(status.lock_files, agent)
    if folders then
      -- Where several editors match, the port says which. Together with the folders it also says that there is an
      -- editor with all it needs, so nobody offers to install an extension into it. The token stays in the file.
      env[prefix .. 'SERVER_PORT'], env[prefix .. 'WORKSPACE_PATH'] = tostring(port), folders
    end
  end
  if env.GEMINI_CLI_IDE_SERVER_PORT then env.GEMINI_CLI_IDE_PID = tostring(vim.fn.getpid()) end
  -- In a container Gemini CLI would look for the editor outside.
  if vim.uv.fs_stat('/.dockerenv') or vim.uv.fs_stat('/run/.containerenv') then env.REMOTE_CONTAINERS = 'true' end
  return env
end

--- Runs a command line in a terminal in a new window, the right half unless `mods` say otherwise.
---@param cmd string
---@param mods table? as a user command gets them in `smods`
---@return integer? buffer nil after a message
function M.open(cmd, mods)
  local name = program(cmd)
  if not name then return nil end
  if name:match('^[%w_./~+-]+$') and vim.fn.executable(name) == 0 then
    require('gangway.message')(('there is no program "%s" in $PATH'):format(name), vim.log.levels.ERROR)
    return nil
  end
  local gangway = require('gangway')
  gangway.start()
  vim.wait(PATIENCE_MS, function() return gangway.status().port ~= nil end, 10)
  mods = mods and vim.deepcopy(mods) or {}
  local placed = mods.vertical or mods.horizontal or (mods.split or '') ~= '' or (mods.tab or -1) >= 0
  if not placed then
    mods.vertical, mods.split = true, 'botright'
  end
  vim.cmd.new({ mods = mods })
  local env = M.env(cmd)
  local started
  if vim.fn.has('nvim-0.11') == 1 then
    started = vim.fn.jobstart(cmd, { term = true, env = env })
  else
    started = vim.fn.termopen(cmd, { env = env })
  end
  if started <= 0 then
    vim.cmd.close()
    require('gangway.message')(('cannot start "%s"'):format(cmd), vim.log.levels.ERROR)
    return nil
  end
  vim.cmd.startinsert()
  return vim.api.nvim_get_current_buf()
end

return M
