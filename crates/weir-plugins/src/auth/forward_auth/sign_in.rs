//! The redirect to a sign-in page, in place of a refusal with 401.

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use weir_plugin::{Build, ConfigError, Exchange, Template, form};

/// Bytes that a URI must not contain (RFC 3986 §2).
const INVALID: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`').add(b'{').add(b'|').add(b'}');

pub(super) struct SignIn {
    url: Template,
    /// The argument that gets the URL of the request; `None` if the URL of the page has it already.
    argument: Option<Box<str>>,
}

impl SignIn {
    pub(super) fn new(url: &str, argument: &str, build: &mut Build) -> Result<SignIn, ConfigError> {
        if !["http://", "https://", "$scheme://", "/"].iter().any(|start| url.starts_with(start)) {
            build.fault(
                "signin_url",
                format!("`{url}` is not the URL of a page; write as `https://login.example/start`"),
            );
        }
        let is_name =
            !argument.is_empty() && argument.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_name {
            return Err(ConfigError::new("signin_redirect_param", "must be a name of letters, digits, `-` and `_`"));
        }
        let has_it = ["?", "&"].iter().any(|before| url.contains(&format!("{before}{argument}=")));
        Ok(SignIn { url: build.template(url, "signin_url"), argument: (!has_it).then(|| argument.into()) })
    }

    /// The value of `Location`: the page, with the URL that the client asked for.
    pub(super) fn location(&self, exchange: &Exchange) -> String {
        let mut url = Vec::new();
        self.url.render(exchange, &mut url);
        if let Some(argument) = &self.argument {
            url.push(if url.contains(&b'?') { b'&' } else { b'?' });
            url.extend_from_slice(argument.as_bytes());
            url.push(b'=');
            let request = &exchange.request;
            let scheme = exchange.scheme().as_bytes();
            let asked = [scheme, b"://", request.client_authority(), &request.origin_form()].concat();
            form::write_encoded(&asked, &mut url);
        }
        percent_encode(&url, INVALID).to_string()
    }
}
