-- Refuses messages that a lenient server might read differently than Envoy did.
--
-- JSON: Envoy accepts more than JSON: unquoted and single-quoted keys, and escapes and blanks that JSON does not have. It
-- also loses its position after an empty key. Servers differ on all of these, so they are refused.
-- Keys: some parsers read `Name` or `paramſ` as `name` and `params`. At the two levels that policies read, a key must be
-- ASCII. A key that folds, trims or unescapes to a known key must be that key. The MCP filter refuses repeated keys,
-- except those whose value is a list. If rules read arguments, no object inside them may have two keys that fold to the
-- same key.
-- Values: the name or URI must be a string without control characters and without surrounding blanks. Some servers
-- accept parameters as a list, by position, and Envoy ignores those.
-- Methods: `Tools/Call` is not a call for Envoy, but it may be for a server. A message with both a method and a result is
-- a response for Envoy, but it may be a call for a server.
-- Ends: if the rest of a body arrives later, the MCP filter stops reading where the message ends. It also accepts a
-- message that trailers cut off. So the message must be complete, with nothing after it. Trailers are not forwarded:
-- Envoy speaks HTTP/1.1 to backends and sends no trailers there.
-- Encodings: a server may decode the body by a charset or content-encoding that Envoy ignores.
--
-- Every message passes through this script, so the common path only uses what LuaJIT compiles: bytes and plain searches.
-- Patterns, which it does not compile, are limited to rare cases. If a script fails, Envoy lets the request pass, so the
-- script catches failures and refuses the request.

local find, sub, lower, byte, char, gsub = string.find, string.sub, string.lower, string.byte, string.char, string.gsub
local floor = math.floor

local READS_ARGUMENTS = false

local TOP = { jsonrpc = true, id = true, method = true, params = true, result = true, error = true }
local PARAMS = { name = true, uri = true, arguments = true, _meta = true }
local METHODS = {
  ["tools/call"] = true, ["tools/list"] = true, ["prompts/get"] = true, ["prompts/list"] = true,
  ["resources/read"] = true, ["resources/list"] = true, ["resources/subscribe"] = true,
  ["resources/unsubscribe"] = true, ["resources/templates/list"] = true,
}

local NAMES = { name = true, uri = true }

local function set_of(chars)
  local set = {}
  for at = 1, #chars do set[byte(chars, at)] = true end
  return set
end

local MOST_NAMES, LONGEST_NAME = 1000, 128
local ESCAPES = set_of('"\\/bfnrtu')
local BLANKS = set_of(" \t\r\n")
local BETWEEN_STRINGS = set_of(" \t\r\n,+-.0123456789eEtruefalsn")
-- Blanks beyond ASCII and zero-width characters, in UTF-8.
local WIDE_BLANKS = {
  "\194[\128-\160\173]", "\205\143", "\225\154\128", "\225\160\142", "\226\128[\128-\143\168-\175]",
  "\226\129[\159-\175]", "\227\128\128", "\239\184[\128-\143]", "\239\187\191",
}

local function utf8(number)
  if number < 0x80 then return char(number) end
  if number < 0x800 then return char(0xc0 + floor(number / 64), 0x80 + number % 64) end
  return char(0xe0 + floor(number / 4096), 0x80 + floor(number / 64) % 64, 0x80 + number % 64)
end

local function unescaped(text)
  if not find(text, "\\", 1, true) then return text end
  return (gsub(text, "\\(.)(%x?%x?%x?%x?)", function(kind, code)
    if kind ~= "u" then return (find("bfnrt", kind, 1, true) and "\n" or kind) .. code end
    return utf8(tonumber(code, 16) or 0)
  end))
end

local function is_ascii(text)
  return not find(text, "[\128-\255]")
end

local function without_wide_blanks(text)
  for _, blank in ipairs(WIDE_BLANKS) do text = gsub(text, blank, "") end
  return text
end

local function folded(key)
  local text = unescaped(key)
  if not is_ascii(text) then
    text = gsub(gsub(without_wide_blanks(text), "\197\191", "s"), "\226\132\170", "k")
    text = gsub(text, "\196[\176\177]", "i")
    text = gsub(text, "\239\188([\129-\191])", function(last) return char(byte(last) - 96) end)
    text = gsub(text, "\239\189([\128-\158])", function(last) return char(byte(last) - 32) end)
  end
  return (gsub(lower(text), "[%s%z\1-\31\127]", ""))
end

local function is_strange(key, known)
  return not known[key] and (known[folded(key)] == true or not is_ascii(unescaped(key)))
end

