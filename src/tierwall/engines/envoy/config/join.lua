-- Answers for several MCP servers behind one path, once all policies let a request pass
-- (docs/enforce-tools.md#joined-servers).
--
-- A message for one server goes there by its route; this script only gives it the server's own session. What concerns
-- all servers is asked of one after the other, and their answers become one: the opening, lists, notifications. Every
-- tool and prompt in a list gets its target as a prefix, every resource likewise, and nothing else of it changes. An
-- answer that is not exactly JSON is none. What no server can be asked is refused.

local TIMEOUT_MS = 5000
-- How long a server that did not answer in time is left out, where others may answer without it, in seconds.
local PAUSE_S = 10
-- The longest answer of a server, in bytes: Envoy does nothing else meanwhile.
local LONGEST = 2097152
local LISTS = {
  ["tools/list"] = { "tools", "name", "_" },
  ["prompts/list"] = { "prompts", "name", "_" },
  ["resources/list"] = { "resources", "uri", "+" },
  ["resources/templates/list"] = { "resourceTemplates", "uriTemplate", "+" },
}
local ITEMS = { ["tools/call"] = "tool", ["prompts/get"] = "prompt", ["resources/read"] = "resource", ["completion/complete"] = "reference" }
-- The capabilities that joined servers offer. They announce no changes: no stream comes from all of them.
local CAPABILITIES = { "tools", "prompts", "resources", "completions" }
local INTERNAL, NO_METHOD, WRONG_PARAMS = -32603, -32601, -32602
local OWN = { ["content-length"] = true, ["transfer-encoding"] = true, ["mcp-session-id"] = true, host = true, ["accept-encoding"] = true,
  connection = true, te = true, upgrade = true, ["if-none-match"] = true, ["if-modified-since"] = true, accept = true }
-- What routes remove from requests to a server: some read the HTTP method or the path there (`joined_backends.py`).
local OVERRIDES = {}
-- What `escaped` writes: only that is read again.
local MARKS, NOTHING = { ["%25"] = "%", ["%2c"] = ",", ["%3a"] = ":" }, { ["%25"] = "", ["%2c"] = "", ["%3a"] = "" }
-- Until when each cluster is left out.
local paused = {}

local function quoted(text)
  text = string.gsub(text, '[%z\1-\31\\"\127-\255]', "?")
  return '"' .. text .. '"'
end

local function escaped(text)
  return (string.gsub(text, "[%%,:]", function(mark) return string.format("%%%02x", byte(mark)) end))
end

-- Reads `a:x,b:y`, the parts of a joined session or cursor; nil if a text is anything else. Clients write it, and parts of
-- cursors become parts of messages: so nothing stands for a quote, and for no other character than `escaped` wrote.
local function parts_of(text)
  local out = {}
  for part in string.gmatch(text .. ",", "([^,]*),") do
    local name, rest = string.match(part, "^([a-z0-9.-]+):(.*)$")
    if not name or out[name] or find((string.gsub(rest, "%%%w%w", NOTHING)), "[%%:]") then return nil end
    out[name] = string.gsub(rest, "%%%w%w", MARKS)
  end
  return out
end

local function joined_parts(names, by_name)
  local out = {}
  for _, name in ipairs(names) do
    if by_name[name] then out[#out + 1] = name .. ":" .. escaped(by_name[name]) end
  end
  return #out > 0 and table.concat(out, ",") or nil
end

local function answer(handle, status, body, headers)
  local out = { [":status"] = tostring(status), ["content-type"] = body and "application/json" or nil }
  for name, text in pairs(headers or {}) do out[name] = text end
  handle:streamInfo():dynamicMetadata():set("tierwall.joined", "answered", true)
  handle:respond(out, body or "")
end

local function answer_message(handle, id, what, content, headers, status)
  answer(handle, status or 200, '{"jsonrpc":"2.0","id":' .. id .. ',"' .. what .. '":' .. content .. "}", headers)
end

local function fail(handle, id, code, words, status)
  answer_message(handle, id, "error", '{"code":' .. code .. ',"message":' .. quoted(words) .. "}", nil, status)
end

-- Returns the headers for one server: those of the client, without what is only between two ends of a connection.
local function headers_for(handle, target, session, method)
  local out, named = {}, handle:headers()
  for name, text in pairs(named) do
    local is_ours = OWN[name] or OVERRIDES[name] or sub(name, 1, 11) == "x-tierwall-" or sub(name, 1, 8) == "x-envoy-"
    if sub(name, 1, 1) ~= ":" and not is_ours then
      local before = out[name]
      if type(before) == "table" then before[#before + 1] = text else out[name] = before and { before, text } or text end
    end
  end
  out[":method"], out[":path"], out[":authority"] = method, target.path, target.host ~= "" and target.host or named:get(":authority")
  out.accept = "application/json, text/event-stream"
  if session ~= "" then out["mcp-session-id"] = session end
  return out
end

-- Returns the message in a response that answers, and where its parts are; of a stream of events the last.
local function message_of(headers, body, wanted)
  local kind = string.lower(string.match(headers["content-type"] or "", "^[^;]*"))
  local encoding = headers["content-encoding"]
  if encoding and encoding ~= "identity" or not is_utf8(body) then return nil end
  if string.match(kind, "^%s*application/json%s*$") then return body, fields(body, wanted) end
  if not string.match(kind, "^%s*text/event%-stream%s*$") then return nil end
  local data, found, known = {}, nil, nil
  for line in string.gmatch(string.gsub(string.gsub(body, "\r\n", "\n"), "\r", "\n") .. "\n\n", "([^\n]*)\n") do
    if line == "" then
      local text = table.concat(data, "\n")
      local message = #data > 0 and fields(text, wanted)
      if message and (message.result or message.error) and not message.method then found, known = text, message end
      data = {}
    elseif sub(line, 1, 5) == "data:" then
      data[#data + 1] = string.gsub(sub(line, 6), "^ ", "")
    end
  end
  return found, known
end

-- Returns the entries of a list with joined names; nil if it is not a list or an entry has no name.
local function renamed(text, span, name, list)
  local found, out, prefix = span[3], {}, '"' .. name .. list[3]
  if byte(text, span[1]) ~= 91 or #text + #found * #prefix > 2 * LONGEST then return nil end
  for number = 1, #found do
    local from, to, known = found[number][1], found[number][2], found[number][3]
    local own = known and byte(text, from) == 123 and known[list[2]]
    if not own or byte(text, own[1]) ~= 34 then return nil end
    out[number] = sub(text, from, own[1] - 1) .. prefix .. sub(text, own[1] + 1, to)
  end
  return table.concat(out, ",")
end

-- Asks one server; returns its answer as a table: the status and headers, and the result or error as it is written. Of a
-- list, only what is shown is kept while others are asked: where its values are takes much more room than their text.
local function ask(handle, context, name, session, method, body, list)
  local target, may_pause = context.targets[name], context.mode == "FailOpen"
  if may_pause and paused[target.cluster] and paused[target.cluster] > os.time() then return { status = 504, headers = {} } end
  local headers, text = handle:httpCall(target.cluster, headers_for(handle, target, session, method), body, { timeout_ms = TIMEOUT_MS, send_xff = false })
  local out = { status = tonumber(headers[":status"]) or 0, headers = headers }
  if out.status == 504 then paused[target.cluster] = os.time() + PAUSE_S end
  if type(headers["mcp-session-id"]) ~= "string" then headers["mcp-session-id"] = nil end
  if body and out.status >= 200 and out.status < 500 and type(headers["content-type"]) == "string" then
    local message, known
    local wanted = list and { result = { [list[1]] = { each = {} } } }
    if #(text or "") <= LONGEST then message, known = message_of(headers, text or "", wanted) end
    local result = value(message, known, "result")
    out.error = value(message, known, "error")
    if result and out.error then
      result, out.error = nil, nil
    elseif result and list then
      local inside_it = known.result[3]
      local span = inside_it and inside_it[list[1]]
      out.shown = span and renamed(message, span, name, list)
      out.cursor = inside(value(message, inside_it, "nextCursor"))
      out.is_new = inside_it and inside_it.resultType ~= nil
    else
      out.result = result
    end
  end
  return out
end

-- Returns whether a server says that it does not know the method.
local function knows_not(reply)
  local known = reply.error and fields(reply.error)
  return known and value(reply.error, known, "code") == tostring(NO_METHOD)
end

-- Asks all servers, or those of `only`; returns their answers by name, and the first that fails, by its name.
-- `body_for` returns the message for a server.
local function ask_all(handle, context, sessions, only, body_for, method, list)
  local replies, failed = {}, nil
  for _, name in ipairs(context.names) do
    if not only or only[name] then
      local session, reply = "", nil
      if sessions then session = sessions[name] end
      if session then reply = ask(handle, context, name, session, method or "POST", body_for and body_for(name), list) end
      replies[name] = reply
      local is_gone = reply and body_for and (reply.status == 401 or (reply.status == 404 and session ~= ""))
      if is_gone then return nil, name, reply end
      if not reply or reply.status < 200 or (reply.status > 299 and not reply.error) then failed = failed or name end
    end
  end
  return replies, failed
end

-- Passes on what a client must act on: that it must log in, or that its session is over.
local function pass_on(handle, reply)
  local says = reply.headers["www-authenticate"]
  answer(handle, reply.status, nil, { ["www-authenticate"] = reply.status == 401 and says or nil })
end

local function join_lists(handle, context, sessions, id, method, text)
  local list = LISTS[method]
  local message = fields(text)
  local params = value(text, message, "params")
  local known = params and fields(params)
  local only = nil
  if known and known.cursor then
    local cursor = inside(value(params, known, "cursor"))
    only = cursor and parts_of(cursor)
    for name in pairs(only or {}) do
      if not context.targets[name] then only = nil end
    end
    if not only then return fail(handle, id, WRONG_PARAMS, "the cursor is none of this list") end
  end
  local function body_for(name)
    if not only then return text end
    return with(text, message.params, with(params, known.cursor, '"' .. only[name] .. '"'))
  end
  local replies, failed, gone = ask_all(handle, context, sessions, only, body_for, nil, list)
  if gone then return pass_on(handle, gone) end
  local shown, cursors, is_new, is_known = {}, {}, false, false
  for _, name in ipairs(context.names) do
    local reply = replies[name]
    if reply and not knows_not(reply) then
      is_known = true
      if reply.shown then
        if reply.shown ~= "" then shown[#shown + 1] = reply.shown end
        cursors[name], is_new = reply.cursor, is_new or reply.is_new
      else
        failed = failed or name
      end
    end
  end
  if failed and context.mode ~= "FailOpen" then return fail(handle, id, INTERNAL, failed .. " does not answer as it should") end
  if not is_known and not failed then return fail(handle, id, NO_METHOD, "Method not found", is_new and 404 or 200) end
  local cursor = joined_parts(context.names, cursors)
  local out = '{"' .. list[1] .. '":[' .. table.concat(shown, ",") .. "]"
  if cursor then out = out .. ',"nextCursor":"' .. cursor .. '"' end
  if is_new then out = out .. ',"resultType":"complete","ttlMs":0,"cacheScope":"private"' end
  answer_message(handle, id, "result", out .. "}")
end

-- Returns what all servers can do, and their instructions, as they stand in a result.
local function merged(context, replies, first)
  local can, texts = {}, {}
  for _, name in ipairs(context.names) do
    local raw = replies[name] and replies[name].result
    local result = raw and fields(raw)
    local abilities = value(raw, result, "capabilities")
    local known = abilities and fields(abilities)
    for _, ability in ipairs(CAPABILITIES) do can[ability] = can[ability] or (known and known[ability] ~= nil) end
    local words = inside(value(raw, result, "instructions"))
    if words and words ~= "" then texts[#texts + 1] = name .. ": " .. words end
  end
  local abilities = {}
  for _, ability in ipairs(CAPABILITIES) do
    if can[ability] then abilities[#abilities + 1] = '"' .. ability .. '":{}' end
  end
  local out = "{" .. first .. ',"capabilities":{' .. table.concat(abilities, ",") .. "}"
  if #texts > 0 then out = out .. ',"instructions":"' .. table.concat(texts, "\\n\\n") .. '"' end
  return out
end

local function server_info(context)
  return '{"name":' .. quoted(context.name) .. ',"version":"1"}'
end

local function initialize(handle, context, id, text)
  local message = fields(text)
  local params = value(text, message, "params")
  local known = params and fields(params)
  if not known then return fail(handle, id, WRONG_PARAMS, "there are no parameters") end
  if known.capabilities then
    -- A server could not ask the client anything: nothing would know whom the answer is for.
    text = with(text, message.params, with(params, known.capabilities, "{}"))
  end
  local replies, failed, gone = ask_all(handle, context, nil, nil, function() return text end)
  if gone then return pass_on(handle, gone) end
  local version, sessions, has_session = nil, {}, false
  for _, name in ipairs(context.names) do
    local reply = replies[name]
    local result = reply and reply.result and fields(reply.result)
    local speaks = result and inside(value(reply.result, result, "protocolVersion"))
    if speaks and string.match(speaks, "^%d%d%d%d%-%d%d%-%d%d$") then
      if not version or speaks < version then version = speaks end
      local session = reply.headers["mcp-session-id"]
      has_session = has_session or session ~= nil
      sessions[name] = session or ""
    else
      failed, replies[name] = failed or name, nil
    end
  end
  if not version or (failed and context.mode ~= "FailOpen") then
    return fail(handle, id, INTERNAL, failed .. " does not answer as it should")
  end
  local out = merged(context, replies, '"protocolVersion":"' .. version .. '"')
  local headers = { ["mcp-session-id"] = has_session and joined_parts(context.names, sessions) or nil }
  answer_message(handle, id, "result", out .. ',"serverInfo":' .. server_info(context) .. "}", headers)
end

local function discover(handle, context, id, text)
  local replies, failed, gone = ask_all(handle, context, nil, nil, function() return text end)
  if gone then return pass_on(handle, gone) end
  local versions, count, total = {}, {}, 0
  for _, name in ipairs(context.names) do
    local reply = replies[name]
    if reply and reply.error then
      -- The client then opens the session of an earlier version.
      return answer_message(handle, id, "error", reply.error, nil, reply.status)
    end
    local result = reply and reply.result and fields(reply.result)
    local listed = result and value(reply.result, result, "supportedVersions")
    local found = listed and entries(listed)
    if found then
      total = total + 1
      for number = 1, #found do
        if not count[found[number]] then versions[#versions + 1] = found[number] end
        count[found[number]] = (count[found[number]] or 0) + 1
      end
    else
      failed, replies[name] = failed or name, nil
    end
  end
  if total == 0 or (failed and context.mode ~= "FailOpen") then
    return fail(handle, id, INTERNAL, failed .. " does not answer as it should")
  end
  local common = {}
  for _, version in ipairs(versions) do
    if count[version] == total then common[#common + 1] = version end
  end
  local out = merged(context, replies, '"supportedVersions":[' .. table.concat(common, ",") .. "]")
  out = out .. ',"resultType":"complete","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":'
  answer_message(handle, id, "result", out .. server_info(context) .. "}}")
end

-- Gives a message for one server the session that this server knows.
local function enter_session(handle, headers, context, name)
  local sessions = headers:get("mcp-session-id")
  if not sessions then return end
  local session = headers:getNumValues("mcp-session-id") == 1 and (parts_of(sessions) or {})[name]
  if not session or find(session, "[^!-~]") then
    local id = headers:get("x-tierwall-id") or "null"
    return fail(handle, id, INTERNAL, "this session has no part at " .. name .. ": begin another one")
  end
  if session == "" then headers:remove("mcp-session-id") else headers:replace("mcp-session-id", session) end
end

local function join(handle)
  local headers, settings = handle:headers(), handle:filterContext()
  local context = {
    name = settings:get("name"), mode = settings:get("mode"), names = settings:get("names"), targets = settings:get("targets"),
  }
  local target, verb = headers:get("x-tierwall-target"), headers:get(":method")
  local chosen = handle:streamInfo():dynamicMetadata():get("tierwall.chosen")
  if chosen and chosen.place ~= settings:get("place") then
    -- The message has changed, and Envoy chose the route of another rule: not all filters of that one were there.
    return answer(handle, 500)
  end
  if target then return enter_session(handle, headers, context, target) end
  local given, sessions = headers:get("mcp-session-id"), nil
  if given then
    sessions = headers:getNumValues("mcp-session-id") == 1 and parts_of(given)
    for _, session in pairs(sessions or {}) do
      if find(session, "[^!-~]") then sessions = false end
    end
    if not sessions then return answer(handle, 404) end
  end
  if verb == "DELETE" and sessions then
    ask_all(handle, context, sessions, nil, nil, "DELETE")
    return answer(handle, 200)
  end
  if verb ~= "POST" then return answer(handle, 405, nil, { allow = "POST, DELETE" }) end
  local method, id = headers:get("x-tierwall-method") or "", headers:get("x-tierwall-id")
  local is_new = headers:get("mcp-protocol-version") == "2026-07-28"
  local body = handle:body()
  local text = body and body:getBytes(0, body:length()) or ""
  if not id then
    if sub(method, 1, 14) ~= "notifications/" then return answer(handle, 400) end
    local _, _, gone = ask_all(handle, context, sessions, nil, function() return text end)
    if gone then return pass_on(handle, gone) end
    return answer(handle, 202)
  end
  if method == "initialize" then return initialize(handle, context, id, text) end
  if method == "server/discover" then return discover(handle, context, id, text) end
  if LISTS[method] then return join_lists(handle, context, sessions, id, method, text) end
  if method == "ping" then return answer_message(handle, id, "result", "{}") end
  local message = fields(text)
  local item = ITEMS[inside(value(text, message, "method")) or ""]
  if item then return fail(handle, id, WRONG_PARAMS, "no server has this " .. item) end
  fail(handle, id, NO_METHOD, "Method not found", is_new and 404 or 200)
end

function envoy_on_request(handle)
  if not pcall(join, handle) then
    handle:respond({ [":status"] = "502", ["content-type"] = "text/plain" }, "the answers cannot be joined\n")
  end
end
