-- Whether these records are unchanged since they were read (1 or 0). ARGV: table, key and revision of each.
for n = 1, #ARGV, 3 do
    local found = redis.call('HGET', ARGV[n], ARGV[n + 1])
    if (found and string.match(found, '^(%d+)|') or '') ~= ARGV[n + 2] then return 0 end
end
return 1
