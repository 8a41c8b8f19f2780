use super::*;
use crate::answer::answer_of;

fn names(port: u16) -> OwnNames {
    OwnNames { scheme: "http", authority: format!("10.0.0.1:{port}"), port, host: "shop.example".to_owned() }
}

/// DifferenceCause and subject of each difference.
fn found(old: RehearsedAnswer, new: RehearsedAnswer) -> Vec<(&'static str, String)> {
    let (old, new) = (Ok(old), Ok(new));
    let names = [names(80), names(9080)];
    let old = ComparedAnswer { outcome: &old, names: &names[0] };
    let new = ComparedAnswer { outcome: &new, names: &names[1] };
    differences(old, new, "/a", 1 << 20).found.into_iter().map(|one| (one.key.0.name(), one.key.1)).collect()
}

fn of_fields(old: &[(&str, &str)], new: &[(&str, &str)]) -> Vec<(&'static str, String)> {
    found(answer_of(200, old, b"x"), answer_of(200, new, b"x"))
}

fn of_bodies(old: &str, new: &str) -> Vec<(&'static str, String)> {
    found(answer_of(200, &[], old.as_bytes()), answer_of(200, &[], new.as_bytes()))
}

fn one(cause: &'static str, subject: &str) -> Vec<(&'static str, String)> {
    vec![(cause, subject.to_owned())]
}

#[test]
fn fields_are_compared_without_case_and_connection() {
    assert_eq!(of_fields(&[("date", "1"), ("server", "a")], &[("connection", "close"), ("server", "b")]), []);
    assert_eq!(of_fields(&[("vary", "Origin, Accept")], &[("vary", "accept"), ("vary", "origin")]), []);
    assert_eq!(
        of_fields(&[("content-type", "text/html;charset=UTF-8")], &[("content-type", "text/html; charset=\"utf-8\"")]),
        []
    );
    assert_eq!(of_fields(&[("x-a", "1")], &[]), one("field-missing", "x-a"));
    assert_eq!(of_fields(&[], &[("x-a", "1")]), one("field-added", "x-a"));
    assert_eq!(of_fields(&[("x-a", "1")], &[("x-a", "2")]), one("field-changed", "x-a"));
    assert_eq!(of_fields(&[("x-a", "1"), ("x-a", "2")], &[("x-a", "2"), ("x-a", "1")]), one("field-order", "x-a"));
    assert_eq!(of_fields(&[("link", "a"), ("link", "b")], &[("link", "a, b")]), one("field-order", "link"));
    assert_eq!(of_fields(&[("x-a", "1")], &[("x-a", "1"), ("x-a", "1")]), one("field-order", "x-a"));
    for (name, cause) in [
        ("access-control-allow-origin", "cors"),
        ("x-frame-options", "security-fields"),
        ("content-type", "content-type"),
    ] {
        assert_eq!(of_fields(&[(name, "a")], &[(name, "a"), (name, "a")]), one(cause, &format!("{name} repeated")));
    }
}

#[test]
fn fields_with_a_meaning_have_causes_of_their_own() {
    for (name, cause) in [
        ("content-encoding", "content-encoding"),
        ("cache-control", "caching"),
        ("x-proxy-cache-status", "caching"),
        ("access-control-allow-origin", "cors"),
        ("x-frame-options", "security-fields"),
        ("x-ratelimit-limit", "rate-limit"),
        ("www-authenticate", "authentication"),
        ("content-type", "content-type"),
    ] {
        assert_eq!(of_fields(&[(name, "a")], &[(name, "b")]), one(cause, name));
        assert_eq!(of_fields(&[(name, "a")], &[]), one(cause, &format!("{name} missing")));
    }
}

