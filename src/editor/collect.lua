-- What the user sees, packed into one string for Rust (context/tracker.rs reads it). Runs on
-- Neovim's thread, so it only asks what is cheap and only packs what changed since the last call:
-- reading thousands of values one by one through the Rust bridge costs more than all of this.
--
-- Packed values follow each other: a whole number is its digits and ",", a string its length, ":"
-- and its bytes. Lines are 0-based, columns are bytes.

---@param mark fun() tells Rust that something changed; cheap
---@param options { root?: string|fun(): string|string[], held?: table } `held`: from `remove`
return function(mark, options)
  local api, fn, uv = vim.api, vim.fn, vim.uv
  local option, get_name = api.nvim_get_option_value, api.nvim_buf_get_name
  local byte, find, sub = string.byte, string.find, string.sub
  local floor, max, min = math.floor, math.max, math.min
  local format = string.format

  local GROUP = "gangway.watch"
  local FORMAT = 1
  local MAXCOL = 2147483647
  -- Fetched of a selection at most; `selection::MAX_TEXT` is what is reported of it.
  local MAX_TEXT = 256 * 1024
  -- A block's rows are mostly outside the block.
  local MAX_BLOCK = 1024 * 1024
  -- Of a line: beyond it characters are not measured by Neovim (Rust then counts one cell each).
  local MAX_MEASURED = 64 * 1024
  local MAX_MESSAGE = 16 * 1024
  local MAX_DIAGNOSTICS = 20000
  local MANY_DIAGNOSTICS = 500
  -- Packing one buffer's diagnostics may take this share of the time (it is asked for more often
  -- while a language server streams them), unless somebody waits for them.
  local DIAGNOSTICS_SHARE = 20
  -- Everything is looked at anew after this long (ms), whatever the events said.
  local FULL_AFTER = 15000
  local EFFECTIVE = {}

  ------------------------------------------------------------------------------------- packing

  local out, n

  local function int(value)
    out[n + 1], out[n + 2] = value, ","
    n = n + 2
  end

  local function flag(value)
    int(value and 1 or 0)
  end

  local function str(value)
    out[n + 1], out[n + 2], out[n + 3] = #value, ":", value
    n = n + 3
  end

  --- A whole number between `low` and `high` from whatever a plugin put there.
  local function whole(value, low, high)
    if type(value) ~= "number" or value ~= value then
      return low
    end
    return max(low, min(high, floor(value)))
  end

  --- An error, which can be anything; asking it for its text may be another one.
  local function reason(why)
    return type(why) == "string" and why or "an error that is a " .. type(why)
  end

  ------------------------------------------------------------------------------------- state

  local focused = true
  local files_dirty, roots_dirty = true, true
  local diagnostics_dirty = {} -- buffer -> true
  local diagnostics_after = {} -- buffer -> not before this time
  local facts = {} -- buffer -> what `fact_of` says
  local stale = {} -- buffer -> true: ask it again
  local visited = {} -- buffer -> when it was entered, ms since the epoch
  local plain = {} -- name -> whether that is a plain file or nothing yet
  local known = {} -- buffer -> true: its diagnostics were sent
  local read_at = {} -- buffer -> its changedtick when diagnostics of it were sent
  local many = {} -- buffer -> true: reading its diagnostics anew would be felt while typing
  local present = {} -- buffer -> whether it is loaded: the files that were sent
  local widths = {} -- characters -> screen cells
  local collected_all = -FULL_AFTER
  local last, last_win -- the buffer the user was in last that holds a file
  local began -- where and when visual mode began
  local held = options.held -- the selection as it was seen last
  local sent -- the same, as it was packed last
  local failure -- what went wrong in this collection
  local initial = fn.getcwd(-1, -1)

  --- The name of a buffer that holds a file; nil for everything else that a buffer can be. The file
  --- system may hang (a network that is gone), so it is asked only where Neovim itself has just read.
  local function file_name(buf)
    if option("buftype", { buf = buf }) ~= "" then
      return nil
    end
    local name = get_name(buf)
    -- No name, one such as oil:///tmp/, or a folder.
    if byte(name, 1) ~= 47 or byte(name, -1) == 47 then
      return nil
    end
    local is_plain = plain[name]
    if is_plain == nil then
      if not api.nvim_buf_is_loaded(buf) then
        return name
      end
      local stat = uv.fs_stat(name)
      is_plain = stat == nil or stat.type == "file"
      plain[name] = is_plain
    end
    return is_plain and name or nil
  end

  ------------------------------------------------------------------------------------- selection

  local SHAPES = {
    [118] = 0, [115] = 0, -- v s
    [86] = 1, [83] = 1, -- V S
    [22] = 2, [19] = 2, -- CTRL-V CTRL-S
  }

  --- What is highlighted between two positions as getpos() gives them, without any text.
  local function highlight(buf, shape, from, to, curswant)
    local selection = option("selection", EFFECTIVE)
    local edit = option("virtualedit", EFFECTIVE)
    local virtual = find(edit, "all", 1, true) ~= nil
      or (shape == 2 and find(edit, "block", 1, true) ~= nil)
    local cursor = api.nvim_win_get_cursor(0)
    local bytes = shape ~= 1
    return {
      buf = buf,
      win = api.nvim_get_current_win(),
      tick = api.nvim_buf_get_changedtick(buf),
      shape = shape,
      from_line = from[2] - 1,
      from_byte = bytes and from[3] - 1 or 0,
      from_beyond = bytes and virtual and from[4] or 0,
      to_line = to[2] - 1,
      to_byte = bytes and to[3] - 1 or 0,
      to_beyond = bytes and virtual and to[4] or 0,
      to_ends = shape == 2 and curswant >= MAXCOL,
      exclusive = selection == "exclusive",
      old = selection == "old",
      virtual = virtual,
      cursor_line = cursor[1],
      cursor_byte = cursor[2],
    }
  end

  local SAME = {
    "buf", "tick", "shape", "from_line", "from_byte", "from_beyond", "to_line", "to_byte",
    "to_beyond", "to_ends", "yanked", "exclusive", "old", "virtual",
  }

  local function same(a, b)
    for i = 1, #SAME do
      if a[SAME[i]] ~= b[SAME[i]] then
        return false
      end
    end
    return true
  end

  --- `old:new` of ModeChanged. When visual mode ends the marks tell what it held, at no cost: the
  --- next quiet moment may come too late for `V<Esc>`.
  local function mode_changed(event)
    local match = event.match
    local old = SHAPES[byte(match, 1)]
    local new = SHAPES[byte(match, find(match, ":", 1, true) + 1)]
    if old and not new then
      local buf = api.nvim_get_current_buf()
      -- Edited meanwhile (`d`, `c`, `p`): the marks no longer mean what was selected.
      if not began or (began.buf == buf and began.tick == api.nvim_buf_get_changedtick(buf)) then
        if file_name(buf) then
          local first, final, cursor = fn.getpos("'<"), fn.getpos("'>"), fn.getcurpos()
          if cursor[2] == first[2] and cursor[3] == first[3] and cursor[4] == first[4] then
            first, final = final, first
          end
          held = highlight(buf, old, first, final, cursor[5])
          -- `y` has moved the cursor by now, and curswant with it; then a block whose end is behind
          -- the last character was made with `$`.
          held.yanked = old == 2 and began and began.yanked
        end
      elseif began.buf == buf then
        held = nil
      end
      began = nil
    elseif new and not old then
      local buf = api.nvim_get_current_buf()
      began = { buf = buf, tick = api.nvim_buf_get_changedtick(buf) }
    end
    mark()
  end

  --- The lines `first`..`last` as one string, as many as `limit` bytes hold (at least one), and
  --- how many those are. A line longer than the limit is whole: its end is needed for the range.
  local function lines_within(buf, first, last, limit)
    local start = api.nvim_buf_get_offset(buf, first)
    local low, high = first + 1, last + 1
    if start >= 0 and api.nvim_buf_get_offset(buf, high) - start > limit then
      -- The first line that ends beyond the limit.
      while low < high do
        local middle = floor((low + high) / 2)
        if api.nvim_buf_get_offset(buf, middle) - start > limit then
          high = middle
        else
          low = middle + 1
        end
      end
    end
    return api.nvim_buf_get_lines(buf, first, high, false), high - first
  end

  --- Bytes of the character at `col`, with what composes on it.
  local function character_bytes(line, col)
    local here, following = byte(line, col + 1, col + 2)
    if not here then
      return 0
    end
    if here < 128 and (not following or following < 128) then
      return 1
    end
    -- NUL would make this a Blob.
    local rest = sub(line, col + 1, col + 1024):gsub("%z", "\1")
    return max(1, #fn.strcharpart(rest, 0, 1, true))
  end

  --- Inline virtual text takes screen cells, so it moves a block's columns.
  ---@return table<integer, table<integer, integer>> row -> byte column -> cells
  local function inline_text(buf, first, last)
    local found = {}
    local marks = api.nvim_buf_get_extmarks(buf, -1, { first, 0 }, { last, -1 }, {
      type = "virt_text",
      details = true,
    })
    for _, extmark in ipairs(marks) do
      local details = extmark[4]
      if details.virt_text_pos == "inline" then
        local cells = 0
        for _, chunk in ipairs(details.virt_text) do
          cells = cells + api.nvim_strwidth(chunk[1])
        end
        local row = found[extmark[2]] or {}
        row[extmark[3]] = (row[extmark[3]] or 0) + cells
        found[extmark[2]] = row
      end
    end
    return found
  end

  --- The characters of a line, two bytes each: bytes and screen cells (`selection::Row::cells`).
  local function measure(line, inline)
    local text = sub(line, 1, MAX_MEASURED):gsub("%z", "\1")
    local parts, count, at = {}, 0, 0
    for _, character in ipairs(fn.split(text, "\\zs")) do
      local cells = widths[character]
      if not cells then
        cells = character == "\t" and 1 or fn.strdisplaywidth(character)
        widths[character] = cells
      end
      local bytes = #character
      local more = inline and inline[at]
      at = at + bytes
      count = count + 1
      parts[count] = string.char(min(bytes, 255), min(cells + (more or 0), 254))
      while bytes > 255 do
        bytes = bytes - 255
        count = count + 1
        parts[count] = string.char(min(bytes, 255), 255)
      end
    end
    return table.concat(parts)
  end

  --- Packs the highlight `what` with the text it covers.
  local function pack_selection(what)
    local buf = what.buf
    local count = api.nvim_buf_line_count(buf)
    local first = min(what.from_line, what.to_line, count - 1)
    local final = min(max(what.from_line, what.to_line), count - 1)
    local lines, fetched = lines_within(buf, first, final, what.shape == 2 and MAX_BLOCK or MAX_TEXT)
    local last_line = first + fetched - 1 < final
        and api.nvim_buf_get_lines(buf, final, final + 1, false)[1]
      or nil
    local function text_of(line)
      return line - first < fetched and lines[line - first + 1] or last_line
    end

    int(what.shape)
    local behind = false
    for _, at in ipairs({ "from", "to" }) do
      local line = max(first, min(what[at .. "_line"], final))
      local text = text_of(line)
      local col = max(0, min(what[at .. "_byte"], #text))
      behind = behind or (col == #text and col > 0)
      int(line)
      int(col)
      int(whole(what[at .. "_beyond"], 0, MAXCOL))
      int(what.shape == 1 and 0 or character_bytes(text, col))
    end
    flag(what.to_ends or (what.yanked and behind and not what.exclusive and not what.virtual))
    flag(what.exclusive)
    flag(what.old)
    flag(what.virtual)
    local stop, stops = 8, ""
    if what.shape == 2 or what.virtual then
      local win = api.nvim_win_is_valid(what.win) and what.win or 0
      local hidden = option("list", { win = win })
        and not find(option("listchars", EFFECTIVE), "tab:", 1, true)
      stop = hidden and 0 or option("tabstop", { buf = buf })
      stops = hidden and "" or option("vartabstop", { buf = buf })
    end
    int(stop)
    str(stops)
    int(count - 1)
    int(fetched)
    str(table.concat(lines, "\n"))
    flag(last_line)
    if last_line then
      str(last_line)
    end

    -- Only lines that are not plain ASCII need to be measured.
    local measured = {}
    if what.shape == 2 or what.virtual then
      local inline = inline_text(buf, first, final)
      local left = MAX_TEXT
      for i = 1, fetched + (last_line and 1 or 0) do
        local row = i <= fetched and first + i - 1 or final
        local line = lines[i] or last_line
        if inline[row] or find(line, "[\128-\255]") then
          left = left - #line
          if left < 0 and i > 1 then
            break
          end
          measured[#measured + 1] = { row - first, measure(line, inline[row]) }
        end
      end
    end
    int(#measured)
    for _, row in ipairs(measured) do
      int(row[1])
      str(row[2])
    end
  end

  --- Whether the cursor has left where visual mode was left.
  local function moved(buf, cursor)
    if cursor[1] == held.cursor_line and cursor[2] == held.cursor_byte then
      return false
    end
    if cursor[1] ~= held.cursor_line or cursor[2] > held.cursor_byte then
      return true
    end
    -- `v$<Esc>`: from behind the last character Neovim itself steps back onto it.
    local line = api.nvim_buf_get_lines(buf, cursor[1] - 1, cursor[1], false)[1] or ""
    if held.cursor_byte < #line or cursor[2] + character_bytes(line, cursor[2]) < #line then
      return true
    end
    held.cursor_byte = cursor[2]
    return false
  end

  --- The lines (from 1) of what is still selected in the current buffer.
  local function selected_lines()
    local buf = api.nvim_get_current_buf()
    if held and held.buf == buf and held.tick == api.nvim_buf_get_changedtick(buf)
      and not moved(buf, api.nvim_win_get_cursor(0)) then
      return min(held.from_line, held.to_line) + 1, max(held.from_line, held.to_line) + 1
    end
  end

  --- Brings `held` up to date; `here`: the user is in the buffer `buf`, which holds a file.
  local function look_at_selection(here, buf)
    local shape = here and SHAPES[byte(api.nvim_get_mode().mode, 1)]
    if shape then
      local curswant = fn.getcurpos()
      held = highlight(buf, shape, fn.getpos("v"), curswant, curswant[5])
      began = { buf = buf, tick = held.tick }
    elseif held then
      if not api.nvim_buf_is_loaded(held.buf) or (here and held.buf ~= buf) then
        held = nil
      elseif here and moved(buf, api.nvim_win_get_cursor(0)) then
        held = nil
      end
    end
    local tick = held and api.nvim_buf_get_changedtick(held.buf)
    if not held then
      sent = nil
      return int(0)
    elseif sent and same(held, sent) and not (sent.doubted and held ~= sent) then
      if tick == held.tick then
        return int(1)
      end
      -- Something was changed since: it still counts if its text did not, which only a comparison
      -- can tell.
      int(3)
      held.doubted = true
    elseif tick ~= held.tick then
      -- Changed before the text was read once.
      held, sent = nil, nil
      return int(0)
    else
      int(2)
    end
    held.tick = tick
    sent = held
    pack_selection(held)
  end

  ------------------------------------------------------------------------------------- files

  --- The text before a cursor, for its column in UTF-16.
  local function pack_cursor(buf, line, col)
    line = max(0, min(line, api.nvim_buf_line_count(buf) - 1))
    int(line)
    local ok, text = pcall(api.nvim_buf_get_text, buf, line, 0, line, col, {})
    if not ok then
      text = api.nvim_buf_get_lines(buf, line, line + 1, false)
    end
    str(text[1] or "")
  end

  local function pack_active()
    local buf = api.nvim_get_current_buf()
    local name = file_name(buf)
    local here = name ~= nil
    if here then
      last, last_win = buf, api.nvim_get_current_win()
    elseif last then
      name = api.nvim_buf_is_valid(last) and api.nvim_buf_is_loaded(last) and file_name(last) or nil
      if not name then
        last, last_win = nil, nil
      end
    end
    flag(last)
    if last then
      int(last)
      str(name)
      str(option("filetype", { buf = last }))
      flag(option("modified", { buf = last }))
      if api.nvim_win_is_valid(last_win) and api.nvim_win_get_buf(last_win) == last then
        local cursor = api.nvim_win_get_cursor(last_win)
        pack_cursor(last, cursor[1] - 1, cursor[2])
      else
        local cursor = api.nvim_buf_get_mark(last, '"')
        pack_cursor(last, cursor[1] - 1, cursor[2])
      end
    end
    look_at_selection(here, buf)
  end

  --- What is known of a buffer that holds a file, packed; false for any other buffer.
  local function fact_of(buf, win)
    local loaded = api.nvim_buf_is_loaded(buf)
    local listed = option("buflisted", { buf = buf })
    local name = (loaded or listed) and file_name(buf)
    if not name then
      return false
    end
    local language = option("filetype", { buf = buf })
    local cursor = "0,0:"
    if loaded then
      local at = win and api.nvim_win_get_cursor(win) or api.nvim_buf_get_mark(buf, '"')
      local before = n
      pack_cursor(buf, at[1] - 1, at[2])
      cursor = table.concat(out, "", before + 1, n)
      n = before
    end
    return {
      loaded = loaded,
      shown = win ~= nil,
      head = format("%d,%d:%s%d:%s%d,%d,", buf, #name, name, #language, language,
        loaded and 1 or 0, listed and 1 or 0),
      modified = option("modified", { buf = buf }) and "1," or "0,",
      cursor = cursor,
    }
  end

  local function pack_files(all)
    local shown = {}
    for _, win in ipairs(api.nvim_tabpage_list_wins(0)) do
      shown[api.nvim_win_get_buf(win)] = win
    end
    local at = n + 1
    int(0)
    local count = 0
    local before = facts
    facts, present = {}, {}
    for _, buf in ipairs(api.nvim_list_bufs()) do
      local win = shown[buf]
      local fact = before[buf]
      if fact == nil or all or stale[buf] or (fact and (win or fact.shown)) then
        fact = fact_of(buf, win)
      end
      facts[buf] = fact
      if fact then
        present[buf] = fact.loaded
        if fact.loaded and not known[buf] then
          diagnostics_dirty[buf] = true
        end
        count = count + 1
        out[n + 1], out[n + 2], out[n + 3] = fact.head, win and "1," or "0,", fact.modified
        out[n + 4], out[n + 5], out[n + 6] = visited[buf] or 0, ",", fact.cursor
        n = n + 6
      end
    end
    stale = {}
    out[at] = count
    for buf in pairs(known) do
      if not present[buf] then
        known[buf] = nil
        diagnostics_after[buf] = nil
      end
    end
  end

  ------------------------------------------------------------------------------------- roots

  -- The function that was complained about.
  local complained_root

  local function pack_roots()
    local roots = {}
    local function add(kind, path)
      if type(path) == "string" and path ~= "" and not find(path, "%z") then
        if path == "~" or sub(path, 1, 2) == "~/" then
          path = (uv.os_homedir() or "~") .. sub(path, 2)
        end
        if byte(path, 1) ~= 47 then
          path = fn.getcwd(-1, -1) .. "/" .. path
        end
        roots[#roots + 1] = { kind, path }
      end
    end

    local root = options.root
    if type(root) == "function" then
      local ok, answer = pcall(root)
      local fits = ok and (answer == nil or type(answer) == "string" or type(answer) == "table")
      if not fits and complained_root ~= root then
        complained_root = root
        local why = ok and "returned a " .. type(answer) .. ", not a folder" or tostring(answer)
        vim.schedule(function()
          vim.notify("gangway: context.root: " .. why, vim.log.levels.WARN, { title = "gangway" })
        end)
      end
      root = fits and answer or nil
    end
    if type(root) == "string" and root ~= "auto" then
      root = { root }
    end
    if type(root) == "table" then
      for _, path in ipairs(root) do
        add(0, path)
      end
    end

    local own = option("autochdir", EFFECTIVE) and 2 or 1
    add(own, fn.getcwd())
    add(own, fn.getcwd(-1, -1))
    for _, tab in ipairs(api.nvim_list_tabpages()) do
      local number = api.nvim_tabpage_get_number(tab)
      if fn.haslocaldir(-1, number) == 1 then
        add(own, fn.getcwd(-1, number))
      end
      for _, win in ipairs(api.nvim_tabpage_list_wins(tab)) do
        -- By window-ID: not every window has a number.
        if fn.haslocaldir(win, number) == 1 then
          add(own, fn.getcwd(win, number))
        end
      end
    end
    -- Asking for vim.lsp would load it.
    if package.loaded["vim.lsp"] then
      for _, client in ipairs(vim.lsp.get_clients()) do
        local uses = false
        for buf in pairs(client.attached_buffers or {}) do
          uses = uses or (api.nvim_buf_is_valid(buf) and option("buflisted", { buf = buf }))
        end
        if uses then
          add(3, client.config and client.config.root_dir or client.root_dir)
          for _, folder in ipairs(client.workspace_folders or {}) do
            local ok, path = pcall(vim.uri_to_fname, folder.uri)
            add(3, ok and path)
          end
        end
      end
    end
    -- An agent in a terminal of Neovim's works in that terminal's folder.
    for _, buf in ipairs(api.nvim_list_bufs()) do
      if option("buftype", { buf = buf }) == "terminal" then
        add(3, api.nvim_buf_get_name(buf):match("^term://(.-)//%d+:"))
      end
    end
    add(4, initial)
    -- The shell's spelling of the folder Neovim was started in.
    add(5, vim.env.PWD)

    int(#roots)
    for _, entry in ipairs(roots) do
      int(entry[1])
      str(entry[2])
    end
  end

  ------------------------------------------------------------------------------------- diagnostics

  --- All diagnostics of a buffer that can be had. `vim.diagnostic.get` copies what plugins put
  --- there and throws on cycles; then the other sources still count.
  local function diagnostics_of(buf)
    local ok, list = pcall(vim.diagnostic.get, buf)
    if ok then
      return list
    end
    local all = {}
    for namespace in pairs(vim.diagnostic.get_namespaces()) do
      local whole_source, part = pcall(vim.diagnostic.get, buf, { namespace = namespace })
      if whole_source then
        vim.list_extend(all, part)
      else
        for severity = 1, 4 do
          local fine, some =
            pcall(vim.diagnostic.get, buf, { namespace = namespace, severity = severity })
          if fine then
            vim.list_extend(all, some)
          end
        end
      end
    end
    return all
  end

  -- Source -> code -> both packed: there are few of them, and many diagnostics.
  local tails, tail_count = {}, 0

  local function pack_tail(source, code)
    local by_code = source ~= nil and tails[source]
    local key = code == nil and "" or code
    local tail = by_code and by_code[key]
    if tail then
      return tail
    end
    local value = code
    if type(value) == "table" then
      value = value.value
    end
    local kind = 0
    if type(value) == "number" and value == floor(value) and math.abs(value) < 2 ^ 53 then
      kind, value = 1, format("%d", value)
    elseif type(value) == "string" or type(value) == "number" then
      kind, value = 2, tostring(value)
    else
      value = ""
    end
    tail = (type(source) == "string" and "1," .. #source .. ":" .. source or "0,")
      .. kind .. "," .. #value .. ":" .. value
    if type(source) == "string" and code ~= "" and type(key) == "string" and #key < 256 then
      if tail_count > 1000 then
        tails, tail_count = {}, 0
      end
      tails[source] = tails[source] or {}
      tails[source][key] = tail
      tail_count = tail_count + 1
    end
    return tail
  end

  local function pack_diagnostics_of(buf)
    local list = package.loaded["vim.diagnostic"] and diagnostics_of(buf) or {}
    local last_line = api.nvim_buf_line_count(buf) - 1
    int(buf)
    int(last_line)
    local count_at = n + 1
    int(0)
    local count = 0
    -- In the order they are met, mostly from top to bottom: looking lines up at random is slow.
    local needed, known_line, lines, first, final = {}, {}, 0, last_line, 0
    local function pack_item(item)
      local line = whole(item.lnum, 0, MAXCOL)
      local end_line = item.end_lnum == nil and line or whole(item.end_lnum, 0, MAXCOL)
      local col = whole(item.col, 0, MAXCOL)
      local end_col = item.end_col == nil and (end_line == line and col or 0)
        or whole(item.end_col, 0, MAXCOL)
      local message = item.message
      message = type(message) == "string" and message or tostring(message)
      if #message > MAX_MESSAGE then
        message = sub(message, 1, MAX_MESSAGE)
      end
      local severity = item.severity == nil and 1 or whole(item.severity, 1, 4)
      out[n + 1] = format("%d,%d,%d,%d,%d,%d:", line, col, end_line, end_col, severity, #message)
      out[n + 2] = message
      out[n + 3] = pack_tail(item.source, item.code)
      n = n + 3
      count = count + 1
      line, end_line = min(line, last_line), min(end_line, last_line)
      if not known_line[line] then
        known_line[line] = true
        lines = lines + 1
        needed[lines] = line
        first, final = min(first, line), max(final, line)
      end
      if not known_line[end_line] then
        known_line[end_line] = true
        lines = lines + 1
        needed[lines] = end_line
        first, final = min(first, end_line), max(final, end_line)
      end
    end

    --- One that cannot be packed is left out: its message may be a table that fails to be text.
    local function pack(item)
      local ok, why = pcall(pack_item, item)
      if not ok then
        failure = reason(why)
      end
    end

    if #list <= MAX_DIAGNOSTICS then
      for i = 1, #list do
        pack(list[i])
      end
    else
      -- The worst ones first.
      for severity = 1, 4 do
        for i = 1, #list do
          local own = list[i].severity == nil and 1 or whole(list[i].severity, 1, 4)
          if own == severity and count < MAX_DIAGNOSTICS then
            pack(list[i])
          end
        end
      end
    end
    out[count_at] = count
    read_at[buf] = count > 0 and api.nvim_buf_get_changedtick(buf) or nil
    many[buf] = count > MANY_DIAGNOSTICS or nil

    -- The lines they are in: Rust makes UTF-16 columns of byte columns.
    int(lines)
    local get_lines = api.nvim_buf_get_lines
    local texts = lines > 0 and final - first < 2 * lines and get_lines(buf, first, final + 1, false)
    for i = 1, lines do
      local line = needed[i]
      local text = (texts and texts[line - first + 1] or get_lines(buf, line, line + 1, false)[1])
        or ""
      out[n + 1] = format("%d,%d:", line, #text)
      out[n + 2] = text
      n = n + 2
    end
  end

  --- Returns in how many ms those put off should be asked for; 0 when there are none.
  local function pack_diagnostics(urgent, all)
    local at = n + 1
    int(0)
    local count, again = 0, 0
    -- Neovim keeps their positions when the text changes, but they are told within the text.
    for buf, tick in pairs(read_at) do
      if not api.nvim_buf_is_loaded(buf) then
        read_at[buf], many[buf] = nil, nil
      elseif api.nvim_buf_get_changedtick(buf) ~= tick and (urgent or all or not many[buf]) then
        diagnostics_dirty[buf] = true
      end
    end
    for buf in pairs(diagnostics_dirty) do
      local start = uv.hrtime() / 1e6
      local wait = (diagnostics_after[buf] or 0) - start
      if not present[buf] or not api.nvim_buf_is_loaded(buf) then
        diagnostics_dirty[buf] = nil
        diagnostics_after[buf] = nil
        known[buf] = nil
      elseif wait > 0 and not urgent then
        again = again == 0 and wait or min(again, wait)
      else
        diagnostics_dirty[buf] = nil
        known[buf] = true
        local before = n
        local ok, why = pcall(pack_diagnostics_of, buf)
        if ok then
          count = count + 1
        else
          n = before
          failure = reason(why)
        end
        local now = uv.hrtime() / 1e6
        -- What costs little may be asked for at any time.
        local cost = now - start
        diagnostics_after[buf] = cost > 5 and now + cost * DIAGNOSTICS_SHARE or nil
      end
    end
    out[at] = count
    return floor(again + 0.999)
  end

  ------------------------------------------------------------------------------------- collecting

  --- Packs one section; one that fails is left out, so that a mistake costs only that section.
  local function section(due, pack, all)
    local before = n
    int(1)
    if due then
      local ok, why = pcall(pack, all)
      if ok then
        return
      end
      failure = reason(why)
    end
    n = before
    int(0)
  end

  ---@param urgent boolean somebody waits for the diagnostics
  ---@return string packed
  ---@return string? failure what went wrong in a section that was left out
  local function collect(urgent)
    out, n, failure = {}, 0, nil
    local now = uv.hrtime() / 1e6
    local all = now - collected_all > FULL_AFTER
    if all then
      collected_all = now
      if not next(visited) then
        for _, info in ipairs(fn.getbufinfo({ buflisted = 1 })) do
          visited[info.bufnr] = info.lastused * 1000
        end
        visited[api.nvim_get_current_buf()] = os.time() * 1000
      end
      if not last then
        local latest = 0
        for buf, time in pairs(visited) do
          if time > latest and api.nvim_buf_is_valid(buf) and api.nvim_buf_is_loaded(buf)
            and file_name(buf) then
            last, latest = buf, time
            last_win = fn.bufwinid(buf)
          end
        end
      end
    end
    -- Of a file that was not sent nobody would know what they are about.
    for buf in pairs(diagnostics_dirty) do
      files_dirty = files_dirty or not present[buf]
    end
    int(FORMAT)
    flag(focused)
    section(true, pack_active)
    section(all or files_dirty, pack_files, all or files_dirty == "all")
    files_dirty = false
    section(all or roots_dirty, pack_roots)
    roots_dirty = false
    local again = pack_diagnostics(urgent, all)
    int(again)
    -- A shorter pack than the one before would leave its tail in `out`.
    local packed = table.concat(out, "", 1, n)
    out = nil
    return packed, failure
  end

  ------------------------------------------------------------------------------------- events

  local function install()
    local group = api.nvim_create_augroup(GROUP, { clear = true })
    local function on(events, callback, pattern)
      api.nvim_create_autocmd(events, {
        group = group,
        pattern = pattern,
        callback = callback,
        desc = "gangway: keep agents informed",
      })
    end
    -- The Rust function itself: nothing else runs on a cursor move.
    on({ "CursorMoved", "CursorMovedI", "TextChanged", "TextChangedI", "TextChangedP" }, mark)
    on("ModeChanged", mode_changed)
    on("TextYankPost", function()
      if began then
        began.yanked = true
      end
    end)
    on("BufEnter", function(event)
      local seconds, micros = uv.gettimeofday()
      visited[event.buf] = seconds * 1000 + floor(micros / 1000)
      files_dirty = files_dirty or true
      if type(options.root) == "function" or option("autochdir", EFFECTIVE) then
        roots_dirty = true
      end
      mark()
    end)
    on({
      "BufAdd", "BufDelete", "BufFilePost", "BufHidden", "BufModifiedSet", "BufNewFile",
      "BufReadPost", "BufUnload", "BufWinEnter", "BufWinLeave", "BufWipeout", "BufWritePost",
      "FileType", "TermClose", "TermOpen",
    }, function(event)
      stale[event.buf] = true
      files_dirty = files_dirty or true
      mark()
    end)
    on({ "BufFilePost", "BufNewFile", "BufReadPost", "BufWritePost" }, function(event)
      plain[get_name(event.buf)] = nil
    end)
    on("OptionSet", function()
      files_dirty = "all"
      mark()
    end, { "buftype", "buflisted" })
    on("OptionSet", function()
      widths = {}
    end, { "ambiwidth", "emoji", "display", "isprint" })
    on({ "TabClosed", "TabEnter", "WinClosed", "WinEnter" }, function()
      files_dirty, roots_dirty = files_dirty or true, true
      mark()
    end)
    on({ "DirChanged", "LspAttach", "LspDetach", "VimEnter" }, function()
      roots_dirty = true
      mark()
    end)
    on("OptionSet", function()
      roots_dirty = true
      mark()
    end, "autochdir")
    on("DiagnosticChanged", function(event)
      diagnostics_dirty[event.buf] = true
      mark()
    end)
    on({ "BufDelete", "BufWipeout" }, function(event)
      visited[event.buf] = nil
      if held and held.buf == event.buf then
        held = nil
      end
    end)
    on({ "FocusGained", "FocusLost" }, function(event)
      focused = event.event == "FocusGained"
      mark()
    end)
  end

  return {
    install = install,
    collect = collect,
    selected = selected_lines,
    set_root = function(root)
      options.root = root
      roots_dirty = true
      mark()
    end,
    remove = function()
      pcall(api.nvim_del_augroup_by_name, GROUP)
      return held
    end,
  }
end
