-- Whether all records are still as they were read. ARGV: count, then table, key and revision of each.
for n = 2, #arguments, 3 do
    local found = redis.call('HGET', arguments[n], arguments[n + 1])
    if (found and string.match(found, '^(%d+)|') or '') ~= arguments[n + 2] then return 0 end
end
return 1
