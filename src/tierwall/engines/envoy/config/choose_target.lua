-- Finds the joined MCP server that a message is for (docs/enforce-tools.md#joined-servers).
--
-- A call of `bank_pay` becomes a call of `pay`, in the message and in `Mcp-Name`, before anything else reads them: every
-- filter behind this one judges exactly what the server gets. The name of the server is in a header that no client can
-- send; a route for it waits there. What names no server goes on as it is, to a route that leads to no server.

local HEADER = "x-tierwall-target"
-- Where the name is, and what ends the target in it.
local PLACES = {
  ["tools/call"] = { { "name", "_" } },
  ["prompts/get"] = { { "name", "_" } },
  ["resources/read"] = { { "uri", "+" } },
  ["completion/complete"] = { { "name", "_" }, { "uri", "+" } },
}

local SHORT = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

-- Returns a text without the escapes of JSON.
local function plain(raw)
  local out = string.gsub(raw, "\\u([dD][89abAB]%x%x)\\u([dD][c-fC-F]%x%x)", function(high, low)
    return utf8(0x10000 + (tonumber(high, 16) - 0xd800) * 1024 + tonumber(low, 16) - 0xdc00)
  end)
  -- One at a time, so that what an escape stands for begins no other.
  return (string.gsub(out, "\\(u?)(.)(%x?%x?%x?)", function(is_unit, first, rest)
    if is_unit == "u" then return utf8(tonumber(first .. rest, 16)) end
    return (SHORT[first] or first) .. rest
  end))
end

-- Returns `Mcp-Name` for a name (MCP 2026-07-28, "Value Encoding").
local function header_of(handle, name)
  local is_plain = find(name, "^[!-~]") and find(name, "[!-~]$") and not find(name, "[^ -~]")
  if is_plain and not (sub(name, 1, 9) == "=?base64?" and sub(name, -2) == "?=") then return name end
  return "=?base64?" .. handle:base64Escape(name) .. "?="
end

-- Returns the target, the name in the message and the name that the server gives, or nothing.
local function split(raw, delimiter, targets)
  local at = raw and find(raw, delimiter, 1, true)
  local target = at and sub(raw, 1, at - 1)
  if target and at < #raw and targets[target] then return target, sub(raw, at + 1) end
end

-- Returns the message with the name that its server gives, the target, and both names; or nothing.
local function chosen(text, targets)
  local message = is_utf8(text) and fields(text)
  local places = message and PLACES[inside(value(text, message, "method")) or ""]
  if not places then return end
  local holder, span = value(text, message, "params"), message.params
  local known = holder and fields(holder)
  if not known then return end
  if places[2] then
    span, holder = known.ref, value(holder, known, "ref")
    known = holder and fields(holder)
    -- A reference names a prompt or a template.
    if not known or (known.name and known.uri) then return end
    span = { message.params[1] + span[1] - 1, message.params[1] + span[2] - 1 }
  end
  for number = 1, #places do
    local key, delimiter = places[number][1], places[number][2]
    local raw = inside(value(holder, known, key))
    local target, rest = split(raw, delimiter, targets)
    if target then return with(text, span, with(holder, known[key], '"' .. rest .. '"')), target, raw, rest end
  end
end

local function choose(handle)
  local body = handle:body()
  if not body then return end
  local text, target, before, name = chosen(body:getBytes(0, body:length()), handle:filterContext():get("targets"))
  if not target then return end
  local headers = handle:headers()
  local said = headers:get("mcp-name")
  if said then
    -- A message whose header says something else stays as it is, and is refused for it.
    if headers:getNumValues("mcp-name") > 1 or said ~= header_of(handle, plain(before)) then return end
    headers:replace("mcp-name", header_of(handle, plain(name)))
  end
  body:setBytes(text)
  if headers:get("content-length") then headers:replace("content-length", tostring(#text)) end
  headers:replace(HEADER, target)
  handle:streamInfo():dynamicMetadata():set("tierwall.chosen", "place", handle:filterContext():get("place"))
  handle:clearRouteCache()
end

function envoy_on_request(handle)
  if not pcall(choose, handle) then
    handle:respond({ [":status"] = "400", ["content-type"] = "text/plain" }, "refused: it cannot be checked\n")
  end
end
