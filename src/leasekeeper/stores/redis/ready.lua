-- The first ready lanes of all indexes, without those that another claimer chose a moment ago. Skipping those avoids
-- conflicts; it expires, and correctness does not need it. ARGV: prefix, claimer, limit, engine ('' for any),
-- milliseconds, then lanes to leave out; KEYS[2...] are the indexes. Returns lanes, each with its record.
local prefix, claimer, limit, engine, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local chosen, lanes = prefix .. 'chosen', prefix .. 'lanes'
local out = {}
for n = 6, #ARGV do out[ARGV[n]] = true end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local found = {}
for n = 2, #KEYS do
    local from, got = 0, 0
    while got < limit do
        local members = redis.call('ZRANGE', KEYS[n], from, from + limit * 2 + 15)
        if #members == 0 then break end
        from = from + #members
        for _, member in ipairs(members) do
            local lane = string.sub(member, 53)
            local known = string.sub(member, 32, 51)
            if not out[lane] and (not engine or tonumber(known) <= engine) then
                local by = redis.call('HGET', chosen, lane)
                local owner, till = nil, 0
                if by then owner, till = string.match(by, '^(.-)|(%d+)$'); till = tonumber(till) end
                if not by or owner == claimer or till < now then
                    found[#found + 1] = {string.sub(member, 1, 31), lane}
                    got = got + 1
                    if got >= limit then break end
                end
            end
        end
    end
end
table.sort(found, function(a, b) if a[1] == b[1] then return a[2] < b[2] end return a[1] < b[1] end)
local answer = {}
for n = 1, math.min(limit, #found) do
    local lane = found[n][2]
    if keep > 0 then redis.call('HSET', chosen, lane, claimer .. '|' .. string.format('%.0f', now + keep)) end
    answer[#answer + 1] = lane
    answer[#answer + 1] = redis.call('HGET', lanes, lane) or ''
end
return answer
