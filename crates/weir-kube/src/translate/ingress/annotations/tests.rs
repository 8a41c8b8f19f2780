use std::collections::BTreeSet;

use super::*;
use crate::objects::ingress::Ingress;
use crate::world::World;

fn with(annotations: &[(&str, &str)]) -> Ingress {
    let mut ingress = Ingress::default();
    for (name, value) in annotations {
        ingress.metadata.annotations.insert(format!("{PREFIX}{name}"), (*value).to_owned());
    }
    ingress
}

fn treated(annotations: &[(&str, &str)]) -> (IngressSettings, Vec<Remark>) {
    let ingress = with(annotations);
    let mut settings = IngressSettings::ingress_nginx();
    let world = World::default();
    let remarks = read(&Given::new(&ingress, &world), &mut settings);
    (settings, remarks)
}

#[test]
fn each_name_is_there_once_and_names_that_are_referred_to_exist() {
    let names: BTreeSet<&str> = table().map(|annotation| annotation.name).collect();
    assert_eq!(names.len(), table().count());
    for annotation in table() {
        if let With(main) = annotation.fate {
            assert!(names.contains(main), "{}", annotation.name);
        }
        assert!(annotation.becomes.ends_with('.'), "{}", annotation.name);
        assert!(!matches!(annotation.fate, Refused) || annotation.is_needed, "{}", annotation.name);
    }
}

#[test]
fn a_value_that_is_not_understood_refuses_the_ingress_only_if_it_is_needed() {
    let treatment = |name, value| treated(&[(name, value)]).1[0].treatment;
    assert_eq!(treatment("whitelist-source-range", "10.0.0.0/8"), Treatment::Served);
    assert_eq!(treatment("whitelist-source-range", "10.0.0.0/8,office"), Treatment::Refused);
    assert_eq!(treatment("proxy-body-size", "8x"), Treatment::Left);
    assert_eq!(treatment("enable-cors", "true"), Treatment::Differs);
    assert_eq!(treatment("enable-access-log", "false"), Treatment::Left);
    assert_eq!(treatment("no-such-annotation", "x"), Treatment::Left);
}

#[test]
fn a_class_that_reads_no_annotations_refuses_an_ingress_that_needs_one() {
    let world = World::default();
    for (name, expected) in [
        ("whitelist-source-range", Treatment::Refused),
        ("auth-url", Treatment::Refused),
        ("rewrite-target", Treatment::Refused),
        ("proxy-read-timeout", Treatment::Left),
        ("no-such-annotation", Treatment::Left),
    ] {
        let ingress = with(&[(name, "x")]);
        let remarks = unread(&Given::new(&ingress, &world));
        assert_eq!((remarks.len(), remarks[0].treatment), (1, expected), "{name}");
    }
}

#[test]
fn defaults_are_those_of_ingress_nginx() {
    let (settings, remarks) = treated(&[]);
    assert!(remarks.is_empty());
    assert_eq!(settings.plugins["client-control"]["max_body_size"], 1_048_576);
    let timeout = settings.timeout.expect("stated");
    assert_eq!((timeout.connect, timeout.send, timeout.read), (5.0, 60.0, 60.0));
}

#[test]
fn upstreams_get_what_belongs_to_them() {
    let (settings, _) = treated(&[
        ("backend-protocol", "GRPCS"),
        ("proxy-ssl-verify", "on"),
        ("proxy-ssl-name", "inner.example"),
        ("load-balance", "ewma"),
        ("proxy-next-upstream", "error timeout http_503"),
        ("proxy-next-upstream-tries", "3"),
        ("proxy-next-upstream-timeout", "7"),
    ]);
    let expected = serde_json::json!({
        "type": "ewma", "scheme": "grpcs", "tls": { "verify": true, "server_name": "inner.example" },
        "retry_on": ["read_timeout", "http_503"],
        "retries": 2, "retry_timeout": 7.0,
    });
    assert_eq!(serde_json::Value::Object(settings.upstream), expected);
}

#[test]
fn a_mirror_gets_the_path_that_its_target_states() {
    let options = |target| treated(&[("mirror-target", target)]).0.plugins["proxy-mirror"].clone();
    let whole = serde_json::json!({ "host": "https://a.example", "host_header": "a.example" });
    assert_eq!(options("https://a.example$request_uri"), whole);
    let below = serde_json::json!({
        "host": "http://a.example:81", "host_header": "a.example", "path": "/copy", "path_concat_mode": "prefix",
    });
    assert_eq!(options("http://a.example:81/copy$request_uri"), below);
    assert_eq!(treated(&[("mirror-target", "http://a.example/$arg_x")]).1[0].treatment, Treatment::Left);
}

#[test]
fn copies_have_the_host_of_the_target_or_of_an_annotation() {
    let host = |target, more: &[(&'static str, &'static str)]| {
        let (settings, remarks) = treated(&[&[("mirror-target", target)], more].concat());
        (settings.plugins.get("proxy-mirror").map(|options| options["host_header"].clone()), remarks[0].treatment)
    };
    for (target, more, name) in [
        ("http://[fd00::1]:81", &[][..], "[fd00::1]"),
        ("http://[fd00::1]", &[], "[fd00::1]"),
        ("http://a.example:81", &[("mirror-host", "b.example:82")], "b.example:82"),
        ("http://a.example:81", &[("mirror-host", "")], "a.example"),
    ] {
        assert_eq!(host(target, more), (Some(name.into()), Treatment::Served), "{target}");
    }
    assert_eq!(host("http://a.example", &[("mirror-host", "$host")]), (None, Treatment::Left));
}

#[test]
fn copies_have_no_body_where_an_annotation_says_so() {
    let body = |value| {
        let (settings, remarks) = treated(&[("mirror-target", "http://a.example"), ("mirror-request-body", value)]);
        assert_eq!(remarks[1].treatment, Treatment::Served, "{value}");
        settings.plugins["proxy-mirror"].get("body").cloned()
    };
    assert_eq!((body("on"), body("off")), (None, Some(false.into())));
}

#[test]
fn the_weights_of_a_canary_are_of_at_least_a_hundred() {
    let total = |total| {
        let (settings, _) = treated(&[("canary", "true"), ("canary-weight", "10"), ("canary-weight-total", total)]);
        settings.canary.map(|canary| (canary.weight, canary.weight_total))
    };
    assert_eq!((total("50"), total("1000")), (Some((10, 100)), Some((10, 1000))));
}

#[test]
fn locations_that_are_not_to_be_rewritten_are_no_loss() {
    let treatment = |value| treated(&[("proxy-redirect-from", value)]).1[0].treatment;
    assert_eq!((treatment("off"), treatment("default")), (Treatment::Served, Treatment::Left));
}

#[test]
fn variables_have_the_names_that_they_have_here() {
    let key = |text| {
        let (settings, remarks) = treated(&[("upstream-hash-by", text)]);
        settings.upstream.get("key").cloned().ok_or_else(|| remarks[0].text.clone())
    };
    assert_eq!(key("$binary_remote_addr"), Ok("$remote_addr".into()));
    assert_eq!(key("${request_uri}-$http_x_user"), Ok("${request_uri}-$http_x_user".into()));
    assert_eq!(key("$request_uri$namespace"), Err("`$namespace` is not a variable here".to_owned()));
    assert_eq!(key("fixed"), Err("`fixed` has no variable".to_owned()));
    let (settings, _) = treated(&[("permanent-redirect", "https://$best_http_host/new")]);
    assert_eq!(settings.plugins["redirect"]["uri"], "https://$http_host/new");
}
