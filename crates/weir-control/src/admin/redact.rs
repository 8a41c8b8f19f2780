//! Masks secrets in responses.

use serde_json::Value;

use crate::document::{AdminRole, MASK, PENDING_SECRET, for_each_secret, mask_secrets};
use crate::stores::writes::PlanRefusal;

/// Removes secrets from a resource. No role sees private keys of certificates or tokens of secret managers; a viewer sees no
/// secret at all. References such as `$secret://vault/1/jack/key` are not secrets.
pub(super) fn redact(list: &str, value: &mut Value, role: AdminRole) {
    match list {
        "ssls" => {
            let Value::Object(members) = value else { return };
            members.shift_remove("key");
            members.shift_remove("keys");
        }
        "secrets" => mask_secrets(list, value),
        _ if role == AdminRole::Viewer => mask_secrets(list, value),
        _ => {}
    }
}

/// Members that identify an item of a list, most specific first.
const IDENTITIES: &[&str] = &["id", "name", "username", "host", "address", "endpoint_addr", "uri", "url"];

/// Restores masked secrets from the stored resource: a client that sends back a resource as it was shown keeps its secrets. Items of
/// lists are found again if they were moved, or if others were added or removed.
///
/// # Errors
/// A mask stands where no secret is stored, or could stand for several.
pub(super) fn unmask(list: &str, value: &mut Value, stored: Option<&Value>) -> Result<(), PlanRefusal> {
    let mut is_masked = false;
    for_each_secret(list, value, |_, text| {
        if text == MASK {
            is_masked = true;
            PENDING_SECRET.clone_into(text);
        }
    });
    if !is_masked {
        return Ok(());
    }
    let masked = |value: &Value| {
        let mut copy = value.clone();
        mask_secrets(list, &mut copy);
        copy
    };
    // The token of a secret manager goes to the address in `uri`: who changes the address has to know the token.
    let has_moved = |stored: &&Value| list == "secrets" && stored.get("uri") != value.get("uri");
    if let Some(stored) = stored.filter(|stored| !has_moved(stored)) {
        let (sent, kept) = (masked(value), masked(stored));
        restore(value, &sent, stored, &kept);
    }
    let mut left = None;
    for_each_secret(list, value, |field, text| {
        if text == PENDING_SECRET && left.is_none() {
            left = Some(field.path.to_owned());
        }
    });
    let Some(path) = left else { return Ok(()) };
    Err(PlanRefusal::Wrong(format!(
        "`{path}`: `{MASK}` stands for a stored secret, and it is not clear which one, or there is none: write the secret itself"
    )))
}

/// Restores a value from the stored one; `sent` and `kept` are the same two with all secrets masked.
fn restore(value: &mut Value, sent: &Value, stored: &Value, kept: &Value) {
    let is_one = matches!(stored, Value::String(_) | Value::Number(_) | Value::Bool(_));
    if is_one && value.as_str() == Some(PENDING_SECRET) {
        value.clone_from(stored);
        return;
    }
    match (value, sent, stored, kept) {
        (Value::Object(members), Value::Object(sent), Value::Object(stored), Value::Object(kept)) => {
            for (name, member) in members {
                if let (Some(sent), Some(stored), Some(kept)) = (sent.get(name), stored.get(name), kept.get(name)) {
                    restore(member, sent, stored, kept);
                }
            }
        }
        (Value::Array(items), Value::Array(sent), Value::Array(stored), Value::Array(kept)) => {
            for (index, pair) in pairs(sent, kept).into_iter().enumerate() {
                if let Some(pair) = pair {
                    restore(&mut items[index], &sent[index], &stored[pair], &kept[pair]);
                }
            }
        }
        _ => {}
    }
}

/// For each item that was sent, the stored item that it was made of, where that is certain.
fn pairs(sent: &[Value], kept: &[Value]) -> Vec<Option<usize>> {
    let mut pairs: Vec<Option<usize>> = sent
        .iter()
        .enumerate()
        .map(|(index, item)| unchanged(sent, kept, index).or_else(|| of_same_name(sent, kept, item)))
        .collect();
    // If only one is left on either side, they belong together.
    let unpaired = |pairs: &[Option<usize>]| -> Vec<usize> {
        (0..kept.len()).filter(|index| !pairs.contains(&Some(*index))).collect()
    };
    let left: Vec<usize> = (0..sent.len()).filter(|index| pairs[*index].is_none()).collect();
    if let ([item], [pair]) = (&left[..], &unpaired(&pairs)[..])
        && sent.len() == kept.len()
    {
        pairs[*item] = Some(*pair);
    }
    pairs
}

/// The stored item that differs from the one sent in no more than the mask. Of several that look the same, the order decides, if there
/// are still as many.
fn unchanged(sent: &[Value], kept: &[Value], index: usize) -> Option<usize> {
    let is_same = |other: &&Value| **other == sent[index];
    if sent.iter().filter(is_same).count() != kept.iter().filter(is_same).count() {
        return None;
    }
    let place = sent[..index].iter().filter(is_same).count();
    kept.iter().enumerate().filter(|(_, item)| is_same(item)).map(|(index, _)| index).nth(place)
}

