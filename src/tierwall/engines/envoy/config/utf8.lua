-- Writes characters in UTF-8. It stands before the scripts that use it.

local utf8
do
  local char, floor = string.char, math.floor
  utf8 = function(number)
    if number < 0x80 then return char(number) end
    if number < 0x800 then return char(0xc0 + floor(number / 64), 0x80 + number % 64) end
    local last = char(0x80 + floor(number / 64) % 64, 0x80 + number % 64)
    if number < 0x10000 then return char(0xe0 + floor(number / 4096)) .. last end
    return char(0xf0 + floor(number / 262144), 0x80 + floor(number / 4096) % 64) .. last
  end
end

