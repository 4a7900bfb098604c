-- The public API. Everything works without setup(): :IdeStart alone starts with the defaults.
local M = {}

---@type gangway.SetupOpts?
local options
--- The options the library was last given by this module; it outlives the module when that is
--- loaded anew.
local applied
local warned = {}

--- What is wrong with the options given to setup(): one line a field, with its full path.
---@type string[]
M.problems = {}

--- `context.root`, which the library asks for when it starts.
---@private
---@type string|(fun(): string|string[])|nil
M._root = nil

local function notify(message, level) require('gangway.message')(message, level) end

--- Says it once in this Neovim: what is wrong with the options, or that the start by itself failed.
local function complain_once(message)
  if warned[message] then return end
  warned[message] = true
  notify(message, vim.log.levels.ERROR)
end

---@param native table
local function configure(native)
  applied = options
  M.problems = native.configure(options or {})
  -- One message: each of its own would be one more prompt to dismiss.
  if #M.problems > 0 then complain_once(table.concat(M.problems, '\n')) end
end

--- The library if it is loaded already: for what makes no sense before.
local function loaded()
  local native = package.loaded.gangway_native
  if type(native) == 'table' and rawget(native, 'configure') then return (require('gangway.native').load()) end
  -- Whatever somebody else has put there is in our place.
  package.loaded.gangway_native = nil
end

--- The library, configured; nil after a message.
---@param say (fun(problem: string))|false|nil instead of a message each time
local function library(say)
  local native, problem = loaded(), nil
  if not native then
    native, problem = require('gangway.native').load()
  end
  if not native then
    if say == nil then notify(problem, vim.log.levels.ERROR) end
    if say then say(problem) end
    return nil, problem
  end
  if not native.configured() or applied ~= options then configure(native) end
  return native
end

local function start(say)
  if not loaded() and require('gangway.native').in_coroutine() then
    return vim.schedule(function() start(say) end)
  end
  local native = library(say)
  if native then native.start() end
end

local function auto_start(opts)
  local when
  -- What is no table is complained about at the start.
  if type(opts) == 'table' then when = opts.auto_start end
  if when == false then return end
  local function go()
    -- Another setup() may have said otherwise meanwhile.
    if options ~= opts then return end
    if when == 'always' or #vim.api.nvim_list_uis() > 0 then return start(complain_once) end
    vim.api.nvim_create_autocmd('UIEnter', { once = true, callback = go })
  end
  if vim.v.vim_did_enter == 1 then
    vim.schedule(go)
  else
    vim.api.nvim_create_autocmd('VimEnter', { once = true, callback = go })
  end
end

--- Configures the plugin, and starts it unless `auto_start` says otherwise. May be called again.
---@param opts gangway.SetupOpts?
function M.setup(opts)
  options = opts == nil and {} or opts
  local context = type(options) == 'table' and options.context
  M._root = type(context) == 'table' and context.root or nil
  local native = loaded()
  if native then
    configure(native)
    if native.running() then return end
  end
  auto_start(options)
end

--- Lets agents connect: server, lock files, context. Does nothing when it runs already.
function M.start() start() end

--- Rejects what is pending, tells the agents, removes the lock files.
function M.stop()
  local native = loaded()
  if native then native.stop() end
end

---@class gangway.Client
---@field id integer
---@field name string
---@field version string?
---@field root string? the folder it works in, once it says so
---@field pid integer?
---@field pending integer its reviews that wait
---@field takes_mentions boolean

---@class gangway.Review
---@field id string
---@field origin string who asks
---@field kind "write"|"delete"|"command"|"tool"
---@field path string?
---@field editable boolean
---@field seen boolean
---@field age integer seconds

---@class gangway.Status
---@field running boolean
---@field port integer?
---@field clients gangway.Client[]
---@field reviews gangway.Review[]
---@field sharing boolean? of this project; nil while the library is not loaded
---@field lock_files string[]
---@field notes string[]? for the user: what could not be done, which agents are served through files

---@return gangway.Status
function M.status()
  local native = loaded()
  if native then return native.status() end
  return { running = false, clients = {}, reviews = {}, lock_files = {} }
end

---@param decision "accept"|"reject"|"always_allow"
---@param id string|number|nil without: the visible review, else the oldest one that was seen
---@param unseen boolean? decide it even if it was never shown
---@return boolean ok
local function decide(decision, id, unseen)
  if id ~= nil and (type(id) ~= 'string' and type(id) ~= 'number' or id == '') then
    notify(decision .. ': the id of a review is a text or a number', vim.log.levels.WARN)
    return false
  end
  local native = loaded()
  local problem = native and native.decide(decision, id ~= nil and tostring(id) or nil, unseen == true)
  if not native then problem = 'no review is waiting' end
  if problem then notify(problem, vim.log.levels.WARN) end
  return not problem
end

--- Accepts a review as its text is now.
---@param id string|number|nil without: the visible review, else the oldest one that was seen
---@param unseen boolean? also one that was never shown
---@return boolean accepted
function M.accept(id, unseen) return decide('accept', id, unseen) end
--- As accept().
---@param id string|number|nil
---@param unseen boolean?
---@return boolean rejected
function M.reject(id, unseen) return decide('reject', id, unseen) end
--- As accept(), for agents that know such a thing.
---@param id string|number|nil
---@param unseen boolean?
---@return boolean allowed
function M.always_allow(id, unseen) return decide('always_allow', id, unseen) end

