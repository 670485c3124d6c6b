-- The first distinct values of an index's first field, after a value. ARGV: after, limit; KEYS[1] is the index.
local after, found = ARGV[1], {}
for _ = 1, tonumber(ARGV[2]) do
    local members = redis.call('ZRANGEBYLEX', KEYS[1], '(' .. after .. '\0\255', '+', 'LIMIT', 0, 1)
    if #members == 0 then break end
    after = string.match(members[1], '^([^%z]*)')
    found[#found + 1] = after
end
return found
