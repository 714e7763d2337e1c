//go:build tools

// Package tools pins the suite that `make conformance` builds, and the server that its pods run.
package tools

import (
	_ "sigs.k8s.io/gateway-api/conformance"
	_ "sigs.k8s.io/gateway-api/conformance/echo-basic"
)
