-- Moves messages from the hash of taken ones to the list of invalid ones, each with its reason.
-- KEYS: the hash, that list. ARGV: id and document, in turns. A message that is gone was moved before.
for place = 1, #ARGV, 2 do
    if redis.call('HEXISTS', KEYS[1], ARGV[place]) == 1 then
        redis.call('LPUSH', KEYS[2], ARGV[place + 1])
        redis.call('HDEL', KEYS[1], ARGV[place])
    end
end
return #ARGV / 2
