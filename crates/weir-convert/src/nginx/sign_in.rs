//! `error_page 401` with a redirect, beside `auth_request`: the sign-in page of `forward-auth`.

use super::Conversion;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables::{has_groups, unknown_in_request};
use crate::yaml::Yaml;

const ERROR_PAGE: &str = "error_page";
/// The status of a redirect to the page.
const REDIRECT: &str = "302";

/// The options for the page in effect.
pub(super) fn options(conversion: &mut Conversion, scope: &BlockScope) -> Vec<(String, Yaml)> {
    let pages = scope.all(ERROR_PAGE);
    let Some(page) = pages.into_iter().find(|page| is_for_401(page)) else { return Vec::new() };
    let Some(url) = url(scope.server(), page) else { return Vec::new() };
    conversion.cover(page);
    let mut options = vec![("signin_url".to_owned(), Yaml::text(url))];
    match argument(url) {
        // The URL of the request is only added where the page has no argument.
        Some(name) => options.push(("signin_redirect_param".to_owned(), Yaml::text(name))),
        None => {
            let text = format!("`{}`: the page gets the URL of the request, as `rd`", page.head());
            conversion.differs(&page.place, text);
        }
    }
    options
}

fn is_for_401(page: &Directive) -> bool {
    page.argument(0) == "401"
}

/// Where clients are redirected: by the status beside the URL, or by the `return` of a named location.
fn url<'a>(server: &'a [Directive], page: &'a Directive) -> Option<&'a str> {
    let url = match page.arguments.as_slice() {
        [_, url] if url.starts_with('@') => redirect(named(server, url)?)?,
        [_, status, url] if url.starts_with('@') && status.starts_with('=') => redirect(named(server, url)?)?,
        // For a path, nginx goes on with another location by itself.
        [_, status, url] if status.strip_prefix('=') == Some(REDIRECT) && !url.starts_with('/') => url,
        [_, url] if url.starts_with("http") => url,
        _ => return None,
    };
    let is_page = ["http://", "https://", "$scheme://", "/"].iter().any(|begin| url.starts_with(begin));
    (is_page && unknown_in_request(url).is_none() && !has_groups(url)).then_some(url)
}

fn named<'a>(server: &'a [Directive], name: &str) -> Option<&'a Directive> {
    server.iter().find(|child| child.name == "location" && child.arguments.as_slice() == [name])
}

/// The URL of a location that does nothing but redirect.
fn redirect(location: &Directive) -> Option<&str> {
    let [returns] = location.children() else { return None };
    match returns.arguments.as_slice() {
        [status, url] if returns.name == "return" && status == REDIRECT => Some(url),
        _ => None,
    }
}

/// The name of an argument of a URL.
fn argument(url: &str) -> Option<&str> {
    let (name, _) = url.split_once('?')?.1.split_once('=')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    is_name.then_some(name)
}

/// Whether a location is the sign-in page of one of the blocks of a server.
pub(super) fn is_page(server: &[Directive], location: &Directive) -> bool {
    let is_it = |child: &Directive| {
        let is_last = child.arguments.last() == location.arguments.first();
        child.name == ERROR_PAGE && is_for_401(child) && is_last && url(server, child).is_some()
    };
    redirect(location).is_some() && has(server, &is_it)
}

fn has(block: &[Directive], is_it: &dyn Fn(&Directive) -> bool) -> bool {
    block.iter().any(|child| is_it(child) || has(child.children(), is_it))
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    fn converted(page: &str, more: &str) -> (String, Vec<String>) {
        let text = format!(
            "server {{ proxy_redirect off; location / {{ auth_request /auth; {page} proxy_pass http://a; }}
             location = /auth {{ internal; proxy_pass http://10.0.0.2:1; proxy_set_header Host $host; }} {more} }}"
        );
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let found = converted
            .findings
            .iter()
            .map(ToString::to_string)
            .filter(|found| found.contains("page") || found.contains("@in"));
        (converted.yaml(), found.collect())
    }

    #[test]
    fn clients_are_redirected_to_the_sign_in_page() {
        let location = "location @in { return 302 https://login.example/start?rd=$scheme://$host$request_uri; }";
        let (yaml, found) = converted("error_page 401 = @in;", location);
        assert!(yaml.contains("signin_url: \"https://login.example/start?rd=$scheme://$host$request_uri\""), "{yaml}");
        assert!(yaml.contains("signin_redirect_param: rd"), "{yaml}");
        assert_eq!(found, [""; 0]);
        let (yaml, found) = converted("error_page 401 =302 https://login.example/;", "");
        assert!(
            yaml.contains("signin_url: https://login.example/\n") && !yaml.contains("signin_redirect_param"),
            "{yaml}"
        );
        assert!(found.len() == 1 && found[0].contains("as `rd`"), "{found:?}");
    }

    #[test]
    fn a_page_that_is_not_redirected_to_is_told() {
        for (page, location) in [
            ("error_page 401 = @in;", "location @in { return 200 sign-in; }"),
            ("error_page 401 /sign-in;", ""),
            ("error_page 401 =302 /sign-in;", ""),
            ("error_page 401 403 @in;", "location @in { return 302 https://login.example/; }"),
            ("error_page 401 =302 $redirection_url;", ""),
            ("error_page 401 = @in;", "location @in { return 302 https://login.example/?token=$token; }"),
        ] {
            let (yaml, found) = converted(page, location);
            assert!(!yaml.contains("signin_url"), "{page}: {yaml}");
            let is_told = yaml.contains("error-page") || found.iter().any(|found| found.contains("`error_page 401"));
            assert!(is_told, "{page}: {found:?}");
        }
    }
}
