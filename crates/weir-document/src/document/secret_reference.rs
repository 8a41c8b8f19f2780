//! A reference to a secret, `$secret://vault/ID/PATH/KEY` (APISIX).

use serde_json::{Map, Value};

/// A reference to a text that is kept by a secret manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretReference {
    /// The manager's id, such as `vault/1`.
    pub manager: Box<str>,
    /// The path of the secret, which may have several keys.
    pub path: Box<str>,
    /// The key of the text in the secret.
    pub key: Box<str>,
}

/// Why a secret cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadSecret {
    pub problem: String,
    /// Whether its manager does not answer, so that it may be read later.
    pub is_away: bool,
}

impl From<String> for UnreadSecret {
    fn from(problem: String) -> UnreadSecret {
        UnreadSecret { problem, is_away: false }
    }
}

/// A problem and an advice.
pub(super) type ReferenceFault = (String, String);

impl SecretReference {
    /// `None` if the text is not a reference to a secret.
    pub(super) fn parse(text: &str) -> Option<Result<SecretReference, ReferenceFault>> {
        let reference = after(text, "$secret://")?;
        let parts: Vec<&str> = reference.split('/').collect();
        Some(match parts.as_slice() {
            [kind, id, path @ .., key] if !path.is_empty() && parts.iter().all(|part| !part.is_empty()) => {
                Ok(SecretReference {
                    manager: format!("{kind}/{id}").into(),
                    path: path.join("/").into(),
                    key: (*key).into(),
                })
            }
            _ => Err(("is not a reference to a secret".to_owned(), "write as `$secret://vault/1/path/key`".to_owned())),
        })
    }

    /// The value of the key in what the manager returned for the path.
    pub fn of(&self, kept: &Map<String, Value>) -> Result<String, String> {
        match kept.get(&*self.key) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(value.to_string()),
            Some(_) => Err(format!("the key `{}` is not text", self.key)),
            None => Err(format!("there is no key `{}`", self.key)),
        }
    }
}

/// The text after the scheme, which is compared without regard to case.
pub(super) fn after<'t>(text: &'t str, scheme: &str) -> Option<&'t str> {
    let (start, rest) = text.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}
