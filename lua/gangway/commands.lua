-- What the :Ide commands do. Required by plugin/gangway.lua when one is used.
local M = {}

local gangway = require('gangway')

local function warn(message) require('gangway.message')(message, vim.log.levels.WARN) end

function M.start() gangway.start() end
function M.stop() gangway.stop() end

local function decide(name)
  return function(args)
    local id = args.args ~= '' and args.args or nil
    gangway[name](id, args.bang or id ~= nil)
  end
end

M.accept = decide('accept')
M.reject = decide('reject')
M.always_allow = decide('always_allow')

---@param lead string
function M.complete_review(lead)
  local ids = vim.tbl_map(function(review) return tostring(review.id) end, gangway.status().reviews)
  -- An agent chooses some of them: what is behind a bar in one would be run.
  return vim.tbl_filter(function(id) return vim.startswith(id, lead) and not id:find('[^%w_.-]') end, ids)
end

local SHARE = { 'on', 'off', 'toggle' }

--- Completes the one word that a command takes.
---@param words string[]
local function word_of(words)
  return function(lead, line)
    if line:match('^%S+%s+%S+%s') then return {} end
    return vim.tbl_filter(function(word) return vim.startswith(word, lead) end, words)
  end
end

M.complete_share = word_of(SHARE)
M.complete_send = word_of({ 'diagnostics' })

function M.share(args)
  if args.args ~= '' and not vim.tbl_contains(SHARE, args.args) then
    return warn('IdeShare: wants on, off or toggle')
  end
  local sharing = gangway.share(args.args ~= '' and args.args or nil)
  if sharing == nil then return end
  require('gangway.message')('sharing is ' .. (sharing and 'on' or 'off') .. ' for this project')
end

function M.send(args)
  if args.args ~= '' and args.args ~= 'diagnostics' then return warn('IdeSend: wants nothing, or "diagnostics"') end
  local opts = { diagnostics = args.args ~= '' or nil }
  if args.range > 0 then
    opts.line1, opts.line2 = args.line1, args.line2
  else
    -- Now: whoever asks which agent is meant ends visual mode.
    opts.line1, opts.line2 = gangway._selected()
  end
  local clients = vim.tbl_filter(function(client) return client.takes_mentions end, gangway.status().clients)
  if #clients < 2 then
    gangway.send(opts)
    return
  end
  vim.ui.select(clients, {
    prompt = 'Send to',
    format_item = function(client) return ('%s (%s)'):format(client.name, client.root or client.id) end,
  }, function(client)
    if not client then return end
    opts.client = client.id
    gangway.send(opts)
  end)
end

function M.suggest() gangway.suggest() end

function M.agent(args) require('gangway.terminal').open(args.args, args.smods) end

--- Control characters of an agent's text made visible.
local function plain(text) return vim.fn.strtrans((text:gsub('%z', '<00>'))) end

--- One line: what it is about, who asks, since when.
---@param review table
local function describe(review)
  local what = review.path and vim.fn.fnamemodify(review.path, ':~:.') or 'a ' .. review.kind
  local age = review.age < 60 and ('%d s'):format(review.age) or ('%d min'):format(review.age / 60)
  return ('%s  %s, %s%s'):format(plain(what), review.origin, age, review.seen and '' or ', not seen yet')
end

function M.reviews()
  local reviews = gangway.status().reviews
  if #reviews == 0 then return warn('no review is waiting') end
  vim.ui.select(reviews, { prompt = 'Reviews', format_item = describe }, function(review)
    if review and not gangway.show(review.id) then warn('that review is gone') end
  end)
end

--- The lines of :IdeStatus.
---@return string[]
function M.status_lines()
  local native, problem = gangway._library(true)
  if not native then return vim.split('gangway: ' .. problem, '\n') end
  local s = gangway.status()
  local lines = {
    s.running and ('Listening on 127.0.0.1:%d'):format(s.port or 0) or 'Not running (:IdeStart)',
    'Sharing is ' .. (s.sharing and 'on' or 'off') .. ' for this project',
  }
  local function section(title, items)
    lines[#lines + 1] = ''
    lines[#lines + 1] = title
    for _, item in ipairs(items) do
      lines[#lines + 1] = '  ' .. item
    end
    if #items == 0 then lines[#lines + 1] = '  none' end
  end
  local function client(c)
    return plain(('%s %s%s'):format(c.name, c.version or '', c.root and ('  in ' .. c.root) or ''))
  end
  section('Agents', vim.tbl_map(client, s.clients))
  section('Reviews', vim.tbl_map(function(review) return review.id .. '  ' .. describe(review) end, s.reviews))
  section('Lock files', vim.tbl_map(function(path) return vim.fn.fnamemodify(path, ':~') end, s.lock_files))
  local notes = vim.list_extend({}, s.notes or {})
  for _, mode in ipairs(require('gangway.health').modes) do
    local here = vim.iter(s.clients):any(function(c) return c.name == mode.client end)
    if here then notes[#notes + 1] = mode.note end
  end
  for _, note in ipairs(notes) do
    lines[#lines + 1] = ''
    lines[#lines + 1] = note
  end
  return lines
end

--- Shows lines in a window that closes with q. What stands over indented lines is a heading.
local function show(lines, title)
  local width, height = 20, 0
  for _, line in ipairs(lines) do
    width = math.max(width, vim.fn.strdisplaywidth(line))
  end
  width = math.min(width + 2, vim.o.columns - 4)
  for _, line in ipairs(lines) do
    height = height + math.max(1, math.ceil((vim.fn.strdisplaywidth(line) + 1) / width))
  end
  height = math.min(height, vim.o.lines - 4)
  local buf = vim.api.nvim_create_buf(false, true)
  vim.bo[buf].bufhidden = 'wipe'
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, vim.tbl_map(function(line) return ' ' .. line end, lines))
  vim.bo[buf].modifiable = false
  local colours = vim.api.nvim_create_namespace('gangway_status')
  for row, line in ipairs(lines) do
    local group = lines[row - 1] == '' and lines[row + 1] and vim.startswith(lines[row + 1], '  ') and 'Title'
      or line == '  none' and 'Comment'
    if group then vim.api.nvim_buf_set_extmark(buf, colours, row - 1, 0, { end_col = #line + 1, hl_group = group }) end
  end
  local win = vim.api.nvim_open_win(buf, true, {
    relative = 'editor',
    style = 'minimal',
    border = 'rounded',
    title = ' ' .. title .. ' ',
    footer = ' q closes ',
    footer_pos = 'right',
    width = width,
    height = height,
    row = math.max(0, math.floor((vim.o.lines - height) / 2) - 1),
    col = math.max(0, math.floor((vim.o.columns - width) / 2)),
  })
  vim.wo[win].wrap = true
  for _, key in ipairs({ 'q', '<Esc>' }) do
    vim.keymap.set('n', key, '<Cmd>close<CR>', { buffer = buf, nowait = true })
  end
end

function M.status() show(M.status_lines(), 'gangway') end

function M.log()
  local native, problem = gangway._library(true)
  if not native then return warn(problem) end
  if not native.log_path() then return warn('there is no log (:IdeStatus says why)') end
  vim.cmd.sview({ args = { native.log_path() }, magic = { file = false, bar = false }, mods = { split = 'botright' } })
  vim.wo[0][0].wrap = false
  vim.cmd('normal! G')
end

return M