-- Envoy's lookups never match a method that is not printable ASCII, but a server might.
local function is_strange_method(method)
  if METHODS[method] then return false end
  local plain = unescaped(method)
  return plain == "" or find(plain, "[^!-~]") ~= nil or is_strange(plain, METHODS)
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

local function has_strange_escape(body)
  local at = find(body, "\\", 1, true)
  while at do
    if not ESCAPES[byte(body, at + 1)] then return true end
    at = find(body, "\\", at + 2, true)
  end
  return false
end

-- Finds the closing quote of a string: a quote after an even number of backslashes.
local function string_end(body, from)
  local stop = find(body, '"', from, true)
  while stop do
    local before = stop - 1
    while byte(body, before) == 92 do before = before - 1 end
    if (stop - before) % 2 == 1 then return stop end
    stop = find(body, '"', stop + 1, true)
  end
end

local function after_blanks(body, at)
  while BLANKS[byte(body, at)] do at = at + 1 end
  return at
end

-- Whether a value cannot hold parameters by position: an object, null or an empty list.
local function is_unordered(body, at)
  local first = byte(body, at)
  return first == 123 or first == 110 or first == 91 and byte(body, after_blanks(body, at + 1)) == 93
end

local NOT_JSON, KEY = "it is not plain JSON", "a key could be read as another key"
local LIST = "parameters must be an object"

-- Returns why a server might read a message differently, or nil. Envoy has already parsed it up to its end.
local function strangeness(body)
  if has_strange_escape(body) then return NOT_JSON end
  local depth, at, length = 0, 1, #body
  local key, param, inside_params, seen = "", "", false, {}
  local has_method, is_request, is_answer = false, false, false
  while at <= length do
    local current = byte(body, at)
    at = at + 1
    if current == 34 then
      local from, stop = at, string_end(body, at)
      if not stop or depth == 0 then break end
      at = stop + 1
      if depth <= 2 or READS_ARGUMENTS or stop == from then
        at = after_blanks(body, at)
        local is_key = byte(body, at) == 58
        if is_key and stop == from then return "a key is empty" end
        local value = is_key and after_blanks(body, at + 1)
        if depth == 1 and is_key then
          key = sub(body, from, stop - 1)
          if is_strange(key, TOP) then return KEY end
          inside_params = key == "params"
          if inside_params and not is_unordered(body, value) then return LIST end
          if key == "method" and byte(body, value) ~= 34 then return "the method is not a string" end
          has_method = has_method or key == "method"
          is_answer = is_answer or key == "result" or key == "error"
        elseif depth == 1 then
          if key == "method" then
            is_request = true
            if is_strange_method(sub(body, from, stop - 1)) then return "a known method is spelt differently" end
          end
        elseif depth == 2 and inside_params then
          if is_key then
            param = sub(body, from, stop - 1)
            if is_strange(param, PARAMS) then return KEY end
            if NAMES[param] and byte(body, value) ~= 34 then return "a name is not a string" end
            if READS_ARGUMENTS and param == "arguments" and not is_unordered(body, value) then return LIST end
          elseif NAMES[param] and not is_plain_name(sub(body, from, stop - 1)) then
            return "a name has surrounding blanks or control characters"
          end
        elseif READS_ARGUMENTS and inside_params and is_key then
          local plain = folded(sub(body, from, stop - 1))
          if seen[depth][plain] then return "two keys differ only in their spelling" end
          seen[depth][plain] = true
        end
      end
    elseif current == 58 then
      local before = at - 2
      while BLANKS[byte(body, before)] do before = before - 1 end
      if byte(body, before) ~= 34 then return NOT_JSON end
    elseif current == 123 or current == 91 then
      depth = depth + 1
      if READS_ARGUMENTS then seen[depth] = {} end
    elseif current == 125 or current == 93 then
      depth = depth - 1
      if depth <= 0 then
        if after_blanks(body, at) <= length then return "there is data after the message" end
        if has_method and is_answer then return "it is both a request and an answer" end
        if not is_request and not is_answer then return "there is no message with a method" end
        return nil
      end
    elseif current ~= 32 and not BETWEEN_STRINGS[current] then
      return NOT_JSON
    end
  end
  return "the message is incomplete"
end

local function refuse(handle, why)
  handle:respond({ [":status"] = "400", ["content-type"] = "text/plain" }, "refused: " .. why .. "\n")
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
  local is_done, why = pcall(strangeness, body:getBytes(0, body:length()))
  if not is_done then return refuse(handle, "it cannot be checked") end
  if why then return refuse(handle, why) end
end
