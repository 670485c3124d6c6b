-- Goes before scripts with arguments for many records. Where there are very many, they come packed as JSON into a few:
-- Redis before 7.0 takes no more than 1,048,576 at once.
local arguments = ARGV
if ARGV[1] == 'packed' then
    arguments = {}
    for n = 2, #ARGV do
        for _, each in ipairs(cjson.decode(ARGV[n])) do arguments[#arguments + 1] = each end
    end
end
