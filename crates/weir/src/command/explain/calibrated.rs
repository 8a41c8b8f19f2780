//! Calibrated costs of plugins, read from the table in docs/reference/prices.md.

const PAGE: &str = include_str!("../../../../../docs/reference/prices.md");

/// The cost that a plugin adds to a request, in words.
pub(super) fn price(plugin: &str) -> String {
    match instructions(plugin) {
        Some(count) if count.starts_with('-') => {
            let saved = count.trim_start_matches('-');
            format!("saves {saved} user instructions if it answers in place of the upstream, calibrated")
        }
        Some(count) => format!("{count} user instructions, calibrated"),
        None => "–".to_owned(),
    }
}

/// The number as in the table, with commas between thousands.
fn instructions(plugin: &str) -> Option<&'static str> {
    let (_, count) = rows().find(|(name, _)| *name == plugin)?;
    (count != "–").then_some(count)
}

/// The name and the number in each row of the table.
fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.strip_suffix('`')?, cells.next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::PLUGINS;

    #[test]
    fn the_page_says_what_plugins_cost() {
        assert!(rows().count() > 30, "the table of the page is not found");
        for (name, count) in rows() {
            assert!(PLUGINS.find(name).is_some(), "`{name}` is not a plugin");
            let digits = count.replace(',', "");
            assert!(
                count == "–" || digits.parse::<i64>().is_ok(),
                "`{name}`: `{count}` is not a number of instructions"
            );
        }
        let scenario = include_str!("../../../../../bench/scenarios/policies.yaml");
        for name in PLUGINS.built_in().iter().map(|entry| entry.name) {
            let measured = scenario.contains(&format!("policy: {name},"));
            assert_ne!(
                measured,
                scenario.contains(&format!("`{name}`")),
                "`{name}` has a row in bench/scenarios/policies.yaml, or is named there as not included"
            );
            assert!(!measured || rows().any(|(row, _)| row == name), "docs/reference/prices.md has no row of `{name}`");
        }
        assert!(price("key-auth").ends_with(" user instructions, calibrated"));
        assert!(price("redirect").starts_with("saves "), "{}", price("redirect"));
        assert_eq!(price("unheard-of"), "–");
    }
}