--- Brings a waiting review into view.
---@param id string|number
---@return boolean shown
function M.show(id)
  local native = loaded()
  return native ~= nil and native.show(tostring(id))
end

---@class gangway.SendOpts
---@field path string? default: the current file
---@field line1 integer? 1-based, inclusive; without: what is selected in the current file, else all of it
---@field line2 integer?
---@field diagnostics boolean? the lines of the current file's diagnostics: those on line1 to line2, in the selection or on the cursor's line
---@field client integer? an id of status().clients, when several agents are connected

--- The lines (from 1) of all diagnostics of the current buffer that touch lines `first` to `last`.
local function diagnosed(first, last)
  local from, to
  local ok, items = pcall(vim.diagnostic.get, 0)
  for _, item in ipairs(ok and items or {}) do
    local start, stop = item.lnum + 1, (item.end_lnum or item.lnum) + 1
    -- An end at the start of a line is the end of the one before.
    if stop > start and item.end_col == 0 then stop = stop - 1 end
    if start <= last and stop >= first then
      from, to = math.min(from or start, start), math.max(to or stop, stop)
    end
  end
  local count = vim.api.nvim_buf_line_count(0)
  return from and math.min(from, count), to and math.min(to, count)
end

--- The lines that are selected in the current buffer, or still are as far as agents are told; a map
--- that begins with `:<C-u>` has left visual mode before it runs.
---@private
---@return integer?, integer?
function M._selected()
  if vim.fn.mode():match('^[vVsS\22\19]') then
    local a, b = vim.fn.line('v'), vim.fn.line('.')
    return math.min(a, b), math.max(a, b)
  end
  local native = loaded()
  if native then return native.selected() end
end

local SEND = { path = 'string', line1 = 'number', line2 = 'number', diagnostics = 'boolean', client = 'number' }

---@return string?
local function wrong_send(opts)
  if opts == nil then return end
  if type(opts) ~= 'table' then return 'wants a table' end
  for name, value in pairs(opts) do
    if not SEND[name] then return ('there is no field %s'):format(tostring(name)) end
    if type(value) ~= SEND[name] then return ('%s wants a %s, got a %s'):format(name, SEND[name], type(value)) end
  end
  if opts.client and (opts.client < 0 or opts.client % 1 ~= 0) then return 'client wants an id of status().clients' end
end

--- Mentions a file, or lines of it, to the agent.
---@param opts gangway.SendOpts?
---@return boolean sent
function M.send(opts)
  local problem = wrong_send(opts)
  if problem then
    notify('send: ' .. problem, vim.log.levels.WARN)
    return false
  end
  local native = library()
  if not native then return false end
  opts = vim.deepcopy(opts or {})
  if not opts.line1 and not opts.path then
    opts.line1, opts.line2 = M._selected()
  end
  if opts.diagnostics then
    local line = opts.line1 or vim.api.nvim_win_get_cursor(0)[1]
    local line1, line2 = diagnosed(line, opts.line2 or line)
    if not line1 then
      notify('there are no diagnostics here to send', vim.log.levels.WARN)
      return false
    end
    opts = { line1 = line1, line2 = line2, client = opts.client }
  end
  return native.send(opts)
end

--- Asks an agent to go on with the text at the cursor, in insert mode; what it suggests is shown
--- there, and put in only when the user takes it.
function M.suggest() require('gangway.suggestion').ask() end

--- What agents may see of this project. Remembered across restarts.
---@param what "on"|"off"|"toggle"|nil
---@return boolean? sharing nil when that is not known
function M.share(what)
  if what ~= nil and what ~= 'on' and what ~= 'off' and what ~= 'toggle' then
    notify('share: wants "on", "off" or "toggle"; nothing was changed', vim.log.levels.WARN)
    what = nil
  end
  local native = library()
  if not native then return end
  return native.share(what)
end

--- For a statusline: empty while nobody is connected and nothing waits.
---@return string
function M.statusline()
  local native = loaded()
  return native and native.statusline() or ''
end

--- Variables for a terminal in which an agent is to run, to lay over Neovim's own environment: which
--- port is ours, and that no proxy stands before it. To be asked for when the terminal opens.
---@param cmd string|string[]|nil the command that will run there, if it is known
---@return table<string, string>
function M.terminal_env(cmd) return require('gangway.terminal').env(cmd) end

--- The options in force, for :checkhealth.
---@private
---@return gangway.Config
function M._options()
  local given = type(options) == 'table' and options or {}
  return vim.tbl_deep_extend('force', require('gangway.config').defaults, given)
end

--- The library, for :checkhealth and the commands.
---@private
function M._library(quiet)
  if quiet then return library(false) end
  return library()
end

-- In a fast event (a callback of vim.uv) nearly nothing of the editor can be called: all of it happens
-- right after, and returns nothing.
for _, name in ipairs({
  'setup',
  'start',
  'stop',
  'accept',
  'reject',
  'always_allow',
  'show',
  'share',
  'send',
  'suggest',
}) do
  local run = M[name]
  M[name] = function(...)
    if vim.in_fast_event() then return vim.schedule_wrap(run)(...) end
    return run(...)
  end
end

return M