/// The stored item with the same id or name, if no other item has it.
fn of_same_name(sent: &[Value], kept: &[Value], item: &Value) -> Option<usize> {
    let (name, identity) = IDENTITIES.iter().find_map(|name| Some((*name, item.get(name)?)))?;
    let has_it = |other: &&Value| other.get(name) == Some(identity);
    if sent.iter().filter(has_it).count() != 1 || kept.iter().filter(has_it).count() != 1 {
        return None;
    }
    kept.iter().position(|other| has_it(&other))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(list: &str, mut value: Value, role: AdminRole) -> Value {
        redact(list, &mut value, role);
        value
    }

    #[test]
    fn secrets_are_seen_by_few_and_keys_of_certificates_by_nobody() {
        let jack = json!({"username": "jack", "plugins": {"key-auth": {"key": "k1"}, "basic-auth": {"username": "j", "password": "p"}}});
        assert_eq!(seen("consumers", jack.clone(), AdminRole::Editor), jack);
        let masked = json!({"username": "jack", "plugins": {"key-auth": {"key": "***"}, "basic-auth": {"username": "j", "password": "***"}}});
        assert_eq!(seen("consumers", jack, AdminRole::Viewer), masked);
        let ssl = json!({"cert": "c", "key": "k", "keys": ["l"], "sni": "a"});
        assert_eq!(seen("ssls", ssl, AdminRole::Admin), json!({"cert": "c", "sni": "a"}));
        let vault = json!({"uri": "http://v", "token": "t"});
        assert_eq!(seen("secrets", vault, AdminRole::Admin), json!({"uri": "http://v", "token": "***"}));
    }

    fn sent(mut value: Value, stored: Option<Value>) -> Result<Value, String> {
        match unmask("secrets", &mut value, stored.as_ref()) {
            Ok(()) => Ok(value),
            Err(PlanRefusal::Wrong(problem)) => Err(problem),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn masked_secrets_are_put_back() {
        let stored = json!({"token": "t", "uri": "http://v", "list": [{"secret": "s"}]});
        let back = sent(json!({"token": "***", "uri": "http://v", "list": [{"secret": "***"}], "x": 1}), Some(stored));
        assert_eq!(back, Ok(json!({"token": "t", "uri": "http://v", "list": [{"secret": "s"}], "x": 1})));
        let number = sent(json!({"token": "***"}), Some(json!({"token": 12345})));
        assert_eq!(number, Ok(json!({"token": 12345})));
        let elsewhere = json!({"token": "t", "note": "***"});
        assert_eq!(sent(elsewhere.clone(), None), Ok(elsewhere), "it is no secret");
    }

    #[test]
    fn a_mask_is_never_stored() {
        let cases = [
            (json!({"token": "***"}), None, "`token`"),
            (json!({"token": "***"}), Some(json!({"uri": "u"})), "`token`"),
            (json!({"token": "***", "uri": "http://mine"}), Some(json!({"token": "t", "uri": "http://v"})), "`token`"),
            (
                json!({"list": [{"secret": "***"}, {"secret": "***"}]}),
                Some(json!({"list": [{"secret": "s"}]})),
                "`list[0].secret`",
            ),
            (json!({"token": ["***"]}), Some(json!({"token": ["a", "b"]})), "`token[0]`"),
        ];
        for (value, stored, place) in cases {
            let problem = sent(value, stored).expect_err("it is refused");
            assert!(problem.starts_with(place), "{problem}");
        }
    }

    /// Items of a list keep their secrets, whatever is done to the list.
    #[test]
    fn secrets_stay_with_their_items() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let name = |number: usize| format!("n{number}");
            let count = random.usize(1..6);
            let stored: Vec<Value> = (0..count)
                .map(|number| json!({"name": name(number), "port": 1, "secret": format!("s{number}")}))
                .collect();
            let mut shown = json!({"list": stored});
            mask_secrets("secrets", &mut shown);
            let mut list = shown["list"].as_array().expect("a list").clone();
            random.shuffle(&mut list);
            list.truncate(random.usize(0..=count));
            list.iter_mut().filter(|_| random.bool()).for_each(|item| item["port"] = 2.into());
            if random.bool() {
                list.insert(random.usize(0..=list.len()), json!({"name": "new", "secret": "mine"}));
            }
            let back = sent(json!({"list": list}), Some(json!({"list": stored}))).expect("all are known");
            for item in back["list"].as_array().expect("a list") {
                let name = item["name"].as_str().expect("a name");
                let expected = if name == "new" { "mine".to_owned() } else { name.replace('n', "s") };
                assert_eq!(item["secret"], expected, "{back}");
            }
        }
    }

    #[test]
    fn texts_that_look_the_same_keep_their_order() {
        let stored = || Some(json!({"token": ["a", "b", "c"]}));
        assert_eq!(sent(json!({"token": ["***", "x", "***"]}), stored()), Ok(json!({"token": ["a", "x", "c"]})));
    }

    #[test]
    fn references_to_secrets_are_not_masked() {
        let route = json!({"plugins": {"limit-count": {"key": "remote_addr", "redis_password": "p"}}, "upstream": {"key": "arg_a", "tls": {"client_key": "k"}}});
        let masked = json!({"plugins": {"limit-count": {"key": "remote_addr", "redis_password": "***"}}, "upstream": {"key": "arg_a", "tls": {"client_key": "***"}}});
        assert_eq!(seen("routes", route, AdminRole::Viewer), masked);
        let jack = json!({"plugins": {"key-auth": {"key": "$secret://vault/1/jack/key"}}});
        assert_eq!(seen("consumers", jack.clone(), AdminRole::Viewer), jack);
    }
}
