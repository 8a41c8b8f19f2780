use super::*;
use crate::field_sink::FieldSink;
use crate::h2::class::FieldClass;

type Fields = Vec<(String, String)>;

fn decoded(section: &[u8]) -> Result<Fields, BrokenFieldSection> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    decode(section, |field| {
        assert_eq!(field.class, FieldClass::of(field.name, field.value), "{}", text(field.name));
        fields.push((text(field.name), text(field.value)));
    })?;
    Ok(fields)
}

fn field(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn encoded(fields: &[(String, String)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = SectionWriter::begin(&mut out);
    fields.iter().for_each(|(name, value)| writer.add(name.as_bytes(), value.as_bytes()));
    out
}

#[test]
fn a_literal_of_the_specification() {
    // RFC 9204 appendix B.1.
    let section = [&[0x00, 0x00, 0x51, 0x0b][..], b"/index.html"].concat();
    assert_eq!(decoded(&section), Ok(vec![field(":path", "/index.html")]));
}

#[test]
fn sections_that_need_a_dynamic_table_are_refused() {
    // The first is that of RFC 9204 appendix B.2, where two insertions are required.
    for (what, section) in [
        ("insertions are required", &[0x03, 0x81, 0x10, 0x11][..]),
        ("a negative base", &[0x00, 0x81]),
        ("an entry of the dynamic table", &[0x00, 0x00, 0x80]),
        ("an entry behind the base", &[0x00, 0x00, 0x10]),
        ("the name of an entry of the dynamic table", &[0x00, 0x00, 0x40, 0x00]),
        ("the name of an entry behind the base", &[0x00, 0x00, 0x00, 0x00]),
        ("an entry that is not there", &[0x00, 0x00, 0xff, 0x24]),
        ("a name that is not there", &[0x00, 0x00, 0x5f, 0x54, 0x00]),
        ("a prefix that is cut", &[0x00]),
        ("nothing", &[]),
        ("a string without its end", &[0x00, 0x00, 0x51, 0x05, b'/']),
        ("a string without its length", &[0x00, 0x00, 0x51]),
        ("a name without its value", &[0x00, 0x00, 0x21, b'x']),
        ("an integer without its end", &[0x00, 0x00, 0xff, 0x80]),
        ("padding that is not padding", &[0x00, 0x00, 0x51, 0x81, 0x1e]),
    ] {
        assert_eq!(decoded(section), Err(BrokenFieldSection), "{what}");
    }
    assert_eq!(decoded(&[0x00, 0x05, 0xd1]), Ok(vec![field(":method", "GET")]), "a base without an effect");
    assert_eq!(decoded(&[0x00, 0x00]), Ok(Vec::new()));
}

#[test]
fn the_static_table_is_used_for_whole_fields_and_for_names() {
    for (name, value, section) in [
        (":never", "", None),
        ("accept", "*/*", Some(vec![0, 0, 0xdd])),
        ("content-type", "application/json", Some(vec![0, 0, 0xee])),
        ("age", "0", Some(vec![0, 0, 0xc2])),
        ("age", "7", Some(vec![0, 0, 0x52, 0x01, b'7'])),
        ("x-frame-options", "sameorigin", Some(vec![0, 0, 0xff, 0x23])),
    ] {
        let out = encoded(&[field(name, value)]);
        if let Some(section) = section {
            assert_eq!(out, section, "{name}: {value}");
        }
        assert_eq!(decoded(&out), Ok(vec![field(name, value)]));
    }
    let mut out = Vec::new();
    let mut writer = SectionWriter::begin(&mut out);
    [200, 404, 418, 103].into_iter().for_each(|status| writer.status(status));
    let statuses = ["200", "404", "418", "103"].map(|status| field(":status", status));
    assert_eq!(decoded(&out), Ok(statuses.to_vec()));
}

#[test]
fn fields_that_are_never_indexed_are_marked() {
    let mut out = Vec::new();
    let mut writer = SectionWriter::begin(&mut out);
    writer.add_as(b"Authorization", b"secret", true);
    writer.add_as(b"X-Key", b"secret", true);
    writer.add_as(b"accept", b"*/*", true);
    writer.add(b"x-key", b"open");
    let mut never = Vec::new();
    decode(&out, |field| never.push(field.never_indexed)).expect("it can be decoded");
    assert_eq!(never, [true, true, true, false]);
}

proptest::proptest! {
    #[test]
    fn section_survives_encoding_and_decoding(
        fields in proptest::collection::vec(
            ("[a-e]{1,9}|content-type|accept|:path|set-cookie|x-[a-z]{70}", "[ -~]{0,40}|/|\\*/\\*|gzip|deny"),
            0..20,
        )
    ) {
        proptest::prop_assert_eq!(decoded(&encoded(&fields)), Ok(fields));
    }
}
