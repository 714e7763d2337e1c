-- Refuses what a lenient server might read differently than Envoy did.
--
-- Keys: some parsers take `Name` or `paramſ` for `name` and `params`. At the two levels that policies look at, a key that
-- becomes a known one when folded, trimmed or unescaped must be that one. Repeated keys are refused by the MCP filter.
-- Where rules look at arguments, no object inside may have two keys that fold to one.
-- Methods: `Tools/Call` is no call to Envoy, but to some server it might be. A message that has both a method and a result
-- is an answer to Envoy, and to some server a call.
-- Ends: the MCP filter stops reading where the message ends if more of the body comes later, and does not mind a message
-- that trailers cut off. So it must be all there, with nothing after it. Trailers themselves go no further: backends are
-- spoken to in HTTP/1.1, where Envoy sends none.
-- Encodings: a server may decode the body by a charset or content-encoding that Envoy does not look at.
--
-- Every message passes here, so the common way through is one that LuaJIT compiles: bytes and plain searches. Patterns,
-- which it does not compile, are left to what is rare.

local find, sub, lower, byte, gsub, match = string.find, string.sub, string.lower, string.byte, string.gsub, string.match

local LOOKS_AT_ARGUMENTS = false

local TOP = { jsonrpc = true, id = true, method = true, params = true, result = true, error = true }
local PARAMS = { name = true, uri = true, arguments = true, _meta = true }
local METHODS = {
  ["tools/call"] = true, ["tools/list"] = true, ["prompts/get"] = true, ["prompts/list"] = true,
  ["resources/read"] = true, ["resources/list"] = true, ["resources/subscribe"] = true,
  ["resources/unsubscribe"] = true, ["resources/templates/list"] = true,
}

local function unescaped(text)
  if not find(text, "\\", 1, true) then return text end
  return (gsub(text, "\\(.)(%x?%x?%x?%x?)", function(kind, code)
    if kind ~= "u" then return (find("bfnrt", kind, 1, true) and " " or kind) .. code end
    local number = tonumber(code, 16) or 0
    if number == 0x17f then return "\197\191" end
    if number == 0x212a then return "\226\132\170" end
    return number < 0x80 and string.char(number) or "\255"
  end))
end

local function folded(text)
  text = gsub(gsub(unescaped(text), "\197\191", "s"), "\226\132\170", "k")
  return (gsub(lower(text), "[%s%z\1-\31\127]", ""))
end

-- Blanks beyond ASCII, and what takes no room, count as nothing.
local function is_strange(key, known)
  return not known[key] and known[gsub(folded(key), "[^!-~]", "")] == true
end

-- A method that is not printable ASCII would be none to Envoy's lookups, whatever a server makes of it.
local function is_strange_method(method)
  if METHODS[method] then return false end
  local plain = unescaped(method)
  return plain == "" or find(plain, "[^!-~]") ~= nil or is_strange(plain, METHODS)
end

local function is_blank(char)
  return char == 32 or char == 10 or char == 13 or char == 9
end

-- The quote that ends a text: one with an even number of backslashes before it.
local function text_end(body, from)
  local stop = find(body, '"', from, true)
  while stop do
    local before = stop - 1
    while byte(body, before) == 92 do before = before - 1 end
    if (stop - before) % 2 == 1 then return stop end
    stop = find(body, '"', stop + 1, true)
  end
end

-- Why some server might read a message differently, if it might. Envoy has parsed it before: up to its end it is JSON.
local function strangeness(body)
  local depth, at, length = 0, 1, #body
  local key, inside_params, seen = "", false, {}
  local has_method, is_request, is_answer = false, false, false
  while at <= length do
    local char = byte(body, at)
    at = at + 1
    if char == 34 then
      local from, stop = at, text_end(body, at)
      if not stop then break end
      at = stop + 1
      if depth <= 2 or LOOKS_AT_ARGUMENTS then
        while is_blank(byte(body, at)) do at = at + 1 end
        local is_key = byte(body, at) == 58
        if depth == 1 and is_key then
          key = sub(body, from, stop - 1)
          if is_strange(key, TOP) then return "a known key is spelt differently" end
          inside_params = key == "params"
          has_method = has_method or key == "method"
          is_answer = is_answer or key == "result" or key == "error"
        elseif depth == 1 and key == "method" then
          is_request = true
          if is_strange_method(sub(body, from, stop - 1)) then return "a known method is spelt differently" end
        elseif depth == 2 and is_key then
          if inside_params and is_strange(sub(body, from, stop - 1), PARAMS) then
            return "a known key is spelt differently"
          end
        elseif LOOKS_AT_ARGUMENTS and is_key then
          local plain = folded(sub(body, from, stop - 1))
          if seen[depth][plain] then return "two keys differ only in their spelling" end
          seen[depth][plain] = true
        end
      end
    elseif char == 123 or char == 91 then
      depth = depth + 1
      if LOOKS_AT_ARGUMENTS then seen[depth] = {} end
    elseif char == 125 or char == 93 then
      depth = depth - 1
      if depth == 0 then
        while is_blank(byte(body, at)) do at = at + 1 end
        if at <= length then return "something stands behind the message" end
        if has_method and is_answer then return "it is both a request and an answer" end
        if not is_request and not is_answer then return "there is no message with a method" end
        return nil
      end
    end
  end
  return "the message is not all there"
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
    local charset = match(lower(kind), "charset%s*=%s*([^;]*)")
    if charset and not find(charset, '^"?utf%-?8"?%s*$') then return refuse(handle, "the charset is not UTF-8") end
  end
  local body = handle:body()
  if not body then return refuse(handle, "there is no message") end
  local why = strangeness(body:getBytes(0, body:length()))
  if why then return refuse(handle, why) end
end
