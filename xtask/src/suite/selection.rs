//! Which tests are wanted, in the words of `cargo test`.

/// Options of `cargo test` whose value is the next argument.
const WITH_VALUE: [&str; 18] = [
    "-p",
    "--package",
    "--exclude",
    "--test",
    "--bin",
    "--example",
    "--bench",
    "-F",
    "--features",
    "-j",
    "--jobs",
    "--profile",
    "--target",
    "--target-dir",
    "--manifest-path",
    "--color",
    "--config",
    "-Z",
];
/// Options that choose targets. With any of them `cargo test` leaves the examples in documentation out.
const OF_TARGETS: [&str; 10] = [
    "--lib",
    "--bin",
    "--bins",
    "--test",
    "--tests",
    "--example",
    "--examples",
    "--bench",
    "--benches",
    "--all-targets",
];
/// Chooses the examples in documentation.
const DOCUMENTATION: &str = "--doc";

/// The arguments for `cargo test`, and those for each binary with tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SelectedTests {
    pub of_cargo: Vec<String>,
    pub of_tests: Vec<String>,
}

impl SelectedTests {
    /// Of arguments as `cargo test` has them: `[OPTIONS] [NAME] [-- OPTIONS AND NAMES]`.
    pub(super) fn of(arguments: &[&str]) -> SelectedTests {
        let mut selection = SelectedTests::default();
        let mut arguments = arguments.iter();
        let mut is_value = false;
        for argument in arguments.by_ref().take_while(|argument| **argument != "--") {
            let is_name = !is_value && !argument.starts_with('-');
            let list = if is_name { &mut selection.of_tests } else { &mut selection.of_cargo };
            list.push((*argument).to_owned());
            is_value = WITH_VALUE.contains(argument);
        }
        selection.of_tests.extend(arguments.map(|argument| (*argument).to_owned()));
        selection
    }

    /// Whether every binary with tests is built.
    pub(super) fn is_everything(&self) -> bool {
        self.of_cargo.is_empty()
    }

    /// Whether nothing but the examples in documentation is wanted.
    pub(super) fn is_documentation(&self) -> bool {
        self.of_cargo.iter().any(|option| option == DOCUMENTATION)
    }

    /// The options for the examples in documentation.
    pub(super) fn of_documentation(&self) -> impl Iterator<Item = &str> {
        let always = [DOCUMENTATION, "--no-fail-fast"];
        always
            .into_iter()
            .chain(self.of_cargo.iter().map(String::as_str).filter(move |option| !always.contains(option)))
    }

    /// Whether the examples in documentation are wanted, too.
    pub(super) fn has_documentation(&self) -> bool {
        let chooses = |argument: &String| {
            let option = argument.split('=').next().unwrap_or_default();
            OF_TARGETS.contains(&option)
        };
        !self.of_cargo.iter().any(chooses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(arguments: &[&str]) -> (Vec<String>, Vec<String>) {
        let SelectedTests { of_cargo, of_tests } = SelectedTests::of(arguments);
        (of_cargo, of_tests)
    }

    #[test]
    fn names_of_tests_are_told_from_options_of_cargo_and_their_values() {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (of_cargo, of_tests) = lists(&["--test", "plugins", "-q", "cors", "--", "--ignored", "--test"]);
        assert_eq!(of_cargo, owned(&["--test", "plugins", "-q"]));
        assert_eq!(of_tests, owned(&["cors", "--ignored", "--test"]));
        assert_eq!(lists(&["--", "cors"]), (vec![], owned(&["cors"])));
    }

    #[test]
    fn documentation_is_wanted_unless_targets_are_chosen() {
        assert!(
            SelectedTests::of(&["--", "--lib"]).has_documentation() && SelectedTests::of(&["-q"]).has_documentation()
        );
        assert!(!SelectedTests::of(&["--lib"]).has_documentation());
        let alone = SelectedTests::of(&["--doc", "-q"]);
        assert!(alone.is_documentation() && alone.has_documentation());
        assert_eq!(alone.of_documentation().collect::<Vec<_>>(), ["--doc", "--no-fail-fast", "-q"]);
        assert!(!SelectedTests::of(&["--test=plugins"]).has_documentation());
        assert!(SelectedTests::of(&["--", "cors"]).is_everything() && !SelectedTests::of(&["--lib"]).is_everything());
    }
}
