"""The network plane: decides connections by all four kinds of network policy (KEP-2091).

The kinds are AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy and NetworkPolicy.
"""
