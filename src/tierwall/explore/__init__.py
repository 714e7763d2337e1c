"""The explorer's pages: pure functions of a world and an address, as HTML and as JSON (docs/explorer.md)."""
