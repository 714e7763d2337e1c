"""Envoys that run: one is kept alive, all are fed over aggregated, incremental xDS (Envoy API, "xDS protocol").

`cache` holds what is in force, `stream` the conversation with one proxy, and `server` all of them. `accesslog` takes in
what proxies decided, and `toolslist` answers what they ask about lists of tools.
"""
