// What the tests fetch of the CEL specification; see ../cel_spec_tests.py.
module tierwall.io/cel-spec

go 1.23.0

require cel.dev/expr v0.25.3