#[test]
fn redirects_are_compared_as_urls() {
    let of = |old: &str, new: &str| {
        found(answer_of(302, &[("location", old)], b""), answer_of(302, &[("location", new)], b""))
    };
    for same in [
        "http://shop.example/next",
        "http://shop.example:80/next",
        "http://10.0.0.1:80/next",
        "HTTP://SHOP.example/next",
    ] {
        assert_eq!(of(same, "/next"), [], "{same}");
    }
    assert_eq!(of("http://shop.example:80/next", "http://shop.example:9080/next"), []);
    assert_eq!(of("https://shop.example/next", "https://shop.example:9443/next"), []);
    assert_eq!(of("https://shop.example/next", "/next"), one("redirect", "location"));
    assert_eq!(of("/next", "http://shop.example:8000/next"), one("redirect", "location"));
    assert_eq!(of("/next", "http://10.0.0.1:90801/next"), one("redirect", "location"));
    assert_eq!(of("https://other.example/", "/"), one("redirect", "location"));
    assert_eq!(of("/next", "/next/"), one("trailing-slash", "location"));
    let slash = found(answer_of(301, &[("location", "http://shop.example/a/")], b""), answer_of(404, &[], b""));
    assert_eq!(slash, one("trailing-slash", "301 -> 404"));
    let elsewhere = found(answer_of(301, &[("location", "/b/")], b""), answer_of(200, &[], b""));
    assert_eq!(elsewhere, one("status", "301 -> 200"));
}

#[test]
fn cookies_are_compared_by_name_and_attribute() {
    let of = |old: &str, new: &str| of_fields(&[("set-cookie", old)], &[("set-cookie", new)]);
    assert_eq!(of("a=1; Path=/; HttpOnly", "a=1; httponly; path=/"), []);
    assert_eq!(of("a=1; Expires=Mon", "a=1; expires=Tue"), []);
    assert_eq!(of("a=1; Secure", "a=1"), one("cookie-attributes", "a secure"));
    assert_eq!(of("a=1; SameSite=Lax", "a=1; SameSite=Strict"), one("cookie-attributes", "a samesite"));
    assert_eq!(of("a=1", "a=2"), one("cookie", "a value"));
    for past in ["Thu, 01-Jan-1970 00:00:01 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"] {
        assert_eq!(of("a=1; Expires=Mon", &format!("a=1; Expires={past}")), one("cookie-attributes", "a expires"));
    }
    let of_two = of_fields(&[("set-cookie", "a=1"), ("set-cookie", "a=2")], &[("set-cookie", "a=2")]);
    assert_eq!(of_two, [("cookie", "a value".to_owned()), ("cookie", "a (2) missing".to_owned())]);
    assert_eq!(of_fields(&[], &[("set-cookie", "b=1")]), one("cookie", "b added"));
    assert_eq!(of_fields(&[("set-cookie", "b=1")], &[]), one("cookie", "b missing"));
}

