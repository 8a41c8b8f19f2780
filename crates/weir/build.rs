//! Makes an optimised build embed the console as it is: without this, Cargo would not notice files that were added to the folder. A
//! build without optimisation reads the folder when it runs.

fn main() {
    let is_optimised = std::env::var("PROFILE").is_ok_and(|profile| profile != "debug");
    let watched = if is_optimised { "../../console" } else { "build.rs" };
    println!("cargo::rerun-if-changed={watched}");
}
