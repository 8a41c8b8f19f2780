//! Clients that stay with their endpoint.

use std::sync::atomic::{AtomicUsize, Ordering};

use weir_testkit::{Answer, Client, Gateway, Origin, Reading, Response};

use crate::{named, one_route, weir};

/// Asks on a connection of its own, with this cookie.
fn ask(gateway: &Gateway, cookie: Option<&str>) -> Response {
    let cookie = cookie.map(|cookie| format!("Cookie: a=b; {cookie}\r\n")).unwrap_or_default();
    Client::connect(gateway.addr()).ask(format!("GET / HTTP/1.1\r\nHost: t\r\n{cookie}\r\n")).expect("an answer")
}

/// The name and value of the cookie that a response sets.
fn set(response: &Response) -> Option<String> {
    let field = response.headers.get("set-cookie")?;
    Some(field.split(';').next().expect("it has a beginning").to_owned())
}

fn four() -> Vec<Origin> {
    (0..4).map(|number| named(number.to_string())).collect()
}

/// The origins without the one that answers with this name.
fn without(origins: Vec<Origin>, name: &str) -> Vec<Origin> {
    let gone: usize = name.parse().expect("origins are numbered");
    origins.into_iter().enumerate().filter(|(number, _)| *number != gone).map(|(_, origin)| origin).collect()
}

