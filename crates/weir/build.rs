//! Makes an optimised build embed the console as it is: without this, Cargo would not notice files that were added to the folder. A
//! build without optimisation reads the folder when it runs, and starts at a fixed place in memory.

use std::env;

fn main() {
    let is_optimised = env::var("PROFILE").is_ok_and(|profile| profile != "debug");
    let watched = if is_optimised { "../../console" } else { "build.rs" };
    println!("cargo::rerun-if-changed={watched}");
    // At any other place, each start would write 680,000 addresses into 2,000 pages first, which is an eighth of the processor time of
    // a start, and the tests start the program thousands of times.
    let is_gnu = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "gnu");
    if !is_optimised && is_gnu {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
