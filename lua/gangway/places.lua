-- Where agents keep their things, by Neovim's environment; the library goes by the same rules.
local M = {}

--- An environment variable that is not empty.
---@param name string
---@return string?
function M.set(name)
  local value = vim.env[name]
  return value and value ~= '' and value or nil
end

---@param path string
---@return string
local function home(path) return (vim.env.HOME or vim.uv.os_homedir() or '') .. '/' .. path end

---@param path string
---@return string
local function absolute(path) return vim.fn.fnamemodify(path, ':p'):gsub('(.)/+$', '%1') .. '' end

--- The value of a variable that only counts as an absolute path.
local function rooted(name)
  local value = M.set(name)
  return value and vim.startswith(value, '/') and vim.fn.has('mac') == 0 and value or nil
end

--- Where Pi finds lock files.
function M.pi() return absolute(M.set('PI_IDE_LOCK_DIR') or home('.pi/ide')) end

--- Where Claude Code finds them.
function M.claude() return absolute((M.set('CLAUDE_CONFIG_DIR') or home('.claude')) .. '/ide') end

function M.gemini() return home('.gemini') end

function M.qwen() return absolute(M.set('QWEN_HOME') or home('.qwen')) end

function M.copilot() return absolute(M.set('COPILOT_HOME') or home('.copilot')) end

function M.amp() return (rooted('XDG_DATA_HOME') or home('.local/share')) .. '/amp' end

function M.codex() return absolute(M.set('CODEX_HOME') or home('.codex')) end

function M.aivyx()
  if vim.fn.has('mac') == 1 then return home('Library/Application Support/aivyx-coder') end
  return (rooted('XDG_STATE_HOME') or home('.local/state')) .. '/aivyx-coder'
end

--- What a discovery file of ours looks like to each agent that has one of its own.
---@param paths string[] as status() tells them
---@param agent "gemini"|"qwen"|"copilot"|"amp"
---@return string? path
function M.discovery_file(paths, agent)
  local part = agent == 'gemini' and '/gemini/ide/gemini-ide-server-' or M[agent]() .. '/ide/'
  return vim.iter(paths):find(function(path) return path:find(part, 1, true) ~= nil end)
end

return M
