-- One commit: compares everything that the decision is based on, then writes everything. If anything differs, nothing
-- is written. Returns {'', time} if it was written, else {'schema'|'late'|'turn'} or {'conflict', which...}.
-- KEYS[1] is a key with the prefix, so that a cluster knows where to run this.
-- ARGV: prefix, schema, slot, number of the commit, then lists, each after its length; see records.py.
local prefix, schema, slot, commit = arguments[1], arguments[2], arguments[3], tonumber(arguments[4])
local at = 5
local function take() local value = arguments[at]; at = at + 1; return value end

if redis.call('GET', prefix .. 'schema') ~= schema then return {'schema'} end
local done = redis.call('HGET', prefix .. 'commits', slot)
if done and tonumber(string.match(done, '^%d+')) >= commit then return {'late'} end
-- A transaction that had too many conflicts has the turn: others wait. The turn expires; correctness does not need it.
local turn = redis.call('GET', prefix .. 'turn')
if turn and turn ~= slot then return {'turn'} end

local conflicts = {'conflict'}
local locked = {}
-- Records: table, key, revision ('' for none), '1' if it is locked.
for number = 1, tonumber(take()) do
    local name, key, revision, lock = take(), take(), take(), take()
    local found = redis.call('HGET', name, key)
    local now = found and string.match(found, '^(%d+)|') or ''
    if now ~= revision then
        conflicts[#conflicts + 1] = 'r' .. number
    elseif lock == '1' and found then
        locked[#locked + 1] = {name, key, string.sub(found, #now + 1)}
    end
end
-- Unique indexes: hash, value, the record's key ('' for none).
for number = 1, tonumber(take()) do
    local name, field, key = take(), take(), take()
    if (redis.call('HGET', name, field) or '') ~= key then conflicts[#conflicts + 1] = 'u' .. number end
end
-- Locks of names: name, revision.
local names = {}
for number = 1, tonumber(take()) do
    local name, revision = take(), take()
    if (redis.call('HGET', prefix .. 'locks', name) or '') ~= revision then
        conflicts[#conflicts + 1] = 'n' .. number
    end
    names[#names + 1] = name
end
if #conflicts > 1 then return conflicts end

-- A revision is never reused, even after the last writes were lost: it is the time in microseconds, or higher.
local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local revision = math.max(tonumber(redis.call('GET', prefix .. 'revision') or '0') + 1, micros)
local stamp = string.format('%.0f', revision)
redis.call('SET', prefix .. 'revision', stamp)
if turn then redis.call('DEL', prefix .. 'turn') end
redis.call('HSET', prefix .. 'commits', slot, string.format('%.0f', commit) .. ':' .. time[1])
for _, lock in ipairs(locked) do redis.call('HSET', lock[1], lock[2], stamp .. lock[3]) end
for _, name in ipairs(names) do redis.call('HSET', prefix .. 'locks', name, stamp) end

-- Records to write: table, key, values.
for _ = 1, tonumber(take()) do
    local name, key, values = take(), take(), take()
    redis.call('HSET', name, key, stamp .. '|' .. values)
end
-- Other commands: number of arguments, arguments.
for _ = 1, tonumber(take()) do
    local count = tonumber(take())
    redis.call(unpack(arguments, at, at + count - 1))
    at = at + count
end
-- Events: values, the sorted sets it is in, the records whose newest state it has. They get the next numbers.
local events, sets = tonumber(take()), {}
if events > 0 then
    local seq = redis.call('INCRBY', prefix .. 'events:last', events) - events
    for number = 1, events do
        local own = string.format('%.0f', seq + number)
        local member = '\0' .. string.rep('0', 20 - #own) .. own
        redis.call('HSET', prefix .. 'events', own, take())
        for _ = 1, tonumber(take()) do
            local name = take()
            local members = sets[name] or {}
            sets[name] = members
            members[#members + 1] = 0
            members[#members + 1] = member
        end
        for _ = 1, tonumber(take()) do redis.call('HSET', prefix .. 'events:newest', take(), own) end
    end
    for name, members in pairs(sets) do
        for n = 1, #members, 1000 do
            redis.call('ZADD', name, unpack(members, n, math.min(n + 999, #members)))
        end
    end
end
return {'', stamp}
