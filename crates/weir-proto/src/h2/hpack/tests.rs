use super::*;
use crate::h2::class::FieldClass;

type Fields = Vec<(String, String)>;

fn fields(of: &[(&str, &str)]) -> Fields {
    of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, BrokenFieldSection> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    decoder.decode(block, |DecodedField { class, name, value, .. }| {
        assert_eq!(class, FieldClass::of(name, value), "{}: {}", text(name), text(value));
        fields.push((text(name), text(value)));
    })?;
    Ok(fields)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// RFC 7541 appendix C.3 and C.4: the same requests, without and with Huffman.
#[test]
fn requests_of_the_specification() {
    let begin = |path, scheme| {
        vec![(":method", "GET"), (":scheme", scheme), (":path", path), (":authority", "www.example.com")]
    };
    let requests = [
        begin("/", "http"),
        [begin("/", "http"), vec![("cache-control", "no-cache")]].concat(),
        [begin("/index.html", "https"), vec![("custom-key", "custom-value")]].concat(),
    ];
    for blocks in [
        [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ],
        [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ],
    ] {
        let mut decoder = Decoder::default();
        for (block, request) in blocks.iter().zip(&requests) {
            assert_eq!(decoded(&mut decoder, &hex(block)), Ok(fields(request)), "{block}");
        }
    }
}

/// RFC 7541 appendix C.5 and C.6: responses that evict each other from a table of 256 bytes, the size announced here.
#[test]
fn responses_of_the_specification() {
    let response = |status, date, more: &[(&'static str, &'static str)]| {
        let begin = [(":status", status), ("cache-control", "private"), ("date", date)];
        [&begin[..], &[("location", "https://www.example.com")], more].concat()
    };
    let (first, later) = ("Mon, 21 Oct 2013 20:13:21 GMT", "Mon, 21 Oct 2013 20:13:22 GMT");
    let cookie = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    let responses = [
        response("302", first, &[]),
        response("307", first, &[]),
        response("200", later, &[("content-encoding", "gzip"), ("set-cookie", cookie)]),
    ];
    for blocks in [
        [
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768747470733a2f2f77\
             77772e6578616d706c652e636f6d",
            "4803333037c1c0bf",
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b48514b425a\
             584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
        ],
        [
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f36\
             72c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ],
    ] {
        let mut decoder = Decoder::default();
        assert_eq!(decoded(&mut decoder, &hex("3fe101")), Ok(Vec::new()), "a table of 256 bytes");
        for (block, response) in blocks.iter().zip(&responses) {
            assert_eq!(decoded(&mut decoder, &hex(block)), Ok(fields(response)), "{block}");
        }
    }
}

#[test]
fn decoder_refuses_invalid_field_sections() {
    for (what, block) in [
        ("entry 0", "80"),
        ("an entry that is not there", "be"),
        ("a name that is not there", "7f0001 61"),
        ("a string without its end", "0001"),
        ("a string that is longer than the section", "0005 61"),
        ("an integer without its end", "ff ff"),
        ("a table that is too large", "3fe21f"),
        ("a table that changes behind a field", "82 20"),
        ("padding that is not padding", "00 81 1e 01 61"),
    ] {
        assert_eq!(decoded(&mut Decoder::default(), &hex(block)), Err(BrokenFieldSection), "{what}");
    }
    assert_eq!(decoded(&mut Decoder::default(), &hex("20 3fe11f 82")), Ok(fields(&[(":method", "GET")])));
}

#[test]
fn an_entry_larger_than_the_table_empties_it() {
    let mut decoder = Decoder::default();
    let (mut block, value) = (vec![0x40, 1, b'a', 1, b'b'], "v".repeat(4_100));
    assert_eq!(decoded(&mut decoder, &block), Ok(fields(&[("a", "b")])));
    assert_eq!(decoded(&mut decoder, &[0xbe]), Ok(fields(&[("a", "b")])));
    block = vec![0x7e, 0x7f, 0x85, 0x1f];
    block.extend_from_slice(value.as_bytes());
    assert_eq!(decoded(&mut decoder, &block), Ok(fields(&[("a", &value)])), "its name was an entry");
    assert_eq!(decoded(&mut decoder, &[0xbe]), Err(BrokenFieldSection));
}

#[test]
fn a_value_that_is_bad_does_not_make_its_name_bad() {
    let mut decoder = Decoder::default();
    let block = [0x40, 1, b'a', 1, b'\n', 0x7e, 1, b'b', 0xbe, 0xbf];
    let all = fields(&[("a", "\n"), ("a", "b"), ("a", "b"), ("a", "\n")]);
    assert_eq!(decoded(&mut decoder, &block), Ok(all));
}

#[test]
fn repeated_fields_take_one_byte_each() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let response = [
        (":status", "200"),
        ("content-type", "text/plain; charset=utf-8"),
        ("x-served-by", "cache-7"),
        ("set-cookie", "a=b"),
    ];
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        response.iter().for_each(|(name, value)| encoder.field(name.as_bytes(), value.as_bytes(), &mut block));
        assert_eq!(decoded(&mut decoder, &block), Ok(fields(&response)));
        sizes.push(block.len());
    }
    assert_eq!(sizes[2], 1 + 1 + 1 + 6, "cookies are never remembered");
    assert!(sizes[0] > 40);
}

