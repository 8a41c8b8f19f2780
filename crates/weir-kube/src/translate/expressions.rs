//! The regular expressions that requests are compared with. Each translation compiles them to see whether they can be served, and they
//! are written by the users of a namespace: what one namespace can let the node compile is bounded.

use std::collections::{BTreeMap, BTreeSet};

use regex::{Error, RegexBuilder};

/// The most bytes of the compiled expressions of a namespace. Each counts as the sizes that are tried for it.
const MOST_OF_NAMESPACE: usize = 16 << 20;
/// The sizes that are tried, in bytes. The node compiles none that takes more than the last one.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// What the expressions of each namespace have taken so far.
#[derive(Clone, Default)]
pub(super) struct Expressions {
    spent: BTreeMap<String, usize>,
    /// Those that can be served: nodes compile a text once, wherever it stands, so it counts once.
    served: BTreeMap<String, BTreeSet<String>>,
}

impl Expressions {
    /// Whether an expression of this namespace can be served.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub(super) fn check(&mut self, namespace: &str, expression: &str) -> Result<(), String> {
        let served = self.served.entry(namespace.to_owned()).or_default();
        if served.contains(expression) {
            return Ok(());
        }
        let spent = self.spent.entry(namespace.to_owned()).or_default();
        for size in SIZES {
            if *spent + size > MOST_OF_NAMESPACE {
                return Err(format!(
                    "the regular expressions of the namespace take more than {} MiB together when they are compiled",
                    MOST_OF_NAMESPACE >> 20
                ));
            }
            *spent += size;
            match RegexBuilder::new(expression).size_limit(size).build() {
                Ok(_) => {
                    served.insert(expression.to_owned());
                    return Ok(());
                }
                Err(Error::CompiledTooBig(_)) => {}
                Err(error) => {
                    let problem = error.to_string();
                    let last = problem.lines().last().unwrap_or_default();
                    return Err(format!("it is not a regular expression that can be served: {last}"));
                }
            }
        }
        Err("it is a regular expression that takes more than 1 MiB when it is compiled".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_a_namespace_are_bounded_together() {
        let mut expressions = Expressions::default();
        let large = |number: usize| format!("/{number}/[\\p{{L}}]{{10}}");
        let outcomes: Vec<_> = (0..1_000).map(|number| expressions.check("hostile", &large(number))).collect();
        let served = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!((1..64).contains(&served), "{served}");
        assert!(
            outcomes[999].as_ref().is_err_and(|problem| problem.contains("16 MiB together")),
            "{:?}",
            outcomes[999]
        );
        assert_eq!(expressions.check("shop", "/orders/(.*)"), Ok(()));
        let common = (0..4_000).filter(|number| expressions.check("many", &format!("/{number}(/|$)(.*)")).is_ok());
        assert_eq!(common.count(), 4_000);
        let same = (0..1_000).filter(|_| expressions.check("same", &large(0)).is_ok());
        assert_eq!(same.count(), 1_000, "a text counts once");
    }

    #[test]
    fn expressions_that_cannot_be_compiled_say_why() {
        let mut expressions = Expressions::default();
        let problem =
            |expressions: &mut Expressions, text: &str| expressions.check("shop", text).expect_err("it cannot");
        assert!(problem(&mut expressions, "/(?!x)").contains("not a regular expression that can be served"));
        assert!(problem(&mut expressions, "/\\p{L}{1000}").contains("more than 1 MiB"));
    }
}
