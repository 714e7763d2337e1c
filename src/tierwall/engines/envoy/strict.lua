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

local find, sub, lower, byte, gsub, match = string.find, string.sub, string.lower, string.byte, string.gsub, string.match

local LOOKS_AT_ARGUMENTS = false
local ANSWER = "__jsonrpc_response" -- what the MCP filter takes for the method of a message that has a result or an error

local TOP = { jsonrpc = true, id = true, method = true, params = true, result = true, error = true }
local PARAMS = { name = true, uri = true, arguments = true, _meta = true }
local METHODS = {
  ["tools/call"] = true, ["tools/list"] = true, ["prompts/get"] = true, ["prompts/list"] = true,
  ["resources/read"] = true, ["resources/list"] = true, ["resources/subscribe"] = true,
  ["resources/unsubscribe"] = true, ["resources/templates/list"] = true,
}

local function unescaped(text)
  return (gsub(text, "\\(.)(%x?%x?%x?%x?)", function(kind, code)
    if kind ~= "u" then return code end
    local number = tonumber(code, 16) or 0
    if number == 0x17f then return "s" end
    if number == 0x212a then return "k" end
    return number < 0x80 and string.char(number) or "?"
  end))
end

local function folded(text)
  text = gsub(gsub(text, "\197\191", "s"), "\226\132\170", "k")
  return (gsub(lower(text), "[%s%z\1-\31\127]", ""))
end

local function is_strange(key, known)
  if known[key] then return false end
  return known[folded(find(key, "\\", 1, true) and unescaped(key) or key)] == true
end

-- Whether a message has a key that a lenient parser would fold, or is an answer with a method, or anything stands behind
-- it. Envoy has parsed the message before: it is JSON.
local function is_strange_message(body, is_answer)
  local depth, at, key, inside_params, seen = 0, 1, nil, false, {}
  while true do
    local here = find(body, '["{}%[%]]', at)
    if not here then return true end -- it is not all there
    local char = byte(body, here)
    at = here + 1
    if char == 34 then
      local from = at
      while true do
        local stop = find(body, '["\\]', at)
        if not stop then return true end
        at = stop + 1
        if byte(body, stop) == 34 then
          local after = (depth <= 2 or LOOKS_AT_ARGUMENTS) and find(body, "^%s*:", at)
          if after then
            key = sub(body, from, stop - 1)
            if depth == 1 then
              if is_strange(key, TOP) then return true end
              if is_answer and (key == "method" or find(key, "\\", 1, true) and unescaped(key) == "method") then
                return true
              end
              inside_params = key == "params" or (find(key, "\\", 1, true) and unescaped(key) == "params")
            elseif depth == 2 then
              if inside_params and is_strange(key, PARAMS) then return true end
            else
              local plain = folded(find(key, "\\", 1, true) and unescaped(key) or key)
              if seen[depth][plain] then return true end
              seen[depth][plain] = true
            end
          end
          break
        end
        at = at + 1
      end
    elseif char == 123 or char == 91 then
      depth = depth + 1
      if LOOKS_AT_ARGUMENTS then seen[depth] = {} end
    else
      depth = depth - 1
      if depth == 0 then return find(body, "[^ \t\r\n]", at) ~= nil end
    end
  end
end

-- Whether there is one object and nothing else. Without its texts, its braces tell; a body with escapes is looked at
-- slowly anyway, so a text ends at the next quote.
local function stands_alone(body)
  return find(gsub(body, '"[^"]*"', ""), "^%s*%b{}%s*$") ~= nil
end

-- Whether the slow look is needed: some known word stands there in other letters, or not alone between quotes, or there
-- are escapes. It looks for the words only, which is much faster than looking at every key.
local WORDS = { "jsonrpc", "id", "method", "params", "result", "error", "name", "uri", "arguments", "_meta" }

local function is_doubtful(body)
  if LOOKS_AT_ARGUMENTS or find(body, "\\", 1, true) then return true end
  if find(body, "\197\191", 1, true) or find(body, "\226\132\170", 1, true) then return true end
  local small = lower(body)
  for index = 1, #WORDS do
    local word = WORDS[index]
    local from, to = find(small, word, 1, true)
    while from do
      if byte(body, from - 1) == 34 and byte(body, to + 1) == 34 then
        if sub(body, from, to) ~= word then return true end
      elseif not find(small, "^%w", from - 1) or not find(small, "^%w", to + 1) then
        -- Inside a longer word it is another word; at one end of it, a blank or an escape may be all that differs.
        if find(small, "^[^%w_%-/]", from - 1) and find(small, "^[^%w_%-/]", to + 1) then return true end
      end
      from, to = find(small, word, to + 1, true)
    end
  end
  return false
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
  local method = headers:get("x-tierwall-method")
  if not method then return refuse(handle, "there is no message with a method") end
  if not METHODS[method] and METHODS[folded(method)] then
    return refuse(handle, "a known method is spelt differently")
  end
  local body = handle:body()
  if not body then return refuse(handle, "there is no message") end
  local text = body:getBytes(0, body:length())
  local is_answer = method == ANSWER
  if is_answer or is_doubtful(text) then
    if is_strange_message(text, is_answer) then return refuse(handle, "some server might read it differently") end
  elseif not stands_alone(text) then
    return refuse(handle, "something stands behind the message")
  end
end
