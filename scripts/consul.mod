// What `scripts/setup` builds Consul from: a version under the Mozilla Public License that Debian 12's Go can build, and that newer
// Gos can link as well.
module tools

go 1.19

require github.com/hashicorp/consul v1.14.0
