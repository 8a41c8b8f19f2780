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
fn redirects_and_cookies_of_a_service_are_rewritten() {
    let rules = |annotations: &[(&str, &str)]| {
        let (settings, remarks) = treated(annotations);
        let told =
            remarks.iter().find(|remark| remark.treatment != Treatment::Served).map(|remark| remark.text.clone());
        (settings.plugins.get(REVERSE_REWRITE).cloned().unwrap_or_default(), told)
    };
    let redirect = |from, to| rules(&[("proxy-redirect-from", from), ("proxy-redirect-to", to)]);
    let served = |rule: serde_json::Value| (serde_json::json!({ "redirects": [rule] }), None::<String>);
    let renamed = serde_json::json!({ "from": "http://a/", "to": "https://$http_host/b/" });
    assert_eq!(redirect("http://a/", "https://$best_http_host/b/"), served(renamed));
    let groups = serde_json::json!({ "regex": "^http://([a-z]+)/(?<path>.*)$", "to": "/$1_x/$2", "ignore_case": true });
    assert_eq!(redirect("~*^http://([a-z]+)/(?<path>.*)$", "/$1_x/$2"), served(groups));
    assert_eq!(redirect("~^http://a", "/"), served(serde_json::json!({ "regex": "^http://a", "to": "/" })));
    assert_eq!(redirect("http://a/", "/$1"), served(serde_json::json!({ "from": "http://a/", "to": "/$1" })));
    for (from, to) in [("off", "http://b/"), ("default", "http://b/"), ("http://a/", "off")] {
        assert_eq!(redirect(from, to), (serde_json::Value::Null, None), "{from} {to}");
    }
    assert_eq!(rules(&[("proxy-redirect-from", "http://a/")]), (serde_json::Value::Null, None));
    for (from, to, why) in [
        ("http://a/$1/", "/", "`$1` is not a variable here"),
        ("http://a/", "/$10", "`$10` is not a variable here"),
        ("~(.)", "/$10", "`$10` is not a variable here"),
        ("~(?<zone>.)", "/$zone", "`$zone` is not a variable here"),
        ("~", "/", "`~` is an empty regular expression"),
        ("~*", "/", "`~*` is an empty regular expression"),
        ("~*(", "/", "`(?i)(` is not a regular expression that can be served"),
        ("~(", "/", "`(` is not a regular expression that can be served"),
        ("http://a/ http://b/", "/", "`http://a/ http://b/` is not one word"),
        ("http://a/", "/;\nx", "`/;\nx` has ';', which is not served there"),
    ] {
        assert_eq!(redirect(from, to), (serde_json::Value::Null, Some(why.to_owned())), "{from} {to}");
    }
    let (options, told) = rules(&[("proxy-cookie-domain", ".a.example  b.example"), ("proxy-cookie-path", "~/one /")]);
    let wanted = serde_json::json!({
        "cookie_domains": [{ "from": ".a.example", "to": "b.example" }], "cookie_paths": [{ "regex": "/one", "to": "/" }],
    });
    assert_eq!((options, told), (wanted, None));
    let domain = rules(&[("proxy-cookie-domain", "~A.example b")]).0;
    assert_eq!(domain["cookie_domains"][0]["ignore_case"], true, "{domain}");
    for (name, value, why) in [
        ("proxy-cookie-domain", "a.example", "`a.example` is not `off`, or two words"),
        ("proxy-cookie-domain", "a $host", "`a $host` has '$', which is not served there"),
        ("proxy-cookie-path", "/a /\"b", "`/a /\"b` has '\"', which is not served there"),
    ] {
        assert_eq!(rules(&[(name, value)]), (serde_json::Value::Null, Some(why.to_owned())));
    }
    let long = format!("/{} /", "a".repeat(2048));
    assert_eq!(rules(&[("proxy-cookie-path", &*long)]).1.as_deref(), Some("is longer than 2048 bytes"));
    assert_eq!(rules(&[("proxy-cookie-domain", "off"), ("proxy-cookie-path", "off")]), (serde_json::Value::Null, None));
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
