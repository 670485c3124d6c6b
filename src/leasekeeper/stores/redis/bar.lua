-- Whether a commit was made whose response was lost. If not, it is barred: it can never be made any more.
-- ARGV: prefix, slot, number of the commit. Returns 1 if it was made, else 0.
local commits, slot, commit = ARGV[1] .. 'commits', ARGV[2], tonumber(ARGV[3])
local found = redis.call('HGET', commits, slot)
if found and tonumber(string.match(found, '^%d+')) >= commit then
    return string.match(found, ':barred$') and 0 or 1
end
redis.call('HSET', commits, slot, string.format('%.0f', commit) .. ':' .. redis.call('TIME')[1] .. ':barred')
return 0
