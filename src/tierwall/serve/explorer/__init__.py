"""The server of the explorer: who may look, what is followed, and how pages are answered (docs/explorer.md#safety)."""
