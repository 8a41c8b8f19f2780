//! What is told of a resource that cannot be served. It has the values of Secrets in it, and who reads logs and statuses need not be who
//! reads Secrets.

use serde_json::Value;

use crate::document::{for_each_secret, mask_secrets};
use crate::stores::resources::ResourceKey;
use crate::text::diagnostic::Diagnostic;

/// What is told in place of a problem that may quote a secret, which can stand in the object itself as well as in a Secret.
const HIDDEN: &str = "is refused; the reason is not told, since it may quote a secret option";
/// The least bytes of a value that a text has to have in common with it to quote it.
const QUOTED: usize = 8;

/// A fault of a resource with this text, without the values of Secrets: they stand in secret options alone.
pub(super) fn without_secrets(key: &ResourceKey, json: &str, fault: Diagnostic) -> Diagnostic {
    let Ok(mut resource) = serde_json::from_str::<Value>(json) else { return fault };
    let mut masked = resource.clone();
    mask_secrets(key.list(), &mut masked);
    let place = fault.path.split_once(": ").map_or("", |(_, place)| place);
    let is_quoted = is_option_beside_secret((&resource, &masked), place) || quotes(key, &mut resource, &fault);
    match is_quoted {
        true => Diagnostic { problem: HIDDEN.to_owned(), advice: None, ..fault },
        false => fault,
    }
}

/// Whether a place is in the options of a plugin some of which are secret.
fn is_option_beside_secret((resource, masked): (&Value, &Value), place: &str) -> bool {
    let Some(place) = place.strip_prefix("plugins.") else { return false };
    let name = &place[..place.find(['.', '[']).unwrap_or(place.len())];
    place != name && resource["plugins"][name] != masked["plugins"][name]
}

/// Whether a text of the fault has a secret of the resource in it, or the beginning of a long one.
fn quotes(key: &ResourceKey, resource: &mut Value, fault: &Diagnostic) -> bool {
    let mut is_quoted = false;
    for_each_secret(key.list(), resource, |_, secret| {
        let beginning = &secret[..secret.floor_char_boundary(QUOTED)];
        let has = |text: &str| !beginning.is_empty() && text.contains(beginning);
        is_quoted |= has(&fault.problem) || fault.advice.as_deref().is_some_and(has);
    });
    is_quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOURCE: &str = r#"{ "plugins": {
        "basic-auth": { "users": [{ "username": "jack", "password": "a secret of jack" }] },
        "limit-count": { "count": 1, "time_window": 0 }
    } }"#;

    fn told(place: &str, problem: &str) -> String {
        let fault = Diagnostic::of_source(&"the store".into(), problem.to_owned());
        let fault = Diagnostic { path: format!("plugin_configs/p: {place}"), ..fault };
        without_secrets(&ResourceKey::new("plugin_configs", "p"), RESOURCE, fault).problem
    }

    #[test]
    fn faults_of_options_beside_secrets_tell_the_place_alone() {
        assert_eq!(told("plugins.basic-auth.users[0].password", "`a s…` is too short"), HIDDEN);
        assert_eq!(told("plugins.basic-auth", "`a secret of…` is no hash"), HIDDEN);
        assert_eq!(told("plugins.limit-count.time_window", "`a secret of jack` is the key"), HIDDEN);
        for (place, problem) in [
            ("plugins.limit-count.time_window", "must be at least 1"),
            ("plugins.basic-auth", "is not in the list `plugins` of the file"),
        ] {
            assert_eq!(told(place, problem), problem);
        }
    }
}
