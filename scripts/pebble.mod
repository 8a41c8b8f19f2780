// What `scripts/setup` builds Pebble from: the last version that Debian 12's Go can build, with libraries that newer Gos
// can link as well.
module tools

go 1.19

require (
	github.com/letsencrypt/challtestsrv v1.2.1
	github.com/letsencrypt/pebble/v2 v2.4.0
	github.com/miekg/dns v1.1.50
	golang.org/x/crypto v0.6.0
	golang.org/x/net v0.7.0
	golang.org/x/sys v0.5.0
	golang.org/x/tools v0.1.12
	gopkg.in/square/go-jose.v2 v2.6.0
)
