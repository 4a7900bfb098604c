-- The version of the Lua side; the library must say the same (a test compares with Cargo.toml).
return '0.1.0'
