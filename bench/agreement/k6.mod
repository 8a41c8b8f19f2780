// What `bench/agreement/run` builds k6 from.
module tools

go 1.25

require go.k6.io/k6 v1.8.1
