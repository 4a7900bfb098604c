-- stub
return function(mark, options) return { install = function() end, collect = function() return "" end, remove = function() end } end
