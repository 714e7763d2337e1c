-- Changes the fields of a request to a language model: the model of the provider, fields that policies override or have
-- defaults for, and names that stand for models (`backend.ai`). The settings of the destination say how.
--
-- A request must be an object of JSON as RFC 8259 defines it, and its keys must not repeat. So that nobody evades a field
-- that a policy sets, keys that some parsers would read as that field are refused: those with capitals or with the two
-- characters that fold to ASCII letters, and keys with escapes. Bodies that are encoded are refused, too.
--
-- If a script fails, Envoy lets the request pass, so the script catches failures and refuses the request.

local find, sub, byte, lower, gsub, concat = string.find, string.sub, string.byte, string.lower, string.gsub, table.concat

local DEEPEST = 100
local NOT_JSON = "the body is not a plain object of JSON"
local CLOSING = { [91] = 93, [123] = 125 }

local function stop_reading(why)
  error({ why = why })
end

local function after_blanks(text, at)
  return find(text, "[^ \t\r\n]", at) or #text + 1
end

-- Returns where a string ends whose first quote is at a place.
local function string_end(text, at)
  at = at + 1
  while true do
    local stop = find(text, '["\\%z\1-\31]', at)
    local found = stop and byte(text, stop)
    if found == 34 then return stop end
    if found ~= 92 then stop_reading(NOT_JSON) end
    if find(text, '^["\\/bfnrt]', stop + 1) then
      at = stop + 2
    elseif find(text, "^u%x%x%x%x", stop + 1) then
      at = stop + 6
    else
      stop_reading(NOT_JSON)
    end
  end
end

local value_end

-- Returns where a list or an object ends that begins at a place; `note` gets the places of its keys and values.
local function container_end(text, at, depth, note)
  if depth > DEEPEST then stop_reading("the body is too deep") end
  local closing, is_object = CLOSING[byte(text, at)], byte(text, at) == 123
  at = after_blanks(text, at + 1)
  if byte(text, at) == closing then return at end
  while true do
    local key, key_end = at, nil
    if is_object then
      if byte(text, at) ~= 34 then stop_reading(NOT_JSON) end
      key_end = string_end(text, at)
      at = after_blanks(text, key_end + 1)
      if byte(text, at) ~= 58 then stop_reading(NOT_JSON) end
      at = after_blanks(text, at + 1)
    end
    local stop = value_end(text, at, depth)
    if note then note(sub(text, key + 1, key_end - 1), at, stop) end
    at = after_blanks(text, stop + 1)
    local found = byte(text, at)
    if found == closing then return at end
    if found ~= 44 then stop_reading(NOT_JSON) end
    at = after_blanks(text, at + 1)
  end
end

