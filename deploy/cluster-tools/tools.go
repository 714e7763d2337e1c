//go:build tools

// Package tools names the programs that the cluster tests run, so that their versions are pinned in go.mod.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
