-- The groups of an index with their numbers of records. A group is the part of a member before the record's key. The
-- cost depends on the number of groups, not of records. ARGV: the group to continue after, the minimum number of groups
-- to return, if there are so many; KEYS[1] is the index.
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
    -- The last group of the page may have more members on the next.
    if #members == PAGE then
        size = redis.call('ZLEXCOUNT', KEYS[1], '[' .. group .. '\0', '(' .. group .. '\0\255')
    end
    found[#found + 1], found[#found + 2] = group, size
    after = group
end
return found
