// What `scripts/setup` builds h2spec from. Its own sources name no versions, and the latest ones want a newer Go than
// Debian 12 has.
module tools

go 1.19

require (
	github.com/fatih/color v1.13.0
	github.com/mattn/go-colorable v0.1.12
	github.com/mattn/go-isatty v0.0.14
	github.com/spf13/cobra v1.5.0
	github.com/summerwind/h2spec v2.2.1+incompatible
	golang.org/x/net v0.7.0
	golang.org/x/sys v0.5.0
	golang.org/x/text v0.7.0
	gopkg.in/yaml.v2 v2.4.0
)
