"""The network plane in the kernel: policies and pods as one nftables table; applied, audited, tested with packets."""