#[test]
fn a_cookie_of_ours_binds_a_client_to_its_endpoint() {
    let origins = four();
    let gateway =
        weir().start(&format!("worker_processes: 2\n{}", one_route(&origins, "persistence: { type: cookie }")));
    let first = ask(&gateway, None);
    let field = first.headers.get("set-cookie").expect("it sets a cookie");
    assert!(field.starts_with("weir_endpoint=") && field.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{field}");
    let cookie = set(&first).expect("it sets a cookie");
    for _ in 0..20 {
        let answer = ask(&gateway, Some(&cookie));
        assert_eq!(answer.text(), first.text());
        assert_eq!(set(&answer), None, "it has its cookie already");
    }
    // Each endpoint has a code of its own, and none shows where it is.
    let mut codes: Vec<String> = (0..40).filter_map(|_| set(&ask(&gateway, None))).collect();
    codes.sort();
    codes.dedup();
    assert_eq!(codes.len(), 4);
    let shown = |code: &String| origins.iter().any(|origin| code.contains(&origin.addr().port().to_string()));
    assert!(!codes.iter().any(shown), "{codes:?}");
}

#[test]
fn a_cookie_that_was_made_up_is_replaced() {
    let origins = four();
    let gateway = weir().start(&one_route(&origins, "persistence: { type: cookie, name: at }"));
    for made_up in ["at=", "at=AAAAAAAAAAAAAAAAAAAAAA", "at=127.0.0.1:80"] {
        let answer = ask(&gateway, Some(made_up));
        assert_eq!(answer.status, 200);
        let cookie = set(&answer);
        assert!(
            cookie.as_deref().is_some_and(|cookie| cookie.len() == 25 && cookie != made_up),
            "{made_up}: {cookie:?}"
        );
    }
}

#[test]
fn with_a_secret_a_cookie_is_good_on_every_node_and_after_a_restart() {
    let origins = four();
    let file = one_route(&origins, "persistence: { type: cookie, secret: 0123456789abcdef }");
    let first = ask(&weir().start(&file), None);
    let other = weir().start(&file);
    let cookie = set(&first).expect("it sets a cookie");
    assert!((0..10).all(|_| ask(&other, Some(&cookie)).text() == first.text()));
}

#[test]
fn a_client_whose_endpoint_is_gone_gets_another_and_stays_there() {
    let origins = four();
    let gateway = weir().start(&one_route(&origins, "persistence: { type: cookie }"));
    let first = ask(&gateway, None);
    let origins = without(origins, &first.text());
    // The endpoint refuses connections now; the file still names it.
    let moved = ask(&gateway, set(&first).as_deref());
    assert_eq!(moved.status, 200);
    let cookie = set(&moved).expect("it has a new home");
    assert!((0..10).all(|_| ask(&gateway, Some(&cookie)).text() == moved.text()));
    // Nor does a file without it harm those who were there.
    gateway.rewrite(&one_route(&origins, "persistence: { type: cookie }"));
    assert_eq!(ask(&gateway, set(&first).as_deref()).status, 200);
}

#[test]
fn client_is_refused_while_its_endpoint_is_gone_if_no_other_may_serve_it() {
    let origins = four();
    let gateway = weir().start(&one_route(&origins, "persistence: { type: cookie, when_gone: refuse }"));
    let first = ask(&gateway, None);
    let _left = without(origins, &first.text());
    for _ in 0..5 {
        assert!(matches!(ask(&gateway, set(&first).as_deref()).status, 502 | 503));
    }
    assert_eq!(ask(&gateway, None).status, 200, "others are served");
}

#[test]
fn a_drained_endpoint_keeps_whom_it_has() {
    let origins = four();
    let file = |drained: &str| {
        let nodes = origins
            .iter()
            .enumerate()
            .map(|(number, origin)| format!("\"{}\": {}", origin.addr(), u8::from(number.to_string() != drained)));
        let nodes: Vec<String> = nodes.collect();
        format!(
            "routes:\n  - {{ id: all, uri: /*, upstream: {{ nodes: {{ {} }}, persistence: {{ type: cookie }} }} }}\n",
            nodes.join(", ")
        )
    };
    let gateway = weir().start(&file("none"));
    let first = ask(&gateway, None);
    let drained = first.text();
    gateway.rewrite(&file(&drained));
    assert!((0..20).all(|_| ask(&gateway, set(&first).as_deref()).text() == drained));
    assert!((0..40).all(|_| ask(&gateway, None).text() != drained), "nobody new");
}

#[test]
fn a_cookie_of_the_application_is_learnt() {
    let next = std::sync::Arc::new(AtomicUsize::new(0));
    let origins: Vec<Origin> = (0..4)
        .map(|number| {
            let next = std::sync::Arc::clone(&next);
            Origin::reading(Reading::Strict, move |request| match request.headers.get("cookie") {
                Some(_) => Answer::ok(number.to_string()),
                None => {
                    let session = next.fetch_add(1, Ordering::SeqCst);
                    let fields = format!("Set-Cookie: theme=dark\r\nSet-Cookie: SID=s{session}; Path=/\r\n");
                    Answer::with(200, &fields, number.to_string())
                }
            })
        })
        .collect();
    let upstream = "persistence: { type: app_cookie, name: SID }";
    let gateway = weir().start(&format!("worker_processes: 2\n{}", one_route(&origins, upstream)));
    let homes: Vec<String> = (0..12).map(|_| ask(&gateway, None).text()).collect();
    for _ in 0..3 {
        for (session, home) in homes.iter().enumerate() {
            assert_eq!(&ask(&gateway, Some(&format!("SID=s{session}"))).text(), home, "session {session}");
        }
    }
    // A session nobody has heard of, as after a restart, stays where it comes first.
    let first = ask(&gateway, Some("SID=unheard-of")).text();
    assert!((0..10).all(|_| ask(&gateway, Some("SID=unheard-of")).text() == first));
    // When the endpoint is gone another takes over.
    let _left = without(origins, &first);
    let moved = ask(&gateway, Some("SID=unheard-of"));
    assert_eq!(moved.status, 200);
    assert!((0..10).all(|_| ask(&gateway, Some("SID=unheard-of")).text() == moved.text()));
}

#[test]
fn by_address_a_client_stays_whatever_the_type() {
    let origins = four();
    let gateway = weir().start(&one_route(&origins, "type: roundrobin, persistence: { type: client_ip }"));
    let first = ask(&gateway, None).text();
    assert_eq!(first.len(), 1, "the name of an origin");
    assert!((0..20).all(|_| ask(&gateway, None).text() == first));
}
