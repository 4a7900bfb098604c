-- lualine's component "gangway": what require("gangway").statusline() says.
local Component = require('lualine.component'):extend()

function Component:update_status() return require('gangway').statusline() end

return Component
