-- Puts messages back to the end of the list that is taken from. The oldest comes last, so that it is taken first.
-- KEYS: the hash of taken ones, the list. ARGV: LPUSH or RPUSH, then ids, the newest first.
for place = 2, #ARGV do
    local body = redis.call('HGET', KEYS[1], ARGV[place])
    if body then
        redis.call(ARGV[1], KEYS[2], body)
        redis.call('HDEL', KEYS[1], ARGV[place])
    end
end
return #ARGV - 1
