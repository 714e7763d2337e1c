"""Real packets between network namespaces, for `tierwall test --engine nft` and the tests of this engine."""
