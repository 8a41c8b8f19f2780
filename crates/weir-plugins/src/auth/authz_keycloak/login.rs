//! The path at which clients get a token for a user and a password (RFC 6749 §4.3).

use std::borrow::Cow;

use weir_plugin::proto::Method;
use weir_plugin::{Exchange, NoteKey, form};

use crate::content::content_type;

/// The most bytes of the form with user and password.
pub(crate) const MOST_FORM: u64 = 16 << 10;

pub(crate) const NO_USERNAME: &str = "username is missing.";
const NO_PASSWORD: &str = "password is missing.";

pub(crate) struct PasswordLogin {
    path: Box<str>,
    /// The note of an exchange that passes without a token, and has to end with the answer to its login.
    begun: NoteKey,
}

/// A user and a password.
pub(crate) struct UserCredentials {
    pub username: String,
    pub password: String,
}

impl PasswordLogin {
    pub(crate) fn new(path: String) -> PasswordLogin {
        PasswordLogin { path: path.into(), begun: NoteKey::unique() }
    }

    /// Decides that an exchange is a login. It stays one, whatever other plugins change in the request until its content is there.
    pub(crate) fn begin(&self, exchange: &mut Exchange) {
        exchange.notes.write(self.begun, [1, 0, 0]);
    }

    /// Whether this was decided.
    pub(crate) fn has_begun(&self, exchange: &Exchange) -> bool {
        exchange.notes.read(self.begun).is_some()
    }

    /// Whether a request is a POST of a form to the path.
    pub(crate) fn is_for(&self, exchange: &Exchange) -> bool {
        let request = &exchange.request;
        request.client_method() == Method::Post
            && request.client_path() == self.path.as_bytes()
            && content_type::of(&request.head).ok().flatten().is_some_and(content_type::is_form)
    }
}

/// User and password of a form.
///
/// # Errors
/// Which of the two is missing.
pub(crate) fn credentials(body: &[u8]) -> Result<UserCredentials, &'static str> {
    let find = |wanted: &[u8]| {
        let found: Option<Cow<'_, [u8]>> =
            form::pairs(body).find(|(name, _)| **name == *wanted).map(|(_, value)| value);
        let text = found.and_then(|value| String::from_utf8(value.into_owned()).ok());
        text.filter(|text| !text.is_empty())
    };
    let username = find(b"username").ok_or(NO_USERNAME)?;
    let password = find(b"password").ok_or(NO_PASSWORD)?;
    Ok(UserCredentials { username, password })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::exchange;

    #[test]
    fn a_login_is_a_form_that_is_posted_to_the_path() {
        let login = PasswordLogin::new("/api/token".to_owned());
        let form = "application/x-www-form-urlencoded";
        for (request, kind, want) in [
            ("POST /api/token", form, true),
            ("POST /api/./token?a=b", "application/x-www-form-urlencoded; charset=utf-8", true),
            ("GET /api/token", form, false),
            ("POST /api/token/1", form, false),
            ("POST /api/token", "application/json", false),
        ] {
            let exchange = exchange(&format!("{request} HTTP/1.1\nHost: h\nContent-Type: {kind}"));
            assert_eq!(login.is_for(&exchange), want, "{request} {kind}");
        }
    }

    #[test]
    fn user_and_password_are_needed() {
        let found = |body: &str| credentials(body.as_bytes()).map(|found| (found.username, found.password));
        assert_eq!(found("username=j%C3%A1ck&password=a+b%26c"), Ok(("jáck".to_owned(), "a b&c".to_owned())));
        assert_eq!(found("password=a"), Err(NO_USERNAME));
        assert_eq!(found("username=a&password="), Err(NO_PASSWORD));
    }
}
