-- The answer to a commit was lost: was it made? If not, it never will be. ARGV: prefix, slot, number of the commit.
local commits, slot, commit = ARGV[1] .. 'commits', ARGV[2], tonumber(ARGV[3])
local found = redis.call('HGET', commits, slot)
if found and tonumber(string.match(found, '^%d+')) >= commit then
    return string.match(found, ':barred$') and 0 or 1
end
redis.call('HSET', commits, slot, string.format('%.0f', commit) .. ':' .. redis.call('TIME')[1] .. ':barred')
return 0
