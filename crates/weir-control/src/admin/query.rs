//! The query of a request.

use percent_encoding::percent_decode_str;

use super::answer::{Refused, refuse};

/// Names and values, decoded, in the order of the text.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: &str) -> Query {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        };
        Query(text.split('&').filter(|text| !text.is_empty()).map(pair).collect())
    }

    /// The first value with this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// All values with this name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.iter().filter(move |(own, _)| *own == name).map(|(_, value)| value)
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// Refuses a switch that is neither on nor off, and names that are nearly `dry_run`: the change would be made.
    pub(super) fn check(&self) -> Refused<()> {
        for (name, value) in self.iter() {
            let letters: String = name.chars().filter(char::is_ascii_alphabetic).collect();
            let is_switch = matches!(name, "dry_run" | "force");
            if is_switch && !matches!(value, "true" | "false") {
                return refuse(format!("wrong `{name}={value}`: write `{name}=true` or `{name}=false`"));
            }
            if !is_switch && letters.eq_ignore_ascii_case("dryrun") {
                return refuse(format!("unknown query argument `{name}`: write `dry_run=true`"));
            }
        }
        Ok(())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Decodes `%41` to `A`, and `+` to a space. Invalid escapes stay as they are.
fn decoded(text: &str) -> String {
    decoded_path(&text.replace('+', " "))
}

/// Decodes `%41` to `A`. Invalid escapes stay as they are.
pub(super) fn decoded_path(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_not_made_where_a_dry_run_may_be_meant() {
        for query in ["", "dry_run=true", "dry_run=false&force=true", "wait=5s"] {
            assert!(Query::parse(query).check().is_ok(), "{query}");
        }
        for query in
            ["dry_run", "dry_run=1", "dry_run=True", "force=yes", "dry-run=true", "dryRun=true", "wait=1s&dry_run="]
        {
            assert!(Query::parse(query).check().is_err(), "{query}");
        }
    }

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse("page=1&&name=a%20b+c&filter=service_id%3Ds1%26upstream_id%3Du1&x&bad=%zz%4");
        assert_eq!(query.get("name"), Some("a b c"));
        assert_eq!(query.get("filter"), Some("service_id=s1&upstream_id=u1"));
        assert_eq!((query.get("x"), query.get("y")), (Some(""), None));
        assert_eq!(query.get("bad"), Some("%zz%4"));
        assert_eq!(decoded_path("a+b%2Bc%20d"), "a+b+c d");
    }
}
