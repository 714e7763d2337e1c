-- Refuses bodies and trailers on routes that expect no message. Envoy's own size limit is not enough: it applies only to
-- buffered bodies, and Envoy does not buffer a body that arrives in one piece.
-- Headers that repeat a message are removed: there is none, and a server might go by them.

function envoy_on_request(handle)
  local headers = handle:headers()
  headers:remove("mcp-method")
  headers:remove("mcp-name")
  local body = handle:body()
  if (body and body:length() > 0) or handle:trailers() then
    pcall(function() handle:streamInfo():dynamicMetadata():set("tierwall.refusal", "why", "there is a body") end)
    handle:respond({ [":status"] = "413", ["content-type"] = "text/plain" }, "refused: there is a body\n")
  end
end
