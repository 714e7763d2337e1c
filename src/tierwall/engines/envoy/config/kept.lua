-- Refuses requests in which the service that counts them changed a header that no service may change: Envoy adds whatever
-- the service says. The script runs twice: before the filter that asks the service it notes these headers, behind it it
-- compares them.
--
-- If a script fails, Envoy lets the request pass, so the script catches failures and refuses the request.

local NOTED = "tierwall.kept"
local NAMES = { ["host"] = true, ["connection"] = true, ["upgrade"] = true, ["te"] = true, ["trailer"] = true,
  ["content-length"] = true }
local PREFIXES = { ":", "transfer-", "x-tierwall-", "x-forwarded-client-", "x-envoy-" }

local function is_kept(name)
  if NAMES[name] then return true end
  for _, prefix in ipairs(PREFIXES) do
    if string.sub(name, 1, #prefix) == prefix then return true end
  end
end

local function changed(handle)
  local kept = {}
  for name, value in pairs(handle:headers()) do
    if is_kept(string.lower(name)) then kept[#kept + 1] = name .. "=" .. value end
  end
  -- Metadata is UTF-8, and headers need not be.
  local text = string.gsub(table.concat(kept, "\n"), "[^ -~]", function(byte)
    return string.format("\\%d;", string.byte(byte))
  end)
  local noted = handle:streamInfo():dynamicMetadata():get(NOTED)
  if noted then return noted["headers"] ~= text end
  handle:streamInfo():dynamicMetadata():set(NOTED, "headers", text)
end

function envoy_on_request(handle)
  local is_done, is_changed = pcall(changed, handle)
  if is_done and not is_changed then return end
  local why = "the service that counts requests changed a header that it may not change"
  pcall(function() handle:streamInfo():dynamicMetadata():set("tierwall.refusal", "why", why) end)
  handle:respond({ [":status"] = "500", ["content-type"] = "text/plain" }, "refused: " .. why .. "\n")
end
