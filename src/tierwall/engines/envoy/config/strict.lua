-- Refuses messages that a server might read differently than Envoy did, and forwards every other in one line.
--
-- JSON: Envoy accepts more than JSON: unquoted and single-quoted keys, escapes and blanks that JSON does not have, commas
-- before a closing bracket, control characters in strings. It also loses its position after an empty key. Servers differ
-- on all of these, so a message must be JSON as RFC 8259 defines it, with whole surrogate pairs. (Envoy refuses what is not
-- UTF-8, and numbers beyond doubles.)
-- Lines: a server behind a pipe may read each line as a message of its own. So line breaks between tokens become blanks,
-- and the three characters beyond ASCII that some readers take for line breaks become escapes.
-- Keys: some parsers read `Name` or `paramſ` as `name` and `params`. At the two levels that policies read, a key must be
-- ASCII. A key that folds, trims or unescapes to a known key must be that key. No object may have two keys that are
-- equal once unescaped and in normalization form NFKC (the MCP filter looks for repeated keys too, but not in lists, and
-- not for values that are lists). If rules read arguments, no object inside them may have two keys that fold to one.
-- Values: the name or URI must be a string without control characters and without surrounding blanks. Some servers
-- accept parameters as a list, by position, and Envoy ignores those.
-- Methods: `Tools/Call` is not a call for Envoy, but it may be for a server. A message with both a method and a result is
-- a response for Envoy, but it may be a call for a server. Envoy calls the method of responses `__jsonrpc_response`.
-- Answers have a result or an error, never both.
-- Headers: a server may go by `Mcp-Method`, `Mcp-Name` and `MCP-Protocol-Version` instead of the body, in any version
-- of the protocol, so they must agree with it. Envoy compares them for one version only.
-- Ends: if the rest of a body arrives later, the MCP filter stops reading where the message ends. It also accepts a
-- message that trailers cut off. So the message must be complete, with nothing after it. Trailers are not forwarded:
-- Envoy speaks HTTP/1.1 to backends and sends no trailers there.
-- Encodings: a server may decode the body by a charset or content-encoding that Envoy ignores.
--
-- It also tells the filters behind it what Envoy does not read: the id as it is written, what a completion or a
-- subscription is about, and whether any version of the protocol knows the method.
--
-- Every message passes through this script, so the common path only uses what LuaJIT compiles: bytes and plain searches.
-- Patterns, which it does not compile, are limited to rare cases. If a script fails, Envoy lets the request pass, so the
-- script catches failures and refuses the request.

local find, sub, lower, byte, gsub = string.find, string.sub, string.lower, string.byte, string.gsub
local floor, concat, sort = math.floor, table.concat, table.sort

local READS_ARGUMENTS = false
-- Lines: a character with its compatibility decomposition, or alone if it is a combining mark that has none; and a
-- character with its case folding (`mcp.py`).
local DECOMPOSITIONS = ""
local CASE_FOLDINGS = ""
-- Methods of all versions of the protocol; those that have a URI or the id of a task in the place of a name.
local KNOWN_METHODS = {}
local NAMED_BY_URI = {}
local NAMED_BY_TASK = {}

local TOP = { jsonrpc = true, id = true, method = true, params = true, result = true, error = true }
-- A folded key whose spelling has capitals is known, but false: it must be spelt with them.
local PARAMS = {
  name = true, uri = true, arguments = true, _meta = true, ref = true, notifications = true, taskId = true, taskid = false,
}
local REF = { type = true, name = true, uri = true }
local LIST_CHANGES = { toolsListChanged = "tools ", promptsListChanged = "prompts ", resourcesListChanged = "resources " }
local VERSION_KEY, NEWEST = "io.modelcontextprotocol/protocolVersion", "2026-07-28"
local LISTEN, COMPLETION = "subscriptions/listen", "completion/"
local OF_PROMPT, OF_RESOURCE, OF_SOMETHING_ELSE = "completion of prompt", "completion of resource", "something else"
local TO_RESOURCES, MOST_URIS = "subscription to resources", 8
local METHODS = {
  ["tools/call"] = true, ["tools/list"] = true, ["prompts/get"] = true, ["prompts/list"] = true,
  ["resources/read"] = true, ["resources/list"] = true, ["resources/subscribe"] = true,
  ["resources/unsubscribe"] = true, ["resources/templates/list"] = true,
}
local RESPONSE = "__jsonrpc_response"

