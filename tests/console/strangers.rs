//! A page of another server on the same host: cookies know no ports, so a browser sends it that of the console's session, and sends that
//! cookie along with what the page asks of the node.

use weir_testkit::{Answer, Origin};

use crate::api::{self, Api};
use crate::bench::Bench;

const PAGE: &str = "<!doctype html><title>stranger</title><link rel=icon href=data:,><p>A page of another port.";

/// What the page gets for requests to the node, one after the other: a text, `opaque` if it may not read the answer, `refused` if there
/// is none for it.
const TRIES: &str = "(async (base, key) => {
    const route = JSON.stringify({ uri: '/stolen', plugins: {} });
    const tried = async (path, options) => {
        try {
            const answer = await fetch(base + path, { credentials: 'include', ...options });
            return answer.type === 'opaque' ? 'opaque' : await answer.text();
        } catch {
            return 'refused';
        }
    };
    return [
        await tried('/weir/v1/session', {}),
        await tried('/apisix/admin/routes', { headers: { 'X-Weir-Session': 'a-guess' } }),
        await tried('/apisix/admin/routes/stolen', { method: 'PUT', body: route }),
        await tried('/weir/v1/session', { method: 'DELETE' }),
        await tried('/apisix/admin/routes', { method: 'POST', mode: 'no-cors', body: route }),
        await tried('/weir/v1/session', { method: 'POST', mode: 'no-cors', body: JSON.stringify({ key }) }),
    ];
})";

#[test]
fn a_page_of_another_port_reaches_nothing_and_frames_nothing() {
    let Some(bench) = Bench::start() else { return };
    let stranger = Origin::serving(|_| Answer::with(200, "Content-Type: text/html\r\n", PAGE));
    let base = format!("http://{}", bench.admin_addr());
    let routes = || Api::of(&bench.gateway).get("routes")["total"].clone();
    let before = routes();
    bench.page.visit(&format!("http://{}/", stranger.addr()));
    bench.page.wait("the stranger's page", "document.title === 'stranger'");
    let sent =
        stranger.requests().iter().filter_map(|one| one.headers.get("cookie").map(str::to_owned)).collect::<String>();
    assert!(sent.contains("__Host-weir="), "the browser sends the cookie to all ports: `{sent}`");
    let outcomes = bench.page.evaluate(&format!("{TRIES}({base:?}, {:?})", api::VIEWER));
    assert_eq!(outcomes, serde_json::json!(["refused", "refused", "refused", "refused", "opaque", "opaque"]));
    assert_eq!(routes(), before, "nothing was made");
    let frame = "new Promise((done) => {
        const frame = document.createElement('iframe');
        frame.addEventListener('load', () => done(true));
        frame.src = BASE + '/console/';
        document.body.append(frame);
    })";
    bench.page.evaluate(&frame.replace("BASE", &format!("{base:?}")));
    let complaints = bench.page.complaints();
    assert!(complaints.iter().any(|one| one.contains("frame-ancestors")), "{complaints:#?}");
    // The session is neither ended nor replaced.
    bench.page.visit(&format!("{base}/console/"));
    bench.page.wait("the menu", "document.querySelector('#menu .who b')?.textContent === 'ann'");
}
