-- Put before a script whose arguments are for many records. Very many arguments are packed into a few JSON arrays:
-- Redis before 7.0 takes at most 1,048,576 arguments.
local arguments = ARGV
if ARGV[1] == 'packed' then
    arguments = {}
    for n = 2, #ARGV do
        for _, each in ipairs(cjson.decode(ARGV[n])) do arguments[#arguments + 1] = each end
    end
end
