"""The control plane: aggregated, incremental xDS over gRPC (Envoy API reference, "xDS REST and gRPC protocol").

`cache` holds what is in force, `subscription` what one proxy asked for and has of one kind, `stream` the conversation
with one proxy, `proxy` how it stands to what is in force, and `server` all of them.
"""
