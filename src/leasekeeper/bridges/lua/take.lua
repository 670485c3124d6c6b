-- Takes up to ARGV[1] messages and keeps each in the hash of taken ones, under an id that cannot repeat.
-- KEYS: one message that a blocking move put there, the list, the hash. ARGV: how many, a random word, LPOP or RPOP.
-- A message is in the hash before it leaves the list: a script that fails half way (no memory) does not lose it.
local now = redis.call('TIME')
local stamp = string.format('%010d%06d', now[1], now[2])
local taken = {}
for place = 1, tonumber(ARGV[1]) do
    local list, pop, at = KEYS[1], 'RPOP', -1
    local body = redis.call('LINDEX', list, at)
    if not body then
        list, pop, at = KEYS[2], ARGV[3], ARGV[3] == 'RPOP' and -1 or 0
        body = redis.call('LINDEX', list, at)
    end
    if not body then
        break
    end
    local id = string.format('%s-%s-%04d', stamp, ARGV[2], place)
    redis.call('HSET', KEYS[3], id, body)
    redis.call(pop, list)
    taken[#taken + 1] = id
    taken[#taken + 1] = body
end
return taken
