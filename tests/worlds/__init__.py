"""Objects that tests decide about: builders for one object, and random clusters. Nothing here runs anything."""
