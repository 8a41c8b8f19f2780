//! The query of a request.

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
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = || {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
        };
        match byte {
            b'%' if escaped().is_some() => {
                bytes.extend(escaped());
                rest = &after[2..];
                continue;
            }
            byte => bytes.push(byte),
        }
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

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
