// What `scripts/setup` builds grpcurl from: a version that Debian 12's Go can build, with newer ones of what it needs.
module tools

go 1.19

require (
	github.com/fullstorydev/grpcurl v1.8.7
	golang.org/x/net v0.7.0
	golang.org/x/sys v0.5.0
	golang.org/x/text v0.7.0
)
