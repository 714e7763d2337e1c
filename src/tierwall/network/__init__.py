"""The network plane.

AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy and NetworkPolicy (KEP-2091).
"""
