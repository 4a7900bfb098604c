-- Loaded buffers that hold a file: { { buf, name }, … }.
local out = {}
for _, buf in ipairs(vim.api.nvim_list_bufs()) do
  if vim.api.nvim_buf_is_loaded(buf) and vim.bo[buf].buftype == '' then
    local name = vim.api.nvim_buf_get_name(buf)
    if name:sub(1, 1) == '/' then out[#out + 1] = { buf, name } end
  end
end
return out
