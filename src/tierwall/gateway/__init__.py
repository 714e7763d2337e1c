"""The gateway plane: which settings are in force at a place, and who set them (agentgateway, "Targeting and merging"; decisions)."""