#[test]
fn a_smaller_table_is_announced() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let mut section = |encoder: &mut Encoder| {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        encoder.field(b"x-a", b"1", &mut block);
        assert_eq!(decoded(&mut decoder, &block), Ok(fields(&[("x-a", "1")])));
        block
    };
    section(&mut encoder);
    section(&mut encoder);
    assert_eq!(section(&mut encoder), [0xbe]);
    encoder.resize(0);
    encoder.resize(1_000_000);
    assert_eq!(section(&mut encoder)[..4], [0x20, 0x3f, 0xe1, 0x1f]);
    encoder.resize(0);
    assert_eq!(section(&mut encoder)[0], 0x20);
    assert_eq!(section(&mut encoder)[0], 0);
}

#[test]
fn an_encoder_that_forgets_says_so() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    for round in 0..3 {
        let mut blocks = Vec::new();
        for _ in 0..3 {
            let mut block = Vec::new();
            encoder.begin(&mut block);
            encoder.field(b"x-a", b"1", &mut block);
            assert_eq!(decoded(&mut decoder, &block), Ok(fields(&[("x-a", "1")])));
            blocks.push(block);
        }
        assert_eq!(blocks[0].starts_with(&[0x20, 0x3f, 0xe1, 0x1f]), round > 0);
        assert_eq!(blocks[2], [0xbe]);
        encoder.forget();
        assert_eq!(encoder.capacity(), 0);
    }
}

#[test]
fn long_fields_leave_no_memory_behind() {
    let mut decoder = Decoder::default();
    let mut whole = vec![0, 1, b'a'];
    integer::write(0, 7, 60_000, &mut whole);
    whole.extend_from_slice(&[b'x'; 60_000]);
    assert!(decoded(&mut decoder, &whole).is_ok());
    assert!(decoder.capacity() <= 10_000, "{} bytes", decoder.capacity());
}

proptest::proptest! {
    /// Decoder and encoder stay in step for any input and any table sizes.
    #[test]
    fn encoder_and_decoder_stay_in_step(
        sections in proptest::collection::vec(
            (0usize..4, proptest::collection::vec(("[a-e]{1,3}|content-type|:path", "[a-c]{0,3}|[x-z]{60}"), 0..8)),
            0..40,
        )
    ) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for (size, section) in sections {
            if size < 2 {
                encoder.resize([100, 4096][size]);
            } else if size == 2 {
                encoder.forget();
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            section.iter().for_each(|(name, value)| encoder.field(name.as_bytes(), value.as_bytes(), &mut block));
            proptest::prop_assert_eq!(decoded(&mut decoder, &block), Ok(section));
        }
    }
}

/// 60 sections from other implementations' encoders, with tables that grow and shrink: scripts/hpack-vectors.
#[test]
fn sections_of_other_encoders() {
    let sections = |text: &'static str| text.lines().filter(|line| !line.starts_with('#'));
    let fields: Vec<Vec<(Vec<u8>, Vec<u8>)>> = sections(include_str!("vectors/fields.txt"))
        .map(|line| {
            let fields = line.split_whitespace().map(|field| field.split_once('=').expect("NAME=VALUE"));
            fields.map(|(name, value)| (hex(name), hex(value))).collect()
        })
        .collect();
    assert_eq!(fields.len(), 60);
    for (encoder, blocks) in
        [("hpack", include_str!("vectors/python.txt")), ("nghttp2", include_str!("vectors/nghttp2.txt"))]
    {
        let mut decoder = Decoder::default();
        assert_eq!(sections(blocks).count(), fields.len(), "{encoder}");
        for (number, (block, fields)) in sections(blocks).zip(&fields).enumerate() {
            let mut decoded = Vec::new();
            let outcome =
                decoder.decode(&hex(block), |field| decoded.push((field.name.to_vec(), field.value.to_vec())));
            assert_eq!((outcome, &decoded), (Ok(()), fields), "{encoder}, section {number}");
        }
    }
}

#[test]
fn secret_fields_enter_no_table() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    for _ in 0..3 {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        encoder.field(b"x-plain", b"1", &mut block);
        encoder.field(b"authorization", b"1", &mut block);
        encoder.field(b"x-auth-token", b"1", &mut block);
        encoder.never_indexed(b"x-plain", b"1", &mut block);
        encoder.never_indexed(b"accept", b"1", &mut block);
        let mut never = Vec::new();
        decoder.decode(&block, |field| never.push(field.never_indexed)).expect("a section");
        assert_eq!(never, [false, true, true, true, true]);
    }
}
