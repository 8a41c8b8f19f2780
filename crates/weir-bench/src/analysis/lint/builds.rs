//! A rule about programs that were built for development.

use super::{LintVerdict, Severity, about_all};
use crate::{manifest::NOT_OPTIMISED, result::ResultFile};

/// A warning if the lab or a target says of its version that it is not optimised. Other programs than Weir do not say so.
pub(super) fn judge(result: &ResultFile) -> Option<LintVerdict> {
    let of_lab = result.manifest.versions.get("weir-bench").map(|version| ("the lab", &**version));
    let programs = result.targets.iter().chain(&result.backends);
    let of_programs = programs.filter_map(|program| Some((&*program.name, program.version.as_deref()?)));
    of_versions(of_lab.into_iter().chain(of_programs))
}

fn of_versions<'a>(versions: impl Iterator<Item = (&'a str, &'a str)>) -> Option<LintVerdict> {
    let slow: Vec<&str> =
        versions.filter(|(_, version)| version.ends_with(NOT_OPTIMISED)).map(|(name, _)| name).collect();
    if slow.is_empty() {
        return None;
    }
    let words = format!(
        "built without optimisation: {}. Such a program is several times slower; measure that of `make release`",
        slow.join(", ")
    );
    Some(about_all("not-optimised", Severity::Warning, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_say_so_are_named() {
        let of = |versions: &[(&str, &str)]| of_versions(versions.iter().copied()).map(|verdict| verdict.words);
        assert_eq!(of(&[("the lab", "0.1.0"), ("weir", "weir 0.1.0"), ("nginx", "nginx/1.30.0")]), None);
        let found = of(&[
            ("the lab", "0.1.0 (not optimised)"),
            ("weir", "weir 0.1.0 (not optimised)"),
            ("nginx", "nginx/1.30.0"),
        ]);
        let found = found.expect("two of them are");
        assert!(found.starts_with("built without optimisation: the lab, weir. "), "{found}");
    }
}
