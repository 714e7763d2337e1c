-- Reads JSON as RFC 8259 defines it, and returns where values are, so that they can be taken over as they are written.
-- What is not exactly JSON, or names a key twice, is not read at all. It stands before the script that uses it. All that
-- clients send passes through it, so it goes by bytes and plain searches, which LuaJIT compiles, and not by patterns.

local find, sub, byte = string.find, string.sub, string.byte
local DEEPEST = 100
-- How many values are noted of one text: each takes a hundred bytes, and its text perhaps two.
local MOST_NOTED = 200000
local ESCAPES = { [34] = true, [92] = true, [47] = true, [98] = true, [102] = true, [110] = true, [114] = true, [116] = true }
local HEX = {}
for current = 0, 255 do HEX[current] = find(string.char(current), "%x") ~= nil end

local function after_blanks(text, at)
  local current = byte(text, at)
  while current == 32 or current == 10 or current == 13 or current == 9 do
    at = at + 1
    current = byte(text, at)
  end
  return at
end

-- Whether every byte above 127 is part of a character in UTF-8.
local function is_utf8(text)
  local at, length = find(text, "[\128-\255]") or #text + 1, #text
  while at <= length do
    local first, further = byte(text, at), 0
    if first > 127 then
      if first < 194 or first > 244 then return false end
      further = first < 224 and 1 or first < 240 and 2 or 3
      local lowest = first == 224 and 160 or first == 240 and 144 or 128
      local highest = first == 237 and 159 or first == 244 and 143 or 191
      for number = 1, further do
        local current = byte(text, at + number)
        if not current or current < lowest or current > highest then return false end
        lowest, highest = 128, 191
      end
    end
    at = at + further + 1
  end
  return true
end

-- Of the text that is read: where its next backslash is, and whether it has control characters. Most texts have none.
local next_slash, has_controls = 0, true

-- Returns the position after a string whose opening quote is at `at`; nil if it is none.
local function string_stop(text, at)
  if not has_controls then
    if next_slash < at then next_slash = find(text, "\\", at, true) or #text + 1 end
    local stop = find(text, '"', at + 1, true)
    if not stop or stop < next_slash then return stop and stop + 1 end
  end
  at = at + 1
  while true do
    local current = byte(text, at)
    if not current or current < 32 then return nil end
    if current == 34 then return at + 1 end
    if current ~= 92 then
      at = at + 1
    elseif byte(text, at + 1) == 117 then
      for digit = at + 2, at + 5 do
        if not HEX[byte(text, digit) or 0] then return nil end
      end
      at = at + 6
    elseif ESCAPES[byte(text, at + 1) or 0] then
      at = at + 2
    else
      return nil
    end
  end
end

-- Returns the position after the digits at `at`.
local function digits_stop(text, at)
  local current = byte(text, at)
  while current and current >= 48 and current <= 57 do
    at = at + 1
    current = byte(text, at)
  end
  return at
end

local function number_stop(text, at)
  if byte(text, at) == 45 then at = at + 1 end
  local stop = digits_stop(text, at)
  if stop == at or byte(text, at) == 48 and stop > at + 1 then return nil end
  if byte(text, stop) == 46 then
    at, stop = stop + 1, digits_stop(text, stop + 1)
    if stop == at then return nil end
  end
  local mark = byte(text, stop)
  if mark ~= 69 and mark ~= 101 then return stop end
  local sign = byte(text, stop + 1)
  at = (sign == 43 or sign == 45) and stop + 2 or stop + 1
  stop = digits_stop(text, at)
  return stop > at and stop or nil
end

local value_stop
-- How many values of the text are noted.
local noted = 0

-- Goes through an object or a list whose bracket is at `at`, and returns the position after it; nil if it is none. With
-- `wanted`, it also returns where the values are: by key, or by number, each as `{ from, to, what is inside }`. `wanted`
-- says the same of what is inside: by key, or `each` for a list. An object with a key that occurs twice or could do so
-- is false: with an escape in it, a key may be any other.
local function walk(text, at, depth, wanted)
  local is_object = byte(text, at) == 123
  local closing = is_object and 125 or 93
  local out, count, is_clear = wanted and {}, 0, true
  if depth > DEEPEST then return nil end
  at = after_blanks(text, at + 1)
  if byte(text, at) == closing then return at + 1, out end
  while true do
    local key = nil
    if is_object then
      local stop = byte(text, at) == 34 and string_stop(text, at)
      if not stop then return nil end
      key = wanted and sub(text, at + 1, stop - 2)
      at = after_blanks(text, stop)
      if byte(text, at) ~= 58 then return nil end
      at = after_blanks(text, at + 1)
    end
    local stop, inside_it = value_stop(text, at, depth + 1, wanted and wanted[key or "each"])
    if not stop then return nil end
    if wanted then
      count, noted = count + 1, noted + 1
      if noted > MOST_NOTED then return nil end
      if key and (out[key] or find(key, "\\", 1, true)) then is_clear = false end
      out[key or count] = { at, stop - 1, inside_it }
    end
    at = after_blanks(text, stop)
    local current = byte(text, at)
    if current == closing then return at + 1, out and is_clear and out end
    if current ~= 44 then return nil end
    at = after_blanks(text, at + 1)
  end
end

value_stop = function(text, at, depth, wanted)
  local first = byte(text, at)
  if first == 34 then return string_stop(text, at) end
  if first == 123 or first == 91 then return walk(text, at, depth, wanted) end
  if first == 116 then return sub(text, at, at + 3) == "true" and at + 4 or nil end
  if first == 110 then return sub(text, at, at + 3) == "null" and at + 4 or nil end
  if first == 102 then return sub(text, at, at + 4) == "false" and at + 5 or nil end
  return number_stop(text, at)
end

local function read(text, bracket, wanted)
  local at = after_blanks(text, 1)
  if byte(text, at) ~= bracket then return nil end
  next_slash, noted, has_controls = 0, 0, find(text, "[%z\1-\31]") ~= nil
  local stop, out = walk(text, at, 1, wanted)
  return stop and out and after_blanks(text, stop) > #text and out or nil
end

-- Returns where the values of an object are, by key; nil if a text is not exactly one object with clear keys.
local function fields(text, wanted)
  return read(text, 123, wanted or {})
end

-- Returns the entries of a list as they are written; nil if a text is not exactly one list.
local function entries(text)
  local found, out = read(text, 91, {}), {}
  for number = 1, found and #found or 0 do out[number] = sub(text, found[number][1], found[number][2]) end
  return found and out
end

local function value(text, known, key)
  local span = known and known[key]
  return span and sub(text, span[1], span[2])
end

-- Returns what stands between the quotes of a string; nil for any other value.
local function inside(raw)
  return raw and byte(raw, 1) == 34 and sub(raw, 2, -2) or nil
end

-- Returns a text with another value in the place of one.
local function with(text, span, raw)
  return sub(text, 1, span[1] - 1) .. raw .. sub(text, span[2] + 1)
end
