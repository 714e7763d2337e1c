-- Refuses bodies and trailers where no message is expected. A limit of Envoy's own would not do: it holds only for what is
-- held back, and a body in one piece is not.

function envoy_on_request(handle)
  local body = handle:body()
  if (body and body:length() > 0) or handle:trailers() then
    handle:respond({ [":status"] = "413", ["content-type"] = "text/plain" }, "refused: there is a body\n")
  end
end
