// Package suite is the conformance suite of the Gateway API as a program: `scripts/kubernetes` builds it.
package suite

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) {
	conformance.RunConformance(t)
}
