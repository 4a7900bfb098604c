-- Gets the library: a prebuilt one of this very version, checked, else one built by cargo.
--
-- Run by lazy.nvim (build.lua at the root) or by hand: `:lua require("gangway.build").install()`. The
-- new library is loaded once in a Neovim of its own and then renamed into lib/: a library that a
-- running Neovim has mapped is never written to.
local M = {}

-- Beside this file and not by require(): after an update the modules in memory are the old ones, and
-- a plugin that is only just installed may not be on the runtimepath.
local here = vim.fn.fnamemodify(debug.getinfo(1, 'S').source:sub(2), ':p:h')
local native = dofile(here .. '/native.lua')
local root = native.root
local version -- as it is when install() begins: an update may come later in the same Neovim

local DOWNLOAD_SECONDS = 240
local RETRY_SECONDS = 60 -- later than this no further try is begun
local CHECK_MS = 30000
local ABANDONED_SECONDS = 3600

--------------------------------------------------------------------------------- waiting, telling

--- lazy.nvim runs builds in a coroutine of its own, which shows what it yields.
---@return table?
local function lazy_async()
  local async = package.loaded['lazy.async']
  return async and async.running and async.running() and async or nil
end

---@param message string
local function say(message)
  if lazy_async() then
    coroutine.yield(message)
  else
    vim.notify('gangway: ' .. message, vim.log.levels.INFO)
  end
end

