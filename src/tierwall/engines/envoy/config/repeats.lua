-- Refuses requests with several headers of one name, if rules look at that header: Envoy's expressions see the values
-- joined by commas, and a server may go by any of them. The route names the headers, in lower case.
--
-- If a script fails, Envoy lets the request pass, so the script catches failures and refuses the request.

local function repeated(handle)
  local headers = handle:headers()
  for _, name in ipairs(handle:metadata():get("headers")) do
    if headers:getNumValues(name) > 1 then return "there are several `" .. name .. "`" end
  end
end

function envoy_on_request(handle)
  local is_done, why = pcall(repeated, handle)
  if not is_done then why = "its headers cannot be checked" end
  if not why then return end
  pcall(function() handle:streamInfo():dynamicMetadata():set("tierwall.refusal", "why", why) end)
  handle:respond({ [":status"] = "400", ["content-type"] = "text/plain" }, "refused: " .. why .. "\n")
end