-- Returns where a value ends that begins at a place.
function value_end(text, at, depth)
  local first = byte(text, at)
  if first == 34 then return string_end(text, at) end
  if CLOSING[first] then return container_end(text, at, depth + 1) end
  local _, stop = find(text, "^-?%d+", at)
  if stop then
    if find(text, "^-?0%d", at) then stop_reading(NOT_JSON) end
    local _, fraction = find(text, "^%.%d+", stop + 1)
    local _, exponent = find(text, "^[eE][+-]?%d+", (fraction or stop) + 1)
    return exponent or fraction or stop
  end
  for _, word in ipairs({ "true", "false", "null" }) do
    if sub(text, at, at + #word - 1) == word then return at + #word - 1 end
  end
  stop_reading(NOT_JSON)
end

-- Returns a key or a name without the escapes of slashes; nil if it has others.
local function plain(text)
  if find(text, "\\", 1, true) then text = gsub(text, "\\/", "/") end
  return not find(text, "\\", 1, true) and text or nil
end

-- Returns a key as parsers read it that take no notice of case: two characters beyond ASCII fold to letters.
local function folded(key)
  return lower((gsub(gsub(key, "\226\132\170", "k"), "\197\191", "s")))
end

-- Returns the keys of an object in their order, and the text of each value.
local function members(text)
  local first = after_blanks(text, 1)
  if byte(text, first) ~= 123 then stop_reading(NOT_JSON) end
  local keys, values = {}, {}
  local stop = container_end(text, first, 1, function(written, from, to)
    local key = plain(written)
    if not key then stop_reading("a key has escapes") end
    if values[key] then stop_reading("key `" .. key .. "` is repeated") end
    keys[#keys + 1], values[key] = key, sub(text, from, to)
  end)
  if after_blanks(text, stop + 1) <= #text then stop_reading(NOT_JSON) end
  return keys, values
end

-- Whether a text has the parts of a pattern in their order, the first at its beginning and the last at its end.
local function has_parts(text, parts)
  local first, last = parts[1], parts[#parts]
  if #text < #first + #last or sub(text, 1, #first) ~= first or sub(text, #text - #last + 1) ~= last then return false end
  local at = #first + 1
  for number = 2, #parts - 1 do
    local _, stop = find(text, parts[number], at, true)
    if not stop or stop > #text - #last then return false end
    at = stop + 1
  end
  return true
end

-- Returns the model that a name stands for, as JSON; nil if it stands for itself.
local function resolved(name, settings)
  local exact = settings:get("aliases")
  if exact and exact[name] then return exact[name] end
  for _, pattern in ipairs(settings:get("patterns") or {}) do
    if has_parts(name, pattern.parts) then return pattern.model end
  end
end

local function changed(text, settings)
  -- No text in UTF-8 has these bytes, and some parsers read them as longer forms of ASCII.
  if find(text, "[\192\193\245-\255]") then stop_reading(NOT_JSON) end
  local keys, values = members(text)
  local set, defaults = settings:get("set") or {}, settings:get("defaults") or {}
  local own = { model = true }
  for key in pairs(set) do own[key] = true end
  for key in pairs(defaults) do own[key] = true end
  for _, key in ipairs(keys) do
    if not own[key] then
      for known in pairs(own) do
        if folded(key) == folded(known) then stop_reading("key `" .. known .. "` has another spelling") end
      end
    end
  end
  local function put(key, value)
    if not values[key] then keys[#keys + 1] = key end
    values[key] = value
  end
  local provided = settings:get("model")
  if provided then put("model", provided) end
  for key, value in pairs(set) do put(key, value) end
  for key, value in pairs(defaults) do
    if not values[key] then put(key, value) end
  end
  local model = values.model
  if not model or byte(model) ~= 34 then stop_reading("it does not name a model") end
  local name = plain(sub(model, 2, -2))
  if not name then stop_reading("the model has escapes") end
  values.model = resolved(name, settings) or model
  local parts = {}
  for _, key in ipairs(keys) do parts[#parts + 1] = '"' .. key .. '":' .. values[key] end
  return "{" .. concat(parts, ",") .. "}"
end

local function refuse(handle, why)
  local answer = '{"error":{"message":"refused: ' .. gsub(why, '[%z\1-\31"\\\127-\255]', "?") .. '","type":"invalid_request_error"}}'
  handle:respond({ [":status"] = "400", ["content-type"] = "application/json" }, answer)
end

local function is_encoded(headers)
  local kind = lower(headers:get("content-type") or "")
  return headers:get("content-encoding") or find(kind, "charset", 1, true) and not find(kind, 'charset="?utf%-?8')
end

function envoy_on_request(handle)
  if handle:metadata():get("passes") then return end
  if is_encoded(handle:headers()) then return refuse(handle, "the body is encoded") end
  local body = handle:body()
  if not body then return refuse(handle, NOT_JSON) end
  local is_done, result = pcall(changed, body:getBytes(0, body:length()), handle:filterContext())
  if not is_done then return refuse(handle, type(result) == "table" and result.why or "it cannot be read") end
  handle:headers():replace("content-length", tostring(body:setBytes(result)))
end
