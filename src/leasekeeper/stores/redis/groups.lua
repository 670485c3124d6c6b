-- The groups of an index, each with how many records it has: a group is what stands before the record's key. Its cost is
-- that of the groups, however many records they have. ARGV: after which group, how many at least, if there are so many;
-- KEYS[1] is the index.
local PAGE = 50
local after, found = ARGV[1], {}
while #found < tonumber(ARGV[2]) * 2 do
    local members = redis.call('ZRANGEBYLEX', KEYS[1], '(' .. after .. '\0\255', '+', 'LIMIT', 0, PAGE)
    if #members == 0 then break end
    local group, size = nil, 0
    for _, member in ipairs(members) do
        local own = string.match(member, '^(.*)%z[^%z]*$')
        if group and own ~= group then
            found[#found + 1], found[#found + 2] = group, size
            size = 0
        end
        group, size = own, size + 1
    end
    -- The last one of the page may go on.
    if #members == PAGE then
        size = redis.call('ZLEXCOUNT', KEYS[1], '[' .. group .. '\0', '(' .. group .. '\0\255')
    end
    found[#found + 1], found[#found + 2] = group, size
    after = group
end
return found
