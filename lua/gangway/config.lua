-- The defaults, and the types of what users write (SetupOpts) and what is in force (Config).
-- The library validates (src/config.rs); tests/docs.py keeps the two, and the help, in step.
local M = {}

---@class gangway.Config
---@field auto_start boolean|"always" start with a UI; "always" also when headless
---@field agents gangway.config.Agents
---@field context gangway.config.Context
---@field review gangway.config.Review
---@field suggestion gangway.config.Suggestion
---@field log_level "off"|"error"|"warn"|"info"|"debug"|"trace"

---@class gangway.config.Agents
---@field pi { enabled: boolean }
---@field claude { enabled: boolean, diffs: boolean } also serves opencode
---@field aivyx { enabled: boolean|"auto", approvals: boolean }
---@field rivumi { enabled: boolean|"auto", websocket_url: string? }
---@field gemini { enabled: boolean|"auto" }
---@field qwen { enabled: boolean|"auto" }
---@field copilot { enabled: boolean|"auto" }
---@field amp { enabled: boolean|"auto" }
---@field codex { enabled: boolean } its socket is shared with other programs

---@class gangway.config.Context
---@field enabled boolean
---@field debounce_ms number
---@field max_wait_ms number
---@field exclude string[]? nil: the built-in patterns
---@field root string|(fun(): string|string[])|nil nil: the folders Neovim works in

---@class gangway.config.Review
---@field layout "tab"
---@field focus "auto"|"never"|"always"
---@field bell boolean
---@field keys { accept: string|false, reject: string|false, always: string|false, drop_hunk: string|false }

---@class gangway.config.Suggestion
---@field keys { take: string|false, next: string|false, dismiss: string|false }

--- What users write: every field may be left out.
---@class (exact) gangway.SetupOpts
---@field auto_start? boolean|"always"
---@field agents? gangway.setup.Agents
---@field context? gangway.setup.Context
---@field review? gangway.setup.Review
---@field suggestion? gangway.setup.Suggestion
---@field log_level? "off"|"error"|"warn"|"info"|"debug"|"trace"

---@class (exact) gangway.setup.Agents
---@field pi? { enabled?: boolean }
---@field claude? { enabled?: boolean, diffs?: boolean }
---@field aivyx? { enabled?: boolean|"auto", approvals?: boolean }
---@field rivumi? { enabled?: boolean|"auto", websocket_url?: string }
---@field gemini? { enabled?: boolean|"auto" }
---@field qwen? { enabled?: boolean|"auto" }
---@field copilot? { enabled?: boolean|"auto" }
---@field amp? { enabled?: boolean|"auto" }
---@field codex? { enabled?: boolean }

---@class (exact) gangway.setup.Context
---@field enabled? boolean
---@field debounce_ms? number
---@field max_wait_ms? number
---@field exclude? string[]
---@field root? string|(fun(): string|string[])

---@class (exact) gangway.setup.Review
---@field layout? "tab"
---@field focus? "auto"|"never"|"always"
---@field bell? boolean
---@field keys? { accept?: string|false, reject?: string|false, always?: string|false, drop_hunk?: string|false }

---@class (exact) gangway.setup.Suggestion
---@field keys? { take?: string|false, next?: string|false, dismiss?: string|false }

---@type gangway.Config
M.defaults = {
  auto_start = true,
  agents = {
    pi = { enabled = true },
    claude = { enabled = true, diffs = true },
    aivyx = { enabled = 'auto', approvals = true },
    rivumi = { enabled = 'auto', websocket_url = nil },
    gemini = { enabled = 'auto' },
    qwen = { enabled = 'auto' },
    copilot = { enabled = 'auto' },
    amp = { enabled = 'auto' },
    codex = { enabled = false },
  },
  context = { enabled = true, debounce_ms = 100, max_wait_ms = 300, exclude = nil, root = nil },
  review = {
    layout = 'tab',
    focus = 'auto',
    bell = false,
    keys = {
      accept = '<localleader>a',
      reject = '<localleader>r',
      always = '<localleader>A',
      drop_hunk = '<localleader>x',
    },
  },
  suggestion = { keys = { take = '<Tab>', next = '<M-]>', dismiss = '<C-]>' } },
  log_level = 'info',
}

return M
