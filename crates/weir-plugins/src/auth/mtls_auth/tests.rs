use std::rc::Rc;

use serde_json::{Value, json};
use weir_plugin::{BuildContext, Proof, Tls};

use super::*;
use crate::testing::{body, build_with, get, on_request, refused, sent, with_consumers};

const FINGERPRINT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn consumers() -> Rc<BuildContext> {
    let upper = FINGERPRINT.to_uppercase();
    let colons: Vec<&str> = upper.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII")).collect();
    with_consumers(&[
        ("uri", "mtls-auth", json!({"san_uri": "spiffe://a/orders"})),
        ("dns", "mtls-auth", json!({"san_dns": "Orders.Test"})),
        ("email", "mtls-auth", json!({"san_email": "Jack@Mail.Test"})),
        ("subject", "mtls-auth", json!({"subject_dn": "CN=jack,O=Example"})),
        ("print", "mtls-auth", json!({"fingerprint": colons.join(":")})),
        ("name", "mtls-auth", json!({"subject_name": "any.test"})),
        ("other", "key-auth", json!({"key": "k"})),
    ])
}

fn door(options: Value) -> Arc<dyn Plugin> {
    build_with::<MtlsAuth>(options, &consumers()).unwrap_or_else(|error| panic!("{error}"))
}

fn certificate() -> ClientCertificate {
    ClientCertificate { until: i64::MAX, ..ClientCertificate::default() }
}

/// A request over a connection with this certificate, which counts for its host.
fn proved(certificate: ClientCertificate) -> Exchange {
    let mut exchange = get("/");
    exchange.tls = Some(Rc::new(Tls { certificate: Some(certificate), ..Tls::default() }));
    exchange.client_is_proved = true;
    exchange
}

fn owner(door: &Arc<dyn Plugin>, certificate: ClientCertificate) -> Option<String> {
    let mut exchange = proved(certificate);
    match on_request(door, &mut exchange) {
        Ok(()) => Some(exchange.identity.as_ref().map_or(String::new(), |it| it.consumer.username.to_string())),
        Err(stop) => {
            assert_eq!((stop, exchange.response.status), (Stop::Answered, 401));
            assert!(exchange.identity.is_none());
            None
        }
    }
}

#[test]
fn a_certificate_belongs_to_the_consumer_with_one_of_its_names() {
    let door = door(json!({}));
    let found = |change: fn(&mut ClientCertificate)| {
        let mut own = certificate();
        change(&mut own);
        owner(&door, own)
    };
    assert_eq!(found(|own| own.san_uri = "spiffe://b/x,spiffe://a/orders".into()).as_deref(), Some("uri"));
    assert_eq!(found(|own| own.san_dns = "orders.test".into()).as_deref(), Some("dns"));
    assert_eq!(found(|own| own.san_email = "Jack@mail.test".into()).as_deref(), Some("email"));
    assert_eq!(found(|own| own.subject = "CN=jack,O=Example".into()).as_deref(), Some("subject"));
    assert_eq!(found(|own| own.sha256 = FINGERPRINT.into()).as_deref(), Some("print"));
    assert_eq!(found(|own| own.san_dns = "any.test".into()).as_deref(), Some("name"));
    assert_eq!(found(|own| own.san_uri = "any.test".into()).as_deref(), Some("name"));
    assert_eq!(found(|own| own.common_name = "any.test".into()).as_deref(), Some("name"));
    // A name of another kind, a part of one, several as one, and no name at all.
    assert_eq!(found(|own| own.san_dns = "spiffe://a/orders".into()), None);
    assert_eq!(found(|own| own.common_name = "orders.test".into()), None);
    assert_eq!(found(|own| own.common_name = "CN=jack,O=Example".into()), None);
    assert_eq!(found(|own| own.subject = "any.test".into()), None);
    assert_eq!(found(|own| own.san_uri = "spiffe://a/orders/x".into()), None);
    assert_eq!(found(|own| own.san_dns = "x.orders.test".into()), None);
    assert_eq!(found(|own| own.san_email = "jack@mail.test".into()), None);
    assert_eq!(found(|own| own.fingerprint = FINGERPRINT.into()), None);
    assert_eq!(found(|_| ()), None);
    // The order in which names count.
    let all = |own: &mut ClientCertificate| {
        own.san_uri = "spiffe://a/orders".into();
        own.san_dns = "orders.test".into();
    };
    let mut own = certificate();
    all(&mut own);
    assert_eq!(owner(&door, own.clone()).as_deref(), Some("uri"));
    own.subject = "CN=jack,O=Example".into();
    assert_eq!(owner(&door, own.clone()).as_deref(), Some("subject"));
    own.sha256 = FINGERPRINT.into();
    assert_eq!(owner(&door, own).as_deref(), Some("print"));
}

#[test]
fn a_request_without_a_certificate_that_counts_is_refused() {
    let door = door(json!({"realm": "partners"}));
    let own = || ClientCertificate { san_uri: "spiffe://a/orders".into(), ..certificate() };
    let mut accepted = proved(own());
    assert_eq!(on_request(&door, &mut accepted), Ok(()));
    assert!(accepted.identity_ends_at().is_some());
    let without = |change: fn(&mut Exchange)| {
        let mut exchange = proved(own());
        change(&mut exchange);
        exchange
    };
    for (mut exchange, fault) in [
        (get("/"), "Missing client certificate"),
        (without(|it| it.tls = Some(Rc::default())), "Missing client certificate"),
        (without(|it| it.client_is_proved = false), "The client certificate does not count for this host"),
        (proved(ClientCertificate { until: 1, ..own() }), "The client certificate has expired"),
        (proved(ClientCertificate { until: -1, ..own() }), "The client certificate has expired"),
        (proved(certificate()), "The client certificate belongs to no consumer"),
    ] {
        assert_eq!(on_request(&door, &mut exchange), Err(Stop::Answered), "{fault}");
        assert_eq!((exchange.response.status, body(&exchange)), (401, &*format!("{{\"message\":\"{fault}\"}}\n")));
        assert_eq!(sent(&exchange, "www-authenticate"), Some("mTLS realm=\"partners\""));
        assert!(exchange.identity.is_none());
    }
}