#[test]
fn values_of_json_are_compared_by_path() {
    let of = of_bodies;
    assert_eq!(of(r#"{"a":{"b":1}}"#, r#"{"a":{"b":2}}"#), one("body-values", "$.a.b"));
    assert_eq!(of(r#"[{"n":1},{"n":2}]"#, r#"[{"n":3},{"n":4}]"#), one("body-values", "$[].n"));
    assert_eq!(of(r#"{"a":1}"#, r#"{"a":"1"}"#), one("body-members", "$.a type"));
    assert_eq!(of(r#"{"a":1,"b":2}"#, r#"{"a":1}"#), one("body-members", "$.b missing"));
    assert_eq!(of(r#"{"a":1}"#, r#"{"a":1,"b":2}"#), one("body-members", "$.b added"));
    assert_eq!(of("[1,2]", "[1]"), one("body-members", "$ length"));
    assert_eq!(of(r#"{"a":1,"b":2}"#, "{\"b\": 2, \"a\": 1}"), one("body-writing", ""));
    assert_eq!(of(r#"{"a":"http://10.0.0.1:80/x"}"#, r#"{"a":"http://10.0.0.1:9080/x"}"#), []);
    assert_eq!(of(r#"{"a":1}"#, "<html>"), one("body-kind", ""));
}

#[test]
fn texts_are_compared_word_by_word() {
    let of = of_bodies;
    assert_eq!(of("made at 12:01 by a", "made at 12:02 by a"), one("body-text", "after `made at`, before `by a`"));
    assert_eq!(of("made by a", "made by a b c"), one("body-text", "after `by a`"));
    assert_eq!(of("x a", "y a"), one("body-text", "before `a`"));
    assert_eq!(of("a  b", "a b"), one("body-text", "white space"));
    assert_eq!(of("1 a 2 b 3", "4 a 5 b 6").len(), 3);
    // The words before are the same in both places.
    assert_ne!(of("sum 1 net, sum 7 all", "sum 2 net, sum 7 all"), of("sum 1 net, sum 7 all", "sum 1 net, sum 8 all"));
    assert_eq!(of("see http://10.0.0.1:80/x", "see http://10.0.0.1:9080/x"), []);
    assert_eq!(of("see http://10.0.0.1:8080/x", "see http://10.0.0.1:90809/x").len(), 1);
    assert_eq!(of("see http://110.0.0.1:80/x", "see http://10.0.0.1:9080/x").len(), 1);
    assert_eq!(of("\0\u{1}", "\0\u{2}"), one("body-bytes", ""));
    assert_eq!(of("a", ""), one("body-missing", "in the new answer"));
    assert_eq!(of("", "a"), one("body-missing", "in the old answer"));
}

#[test]
fn compressed_bodies_are_compared_by_their_content() {
    use std::io::Write;
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).expect("memory");
        encoder.finish().expect("memory")
    };
    let coded = |text: &str| answer_of(200, &[("content-encoding", "gzip")], &gzip(text));
    assert_eq!(
        found(coded("one two"), answer_of(200, &[], b"one two")),
        one("content-encoding", "content-encoding missing")
    );
    assert_eq!(found(coded("one two"), coded("one three")), one("body-text", "after `one`"));

    let outcome = |coding: &str, body: &[u8]| Ok(answer_of(200, &[("content-encoding", coding)], body));
    let compared = |old: AnswerOutcome, new: AnswerOutcome, max: usize| {
        let names = names(80);
        let [old, new] = [&old, &new].map(|outcome| ComparedAnswer { outcome, names: &names });
        let list = differences(old, new, "/a", max);
        let found: Vec<_> = list.found.into_iter().map(|one| (one.key.0.name(), one.key.1)).collect();
        (found, list.is_body_uncompared)
    };
    let whole = gzip("one two three");
    // What one gateway broke is a difference; what cannot be read on both sides is told as such.
    let broken = &whole[..whole.len() - 9];
    assert_eq!(compared(outcome("gzip", &whole), outcome("gzip", broken), 100), (one("body-bytes", "decoded"), false));
    assert_eq!(compared(outcome("gzip", b"a"), outcome("gzip", b"b"), 100), (Vec::new(), true));
    assert_eq!(compared(outcome("zstd", b"a"), outcome("zstd", b"b"), 100), (Vec::new(), true));
    assert_eq!(compared(outcome("zstd", b"a"), outcome("zstd", b"a"), 100), (Vec::new(), false));
    let large = gzip(&"a".repeat(200));
    assert_eq!(compared(outcome("gzip", &large), outcome("gzip", &whole), 100), (one("body-bytes", "decoded"), false));
}

#[test]
fn lengths_of_contents_that_are_not_sent_are_compared() {
    let of = |fields: &[(&str, &str)]| RehearsedAnswer { is_head: true, ..answer_of(200, fields, b"") };
    assert_eq!(found(of(&[("content-length", "5")]), of(&[])), one("head-length", "content-length missing"));
    assert_eq!(
        found(of(&[("content-length", "5")]), of(&[("content-length", "6")])),
        one("head-length", "content-length changed")
    );
    assert_eq!(found(answer_of(200, &[("content-length", "1")], b"x"), answer_of(200, &[], b"x")), []);
    let redirect = |length| {
        let fields = [("location", "/next"), ("content-length", length)];
        RehearsedAnswer { is_head: true, ..answer_of(301, &fields, b"") }
    };
    assert_eq!(found(redirect("162"), redirect("0")), [], "the text beside a redirect is not compared");
}

#[test]
fn bodies_beyond_the_limit_are_compared_by_length_and_hash() {
    let of = |text: &str| {
        let mut reader = crate::answer::ComparedBodyReader::default();
        reader.add(text.as_bytes(), 2);
        RehearsedAnswer { body: reader.end(), ..answer_of(200, &[], b"") }
    };
    assert_eq!(found(of("abcd"), of("abcd")), []);
    assert_eq!(found(of("abcd"), of("abce")), one("body-bytes", ""));
}

#[test]
fn answers_that_are_missing_have_the_cause_of_their_absence() {
    let names = names(80);
    let old = Ok(answer_of(200, &[], b""));
    for (missing, cause) in [
        (AnswerAbsence::Connect(String::new()), DifferenceCause::Connect),
        (AnswerAbsence::Tls(String::new()), DifferenceCause::Tls),
        (AnswerAbsence::TimedOut(String::new()), DifferenceCause::TimedOut),
        (AnswerAbsence::Broken(String::new()), DifferenceCause::Closed),
    ] {
        let new = Err(missing);
        let [old, new] = [&old, &new].map(|outcome| ComparedAnswer { outcome, names: &names });
        assert_eq!(differences(old, new, "/", 10).found[0].key.0, cause);
        assert_eq!(differences(new, old, "/", 10).found, []);
    }
}

#[test]
fn values_of_secrets_are_not_told() {
    let names = names(80);
    let old = Ok(answer_of(200, &[("set-cookie", "sid=abc"), ("x-auth-token", "abc")], br#"{"access_token":"abc"}"#));
    let new = Ok(answer_of(200, &[("set-cookie", "sid=xyz"), ("x-auth-token", "xyz")], br#"{"access_token":"xyz"}"#));
    let [old, new] = [&old, &new].map(|outcome| ComparedAnswer { outcome, names: &names });
    let told = differences(old, new, "/", 100).found;
    assert_eq!(told.len(), 3);
    assert!(
        told.iter().all(|one| !format!("{one:?}").contains("abc") && !format!("{one:?}").contains("xyz")),
        "{told:?}"
    );
}

#[test]
fn secrets_in_addresses_and_further_up_are_not_told() {
    let names = names(80);
    let place = |secret: &str| format!("https://id.example/cb?code={secret}&a=1");
    for (old, new) in [
        (answer_of(302, &[("location", &place("abc"))], b""), answer_of(302, &[("location", &place("xyz"))], b"")),
        (answer_of(302, &[("location", &place("abc"))], b""), answer_of(307, &[("location", &place("xyz"))], b"")),
        (answer_of(200, &[], br#"{"next":"/a?sid=abc"}"#), answer_of(200, &[], br#"{"next":"/a?sid=xyz"}"#)),
        (answer_of(200, &[], br#"{"tokens":{"a":"abc"}}"#), answer_of(200, &[], br#"{"tokens":{"a":"xyz"}}"#)),
        (answer_of(200, &[], b"the token: abc"), answer_of(200, &[], b"the token: xyz")),
    ] {
        let (old, new) = (Ok(old), Ok(new));
        let [old, new] = [&old, &new].map(|outcome| ComparedAnswer { outcome, names: &names });
        let told = format!("{:?}", differences(old, new, "/", 100).found);
        assert!(told.len() > 2 && !told.contains("abc") && !told.contains("xyz"), "{told}");
    }
}

#[test]
fn subjects_are_short_and_still_tell_apart() {
    let of = |name: &str| short_subject(&format!("$.{}{name}", "a".repeat(MAX_SUBJECT_BYTES)));
    assert!(of("x").len() < MAX_SUBJECT_BYTES + 20);
    assert_ne!(of("x"), of("y"));
}
