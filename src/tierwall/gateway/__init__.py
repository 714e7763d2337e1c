"""The gateway plane: which settings hold at a place, and who set them (agentgateway, "Targeting and merging")."""
