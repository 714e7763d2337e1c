"""Two agents, a Gateway and two MCP servers; `tour` runs them."""
