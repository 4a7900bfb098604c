-- Commands and <Plug> maps. Nothing is loaded until one of them is used.
if vim.g.loaded_gangway then return end
vim.g.loaded_gangway = true

local command = vim.api.nvim_create_user_command

---@param name string a function of gangway.commands
local function run(name)
  return function(args) require('gangway.commands')[name](args) end
end

---@param name string
local function complete(name)
  return function(lead, line) return require('gangway.commands')[name](lead, line) end
end

command('IdeStart', run('start'), { bar = true, desc = 'gangway: let agents connect' })
command('IdeStop', run('stop'), { bar = true, desc = 'gangway: reject what waits, disconnect agents' })
command('IdeStatus', run('status'), { bar = true, desc = 'gangway: port, agents, reviews' })
command('IdeReviews', run('reviews'), { bar = true, desc = 'gangway: choose a waiting review' })
command('IdeLog', run('log'), { bar = true, desc = 'gangway: open the log' })
command('IdeSend', run('send'), {
  range = true,
  bar = true,
  nargs = '?',
  complete = complete('complete_send'),
  desc = 'gangway: mention lines to the agent',
})
command('IdeSuggest', run('suggest'), { bar = true, desc = 'gangway: let an agent go on with the text at the cursor' })
-- The name pi-ide.nvim gave it.
if vim.fn.exists(':PiSuggest') == 0 then
  command('PiSuggest', 'IdeSuggest', { bar = true, desc = 'gangway: :IdeSuggest' })
end
command('IdeAgent', run('agent'), {
  nargs = '+',
  complete = 'shellcmd',
  desc = 'gangway: run an agent in a terminal, connected',
})
for name, fn in pairs({ IdeAccept = 'accept', IdeReject = 'reject', IdeAlwaysAllow = 'always_allow' }) do
  command(name, run(fn), {
    -- Visual mode puts one there; the whole review is meant all the same.
    range = true,
    nargs = '?',
    bang = true,
    bar = true,
    complete = complete('complete_review'),
    desc = 'gangway: ' .. fn:gsub('_', ' ') .. ' a review (with an id or !: unseen)',
  })
end
command('IdeShare', run('share'), {
  nargs = '?',
  bar = true,
  complete = complete('complete_share'),
  desc = 'gangway: what agents may see: on, off or toggle',
})

local map = vim.keymap.set
map('n', '<Plug>(gangway-accept)', '<Cmd>IdeAccept<CR>', { desc = 'gangway: accept' })
map('n', '<Plug>(gangway-reject)', '<Cmd>IdeReject<CR>', { desc = 'gangway: reject' })
map('n', '<Plug>(gangway-always-allow)', '<Cmd>IdeAlwaysAllow<CR>', { desc = 'gangway: always allow' })
map('n', '<Plug>(gangway-reviews)', '<Cmd>IdeReviews<CR>', { desc = 'gangway: reviews' })
map('i', '<Plug>(gangway-suggest)', '<Cmd>IdeSuggest<CR>', { desc = 'gangway: suggest' })
map({ 'n', 'x' }, '<Plug>(gangway-send)', '<Cmd>IdeSend<CR>', { desc = 'gangway: send' })

-- A session saved during a review restores without its tab page.
vim.api.nvim_create_autocmd('SessionLoadPost', {
  group = vim.api.nvim_create_augroup('gangway_session', { clear = true }),
  callback = function()
    vim.schedule(function() require('gangway.session').clean() end)
  end,
})