local MOST_NAMES, LONGEST_NAME = 1000, 128
-- The id becomes a header, and Envoy cannot ask about a request with more than 60 KiB of headers.
local LONGEST_ID = 10000
local DEEPEST, MOST_MARKS = 100, 30
-- What stays in memory from one message to the next.
local MOST_BYTES, ENTRY_BYTES = 200000, 40
local MOST_WIDE_BYTES = 65536
local SHORT_ESCAPES = {
  [34] = '"', [92] = "\\", [47] = "/", [98] = "\b", [102] = "\f", [110] = "\n", [114] = "\r", [116] = "\t",
}

-- Returns a table by byte, which is an array for LuaJIT: everything that is not in it is false.
local function by_byte(values)
  local out = {}
  for current = 0, 255 do out[current] = values[current] or false end
  return out
end

local BLANKS = by_byte({ [32] = true, [9] = true, [10] = true, [13] = true })
local HEX = by_byte({})
for digit = 0, 15 do
  local text = string.format("%x", digit)
  HEX[byte(text)], HEX[byte(text:upper())] = digit, digit
end
-- What some readers take for line breaks: U+0085, U+2028 and U+2029.
local WIDE_BREAKS = { "\194\133", "\226\128\168", "\226\128\169" }
-- Blanks beyond ASCII and zero-width characters, in UTF-8.
local WIDE_BLANKS = {
  "\194[\128-\160\173]", "\205\143", "\225\154\128", "\225\160\142", "\226\128[\128-\143\168-\175]",
  "\226\129[\159-\175]", "\227\128\128", "\239\184[\128-\143]", "\239\187\191",
}

local NOT_JSON, INCOMPLETE = "it is not plain JSON", "the message is incomplete"
local ALIKE, REPEATED = "a key could be read as another key", "an object has two keys that are the same or alike"

-- Whether a text is ASCII without control characters. This and the next function look at eight bytes at a time if they
-- can.
local function is_printable(text)
  for at = 1, #text do
    local current = byte(text, at)
    if current < 32 or current > 127 then return false end
  end
  return true
end

local function has_controls(text)
  for at = 1, #text do
    if byte(text, at) < 32 then return true end
  end
  return false
end

