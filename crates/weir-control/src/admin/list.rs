//! Lists of resources: filters, order and pages.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::answer::{Refused, refuse, text};
use super::query::Query;
use super::references::id_text;
use crate::stores::resources::{ResourceKey, StoredResource};

/// The most bytes of a compiled pattern.
const MAX_PATTERN: usize = 1 << 20;
const PAGE_SIZES: std::ops::RangeInclusive<u64> = 10..=500;

/// The filters and page of a list request.
#[derive(Debug)]
pub(super) struct ListQuery {
    name: Option<Regex>,
    uri: Option<Regex>,
    label: Option<String>,
    /// Members that must have the given value.
    members: Vec<(String, String)>,
    /// The page, from 1, and its size.
    page: Option<(u64, u64)>,
}

impl ListQuery {
    pub(super) fn of(list: &str, query: &Query) -> Refused<ListQuery> {
        let compiled = |text: &str| RegexBuilder::new(text).size_limit(MAX_PATTERN).dfa_size_limit(MAX_PATTERN).build();
        let pattern = |name: &str| match query.get(name).map(compiled) {
            None => Ok(None),
            Some(Ok(pattern)) => Ok(Some(pattern)),
            Some(Err(error)) => refuse(format!("invalid argument {name}: {error}")),
        };
        // APISIX lists everything if one of the two is no number.
        let number = |name: &str| match query.get(name).filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => match whole(text) {
                Some(number) => Ok(Some(number)),
                None => refuse(format!("invalid argument {name}: it must be a whole number")),
            },
        };
        let page = number("page")?.zip(number("page_size")?).map(|(page, size)| (page.max(1), size));
        if page.is_some_and(|(_, size)| !PAGE_SIZES.contains(&size)) {
            let answer = text(http::StatusCode::BAD_REQUEST, "page_size must be between 10 and 500");
            return Err(Box::new(answer));
        }
        let filter = Query::parse(query.get("filter").unwrap_or_default());
        let known =
            |name: &str| matches!(list, "routes" | "stream_routes") && matches!(name, "service_id" | "upstream_id");
        let members = filter.iter().filter(|(name, _)| known(name));
        Ok(ListQuery {
            name: pattern("name")?,
            uri: pattern("uri")?,
            label: query.get("label").map(str::to_owned),
            members: members.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            page,
        })
    }

    fn takes_all(&self) -> bool {
        self.name.is_none() && self.uri.is_none() && self.label.is_none() && self.members.is_empty()
    }

    /// Whether a resource is in the list.
    pub(super) fn takes(&self, resource: &StoredResource) -> bool {
        self.takes_all() || self.takes_value(&resource.value())
    }

    fn takes_value(&self, value: &Value) -> bool {
        let named = |pattern: &Regex| value["name"].as_str().is_some_and(|name| pattern.is_match(name));
        let at_uri = |pattern: &Regex| {
            let more = value["uris"].as_array().into_iter().flatten();
            more.chain(value.get("uri")).filter_map(Value::as_str).any(|uri| pattern.is_match(uri))
        };
        self.name.as_ref().is_none_or(named)
            && self.uri.as_ref().is_none_or(at_uri)
            && self.label.as_ref().is_none_or(|label| value["labels"].get(label).is_some())
            && self.members.iter().all(|(name, wanted)| value.get(name).and_then(id_text).as_ref() == Some(wanted))
    }

    /// The resources of the page that was asked for.
    pub(super) fn page<'r>(
        &self,
        mut found: Vec<(&'r ResourceKey, &'r StoredResource)>,
    ) -> Vec<(&'r ResourceKey, &'r StoredResource)> {
        let Some((page, size)) = self.page else { return found };
        found.sort_by_key(|(_, resource)| resource.created);
        let skipped = usize::try_from((page - 1).saturating_mul(size)).unwrap_or(usize::MAX);
        found.into_iter().skip(skipped).take(size as usize).collect()
    }
}

/// A whole number, also written as `1.0`; one below 0 counts as 0.
fn whole(text: &str) -> Option<u64> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && number.fract() == 0.0)?;
    Some(number as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listed(query: &str) -> Vec<String> {
        let texts = [
            ("b", 1, json!({"name": "beta", "uri": "/b/x", "labels": {"team": "a"}, "service_id": "s1"})),
            ("a", 2, json!({"name": "alpha", "uris": ["/a", "/b"], "upstream_id": 7})),
            ("c", 3, json!({"uri": "/c"})),
        ];
        let all: Vec<_> = texts
            .map(|(id, created, value)| {
                let resource =
                    StoredResource { json: value.to_string().into(), created, modified: created, expires_ms: None };
                (ResourceKey::new("routes", id), resource)
            })
            .into();
        let mut sorted: Vec<_> = all.iter().map(|(key, resource)| (key, resource)).collect();
        sorted.sort_by_key(|(key, _)| *key);
        let wanted = ListQuery::of("routes", &Query::parse(query)).expect("a good query");
        let found = sorted.into_iter().filter(|(_, resource)| wanted.takes(resource)).collect();
        wanted.page(found).into_iter().map(|(key, _)| key.id().to_owned()).collect()
    }

    #[test]
    fn lists_are_filtered_and_cut_into_pages() {
        assert_eq!(listed(""), ["a", "b", "c"]);
        assert_eq!(listed("page=1&page_size=10"), ["b", "a", "c"], "in the order of their making");
        assert_eq!(listed("page=1"), ["a", "b", "c"], "one of the two alone does not count");
        assert_eq!(listed("page=2&page_size=10"), [""; 0]);
        assert_eq!(listed("name=^al"), ["a"]);
        assert_eq!(listed("uri=/b"), ["a", "b"]);
        assert_eq!(listed("label=team"), ["b"]);
        assert_eq!(listed("filter=service_id%3Ds1"), ["b"]);
        assert_eq!(listed("filter=upstream_id%3D7%26other%3D1"), ["a"]);
        assert_eq!(listed("page=-1&page_size=10"), ["b", "a", "c"], "the first page");
        assert_eq!(listed("page=1.0&page_size=20.0"), ["b", "a", "c"]);
        assert_eq!(listed("page=&page_size="), ["a", "b", "c"], "as if absent");
        for wrong in [
            "page=1&page_size=5",
            "page=1&page_size=-1",
            "page=a&page_size=10",
            "page=a",
            "page=1.5",
            "page=inf",
            "page=nan",
        ] {
            assert!(ListQuery::of("routes", &Query::parse(wrong)).is_err(), "{wrong}");
        }
        assert!(ListQuery::of("routes", &Query::parse("name=(")).is_err());
    }
}
