// What `bench/agreement/run` builds ghz from.
module tools

go 1.24

require github.com/bojand/ghz v0.120.0
