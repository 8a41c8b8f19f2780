//! Log-in at an identity provider, in a browser: the whole way, with a real provider.

use serde_json::Value;
use weir_testkit::free_port;

use crate::api;
use crate::bench::Bench;
use crate::oidc_server::{Provider, SECRET};

/// A node whose console is at this port, with a provider.
fn settings(port: u16, provider: &Provider, roles: &str) -> String {
    let file = api::file().replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    format!(
        "{file}  oidc:\n    issuer: \"http://127.0.0.1:{}\"\n    client_id: web\n    client_secret: \"{SECRET}\"\n    \
         redirect_uri: \"http://127.0.0.1:{port}/weir/v1/session/oidc/callback\"\n    scope: openid groups\n    \
         name: Example SSO\n    roles: {{ claim: groups, map: {roles} }}\n",
        provider.port
    )
}

/// A browser at the console of a node with a provider, and the console's port.
fn logged_out(roles: &str) -> Option<(Bench, Provider, u16)> {
    let port = free_port();
    let callback = format!("http://127.0.0.1:{port}/weir/v1/session/oidc/callback");
    let provider = Provider::start_for(free_port(), &callback)?;
    let bench = Bench::logged_out(&settings(port, &provider, roles))?;
    Some((bench, provider, port))
}

const BUTTON: &str = ".login form > button[type=button]";

#[test]
fn a_log_in_at_a_provider_returns_to_where_the_reader_was() {
    let Some((bench, _provider, _port)) = logged_out("{ gateway-admins: editor }") else { return };
    let page = &bench.page;
    page.evaluate("location.hash = '#/routes'");
    page.wait("the button", &format!("document.querySelector('{BUTTON}')?.textContent === 'Log in with Example SSO'"));
    page.click(BUTTON);
    page.wait("the menu", "document.querySelector('#menu a')");
    bench.settle("the routes");
    assert_eq!(page.evaluate("location.pathname + location.search + location.hash"), "/console/#/routes");
    assert_eq!(
        page.evaluate("document.querySelector('#menu .who').innerText.split('\\n')[0].trim()"),
        "oidc:jack editor"
    );
    let kept = page.evaluate("JSON.stringify([{ ...localStorage }, Object.keys(sessionStorage), document.cookie])");
    assert_eq!(kept, "[{},[\"weir-session\"],\"\"]", "the token of the session alone is kept");
    let urls = page.requested().join("\n");
    let token = page.evaluate("sessionStorage.getItem('weir-session')");
    assert!(!urls.contains(token.as_str().expect("a text")), "{urls}");
    assert_eq!(page.complaints(), [""; 0]);
    page.evaluate("location.reload()");
    page.wait("the menu again", "document.querySelector('#menu a')");
    page.click("#menu .who button");
    page.wait("the page of the log-in", "document.querySelector('#key')");
    assert_eq!(page.evaluate("sessionStorage.length"), 0);
}

#[test]
fn a_user_without_a_role_reads_why_and_finds_the_way_back() {
    let Some((bench, _provider, port)) = logged_out("{ others: admin }") else { return };
    let page = &bench.page;
    page.wait("the button", &format!("document.querySelector('{BUTTON}')"));
    page.click(BUTTON);
    bench.wait_text("the provider knows jack, but no value of the claim `groups` gives a role here");
    page.click("a");
    page.wait("the page of the log-in", "document.querySelector('#key')");
    // A page that was not sent here by the node has nothing to end.
    page.visit(&format!("http://127.0.0.1:{port}/console/?oidc"));
    bench.wait_text("This log-in is over. Log in again.");
    assert_eq!(page.evaluate("location.search"), "");
    assert_ne!(page.evaluate("document.querySelector('#key')"), Value::Null);
}

#[test]
fn a_console_at_another_address_leads_to_that_of_the_log_in() {
    let Some((bench, _provider, port)) = logged_out("{ gateway-admins: editor }") else { return };
    let page = &bench.page;
    page.visit(&format!("http://localhost:{port}/console/"));
    page.wait("the button", &format!("document.querySelector('{BUTTON}')"));
    page.click(BUTTON);
    page.wait(
        "the other address",
        &format!("location.host === '127.0.0.1:{port}' && document.querySelector('{BUTTON}')"),
    );
    assert_eq!(page.complaints(), [""; 0]);
}
