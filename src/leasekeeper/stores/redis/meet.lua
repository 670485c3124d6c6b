-- Run on each new connection: checks whether this is the same server process as before. Another process (a restart, a
-- failover) may have lost the last writes, and grants with them. So tokens continue above any that can have been
-- granted. If the server can lose acknowledged writes, no lease is granted until any lost lease has expired, and the
-- records of earlier leases count as incomplete.
-- ARGV: prefix, the process's id, for how many milliseconds no lease is granted. Returns the schema, the lowest token,
-- when grants resume (milliseconds), the longest TTL of a lease (milliseconds), '1' if the process is another one, the
-- highest token whose lease may lack writes.
local prefix, process, grace = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('EXISTS', prefix .. 'schema') == 0 then return {'', '0', '0', '0', '0', '0'} end
local server = prefix .. 'server'
local known = redis.call('HGET', server, 'process')
-- Clients may have different TTLs: the longest of all clients counts, not that of the first one to connect.
local longest = tonumber(redis.call('HGET', server, 'longest_grace') or '0')
if grace > longest then redis.call('HSET', server, 'longest_grace', ARGV[3]) end
-- A job may have asked for a longer lease.
longest = math.max(longest, tonumber(redis.call('ZSCORE', prefix .. 'longest_ttl', 'ms') or '0'))
local other = known and known ~= process
if other then
    local time = redis.call('TIME')
    local floor = tonumber(time[1]) * 100 + math.floor(tonumber(time[2]) / 10000)
    local before = tonumber(redis.call('HGET', server, 'lowest_token') or '0')
    local lowest = string.format('%.0f', math.max(floor, before + 1))
    redis.call('HSET', server, 'lowest_token', lowest)
    -- 'loses' says how the dead process kept its data: this one may have other settings.
    if grace > 0 or redis.call('HGET', server, 'loses') == '1' then
        redis.call('HSET', server, 'incomplete_token', lowest)
        local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        redis.call('HSET', server, 'grants_resume_at', string.format('%.0f', now + math.max(grace, longest)))
    end
end
if known ~= process then redis.call('HSET', server, 'process', process, 'loses', '0') end
if grace > 0 then redis.call('HSET', server, 'loses', '1') end
-- A connection that ended without cleaning up left the number of its last commit, which is not needed after a day. Each
-- connection leaves at most one, and each new connection checks some at random: there are never many.
local commits = prefix .. 'commits'
local left = redis.call('HRANDFIELD', commits, 16, 'WITHVALUES')
for n = 1, #left, 2 do
    local at = tonumber(string.match(left[n + 1], '^%d+:(%d+)') or '0')
    if at + 86400 < tonumber(redis.call('TIME')[1]) then redis.call('HDEL', commits, left[n]) end
end
return {
    redis.call('GET', prefix .. 'schema'), redis.call('HGET', server, 'lowest_token') or '0',
    redis.call('HGET', server, 'grants_resume_at') or '0', string.format('%.0f', longest), other and '1' or '0',
    redis.call('HGET', server, 'incomplete_token') or '0',
}