local has_ffi, ffi = pcall(require, "ffi")
if has_ffi then
  local cast, band, bor, bnot = ffi.cast, bit.band, bit.bor, bit.bnot
  local is_printable_by_byte, has_controls_by_byte = is_printable, has_controls
  local WORDS, LOWEST, HIGHEST = ffi.typeof("const uint64_t *"), 0x2020202020202020ULL, 0x8080808080808080ULL

  -- Subtracting 0x20 from each byte sets the highest bit of the first one that is smaller.
  is_printable = function(text)
    local words, count = cast(WORDS, text), floor(#text / 8)
    for at = 0, count - 1 do
      local word = words[at]
      if band(bor(word - LOWEST, word), HIGHEST) ~= 0 then return false end
    end
    return is_printable_by_byte(sub(text, count * 8 + 1))
  end

  has_controls = function(text)
    local words, count = cast(WORDS, text), floor(#text / 8)
    for at = 0, count - 1 do
      local word = words[at]
      if band(band(word - LOWEST, bnot(word)), HIGHEST) ~= 0 then return true end
    end
    return has_controls_by_byte(sub(text, count * 8 + 1))
  end
end

-- Returns the number of bytes of the character that starts with a byte over 127.
local function character_length(text, at)
  local first = byte(text, at)
  return first < 0xe0 and 2 or first < 0xf0 and 3 or 4
end

local function code_point(text)
  local first, second, third, fourth = byte(text, 1, 4)
  if fourth then return first % 8 * 262144 + second % 64 * 4096 + third % 64 * 64 + fourth % 64 end
  if third then return first % 16 * 4096 + second % 64 * 64 + third % 64 end
  return first % 32 * 64 + second % 64
end

-- Returns the number after `\u`; nil if it is not four hexadecimal digits.
local function escaped_unit(text, at)
  local a, b, c, d = byte(text, at + 2, at + 5)
  a, b, c, d = HEX[a or 0], HEX[b or 0], HEX[c or 0], HEX[d or 0]
  return a and b and c and d and a * 4096 + b * 256 + c * 16 + d
end

-- Whether a backslash does not begin an escape of JSON, or begins half of a surrogate pair.
local function has_strange_escape(body, at)
  while at do
    local kind = byte(body, at + 1)
    if kind == 117 then
      local unit = escaped_unit(body, at)
      if not unit then return true end
      if unit >= 0xd800 and unit < 0xe000 then
        local low = byte(body, at + 6) == 92 and byte(body, at + 7) == 117 and escaped_unit(body, at + 6)
        if unit > 0xdbff or not low or low < 0xdc00 or low > 0xdfff then return true end
        at = at + 6
      end
    elseif not SHORT_ESCAPES[kind] then
      return true
    end
    at = find(body, "\\", at + 2, true)
  end
  return false
end

-- Returns a text without its escapes, which are known to be those of JSON.
local function unescaped(text)
  local slash, at, parts = find(text, "\\", 1, true), 1, {}
  if not slash then return text end
  while slash do
    parts[#parts + 1] = sub(text, at, slash - 1)
    local kind = byte(text, slash + 1)
    if kind == 117 then
      local unit = escaped_unit(text, slash)
      at = slash + 6
      if unit >= 0xd800 and unit < 0xdc00 then
        unit = 0x10000 + (unit - 0xd800) * 1024 + escaped_unit(text, at) - 0xdc00
        at = at + 6
      end
      parts[#parts + 1] = utf8(unit)
    else
      parts[#parts + 1] = SHORT_ESCAPES[kind]
      at = slash + 2
    end
    slash = find(text, "\\", at, true)
  end
  parts[#parts + 1] = sub(text, at)
  return concat(parts)
end

local function is_ascii(text)
  return not find(text, "[\128-\255]")
end

local function by_character(lines)
  local out = {}
  for line in string.gmatch(lines, "[^\n]+") do
    local size = character_length(line, 1)
    out[sub(line, 1, size)] = sub(line, size + 1)
  end
  return out
end

-- The tables are made when the first key comes that is not ASCII: they take half a megabyte.
local decompositions, case_foldings = nil, nil

-- Appends the characters of a text to `parts`, decomposed, and sorts adjoining marks. `marks` counts those at the end.
local function decompose(text, parts, marks)
  local at = 1
  while at <= #text do
    local size = byte(text, at) < 128 and 1 or character_length(text, at)
    local character = sub(text, at, at + size - 1)
    -- "" for a combining mark.
    local to = size > 1 and decompositions[character]
    local number = size == 3 and code_point(character) - 0xac00
    at = at + size
    if to == "" then
      -- By code point and not by combining class: what NFKC makes equal is equal this way, too. Unicode's own limit
      -- for streams keeps the sorting short.
      if marks == MOST_MARKS then error("too many marks") end
      local place = #parts + 1
      local first = place - marks
      while place > first and parts[place - 1] > character do
        parts[place] = parts[place - 1]
        place = place - 1
      end
      parts[place] = character
      marks = marks + 1
    elseif to then
      marks = decompose(to, parts, marks)
    elseif number and number >= 0 and number < 11172 then
      parts[#parts + 1] = utf8(0x1100 + floor(number / 588))
      parts[#parts + 1] = utf8(0x1161 + floor(number % 588 / 28))
      if number % 28 > 0 then parts[#parts + 1] = utf8(0x11a7 + number % 28) end
      marks = 0
    else
      parts[#parts + 1] = character
      marks = 0
    end
  end
  return marks
end

-- Returns a text such that two texts with the same NFKC form become the same.
local function normal(text)
  if is_ascii(text) then return text end
  local parts = {}
  decompositions = decompositions or by_character(DECOMPOSITIONS)
  decompose(text, parts, 0)
  return concat(parts)
end

local function without_wide_blanks(text)
  for _, blank in ipairs(WIDE_BLANKS) do text = gsub(text, blank, "") end
  return text
end

local function is_folded(text)
  for at = 1, #text do
    local current = byte(text, at)
    if current < 33 or current > 126 or current >= 65 and current <= 90 then return false end
  end
  return true
end

local function folded(text)
  if is_folded(text) then return text end
  if not is_ascii(text) then
    case_foldings = case_foldings or by_character(CASE_FOLDINGS)
    text = gsub(normal(gsub(without_wide_blanks(text), "\196[\176\177]", "i")), "[\194-\244][\128-\191]+", case_foldings)
  end
  return (gsub(lower(text), "[%s%z\1-\31\127]", ""))
end

local function is_strange(key, known)
  if known[key] then return false end
  local plain = unescaped(key)
  return not is_ascii(plain) or known[folded(plain)] ~= nil
end

-- Envoy's lookups never match a method that is not printable ASCII, but a server might.
local function is_strange_method(method)
  if METHODS[method] then return false end
  local plain = unescaped(method)
  return plain == "" or plain == RESPONSE or find(plain, "[^!-~]") ~= nil or is_strange(plain, METHODS)
end

local function is_strange_name(name)
  local plain = unescaped(name)
  if find(plain, "[%z\1-\31\127]") or find(plain, "^ ") or find(plain, " $") then return true end
  return not is_ascii(plain) and without_wide_blanks(plain) ~= plain
end

-- A cache of plain names: the same few names come again and again.
local plain_names, count = {}, 0

local function is_plain_name(name)
  if plain_names[name] then return true end
  if is_strange_name(name) then return false end
  if #name <= LONGEST_NAME then
    if count == MOST_NAMES then plain_names, count = {}, 0 end
    plain_names[name], count = true, count + 1
  end
  return true
end

local function late_string_end(body, stop)
  while stop do
    local before = stop - 1
    while byte(body, before) == 92 do before = before - 1 end
    if (stop - before) % 2 == 1 then return stop end
    stop = find(body, '"', stop + 1, true)
  end
end

-- Finds the closing quote of a string: a quote after an even number of backslashes.
local function string_end(body, from)
  local stop = find(body, '"', from, true)
  if not stop or byte(body, stop - 1) ~= 92 then return stop end
  return late_string_end(body, stop)
end

local function after_blanks(body, at)
  while BLANKS[byte(body, at)] do at = at + 1 end
  return at
end

-- Whether a body has control characters other than blanks between tokens. Every backslash is known to begin an escape.
local function has_misplaced_controls(body)
  local at, length, is_inside = 1, #body, false
  while at <= length do
    local current = byte(body, at)
    if current == 34 then
      is_inside = not is_inside
    elseif current == 92 then
      at = at + 1
    elseif current < 32 and (is_inside or not BLANKS[current]) then
      return true
    end
    at = at + 1
  end
  return false
end

-- Returns why a body that is not printable ASCII is refused, or nil, and whether it has several lines. The MCP filter has
-- refused what is not UTF-8.
local function unusual(body)
  local has_lines = false
  if has_controls(body) then
    if has_misplaced_controls(body) then return "it has control characters" end
    has_lines = find(body, "\n", 1, true) or find(body, "\r", 1, true)
  end
  for number = 1, #WIDE_BREAKS do has_lines = has_lines or find(body, WIDE_BREAKS[number], 1, true) end
  return nil, has_lines and true
end

local function replaced(text, old, new)
  local at, stop, parts, count = 1, find(text, old, 1, true), {}, 0
  if not stop then return text end
  while stop do
    parts[count + 1], parts[count + 2] = sub(text, at, stop - 1), new
    count, at = count + 2, stop + #old
    stop = find(text, old, at, true)
  end
  parts[count + 1] = sub(text, at)
  return concat(parts)
end

-- Returns a message of several lines as one line. Line breaks of ASCII are known to be between tokens.
local function one_line(body)
  body = replaced(replaced(body, "\n", " "), "\r", " ")
  for _, character in ipairs(WIDE_BREAKS) do
    body = replaced(body, character, string.format("\\u%04x", code_point(character)))
  end
  return body
end

-- What is expected next.
local VALUE, FIRST_VALUE, KEY, FIRST_KEY, COLON, ENDED = 1, 2, 3, 4, 5, 6

-- What the value of a key must be, at the two levels that policies read.
local METHOD, UNORDERED, ID, LIST, NAME, URI, TASK, REF_NAME, REF_URI, VERSION = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local TOP_VALUES = { method = METHOD, params = UNORDERED, id = ID }
local PARAM_VALUES = {
  name = NAME, uri = URI, taskId = TASK, ref = UNORDERED, notifications = UNORDERED,
  arguments = READS_ARGUMENTS and UNORDERED or nil,
}
local REF_VALUES = { name = REF_NAME, uri = REF_URI }
-- Parameters whose keys matter.
local OPENED = { _meta = true, ref = true, notifications = true }
-- What the last message said: the texts by what they must be, and the parts of `notifications`. URIs and ids are counted,
-- and the first URIs kept; `changes` has the lists whose changes it wants to be told.
local said, has_ref, has_other, uris, tasks, first_uris, changes = {}, false, false, 0, 0, {}, ""

local function forget()
  for kind = METHOD, VERSION do said[kind] = false end
  has_ref, has_other, uris, tasks, changes = false, false, 0, 0, ""
end

-- Notes an entry of a list in `notifications`.
local function note_listed(list, text)
  if list == "taskIds" then
    tasks = tasks + 1
    return
  end
  uris = uris + 1
  if uris <= MOST_URIS then first_uris[uris] = text end
  if not is_plain_name(text) then has_other = true end
end

-- Notes a key of `notifications` that has no list; its value comes after `at`.
local function note_change(key, body, at)
  local change = LIST_CHANGES[key]
  if change and find(body, "^%s*:%s*true", at) then
    changes = changes .. change
  elseif not change or not find(body, "^%s*:%s*[fn]", at) then
    has_other = true
  end
end

-- Returns why a value that is not a string cannot be what it must be, or nil. Parameters must not be by position: they
-- are an object, null or an empty list.
local function unsuitable(must, body, at)
  local first = byte(body, at)
  if must == METHOD then return "the method is not a string" end
  if must >= NAME then return "a name or version is not a string" end
  if must == LIST then
    if first ~= 91 then has_other = true end
    return nil
  end
  if must == ID then
    return (first == 123 or first == 91 or first == 116 or first == 102) and "the id is not a string or a number" or nil
  end
  if first == 123 or first == 110 or first == 91 and byte(body, after_blanks(body, at + 1)) == 93 then return nil end
  return "parameters must be an object"
end

local function unsuitable_text(must, text)
  said[must] = text
  if must == METHOD then return is_strange_method(text) and "a known method is spelt differently" or nil end
  if must >= NAME then return not is_plain_name(text) and "a name has surrounding blanks or control characters" or nil end
  if must == UNORDERED then return "parameters must be an object" end
  if must == LIST then has_other = true end
end

-- Returns the position after `true`, `false` or `null`; nil if there is none.
local function literal_end(body, at, first)
  if first == 116 then return sub(body, at, at + 3) == "true" and at + 4 end
  if first == 110 then return sub(body, at, at + 3) == "null" and at + 4 end
  if first == 102 then return sub(body, at, at + 4) == "false" and at + 5 end
end

-- For each depth, the number of the last object that had a key. Numbers are never used again, so that the common case,
-- keys that came before, needs no new memory.
local holders, kept_bytes, last_object, objects, closing = {}, 0, 0, {}, {}
for depth = 1, DEEPEST do holders[depth] = {} end
-- Caches of keys as they are compared, and the bytes of a message's keys that were not in a cache and not ASCII: these take
-- a microsecond for each character.
local folded_keys, normal_keys, wide_bytes = {}, {}, 0

local function remembered(cache, key, compared)
  local known = cache[key]
  if not known then
    local plain = unescaped(key)
    if not is_ascii(plain) then wide_bytes = wide_bytes + #plain end
    if wide_bytes > MOST_WIDE_BYTES then error("too many keys that are not ASCII") end
    known = compared(plain)
    cache[key], kept_bytes = known, kept_bytes + #key + #known + ENTRY_BYTES
  end
  return known
end

-- Returns why a server might read a message differently, or nil, and whether it has several lines.
local function strangeness(body)
  local slash, has_lines, why = find(body, "\\", 1, true), false, nil
  if slash and has_strange_escape(body, slash) then return NOT_JSON end
  local has_plain_keys = is_printable(body)
  if not has_plain_keys then
    why, has_lines = unusual(body)
    if why then return why end
  end
  has_plain_keys, wide_bytes = has_plain_keys and not slash, 0
  if kept_bytes > MOST_BYTES then
    for depth = 1, DEEPEST do holders[depth] = {} end
    folded_keys, normal_keys, kept_bytes = {}, {}, 0
  end

  local depth, at, length, state, must = 0, 1, #body, VALUE, nil
  local inside_params, has_method, is_answer, opened, listed = false, false, false, nil, nil
  forget()
  while at <= length do
    local current = byte(body, at)
    at = at + 1
    if current == 34 then
      local stop = string_end(body, at)
      if not stop then break end
      if state == KEY or state == FIRST_KEY then
        local key = sub(body, at, stop - 1)
        if key == "" then return "a key is empty" end
        if depth == 1 then
          if is_strange(key, TOP) then return ALIKE end
          must, inside_params, opened, listed = TOP_VALUES[key], key == "params", nil, nil
          if key == "method" then has_method = true end
          if key == "result" or key == "error" then
            if is_answer then return "it is both a result and an error" end
            is_answer = true
          end
        elseif depth == 2 and inside_params then
          if is_strange(key, PARAMS) then return ALIKE end
          must, opened, listed = PARAM_VALUES[key], OPENED[key] and key, nil
          if opened == "ref" then has_ref = true end
        elseif depth == 3 and opened then
          local plain = slash and unescaped(key) or key
          if opened == "_meta" then
            if plain == VERSION_KEY then must = VERSION end
          elseif opened == "ref" then
            if is_strange(key, REF) then return ALIKE end
            must = REF_VALUES[key]
          elseif plain == "resourceSubscriptions" or plain == "taskIds" then
            must, listed = LIST, plain
          else
            listed = nil
            note_change(plain, body, stop + 1)
          end
        end
        if READS_ARGUMENTS and inside_params and depth > 2 then
          key = remembered(folded_keys, key, folded)
        elseif not has_plain_keys then
          key = remembered(normal_keys, key, normal)
        end
        local holder, object = holders[depth], objects[depth]
        local before = holder[key]
        if before == object then return REPEATED end
        if not before then kept_bytes = kept_bytes + #key + ENTRY_BYTES end
        holder[key] = object
        at, state = stop + 1, COLON
        -- Most often no blank follows, and one after the colon; likewise for commas.
        if byte(body, at) == 58 then
          at, state = at + 1, VALUE
          if byte(body, at) == 32 then at = at + 1 end
        end
      elseif state <= FIRST_VALUE and depth > 0 then
        if must then
          why = unsuitable_text(must, sub(body, at, stop - 1))
          if why then return why end
          if must == ID then said[ID] = sub(body, at - 1, stop) end
          must = nil
        elseif listed and depth == 4 then
          note_listed(listed, sub(body, at, stop - 1))
        end
        at, state = stop + 1, ENDED
        if byte(body, at) == 44 then
          at, state = at + 1, closing[depth] == 125 and KEY or VALUE
          if byte(body, at) == 32 then at = at + 1 end
        end
      else
        return NOT_JSON
      end
    elseif current == 58 then
      if state ~= COLON then return NOT_JSON end
      state = VALUE
    elseif current == 44 then
      if state ~= ENDED then return NOT_JSON end
      state = closing[depth] == 125 and KEY or VALUE
    elseif BLANKS[current] then
      while BLANKS[byte(body, at)] do at = at + 1 end
    elseif current == 123 or current == 91 then
      if state > FIRST_VALUE then return NOT_JSON end
      if must then
        why = unsuitable(must, body, at - 1)
        if why then return why end
        must = nil
      elseif listed and depth == 4 then
        has_other = true
      end
      if depth == 0 and current == 91 then return NOT_JSON end
      depth = depth + 1
      if depth > DEEPEST then return "it is nested too deeply" end
      last_object = last_object + 1
      closing[depth], objects[depth] = current + 2, last_object
      state = current == 123 and FIRST_KEY or FIRST_VALUE
    elseif current == 125 or current == 93 then
      if current ~= closing[depth] then return NOT_JSON end
      if state ~= ENDED and state ~= (current == 125 and FIRST_KEY or FIRST_VALUE) then return NOT_JSON end
      depth, state = depth - 1, ENDED
      if depth == 0 then
        if after_blanks(body, at) <= length then return "there is data after the message" end
        if has_method and is_answer then return "it is both a request and an answer" end
        if not has_method and not is_answer then return "it has neither a method nor a result" end
        return nil, has_lines
      end
    else
      if state > FIRST_VALUE or depth == 0 then return NOT_JSON end
      local from_id = must == ID and at - 1
      if must then
        why = unsuitable(must, body, at - 1)
        if why then return why end
        must = nil
      elseif listed and depth == 4 then
        has_other = true
      end
      if current == 45 or current >= 48 and current <= 57 then
        local digit = current
        if current == 45 then
          digit = byte(body, at)
          at = at + 1
          if not digit or digit < 48 or digit > 57 then return NOT_JSON end
        end
        local after = byte(body, at)
        if digit > 48 then
          while after and after >= 48 and after <= 57 do
            at = at + 1
            after = byte(body, at)
          end
        end
        if after == 46 then
          local from = at + 1
          repeat
            at = at + 1
            after = byte(body, at)
          until not after or after < 48 or after > 57
          if at == from then return NOT_JSON end
        end
        if after == 69 or after == 101 then
          after = byte(body, at + 1)
          if after == 43 or after == 45 then at = at + 1 end
          local from = at + 1
          repeat
            at = at + 1
            after = byte(body, at)
          until not after or after < 48 or after > 57
          if at == from then return NOT_JSON end
        end
      else
        at = literal_end(body, at - 1, current)
        if not at then return NOT_JSON end
      end
      if from_id then said[ID] = sub(body, from_id, at - 1) end
      state = ENDED
      if byte(body, at) == 44 then
        at, state = at + 1, closing[depth] == 125 and KEY or VALUE
        if byte(body, at) == 32 then at = at + 1 end
      end
    end
  end
  return INCOMPLETE
end

-- The access log says why. Without that the request is refused all the same.
local function note_refusal(handle, why)
  handle:streamInfo():dynamicMetadata():set("tierwall.refusal", "why", why)
end

local function refuse(handle, why)
  pcall(note_refusal, handle, why)
  handle:respond({ [":status"] = "400", ["content-type"] = "text/plain" }, "refused: " .. why .. "\n")
end

-- Returns a text of the last message without escapes, or nil.
local function said_plainly(kind)
  return said[kind] and unescaped(said[kind]) or nil
end

-- Whether a header is a name: as it is if it is visible ASCII and does not look like an encoded name, or else encoded.
local function is_header_of(handle, header, name)
  if header == name then
    return not find(name, "[^ -~]") and not (sub(name, 1, 9) == "=?base64?" and sub(name, -2) == "?=")
  end
  return header == "=?base64?" .. handle:base64Escape(name) .. "?="
end

-- Returns where headers and message differ, or nil.
local function disagreement(handle, headers, method, name)
  if headers:getNumValues("mcp-protocol-version") > 1 then return "there are several MCP-Protocol-Version" end
  local version = headers:get("mcp-protocol-version")
  if version and find(version, "[,%s]") then return "there are several MCP-Protocol-Version" end
  local body_version = said_plainly(VERSION)
  if body_version and body_version ~= version then return "MCP-Protocol-Version is not the version in the message" end
  local said_method = headers:get("mcp-method")
  if said_method and said_method ~= method then return "Mcp-Method is not the method of the message" end
  local said_name = headers:get("mcp-name")
  if not said_name then return nil end
  if said_name == "" and not name then return headers:remove("mcp-name") end
  if not name or headers:getNumValues("mcp-name") > 1 or not is_header_of(handle, said_name, name) then
    return "Mcp-Name is not the name in the message"
  end
end

-- Returns what rules judge in the place of the method, if that is not the method; and the name that belongs to it.
local function judged(method)
  if method == LISTEN then
    if has_other or uris > 0 and tasks > 0 then return OF_SOMETHING_ELSE end
    if uris > 1 and uris <= MOST_URIS then return TO_RESOURCES, unescaped(first_uris[1]) end
    -- More than can be looked up need a rule without params.
    if uris > 0 then return "resources/subscribe", uris == 1 and unescaped(first_uris[1]) or "" end
    if tasks > 0 then return "tasks/get" end
  elseif NAMED_BY_TASK[method] and not said[TASK] then
    -- Of A2A, which has these methods, too, and names its tasks otherwise.
    return OF_SOMETHING_ELSE
  elseif has_ref and sub(method, 1, #COMPLETION) == COMPLETION then
    local name, uri = said_plainly(REF_NAME), said_plainly(REF_URI)
    if name and not uri then return OF_PROMPT, name end
    if uri and not name then return OF_RESOURCE, uri end
    return OF_SOMETHING_ELSE
  end
end

-- Returns where headers and message differ, or nil; otherwise sets the headers that filters behind this one look up.
local function tell(handle)
  local headers, method = handle:headers(), said_plainly(METHOD)
  local kind = not method and 0 or NAMED_BY_URI[method] and URI or NAMED_BY_TASK[method] and TASK or NAME
  if kind == NAME and method ~= "tools/call" and method ~= "prompts/get" then kind = 0 end
  local why = disagreement(handle, headers, method, kind ~= 0 and said_plainly(kind) or nil)
  if why then return why end
  if not method then return nil end
  local id = said[ID]
  if id then
    headers:replace("x-tierwall-id", id)
    if not KNOWN_METHODS[method] and headers:get("mcp-protocol-version") == NEWEST then
      headers:replace("x-tierwall-unknown-method", "1")
    end
  end
  if method == LISTEN then headers:replace("x-tierwall-listens", changes) end
  local instead, name = judged(method)
  if instead == TO_RESOURCES then
    local further = {}
    for number = 2, uris do further[number - 1] = unescaped(first_uris[number]) end
    handle:streamInfo():dynamicMetadata():set("tierwall.subscription", "uris", further)
  end
  if instead then
    headers:replace("x-tierwall-method", instead)
    headers:replace((instead == OF_PROMPT) and "x-tierwall-name" or "x-tierwall-uri", name or "")
  end
end

-- Answers a message whose headers say something else (MCP 2026-07-28, "Standard MCP Request Headers").
local function refuse_headers(handle, why)
  pcall(note_refusal, handle, why)
  local id = said[METHOD] and said[ID] or "null"
  local answer = '{"jsonrpc":"2.0","id":' .. id .. ',"error":{"code":-32020,"message":"refused: ' .. why .. '"}}'
  handle:respond({ [":status"] = "400", ["content-type"] = "application/json" }, answer)
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local encoding = headers:get("content-encoding")
  if encoding and lower(encoding) ~= "identity" then return refuse(handle, "the body has a content-encoding") end
  local kind = headers:get("content-type")
  if kind and kind ~= "application/json" then
    kind = lower(kind)
    if find(kind, "charset", 1, true) and not find(kind, '^application/json%s*;%s*charset%s*=%s*"?utf%-?8"?%s*$') then
      return refuse(handle, "the charset is not UTF-8")
    end
  end
  local body = handle:body()
  if not body then return refuse(handle, "there is no message") end
  local text = body:getBytes(0, body:length())
  local is_done, why, has_lines = pcall(strangeness, text)
  if is_done and not why and has_lines then
    is_done, why = pcall(function()
      local line = one_line(text)
      body:setBytes(line)
      -- Headers that were got before the body was awaited cannot be used any more.
      local now = handle:headers()
      if now:get("content-length") then now:replace("content-length", tostring(#line)) end
    end)
  end
  if not is_done then return refuse(handle, "it cannot be checked") end
  if not why and said[ID] and #said[ID] > LONGEST_ID then why = "the id is too long" end
  if why then return refuse(handle, why) end
  is_done, why = pcall(tell, handle)
  if not is_done then return refuse(handle, "it cannot be checked") end
  if why then return refuse_headers(handle, why) end
end
