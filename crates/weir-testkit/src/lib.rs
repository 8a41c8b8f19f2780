//! For tests: scripted peers, gateways as processes, free ports.
