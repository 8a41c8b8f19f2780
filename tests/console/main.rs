//! The console in a browser, on a whole gateway. `screens` opens all of them, `draft` is for resources in files, `tasks` does what a first
//! day asks for, by pointer and by keys, `tour` the tour of the guide, `lab`, `environments` and `records` are screens that need more than a
//! gateway, `pictures` makes those of the guide, `forms` holds the forms against the schemas, `hostile` has texts that try to be more,
//! `strangers` pages of other servers, `log_in` is that at a provider, `rules` what can be said without a browser: contrast of colours,
//! sizes. The tests drive Chromium; `tasks` and `keys` drive Firefox too, in `make test-full`. Without a browser or axe-core, the tests that
//! need it are reported as skipped; `scripts/setup` installs them.

#[path = "../admin/api.rs"]
mod api;
mod bench;
mod draft;
mod environments;
mod figures;
mod forms;
mod hostile;
#[path = "../hub/peers.rs"]
#[expect(dead_code, reason = "the tests of the hub use the rest")]
mod hub_peers;
mod keys;
mod lab;
mod log_in;
#[path = "../plugins/oidc/server.rs"]
#[expect(dead_code, reason = "tests of the plugin use the rest")]
mod oidc_server;
mod pages;
mod pictures;
mod records;
mod rules;
mod screens;
mod strangers;
mod tasks;
mod tour;
