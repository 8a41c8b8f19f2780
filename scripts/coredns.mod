// What `scripts/kubernetes` builds CoreDNS from, in the version that the conformance suite names.
module weir.test/coredns

go 1.26.0

require github.com/coredns/coredns v1.12.2