#[test]
fn consumers_are_found_by_their_own_names_only_if_asked_for() {
    let mut shared = BuildContext::default();
    for (username, custom_id) in [("jack", "jack-1"), ("rose", "spiffe://a/rose"), ("one", "same"), ("two", "same")] {
        let consumer =
            weir_plugin::Consumer { username: username.into(), custom_id: custom_id.into(), ..Default::default() };
        shared.consumers.add(consumer, []);
    }
    let proof = Proof { plugin: "mtls-auth".into(), id: "c".into(), options: json!({"subject_name": "jack"}) };
    shared.consumers.add(weir_plugin::Consumer { username: "max".into(), ..Default::default() }, [proof]);
    let shared = Rc::new(shared);
    let door = |by: Value| {
        build_with::<MtlsAuth>(json!({ "consumer_by": by }), &shared).unwrap_or_else(|error| panic!("{error}"))
    };
    let dns = |name: &str| ClientCertificate { san_dns: name.into(), ..certificate() };
    let uri = |name: &str| ClientCertificate { san_uri: name.into(), ..certificate() };
    assert_eq!(owner(&door(json!([])), dns("rose")), None);
    assert_eq!(owner(&door(json!(["username"])), dns("rose")).as_deref(), Some("rose"));
    assert_eq!(owner(&door(json!(["username"])), uri("spiffe://a/rose")), None);
    assert_eq!(owner(&door(json!(["custom_id"])), uri("spiffe://a/rose")).as_deref(), Some("rose"));
    assert_eq!(owner(&door(json!(["custom_id"])), dns("rose")), None);
    assert_eq!(owner(&door(json!(["custom_id"])), dns("same")), None, "two consumers have it");
    // A credential goes first.
    assert_eq!(owner(&door(json!(["username", "custom_id"])), dns("jack")).as_deref(), Some("max"));
}

#[test]
fn every_verified_certificate_passes_where_no_consumer_is_looked_for() {
    let door = door(json!({"skip_consumer_lookup": true}));
    assert_eq!(owner(&door, certificate()).as_deref(), Some(""));
    let mut exchange = proved(certificate());
    exchange.client_is_proved = false;
    assert_eq!(on_request(&door, &mut exchange), Err(Stop::Answered));
}

#[test]
fn the_anonymous_consumer_stands_for_everybody_else() {
    let door = door(json!({"anonymous_consumer": "other"}));
    assert_eq!(owner(&door, certificate()).as_deref(), Some("other"));
    let mut exchange = get("/");
    assert_eq!(on_request(&door, &mut exchange), Ok(()));
    assert_eq!(exchange.identity.as_ref().map(|it| &*it.consumer.username), Some("other"));
}

#[test]
fn credentials_have_one_name_that_can_be_in_a_certificate() {
    let check = |options: Value| {
        let credential = serde_json::from_value(options).expect("known options");
        MtlsAuth::check(credential).map_err(|error| error.to_string())
    };
    // The same text, so that two consumers cannot share a name by way of `subject_name`.
    assert_eq!(check(json!({"san_dns": "A.test"})), check(json!({"subject_name": "a.test"})));
    assert_eq!(check(json!({"san_email": "J@A.test"})), check(json!({"subject_name": "J@a.test"})));
    for (options, want) in [
        (json!({}), "needs exactly one of `subject_name`"),
        (json!({"san_dns": "a.test", "subject_name": "a"}), "needs exactly one of `subject_name`"),
        (json!({"san_uri": "orders"}), "san_uri: is not a URI"),
        (json!({"san_uri": "spiffe://a/x,spiffe://a/y"}), "san_uri: is not a URI"),
        (json!({"san_dns": "https://a.test"}), "san_dns: is not a DNS name"),
        (json!({"san_dns": "a.test,b.test"}), "san_dns: is not a DNS name"),
        (json!({"san_email": "jack"}), "san_email: is not an e-mail address"),
        (json!({"subject_dn": "jack"}), "subject_dn: is not a subject"),
        (json!({"fingerprint": "z".repeat(64)}), "fingerprint: is not a SHA-256 fingerprint"),
        (json!({"fingerprint": ":".repeat(64)}), "fingerprint: is not a SHA-256 fingerprint"),
    ] {
        let error = check(options).expect_err(want);
        assert!(error.starts_with(want), "{error}");
    }
}

#[test]
fn wrong_options_are_refused_with_their_place() {
    for (options, want) in [
        (json!({"consumer_by": ["name"]}), "consumer_by[0]"),
        (json!({"consumer_by": ["username"], "skip_consumer_lookup": true}), "consumer_by: no consumer is looked for"),
        (json!({"anonymous_consumer": "guest"}), "anonymous_consumer: `guest` is not a consumer"),
        (json!({"realm": "a\"b"}), "realm: must be printable ASCII characters"),
    ] {
        let error = refused::<MtlsAuth>(options);
        assert!(error.starts_with(want), "{error}");
    }
}
