"""Real packets between network namespaces: `tierwall test --engine nft` and the tests of this engine."""