--- What goes on, while it goes on. One line: of a longer one nothing would be seen but a prompt.
---@param message string
local function progress(message)
  if lazy_async() or #vim.api.nvim_list_uis() == 0 then return say(message) end
  say(vim.fn.strcharpart(message, 0, vim.v.echospace - #'gangway: '))
  vim.cmd.redraw()
end

---@param done fun(): boolean
---@return boolean interrupted by CTRL-C
local function wait_until(done)
  local async = lazy_async()
  while not done() do
    if async then
      async.sleep(50)
    else
      local _, why = vim.wait(200, done, 20)
      if why == -2 then return true end
    end
  end
  return false
end

---@class gangway.build.Result
---@field code integer
---@field output string both streams

--- Runs a program to its end; nil if there is no such program. CTRL-C ends it, and raises.
---@param argv string[]
---@param opts { cwd: string?, env: table?, timeout: integer?, on_line: fun(line: string)? }?
---@return gangway.build.Result?
local function run(argv, opts)
  opts = opts or {}
  if vim.fn.executable(argv[1]) == 0 then return nil end
  local chunks, fresh, result = {}, {}, nil
  local function take(_, data)
    if not data then return end
    chunks[#chunks + 1], fresh[#fresh + 1] = data, data
  end
  local started, process = pcall(vim.system, argv, {
    cwd = opts.cwd,
    env = opts.env,
    timeout = opts.timeout,
    stdin = false,
    stdout = take,
    stderr = take,
  }, function(ended) result = ended end)
  if not started then return { code = 126, output = tostring(process) } end
  local interrupted = wait_until(function()
    if opts.on_line and #fresh > 0 then
      local line = table.concat(fresh):match('.*\n([^\n]*%S[^\n]*)\n')
      if line then
        fresh = {}
        opts.on_line(line)
      end
    end
    return result ~= nil
  end)
  if interrupted then
    process:kill('sigterm')
    process:wait(2000)
    error('gangway: interrupted; run it again', 0)
  end
  return { code = result.code == 0 and result.signal or result.code, output = table.concat(chunks) }
end

---@param text string
---@param count integer
local function last_lines(text, count)
  local lines = vim.split(vim.trim(text), '\n')
  return table.concat(vim.list_slice(lines, math.max(1, #lines - count + 1)), '\n')
end

------------------------------------------------------------------------------------------ SHA-256

-- vim.fn.sha256 takes no NUL before Neovim 0.12, and not every system has a program for it.
local K = {}
do
  local function fraction(x) return math.floor((x - math.floor(x)) * 2 ^ 32) end
  local candidate = 2
  while #K < 64 do
    local prime = true
    for divisor = 2, math.floor(math.sqrt(candidate)) do
      prime = prime and candidate % divisor ~= 0
    end
    if prime then K[#K + 1] = bit.tobit(fraction(candidate ^ (1 / 3))) end
    candidate = candidate + 1
  end
end

---@param message string
---@return string hex
function M.sha256(message)
  local band, bnot, bxor, ror, rshift, tobit = bit.band, bit.bnot, bit.bxor, bit.ror, bit.rshift, bit.tobit
  local function be32(n)
    return string.char(band(rshift(n, 24), 255), band(rshift(n, 16), 255), band(rshift(n, 8), 255), band(n, 255))
  end
  local bits = #message * 8
  local padded = message
    .. '\128'
    .. ('\0'):rep((55 - #message) % 64)
    .. be32(math.floor(bits / 2 ^ 32))
    .. be32(tobit(bits % 2 ^ 32))
  local h = {}
  for i, prime in ipairs({ 2, 3, 5, 7, 11, 13, 17, 19 }) do
    h[i] = tobit(math.floor((math.sqrt(prime) % 1) * 2 ^ 32))
  end
  local w = {}
  for at = 1, #padded, 64 do
    for i = 0, 15 do
      local a, b, c, d = padded:byte(at + i * 4, at + i * 4 + 3)
      w[i] = tobit(a * 2 ^ 24 + b * 2 ^ 16 + c * 2 ^ 8 + d)
    end
    for i = 16, 63 do
      local x, y = w[i - 15], w[i - 2]
      local s0 = bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
      local s1 = bxor(ror(y, 17), ror(y, 19), rshift(y, 10))
      w[i] = tobit(w[i - 16] + s0 + w[i - 7] + s1)
    end
    local a, b, c, d, e, f, g, hh = unpack(h)
    for i = 0, 63 do
      local s1 = bxor(ror(e, 6), ror(e, 11), ror(e, 25))
      local t1 = hh + s1 + bxor(band(e, f), band(bnot(e), g)) + K[i + 1] + w[i]
      local s0 = bxor(ror(a, 2), ror(a, 13), ror(a, 22))
      local t2 = s0 + bxor(band(a, b), band(a, c), band(b, c))
      hh, g, f, e, d, c, b, a = g, f, e, tobit(d + t1), c, b, a, tobit(t1 + t2)
    end
    for i, x in ipairs({ a, b, c, d, e, f, g, hh }) do
      h[i] = tobit(h[i] + x)
    end
  end
  return (table.concat(vim.tbl_map(be32, h)):gsub('.', function(c) return ('%02x'):format(c:byte()) end))
end

---@param path string
---@return string?
local function read(path)
  local file = io.open(path, 'rb')
  local text = file and file:read('*a')
  if file then file:close() end
  return text
end

------------------------------------------------------------------------------------- what to get

--- The target triple of this machine, as releases name it.
---@return string? target nil where no library is released for
---@return string machine for messages
function M.target()
  local uname = vim.uv.os_uname()
  local cpu = ({ x86_64 = 'x86_64', amd64 = 'x86_64', aarch64 = 'aarch64', arm64 = 'aarch64' })[uname.machine:lower()]
  local machine = uname.sysname .. ' ' .. uname.machine
  if not cpu then return nil, machine end
  if uname.sysname == 'Darwin' then return cpu .. '-apple-darwin', machine end
  if uname.sysname ~= 'Linux' then return nil, machine end
  local function any(pattern) return #vim.fn.glob(pattern, true, true) > 0 end
  local musl = any('/lib/ld-musl-*') and not any('/lib*/ld-linux-*')
  return cpu .. '-unknown-linux-' .. (musl and 'musl' or 'gnu'), machine
end

--- What git says of the plugin's own repository; nil where it has none. One around it, of a user's
--- dotfiles, has other remotes and tags.
---@return string?
local function git(...)
  local said = run({ 'git', '--git-dir', root .. '/.git', ... })
  return said and said.code == 0 and vim.trim(said.output) or nil
end

--- Where releases are: `vim.g.gangway_download_url`, else the releases page of the repository that
--- the plugin was cloned from, or that Cargo.toml names where it was not cloned.
---@return string?
function M.download_url()
  local set = vim.g.gangway_download_url or ''
  if set ~= '' then return (set:gsub('/+$', '')) end
  local address = git('remote', 'get-url', 'origin')
    or (read(root .. '/Cargo.toml') or ''):match('\nrepository = "([^"]+)"')
    or ''
  local owner, name = address:match('github%.com[:/]+([%w._-]+)/([%w._-]+)$')
  return name and ('https://github.com/%s/%s/releases/download'):format(owner, (name:gsub('%.git$', ''))) or nil
end

--- The checkout is something else than the release of its version: its library must be built.
local function is_between_releases()
  if version:find('-', 1, true) then return true end
  local tags = git('tag', '--points-at', 'HEAD')
  return tags ~= nil and not vim.tbl_contains(vim.split(tags, '\n'), 'v' .. version)
end

---------------------------------------------------------------------------------------- installing

--- Loads a library in a Neovim of its own: a broken one may take that down, and a path that was
--- once loaded here would only be looked up again.
---@param path string
---@return string? problem
function M.check(path)
  local scratch = vim.fn.tempname()
  local code = "lua local open, err = package.loadlib(vim.env.GANGWAY_CHECK, 'luaopen_gangway_native') "
    .. "if open then open() else print('gangway: ' .. err) end "
    .. 'local native = package.loaded.gangway_native '
    .. "print('gangway-version ' .. tostring(type(native) == 'table' and native.version))"
  local argv = { vim.v.progpath, '--headless', '--clean', '-u', 'NONE', '-i', 'NONE', '--cmd', code, '+qa!' }
  local result = run(argv, {
    timeout = CHECK_MS,
    env = { GANGWAY_CHECK = path, XDG_STATE_HOME = scratch, NVIM_LOG_FILE = scratch .. '/log' },
  })
  vim.fn.delete(scratch, 'rf')
  if not result then return vim.v.progpath .. ' cannot be run' end
  local found = result.output:match('gangway%-version (%S+)')
  if found == version then return nil end
  if found and found ~= 'nil' and found ~= 'false' then
    return ('it is version %s, the plugin is %s'):format(found, version)
  end
  local why = result.output:match('gangway: ([^\r\n]+)')
    or ('Neovim ended with %d when it loaded it'):format(result.code)
  return 'it cannot be loaded here: ' .. why
end

--- Makes lib/ and a private folder in it; removes what an install() that was killed has left there.
---@return string? folder
---@return string? problem
local function work_folder()
  local lib = root .. '/lib'
  vim.uv.fs_mkdir(lib, 493)
  for name in vim.fs.dir(lib) do
    local left = vim.startswith(name, '.new-') and vim.uv.fs_stat(lib .. '/' .. name)
    if left and os.time() - left.mtime.sec > ABANDONED_SECONDS then vim.fn.delete(lib .. '/' .. name, 'rf') end
  end
  local folder, problem = vim.uv.fs_mkdtemp(lib .. '/.new-XXXXXX')
  if folder then return folder end
  return nil,
    ('%s cannot be written (%s). Make it writable, or put a library elsewhere and set vim.g.gangway_library to its path.'):format(
      lib,
      (problem or ''):match('^(%u+)') or problem
    )
end

--- Puts a checked library in its place, atomically.
---@return string? problem
local function put(path)
  local problem = M.check(path)
  if problem then return problem end
  -- tar keeps the time of packing, and of two libraries the newer one is loaded (native.lua).
  vim.uv.fs_utime(path, os.time(), os.time())
  local ok, err = vim.uv.fs_rename(path, root .. '/lib/' .. native.file_name)
  if not ok then return 'cannot be put into lib/: ' .. tostring(err) end
end

--- One file by curl.
---@return string? problem
local function fetch(url, path)
  local argv = { 'curl', '--fail', '--location', '--silent', '--show-error', '--connect-timeout', '15' }
  -- A server that has fallen silent is given up long before the time for a slow download is over.
  vim.list_extend(argv, { '--speed-limit', '1024', '--speed-time', '20', '--max-time', tostring(DOWNLOAD_SECONDS) })
  vim.list_extend(argv, { '--retry', '2', '--retry-max-time', tostring(RETRY_SECONDS), '--output', path })
  -- What began encrypted stays so.
  if vim.startswith(url, 'https://') then vim.list_extend(argv, { '--proto', '=https' }) end
  local result = run(vim.list_extend(argv, { '--', url }))
  if not result then return 'curl is not installed' end
  if result.code ~= 0 then return ('%s: %s'):format(url, last_lines(result.output, 1)) end
end

---@return string? problem nil when the library is in its place; a wrong checksum is raised
local function download(folder)
  local target, machine = M.target()
  if not target then return 'no library is released for ' .. machine end
  if version:find('-', 1, true) and (vim.g.gangway_download_url or '') == '' then
    return ('this is %s, between two releases: install Rust, or take a release (version = "*" in lazy.nvim)'):format(
      version
    )
  end
  local base = M.download_url()
  if not base then return 'no releases page is known (vim.g.gangway_download_url can name one)' end
  local name = ('gangway-v%s-%s.tar.gz'):format(version, target)
  local url, archive = ('%s/v%s/%s'):format(base, version, name), folder .. '/' .. name
  progress('downloading ' .. name)
  local problem = fetch(url .. '.sha256', archive .. '.sha256') or fetch(url, archive)
  if problem then return problem end
  local wanted = (read(archive .. '.sha256') or ''):match('^(%x+)')
  if not wanted or #wanted ~= 64 then return url .. '.sha256 holds no SHA-256 checksum' end
  if M.sha256(read(archive) or '') ~= wanted:lower() then
    -- Not passed over in silence where cargo could build: it may be an attack.
    error(
      ('gangway: %s does not match its checksum: it is damaged or was tampered with. Nothing was installed.\n'):format(
        url
      )
        .. 'Next: run it again; if that says the same, report it, and build with Rust: cargo build --release in '
        .. root,
      0
    )
  end
  local tar = run({ 'tar', '-xzf', archive, '-C', folder, native.file_name })
  if not tar then return 'tar is not installed' end
  if tar.code ~= 0 then return ('%s cannot be unpacked: %s'):format(name, last_lines(tar.output, 1)) end
  problem = put(folder .. '/' .. native.file_name)
  return problem and ('%s: %s'):format(name, problem)
end

---@return string? problem nil when the library is in its place
local function build(folder)
  if vim.fn.executable('cargo') == 0 then return 'cargo is not installed' end
  progress('building with cargo; this takes a minute or two')
  local target, told = root .. '/target', vim.uv.now()
  local result = run({ 'cargo', 'build', '--release', '--locked', '--lib', '--target-dir', target }, {
    cwd = root,
    on_line = function(line)
      if vim.uv.now() - told < 4000 then return end
      told = vim.uv.now()
      progress(vim.trim(line))
    end,
  })
  if not result or result.code ~= 0 then
    return 'cargo build failed:\n' .. last_lines(result and result.output or '', 12)
  end
  -- A copy: cargo's own file may be overwritten by the next build while this one is mapped.
  local copy = folder .. '/' .. native.file_name
  local ok, err = vim.uv.fs_copyfile(target .. '/release/' .. native.file_name, copy)
  if not ok then return 'cargo built no library: ' .. tostring(err) end
  return put(copy)
end

--- Raises one message that says what to do if it cannot be done.
local function install()
  version = dofile(here .. '/version.lua')
  local supplied, source = native.supplied()
  if supplied then
    local problem = vim.uv.fs_stat(supplied) and M.check(supplied) or not vim.uv.fs_stat(supplied) and 'not found'
    if problem then error(('gangway: %s names %s: %s'):format(source, supplied, problem), 0) end
    return say(('using %s (%s)'):format(supplied, source))
  end
  local folder, problem = work_folder()
  if not folder then error('gangway: ' .. problem, 0) end
  local problems = {}
  local function try(what, step)
    local why = step(folder)
    if why then problems[#problems + 1] = ('  %s: %s'):format(what, why) end
    return why == nil
  end
  local ok, done = pcall(function()
    -- A library of another commit would only look as if it fitted.
    if is_between_releases() and vim.fn.executable('cargo') == 1 then
      return try('build', build) or try('download', download)
    end
    return try('download', download) or try('build', build)
  end)
  vim.fn.delete(folder, 'rf')
  if not ok then error(done, 0) end
  if not done then
    error(
      table.concat({
        'gangway: no library could be installed.',
        table.concat(problems, '\n'),
        'Next: mend one of these and run :Lazy build gangway.nvim (or :lua require("gangway.build").install());',
        'Rust is at https://rustup.rs; vim.g.gangway_library can name a library you already have.',
      }, '\n'),
      0
    )
  end
  local restart = package.loaded.gangway_native and '; restart Neovim to use it' or ''
  say('the library is in ' .. vim.fn.fnamemodify(root, ':~') .. '/lib' .. restart)
end

--- Installs the library. What is in the way is one message; lazy.nvim shows that of a task that throws.
---@return boolean installed
function M.install()
  local ok, problem = pcall(install)
  if ok then return true end
  if lazy_async() then error(problem, 0) end
  vim.notify(problem, vim.log.levels.ERROR)
  return false
end

return M
