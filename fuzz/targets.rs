//! What is fuzzed: each function takes any bytes and panics when an invariant does not hold. `fuzz_targets/` hands them
//! to libFuzzer; `smoke.rs` replays the corpus with small changes on a stable toolchain.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_bench::fuzzing::{
    DEEPEST_STACK, FoldedStacks, MOST_BYTES_OF_STACKS, OTHER_STACKS, private_key_signs, public_key_again,
    signature_again,
};
use weir_bench::plot::flame_graph;
use weir_control::document::WrittenDocument;
use weir_control::lua as lua_text;
use weir_control::text::edit::{EditBudget, EditOperation};
use weir_control::text::yaml::TextLimits;
use weir_journal::simulation::Simulated;
use weir_journal::{Item, Journal, Options, Storage, Sync};
use weir_kafka::stored_messages;
use weir_net::proxy_protocol;
use weir_plugin::template::TemplateStyle;
use weir_plugin::{Expression, Filter, ProtoDefinitions, Registry, Template, Variable, Variables};
use weir_plugins::fuzzing::b3::{B3Context, B3Fields};
use weir_plugins::fuzzing::sw8::Sw8Context;
use weir_plugins::fuzzing::w3c::{Traceparent, is_tracestate};
use weir_plugins::fuzzing::{
    BodyTemplate, GrpcWebDecoder, InputFormat, Scene, SceneVariables, TranscodedCall, bulk_outcomes,
    chat_with_messages, compiled_definition, graphql as graphql_text, grpc_retry_delay, json as json_text,
    otlp_outcomes, otlp_rejected, read_cached_response, xml as xml_text,
};
use weir_proto::event_stream::{EventPart, EventReader};
use weir_proto::h1::chunked::{ChunkedDecoder, Step};
use weir_proto::h1::{Limits, Tolerance, parse_request, parse_response};
use weir_proto::h2::{self, Connection, ErrorCode, HeadTarget, PeerLimits, PseudoField, Role};
use weir_proto::h2::{request_head as h2_request_head, response_head as h2_response_head};
use weir_proto::h3::{self, H3MessageReader, MessagePart, PeerStreams, UnidirectionalReader};
use weir_proto::mqtt::{MOST_CLIENT_ID, MOST_CONNECT, parse_connect};
use weir_proto::path::{Canonical, canonical, with_empty_segments};
use weir_proto::websocket::{FrameEvent, FrameFault, FrameReader, FrameSender, MessageInflater, extensions};
use weir_proto::{FieldSink, Head, Method, RequestHead, ResponseHead};
use weir_wasm::pairs;
use weir_wasm::trial::TriedModule;

#[path = "host_calls.rs"]
mod host_calls;

/// A target takes any bytes.
pub(crate) type Target = fn(&[u8]);

/// Every target by name.
pub(crate) const ALL: &[(&str, Target)] = &[
    ("request_head", request_head),
    ("response_head", response_head),
    ("h2_head", h2_head),
    ("h2_connection", h2_connection),
    ("h2_frames", h2_frames),
    ("hpack", hpack),
    ("qpack", qpack),
    ("h3_message", h3_message),
    ("h3_streams", h3_streams),
    ("chunked", chunked),
    ("path", path),
    ("vars", vars),
    ("configuration", configuration),
    ("include", include),
    ("edit", edit),
    ("proxy_header", proxy_header),
    ("mqtt_connect", mqtt_connect),
    ("template", template),
    ("cached_response", cached_response),
    ("json", json),
    ("xml", xml),
    ("wasm_pairs", wasm_pairs),
    ("wasm_host_calls", wasm_host_calls),
    ("body_values", body_values),
    ("body_template", body_template),
    ("graphql", graphql),
    ("lua", lua),
    ("oas_definition", oas_definition),
    ("prompts", prompts),
    ("grpc_web", grpc_web),
    ("proto_text", proto_text),
    ("transcoding", transcoding),
    ("bulk_answer", bulk_answer),
    ("otlp_answer", otlp_answer),
    ("journal", journal),
    ("kafka_batch", kafka_batch),
    ("websocket_frames", websocket_frames),
    ("websocket_deflate", websocket_deflate),
    ("event_stream", event_stream),
    ("trace_context", trace_context),
    ("convert", convert),
    ("log_lines", log_lines),
    ("minisign", minisign),
    ("folded_stacks", folded_stacks),
];

/// A head is complete at one length and not before, and whatever came of it can be looked at: a refused one is answered
/// and logged too.
pub(crate) fn request_head(data: &[u8]) {
    let limits = Limits::default();
    let mut request = RequestHead::default();
    let whole = parse_request(data, &limits, &mut request);
    look_at(&request.head);
    let _ = (request.method_name(), request.target(), request.path(), request.query());
    let _ = (request.host(), request.authority(), request.port());
    let Ok(Some(length)) = whole else { return };
    assert!(length <= data.len(), "longer than what was given");
    assert!(data[..length].ends_with(b"\r\n\r\n"), "ends elsewhere than at an empty line");
    for cut in [length - 1, length - 2, length / 2] {
        let mut part = RequestHead::default();
        assert_eq!(parse_request(&data[..cut], &limits, &mut part), Ok(None), "complete without its end");
    }
    if request.path().starts_with(b"/") {
        is_canonical(request.path());
    }
    let mut sent = Vec::new();
    request.head.write_fields(&mut sent, |_| true);
    one_line_each(&sent);
}

/// The same for a response, to a GET and to a HEAD.
pub(crate) fn response_head(data: &[u8]) {
    let limits = Limits::default();
    for method in [Method::Get, Method::Head] {
        let mut response = ResponseHead::default();
        let whole = parse_response(data, &limits, Tolerance::default(), method, &mut response);
        look_at(&response.head);
        let _ = response.reason();
        let Ok(Some(length)) = whole else { continue };
        assert!(length <= data.len(), "longer than what was given");
        for cut in [length - 1, length / 2] {
            let mut part = ResponseHead::default();
            assert_eq!(
                parse_response(&data[..cut], &limits, Tolerance::default(), method, &mut part),
                Ok(None),
                "complete without its end"
            );
        }
        let mut sent = Vec::new();
        response.head.write_fields(&mut sent, |_| true);
        one_line_each(&sent);
    }
}

/// Fields as HTTP/2 brings them, one on each line: `name: value`, where names may begin with a colon. What is taken of
/// them goes out as HTTP/1 lines.
pub(crate) fn h2_head(data: &[u8]) {
    let mut pseudo = PseudoField { method: b"GET", ended: data.len().is_multiple_of(2), ..PseudoField::default() };
    let mut fields = Vec::new();
    for line in data.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().skip(1).position(|&byte| byte == b':') else { continue };
        let (name, value) = (&line[..=colon], &line[colon + 2..]);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b":method" => pseudo.method = value,
            b":scheme" => pseudo.scheme = Some(value),
            b":authority" => pseudo.authority = Some(value),
            b":path" => pseudo.path = Some(value),
            b":protocol" => pseudo.protocol = Some(value),
            name => fields.push((name, value)),
        }
    }
    let limits = Limits::default();
    let mut request = RequestHead::default();
    let taken = h2_request_head(&pseudo, fields.iter().copied(), &limits, &mut request);
    look_at(&request.head);
    let _ = (request.method_name(), request.target(), request.query(), request.host(), request.port());
    if taken.is_ok() {
        if request.path().starts_with(b"/") {
            is_canonical(request.path());
        }
        let mut sent = Vec::new();
        request.head.write_fields(&mut sent, |_| true);
        one_line_each(&sent);
    }
    let mut response = ResponseHead::default();
    let status = u16::from_be_bytes([data.first().copied().unwrap_or(0) % 3, data.last().copied().unwrap_or(200)]);
    if h2_response_head(status, fields.into_iter(), pseudo.ended, &limits, Method::Get, &mut response).is_ok() {
        let mut sent = Vec::new();
        response.head.write_fields(&mut sent, |_| true);
        one_line_each(&sent);
    }
}

/// The bytes of a connection, to a server and to a client: however they are cut, the same comes of them.
pub(crate) fn h2_connection(data: &[u8]) {
    for role in [Role::Server, Role::Client] {
        let whole = read(role, data, usize::MAX);
        for piece in [1, 2, 9, 24] {
            assert_eq!(read(role, data, piece), whole, "cut in pieces of {piece}");
        }
    }
}

/// Frames behind the beginning of a connection: each is four bytes (its type, flags, stream, and the length of its
/// payload) and the payload, so that most of them can be understood.
pub(crate) fn h2_frames(data: &[u8]) {
    let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut rest = data;
    while let Some((&[kind, flags, stream, length], others)) = rest.split_first_chunk() {
        let (payload, others) = others.split_at(others.len().min(usize::from(length)));
        frames.extend_from_slice(&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream]);
        frames.extend_from_slice(payload);
        rest = others;
    }
    for role in [Role::Server, Role::Client] {
        let begin: &[u8] = if role == Role::Server { h2::PREFACE } else { b"" };
        let bytes = [begin, &frames].concat();
        let whole = read(role, &bytes, usize::MAX);
        for piece in [1, 10, 33] {
            assert_eq!(read(role, &bytes, piece), whole, "cut in pieces of {piece}");
        }
    }
}

/// What a connection makes of bytes: its events in words, the content put together, and why it ended.
fn read(role: Role, data: &[u8], piece: usize) -> (Vec<String>, Option<ErrorCode>) {
    let bounds = PeerLimits { limits: Limits::default(), streams: 4, stream_window: 70_000, connection_window: 80_000 };
    let mut connection = Connection::new(role, bounds, 0);
    if role == Role::Client {
        let _ = connection.request(1, Method::Get, true, |fields| fields.add(b":method", b"GET"));
        let _ = connection.request(3, Method::Head, false, |fields| fields.add(b":method", b"HEAD"));
    }
    let (mut events, mut waiting) = (Vec::<String>::new(), Vec::new());
    for bytes in data.chunks(piece) {
        waiting.extend_from_slice(bytes);
        let mut rest = &waiting[..];
        loop {
            let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
            let mut lent = match role {
                Role::Server => HeadTarget::Request(&mut request),
                Role::Client => HeadTarget::Response(&mut response),
            };
            match connection.next(&mut rest, &mut lent) {
                Ok(None) => break,
                Err(code) => return (events, Some(code)),
                Ok(Some(h2::ConnectionEvent::Data { key, bytes, ended })) => {
                    let begin = format!("{key} brings ");
                    match events.last_mut().filter(|last| last.starts_with(&begin) && !last.ends_with('.')) {
                        Some(last) => last.push_str(&bytes.escape_ascii().to_string().replace('.', "dot")),
                        None => events.push(begin + &bytes.escape_ascii().to_string().replace('.', "dot")),
                    }
                    if ended {
                        events.last_mut().expect("it was pushed").push('.');
                    }
                    connection.release(key as u32, bytes.len());
                }
                Ok(Some(event)) => {
                    if let h2::ConnectionEvent::Request { stream, .. } = event {
                        connection.set_key(stream, stream as usize);
                        if stream % 4 == 1 {
                            connection.respond(stream, 200, false, |fields| fields.add(b"X", b"y"));
                            connection.send_data(stream, b"hello", true);
                        }
                    }
                    look_at(&request.head);
                    look_at(&response.head);
                    events.push(format!("{event:?} {}", request.path().escape_ascii()));
                }
            }
        }
        waiting = rest.to_vec();
    }
    (events, None)
}

/// Any bytes are a field section or none; and what was decoded can be encoded, and is decoded to the same.
pub(crate) fn qpack(data: &[u8]) {
    let decode = |section: &[u8]| {
        let mut fields = Vec::new();
        let decoded = h3::qpack::decode(section, |h2::hpack::DecodedField { class, name, value, .. }| {
            assert_eq!(class, h2::class::FieldClass::of(name, value), "what the table says of a name is true");
            fields.push((name.to_vec(), value.to_vec()));
        });
        decoded.map(|()| fields)
    };
    let Ok(fields) = decode(data) else { return };
    let mut encoded = Vec::new();
    let mut writer = h3::qpack::SectionWriter::begin(&mut encoded);
    let lower: Vec<_> = fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    fields.iter().for_each(|(name, value)| writer.add(name, value));
    assert_eq!(decode(&encoded), Ok(lower));
    let mut request = RequestHead::default();
    let _ = h3::head::read_request(data, data.len().is_multiple_of(2), &Limits::default(), &mut request);
    look_at(&request.head);
    if let Ok(trailers) = h3::head::read_trailers(data, &Limits::default()) {
        trailers.fields().for_each(|(name, value)| one_line_each(&[name, b": ", value, b"\r\n"].concat()));
    }
}

/// The stream of a request: however it is cut, the same comes of it.
pub(crate) fn h3_message(data: &[u8]) {
    let read = |piece: usize| {
        let (mut reader, mut parts, mut content) = (H3MessageReader::new(1_000), Vec::new(), Vec::new());
        for mut rest in data.chunks(piece) {
            loop {
                match reader.next(&mut rest) {
                    Ok(None) => break,
                    Ok(Some(MessagePart::Content(bytes))) => {
                        assert!(!bytes.is_empty(), "content without content");
                        content.extend_from_slice(bytes);
                    }
                    Ok(Some(part)) => {
                        if let MessagePart::Head(section) = &part
                            && let Some(last) = section.last()
                        {
                            reader.announce(u64::from(*last));
                        }
                        parts.push(format!("{part:?} behind {} bytes", content.len()));
                    }
                    Err(fault) => return (parts, Vec::new(), Err(fault)),
                }
            }
            assert!(rest.is_empty(), "bytes are left");
        }
        (parts, content, reader.end())
    };
    let whole = read(data.len().max(1));
    for piece in [1, 2, 7] {
        assert_eq!(read(piece), whole, "cut in pieces of {piece}");
    }
}

/// The streams that only a client sends on, each preceded by its length: however they are cut, the same comes of them.
pub(crate) fn h3_streams(data: &[u8]) {
    let read = |piece: usize| {
        let (mut streams, mut events, mut rest) = (PeerStreams::default(), Vec::new(), data);
        while let Some((&length, after)) = rest.split_first() {
            let (stream, after) = after.split_at(usize::from(length).min(after.len()));
            rest = after;
            let mut reader = UnidirectionalReader::default();
            for mut bytes in stream.chunks(piece) {
                loop {
                    match reader.next(&mut bytes, &mut streams) {
                        Ok(None) => break,
                        Ok(Some(event)) => events.push(format!("{event:?}")),
                        Err(code) => return (events, Err(code)),
                    }
                }
                assert!(bytes.is_empty(), "bytes are left");
            }
            events.push(format!("{:?}", reader.end()));
        }
        (events, Ok(()))
    };
    let whole = read(usize::MAX);
    for piece in [1, 2, 7] {
        assert_eq!(read(piece), whole, "cut in pieces of {piece}");
    }
}

/// Any bytes are a field section or none; and what was decoded can be encoded, and is decoded to the same.
pub(crate) fn hpack(data: &[u8]) {
    let mut fields = Vec::new();
    let decoded =
        h2::hpack::Decoder::default().decode(data, |h2::hpack::DecodedField { class, name, value, .. }| {
            assert_eq!(class, h2::class::FieldClass::of(name, value), "what is remembered of a field is true");
            fields.push((name.to_vec(), value.to_vec()));
        });
    if decoded.is_err() {
        return;
    }
    let (mut encoder, mut decoder) = (h2::hpack::Encoder::default(), h2::hpack::Decoder::default());
    for _ in 0..3 {
        let (mut block, mut again) = (Vec::new(), Vec::new());
        encoder.begin(&mut block);
        fields.iter().for_each(|(name, value)| encoder.field(name, value, &mut block));
        let decoded = decoder.decode(&block, |field| again.push((field.name.to_vec(), field.value.to_vec())));
        assert_eq!((decoded, &again), (Ok(()), &fields), "another section than was encoded");
    }
}

fn look_at(head: &Head) {
    for (name, value) in head.fields() {
        let _ = (name.len(), value.len());
    }
    let _ = (head.value(b"accept"), head.values(b"cookie").count());
}

/// What goes out has a line for each field, and nothing in it that another reader could take for one more.
fn one_line_each(sent: &[u8]) {
    for line in sent.split_inclusive(|&byte| byte == b'\n') {
        let content = line.strip_suffix(b"\r\n").expect("a line ends in CRLF");
        assert!(!content.iter().any(|byte| matches!(byte, b'\r' | b'\n' | b'\0')), "a control byte goes out");
        let colon = content.iter().position(|&byte| byte == b':').expect("a field has a colon");
        assert!(colon > 0 && content[..colon].iter().all(|byte| byte.is_ascii_graphic()), "a bad name goes out");
    }
}

/// However the bytes are cut, the same data comes out, or the same refusal.
pub(crate) fn chunked(data: &[u8]) {
    let whole = decode(data, usize::MAX);
    for piece in [1, 2, 7] {
        assert_eq!(decode(data, piece), whole, "cut in pieces of {piece}");
    }
}

/// The data, whether it ended, what was left, and the trailers; `None` when it was refused.
type Decoded = Option<(Vec<u8>, bool, usize, usize)>;

fn decode(data: &[u8], piece: usize) -> Decoded {
    let mut decoder = ChunkedDecoder::new(4096);
    let mut out = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let end = data.len().min(at.saturating_add(piece));
        match decoder.next(&data[at..end]).ok()? {
            Step::More => at = end,
            Step::Data { skip, length } => {
                out.extend_from_slice(&data[at + skip..at + skip + length]);
                at += skip + length;
            }
            Step::End { consumed } => {
                at += consumed;
                break;
            }
        }
    }
    Some((out, decoder.ended(), data.len() - at, decoder.take_trailers().fields().count()))
}

/// The canonical form is canonical, and cannot be climbed out of.
pub(crate) fn path(data: &[u8]) {
    let mut once = Vec::new();
    match canonical(data, &mut once) {
        Err(_) => return,
        Ok(Canonical::AsIs) => once.extend_from_slice(data),
        Ok(Canonical::Rewritten { empty_segments, .. }) => {
            if empty_segments {
                let mut merged = Vec::new();
                canonical(&with_empty_segments(data), &mut merged).expect("the form with empty segments is a path");
                assert_eq!(merged, once, "two forms of a path lead to two routes");
            }
        }
    }
    is_canonical(&once);
    assert!(once.starts_with(b"/"), "not absolute");
    for segment in once.split(|&byte| byte == b'/') {
        let name = segment.split(|&byte| byte == b';').next().unwrap_or_default();
        assert!(name != b"." && name != b"..", "a dot segment is left");
    }
}

/// Bringing a canonical path into canonical form changes nothing.
fn is_canonical(path: &[u8]) {
    let mut again = Vec::new();
    match canonical(path, &mut again) {
        Ok(Canonical::AsIs) => {}
        Ok(Canonical::Rewritten { .. }) => assert_eq!(path, again, "canonical twice is not canonical once"),
        Err(error) => panic!("the canonical form is refused: {error:?}"),
    }
}

/// Any JSON is an expression or a refusal, and an expression can be asked.
pub(crate) fn vars(data: &[u8]) {
    let Ok(value) = serde_json::from_slice(data) else { return };
    if let Ok(expression) = Expression::compile(&value) {
        let _ = expression.variables();
    }
}

/// Any text is a configuration, or has at least one diagnostic.
pub(crate) fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(diagnostics) = weir_control::check_text(text) {
        assert!(!diagnostics.is_empty(), "refused without a reason");
    }
}

/// Files that include each other are a configuration, or have diagnostics, each of which is about one of them. The files are parted by
/// NUL bytes, which no YAML has: the main one first, then `1.yaml` and so on.
pub(crate) fn include(data: &[u8]) {
    const MOST: usize = 4;
    // What lies elsewhere on the machine is not to be read.
    if data.contains(&b'/') || data.windows(2).any(|pair| pair == b"..") {
        return;
    }
    let directory = std::env::temp_dir().join(format!("weir-fuzz-include-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("its own directory");
    let name = |index: usize| directory.join(if index == 0 { "main.yaml".to_owned() } else { format!("{index}.yaml") });
    for (index, content) in data.split(|&byte| byte == 0).take(MOST).enumerate() {
        std::fs::write(name(index), content).expect("its own file");
    }
    if let Err(diagnostics) = weir_control::check_file(&name(0), &Registry::new(&[])) {
        assert!(!diagnostics.is_empty(), "refused without a reason");
        let is_known = |source: &str| (0..MOST).any(|index| name(index) == std::path::Path::new(source));
        let unknown = diagnostics.iter().find(|diagnostic| !is_known(&diagnostic.source));
        assert!(unknown.is_none(), "about no file of these: {unknown:?}");
    }
}

/// A text that is edited has the values that the operations say, or the edit is refused with a reason. The operations are JSON, after
/// the first NUL byte, which no YAML has.
pub(crate) fn edit(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    let (text, operations) =
        data.split_once('\0').unwrap_or((data, r#"[{"op":"add","path":"/a","value":{"b":[1,"x"]}}]"#));
    let Ok(operations) = serde_json::from_str::<Vec<EditOperation>>(operations) else { return };
    match weir_control::text::edit::edit(&"text".into(), text, &operations, &mut EditBudget::default()) {
        Err(diagnostics) => assert!(!diagnostics.is_empty(), "refused without a reason"),
        Ok(edited) if operations.is_empty() => assert_eq!(edited, text, "changed by nothing"),
        // That its values are those that are asked for is checked by the edit itself.
        Ok(edited) => assert!(edit_of_nothing(&edited), "the result cannot be edited"),
    }
}

fn edit_of_nothing(text: &str) -> bool {
    weir_control::text::edit::edit(&"text".into(), text, &[], &mut EditBudget::default())
        .is_ok_and(|edited| edited == text)
}

/// A PROXY header is complete at its length and not before, and what is written for its client is read as the same one.
pub(crate) fn proxy_header(data: &[u8]) {
    let Ok(Some(announced)) = proxy_protocol::parse(data) else { return };
    let length = announced.length();
    assert!(length <= data.len(), "longer than what was given");
    for cut in 0..length {
        assert_eq!(proxy_protocol::parse(&data[..cut]), Ok(None), "complete, or refused, without its end");
    }
    let Some(client) = announced.client else { return };
    for version in [proxy_protocol::ProxyProtocolVersion::V1, proxy_protocol::ProxyProtocolVersion::V2] {
        let written = proxy_protocol::header(version, Some((client, client)));
        let read = proxy_protocol::parse(&written).expect("our own header").expect("all of it");
        let address = |client: std::net::SocketAddr| (client.ip().to_canonical(), client.port());
        assert_eq!(read.client.map(address), Some(address(client)), "{version:?}");
    }
}

/// The first packet of a client of MQTT. What follows it changes nothing, and without its end it is not judged, except for its length.
pub(crate) fn mqtt_connect(data: &[u8]) {
    for (name, level) in [("MQIsdp", 3), ("MQTT", 4), ("MQTT", 5)] {
        let Ok(Some(packet)) = parse_connect(data, name, level) else { continue };
        assert!(packet.length <= data.len().min(MOST_CONNECT), "longer than what was given");
        assert!(!packet.client_id.contains('\0') && packet.client_id.len() < packet.length);
        assert!(packet.client_id.len() <= MOST_CLIENT_ID);
        assert_eq!(parse_connect(&data[..packet.length], name, level), Ok(Some(packet)), "the next packet counts");
        for cut in [0, 1, 2, packet.length / 2, packet.length - 1] {
            assert_eq!(parse_connect(&data[..cut], name, level), Ok(None), "complete, or refused, without its end");
        }
    }
}

/// A cache reads every response: what is not for all is not stored, and a range is within the content.
pub(crate) fn cached_response(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let range = lines.next().unwrap_or_default();
    let fields: Vec<(&[u8], &[u8])> = lines
        .filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b':')?;
            Some((&line[..at], line[at + 1..].trim_ascii()))
        })
        .collect();
    let read = read_cached_response(&fields, range);
    assert!(read.bytes.is_none_or(|bytes| bytes.start < bytes.end && bytes.end <= 10), "{}", range.escape_ascii());
    let has = |name: &str, value: &str| {
        fields
            .iter()
            .any(|(own, text)| own.eq_ignore_ascii_case(name.as_bytes()) && text.eq_ignore_ascii_case(value.as_bytes()))
    };
    let is_personal = has("cache-control", "no-store") || has("cache-control", "private") || has("vary", "*");
    let is_dropped = fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"connection"));
    assert!(!is_personal || is_dropped || read.fresh.is_none());
}

/// Every text is a template, which writes the same each time, and within a JSON string nothing that ends the string.
pub(crate) fn template(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for variables in [Fixed(None), Fixed(Some(data))] {
        for style in [TemplateStyle::PLAIN, TemplateStyle::JSON, TemplateStyle::LOG_LINE] {
            let template = Template::compile_within(text, style);
            let _ = template.variables().count();
            let (mut once, mut again) = (Vec::new(), Vec::new());
            template.render_as(style, &variables, &mut once);
            template.render_as(style, &variables, &mut again);
            assert_eq!(once, again);
            if let Some(constant) = template.constant() {
                assert_eq!(constant, once, "a constant is what is written");
            }
        }
        let mut string = b"\"".to_vec();
        Template::compile_within(text, TemplateStyle::JSON).render_as(TemplateStyle::JSON, &variables, &mut string);
        string.push(b'"');
        assert!(serde_json::from_slice::<String>(&string).is_ok(), "{}", string.escape_ascii());
    }
}

/// Every variable has this value.
struct Fixed<'a>(Option<&'a [u8]>);

impl Variables for Fixed<'_> {
    fn variable(&self, _: &Variable) -> Option<Cow<'_, [u8]>> {
        self.0.map(Cow::Borrowed)
    }
}

/// The scanner takes what another parser takes and refuses what that refuses; its tokens stand in order.
pub(crate) fn json(data: &[u8]) {
    const DEPTH: usize = 64;
    let Ok(mut scanner) = json_text::Scanner::new(data, DEPTH) else { return };
    let mut end = 0;
    let outcome = loop {
        match scanner.token() {
            Ok(Some(json_text::JsonToken::Name(span) | json_text::JsonToken::Text(span))) => {
                assert!(end <= span.start && span.end <= data.len(), "tokens overlap");
                end = span.end;
                let _ = scanner.unquoted(&span);
            }
            Ok(Some(json_text::JsonToken::Plain(span))) => {
                assert!(end <= span.start && span.end <= data.len(), "tokens overlap");
                end = span.end;
            }
            Ok(Some(_)) => {}
            Ok(None) => break Ok(()),
            Err(fault) => break Err(fault),
        }
    };
    if serde_json::from_slice::<serde_json::Value>(data).is_ok() {
        assert!(matches!(outcome, Ok(()) | Err(json_text::JsonError::Depth)), "JSON is refused: {outcome:?}");
    }
    if let Some(path) = json_text::path::JsonPath::parse("$..a[*]") {
        let _ = path.find(data, DEPTH);
    }
}

/// What is found in XML lies within it.
pub(crate) fn xml(data: &[u8]) {
    for path in ["//a", "/a/*/b", "//a/@b"] {
        let path = xml_text::XmlPath::parse(path).expect("a path");
        for found in path.find(data, 64).into_iter().flatten() {
            assert!(found.spans.iter().all(|span| span.start <= span.end && span.end <= data.len()), "beyond the end");
        }
    }
}

/// Header maps that a plugin in WebAssembly writes: what is read is written as it was.
pub(crate) fn wasm_pairs(data: &[u8]) {
    if let Some(found) = pairs::decode(data) {
        let written = pairs::encode(found.iter().map(|(name, value)| (&**name, &**value)));
        assert!(written == data || data.is_empty(), "another map");
    }
}

/// Functions of the host that a plugin calls with any arguments answer with a status: none ends the instance.
pub(crate) fn wasm_host_calls(data: &[u8]) {
    thread_local!(static MODULE: TriedModule = host_calls::module());
    let told = MODULE.with(|module| module.run(&data[..data.len().min(host_calls::MOST)]));
    assert_eq!(told, Ok(()));
}

/// What is read of a body has bounds, and can be shown as JSON.
pub(crate) fn body_values(data: &[u8]) {
    let kind = b"multipart/form-data; boundary=b";
    for format in [InputFormat::Xml, InputFormat::Json, InputFormat::Encoded, InputFormat::Multipart] {
        if let Ok(value) = format.read(data, kind) {
            assert!(value.to_string().len() <= 64 + 32 * data.len(), "more than there was");
        }
    }
}

/// A template makes at most what it may, of a body that has a bit of everything.
pub(crate) fn body_template(data: &[u8]) {
    const MOST: usize = 1000;
    let Ok(template) = std::str::from_utf8(data).map(BodyTemplate::parse) else { return };
    let Ok(template) = template else { return };
    let root = serde_json::json!({"a": {"b": [1, "<x>", null], "c": true}, "b": "1.5", "c": [], "d": -7});
    let (body, exchange) = (serde_json::Value::from("body"), weir_plugin::Exchange::default());
    if let Ok(made) = template.render(&mut Scene::new(&root, &body, SceneVariables::Exchange(&exchange), MOST)) {
        assert!(made.len() <= MOST, "more than it may");
    }
}

/// A fault lies within the document, what is ignored after a document changes nothing, and what it costs is found.
pub(crate) fn graphql(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let with_comment = format!("{text}\n#, {{");
    match (graphql_text::GraphqlDocument::parse(text), graphql_text::GraphqlDocument::parse(&with_comment)) {
        (Ok(document), Ok(same)) => {
            assert_eq!(document.operations.len(), same.operations.len(), "a comment is read");
            let variables = serde_json::Map::new();
            let cost = |document| graphql_text::cost(document, &variables, &["first".to_owned()]);
            assert_eq!(cost(&document), cost(&same), "a comment costs something");
        }
        (Err(graphql_text::GraphqlFault::Syntax(place)), _) => assert!(place <= text.len(), "beyond the end"),
        (Err(_), Err(_)) => {}
        (one, other) => panic!("a comment makes a difference: {one:?}, {other:?}"),
    }
}

/// A function in Lua is replaced by conditions that can be read and by a plugin that accepts its options, whatever comments stand behind it;
/// or the line is told that is not understood.
pub(crate) fn lua(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A comment may be one token or one byte too many.
    let with_comment = if text.len() < 8000 { format!("{text}\n-- end") } else { text.to_owned() };
    match lua_text::vars_of(text) {
        Ok(vars) => {
            assert!(Expression::compile(&vars).is_ok(), "{vars} is no condition");
            assert_eq!(lua_text::vars_of(&with_comment), Ok(vars), "a comment makes a difference");
        }
        Err(obstacle) => assert!(obstacle.line <= 1 + text.matches('\n').count(), "beyond the end"),
    }
    for phase in ["rewrite", "access", "before_proxy", "header_filter", "log"] {
        let options = serde_json::json!({ "phase": phase, "functions": [text] });
        let Some(Ok(found)) = lua_text::plugin_of("serverless-pre-function", &options) else { continue };
        let route = serde_json::json!({ "uri": "/*", "plugins": { found.plugin: found.options },
            "upstream": { "nodes": { "127.0.0.1:1": 1 } } });
        let file = serde_json::json!({ "routes": [route] }).to_string();
        let document = WrittenDocument::parse("f", &file, &|_| None, TextLimits::default()).expect("JSON is YAML");
        let compiled = weir_control::compile(&document.without_secrets().alone(), &weir_plugins::REGISTRY, None);
        assert!(compiled.is_ok(), "{file} is refused: {:?}", compiled.err());
    }
}

/// A definition of OpenAPI that a server sends is compiled within bounds, or refused with reasons.
pub(crate) fn oas_definition(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for with_responses in [false, true] {
        if let Err(faults) = compiled_definition(text, with_responses) {
            assert!(!faults.is_empty(), "refused without a reason");
        }
    }
}

/// A body in OpenAI's chat format that messages are put around is JSON with these messages and its own, and the same without them.
pub(crate) fn prompts(data: &[u8]) {
    let Some((count, made)) = chat_with_messages(data, "{\"role\": \"system\"}", "{\"role\": \"user\"}") else {
        return;
    };
    let mut made: serde_json::Value = serde_json::from_slice(&made).expect("it is JSON again");
    let messages = made["messages"].as_array_mut().expect("it has messages");
    assert_eq!(messages.len(), count + 2, "messages are lost");
    assert_eq!(messages[0], serde_json::json!({"role": "system"}));
    assert_eq!(messages.pop(), Some(serde_json::json!({"role": "user"})));
    messages.remove(0);
    let before: serde_json::Value = serde_json::from_slice(data).expect("it was JSON");
    assert_eq!(made, before, "the rest is changed");
}

/// However gRPC-Web's text is cut, it is decoded to the same bytes, or refused.
pub(crate) fn grpc_web(data: &[u8]) {
    let decode = |piece: usize| {
        let (mut decoder, mut out) = (GrpcWebDecoder::default(), Vec::new());
        data.chunks(piece).try_for_each(|bytes| decoder.piece(bytes, &mut out)).ok()?;
        decoder.end(&mut out).ok()?;
        Some(out)
    };
    let whole = decode(data.len().max(1));
    for piece in [1, 2, 3, 4, 7] {
        assert_eq!(decode(piece), whole, "cut in pieces of {piece}");
    }
}

/// Definitions of protobuf, as text or as descriptors in base64: both are read or refused, and what was read can be written and read again.
pub(crate) fn proto_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for content in [text.into_owned(), STANDARD.encode(data)] {
        match ProtoDefinitions::parse(&content) {
            Ok(definitions) => {
                let set = STANDARD.encode(definitions.pool().encode_to_vec());
                assert!(ProtoDefinitions::parse(&set).is_ok(), "descriptors of what was read");
            }
            Err(fault) => assert!(!fault.to_string().is_empty(), "a fault says what is wrong"),
        }
    }
}

/// A request, or an answer, of a gRPC call with messages of every kind: what comes of JSON, of arguments and of a message is a message.
pub(crate) fn transcoding(data: &[u8]) {
    thread_local!(static CALL: TranscodedCall = TranscodedCall::of_every_kind());
    CALL.with(|call| {
        for message in [call.of_json(data), call.of_arguments(data)].into_iter().flatten() {
            assert!(call.to_json(&message).is_none_or(|json| call.of_json(&json).is_some()), "JSON of a message");
        }
        if let Some(json) = call.to_json(data) {
            assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok(), "JSON");
        }
        let whole = call.messages(data, data.len().max(1));
        for piece in [1, 2, 3, 7] {
            assert_eq!(call.messages(data, piece), whole, "cut in pieces of {piece}");
        }
        let mut lines = data.splitn(2, |byte| *byte == b'\n');
        let (template, path) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let _ = TranscodedCall::bound(&String::from_utf8_lossy(template), path);
    });
}

/// Whatever a store answers, each record of a batch fares somehow, or all fare alike.
pub(crate) fn bulk_answer(data: &[u8]) {
    for count in [1, 2, 5] {
        if let Some(outcomes) = bulk_outcomes(data, count) {
            assert_eq!(outcomes, count, "an outcome for each record");
        }
    }
}

/// A batch of Kafka with a right checksum, whatever is in it: offsets of what is read are not before the one that was asked for.
pub(crate) fn kafka_batch(data: &[u8]) {
    let _ = stored_messages(data, 0);
    // First offset, length, leader epoch, format, checksum.
    let mut batch = 7_i64.to_be_bytes().to_vec();
    batch.extend_from_slice(&(data.len() as i32 + 9).to_be_bytes());
    batch.extend_from_slice(&[0, 0, 0, 0, 2]);
    batch.extend_from_slice(&crc32c::crc32c(data).to_be_bytes());
    batch.extend_from_slice(data);
    if let Ok((messages, _)) = stored_messages(&batch, 8) {
        assert!(messages.iter().all(|message| message.offset >= 8));
    }
}

/// Whatever a collector answers, each record of a batch fares somehow, and what is read of the answer is read again of one that says
/// just this.
pub(crate) fn otlp_answer(data: &[u8]) {
    for count in [1, 2, 5] {
        if let Some(outcomes) = otlp_outcomes(data, count) {
            assert_eq!(outcomes, count, "an outcome for each record");
        }
    }
    // As the details of a gRPC status.
    let _ = grpc_retry_delay(data);
    let (rejected, why) = otlp_rejected(data);
    assert!(i64::try_from(rejected).is_ok(), "fewer than none");
    let mut partial = vec![1 << 3];
    varint(&mut partial, rejected);
    partial.push(2 << 3 | 2);
    varint(&mut partial, why.len() as u64);
    partial.extend_from_slice(why.as_bytes());
    let mut answer = vec![1 << 3 | 2];
    varint(&mut answer, partial.len() as u64);
    answer.extend_from_slice(&partial);
    assert_eq!(otlp_rejected(&answer), (rejected, why), "{}", answer.escape_ascii());
}

/// A number of protobuf.
fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// What is read of a trace context is written in a form that says the same. Each line is a field.
pub(crate) fn trace_context(data: &[u8]) {
    let mut fields = data.split(|&byte| byte == b'\n');
    if let Some(parent) = Traceparent::read(fields.clone().take(1)) {
        assert_eq!(Traceparent::read([parent.field().as_bytes()].into_iter()), Some(parent), "W3C");
    }
    let is_sent = is_tracestate(fields.clone());
    assert!(!is_sent || fields.clone().all(|field| is_tracestate([field].into_iter())), "each field of a list is one");
    if let Some(context) = fields.clone().next().and_then(Sw8Context::of_field) {
        assert_eq!(Sw8Context::of_field(context.field().as_bytes()), Some(context), "sw8");
    }
    let mut next = || fields.next();
    let (one, several) =
        (next(), B3Fields { trace: next(), span: next(), parent: next(), sampled: next(), flags: next() });
    for context in [one.and_then(B3Context::of_field), Some(B3Context::of_fields(&several))].into_iter().flatten() {
        let Some(field) = context.field() else { continue };
        let mut read = B3Context::of_field(field.as_bytes()).expect("what was written can be read");
        // The form of one field has a place for the parent only behind the decision.
        if let (Some(read), Some(span)) = (&mut read.span, &context.span) {
            read.parent = read.parent.or(span.parent);
        }
        assert_eq!(read, context, "B3");
    }
}

/// Whatever a log holds, a request that is read of it has a method and a path, and is read the same from a list.
pub(crate) fn log_lines(data: &[u8]) {
    use std::ops::ControlFlow;
    use weir_rehearsal::log;
    let read = log::read(data, |_, line| {
        if let Ok(Some(request)) = line {
            assert!(!request.method.is_empty() && request.target.starts_with('/'), "{request:?}");
            let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
            let is_method = request.method.bytes().all(|byte| byte.is_ascii_uppercase());
            if is_method && is_plain(&request.target) {
                let listed = log::of_line(&format!("{} {}", request.method, request.target));
                assert_eq!(listed.map(|again| again.map(|again| again.target)), Ok(Some(request.target)));
            }
        }
        ControlFlow::Continue(())
    });
    // What is no archive has no fault as a whole.
    assert!(read.is_ok() || data.contains(&b'{'), "{read:?}");
}

/// Any text is a signature, a public or a private key of minisign, or none. Those that are one are written as they can be read, and a
/// private key signs what its public one verifies.
pub(crate) fn minisign(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for again in [signature_again, public_key_again] {
        if let Some(written) = again(text) {
            assert_eq!(again(&written).as_ref(), Some(&written), "another file than was read");
        }
    }
    assert!(private_key_signs(text, data) != Some(false), "its halves do not belong together");
}

/// Samples of stacks as perf prints them: however they are cut, the same comes of them, within its bounds, and can be drawn.
pub(crate) fn folded_stacks(data: &[u8]) {
    // The second bound is one that small inputs reach.
    for most_bytes in [MOST_BYTES_OF_STACKS, 512] {
        bounded_stacks(data, most_bytes);
    }
}

fn bounded_stacks(data: &[u8], most_bytes: usize) {
    let whole = FoldedStacks::read_bounded(data, most_bytes);
    for piece in [1, 7, 1_024] {
        let cut = FoldedStacks::read_bounded(PieceReader { rest: data, piece }, most_bytes);
        assert_eq!(cut, whole, "cut in pieces of {piece}");
    }
    let bytes: usize = whole.counts().keys().map(String::len).sum();
    assert!(bytes <= most_bytes, "{bytes} bytes of {most_bytes}");
    for (stack, samples) in whole.counts() {
        assert!(*samples > 0 && !stack.chars().any(char::is_control), "{stack:?}");
        let frames = stack.split(';').count();
        let least = if stack == OTHER_STACKS { 1 } else { 2 };
        assert!(
            (least..=DEEPEST_STACK).contains(&frames) && stack.split(';').all(|frame| !frame.is_empty()),
            "{stack:?}"
        );
    }
    let drawn = flame_graph("stacks", whole.counts());
    assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>"), "{drawn}");
}

/// A reader that gives a few bytes at a time.
struct PieceReader<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl Read for PieceReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.piece.min(into.len());
        (&mut self.rest).take(count as u64).read(into)
    }
}

/// Whatever another gateway's configuration holds, what is written of it is YAML without a key that stands twice, which a converter
/// that reads YAML can read.
pub(crate) fn convert(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let none = |pattern: &str| match pattern {
        "again" => Ok(vec![("again".to_owned(), text.to_owned())]),
        _ => Err("there is no such file".to_owned()),
    };
    let converted = [
        weir_convert::nginx::convert("f", text, &none),
        weir_convert::caddy::convert("f", text, &none),
        weir_convert::kong::convert("f", text),
        weir_convert::openapi::convert("f", text),
        weir_convert::asyncapi::convert("f", text),
    ];
    for converted in converted.into_iter().flatten() {
        let yaml = format!("_format_version: '3.0'\n{}", converted.yaml());
        if let Err(error) = weir_convert::kong::convert("yaml", &yaml) {
            panic!("{error}\n{yaml}");
        }
    }
}

/// Whatever happens to the files of a journal, it opens, and what is read from it is what was written under that number. The first half
/// of the data is written, the other damages it.
pub(crate) fn journal(data: &[u8]) {
    const MOST: usize = 512;
    let (payloads, damage) = data[..data.len().min(MOST)].split_at(data.len().min(MOST) / 2);
    let options = || Options { segment_bytes: 256, sync: Sync::Never, ..Options::default() };
    let disk = Simulated::new(1);
    let mut written = BTreeMap::new();
    let (journal, _) = Journal::open_in(Arc::new(disk.clone()), options()).expect("an empty directory");
    for payload in payloads.chunks(29) {
        written.insert(journal.append_and_wait(payload.to_vec()).expect("it has room"), payload);
    }
    drop(journal);
    for name in disk.list().expect("it does not fail") {
        disk.damage(&name, |bytes| {
            for change in damage.chunks_exact(3) {
                let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len().max(1);
                match change[2] {
                    0 => bytes.truncate(at),
                    flipped if at < bytes.len() => bytes[at] ^= flipped,
                    _ => {}
                }
            }
        });
    }
    let (journal, _) = Journal::open_in(Arc::new(disk.clone()), options()).expect("damage is no error");
    let mut reader = journal.reader(0);
    let mut last = 0;
    loop {
        match reader.read() {
            Ok(Some(Item::Record { seq, payload, .. })) => {
                assert!(last < seq, "numbers ascend");
                assert_eq!(written.get(&seq), Some(&payload), "{seq} was written so");
                last = seq;
            }
            Ok(Some(Item::Gone { .. })) => {}
            Ok(None) => return,
            Err(_) => {
                if reader.skip_segment().is_none() {
                    return;
                }
            }
        }
    }
}

/// However the frames of a WebSocket are cut, the same is read of them; and what was read is written as it came. The first byte says
/// who sends them, and whether compression was agreed to.
pub(crate) fn websocket_frames(data: &[u8]) {
    let Some((&first, frames)) = data.split_first() else { return };
    let sender = if first & 1 == 0 { FrameSender::Client } else { FrameSender::Server };
    let read = |piece: usize| read_frames(FrameReader::new(sender, first & 2 != 0), frames, piece);
    let (written, messages, fault) = read(usize::MAX);
    assert!(frames.starts_with(&written), "written otherwise than it came");
    for piece in [1, 2, 7] {
        let cut = read(piece);
        assert_eq!((&cut.1, cut.2), (&messages, fault), "cut in pieces of {piece}");
        assert!(frames.starts_with(&cut.0), "written otherwise than it came, in pieces of {piece}");
    }
}

/// What a reader makes of frames: what goes on of them, messages and control frames without their masks, and the rule that was broken.
fn read_frames(mut reader: FrameReader, frames: &[u8], piece: usize) -> (Vec<u8>, Vec<Vec<u8>>, Option<FrameFault>) {
    let (mut written, mut messages, mut message) = (Vec::new(), Vec::new(), Vec::new());
    for mut bytes in frames.chunks(piece) {
        loop {
            match reader.next(&mut bytes) {
                Err(fault) => return (written, messages, Some(fault)),
                Ok(None) => break,
                Ok(Some(FrameEvent::Begin(header))) => header.write(&mut written),
                Ok(Some(FrameEvent::Content(content))) => {
                    written.extend_from_slice(content.bytes);
                    content.unmask_into(&mut message);
                }
                Ok(Some(FrameEvent::End { is_last: true })) => messages.push(std::mem::take(&mut message)),
                Ok(Some(FrameEvent::End { is_last: false })) => {}
                Ok(Some(FrameEvent::Control(control))) => {
                    control.write(&mut written);
                    messages.push(control.content().to_vec());
                }
            }
        }
    }
    (written, messages, None)
}

/// Compressed messages, each preceded by its length: none gets larger than the limit, and cuts change nothing. The same bytes as
/// extensions of a handshake: what is offered again is all compression.
pub(crate) fn websocket_deflate(data: &[u8]) {
    let Some((&first, messages)) = data.split_first() else { return };
    let (window_bits, limit) = (first & 15, 1_000);
    let read = |piece: usize| {
        let (mut inflater, mut rest, mut texts) = (MessageInflater::new(window_bits, limit), messages, Vec::new());
        while let Some((&length, after)) = rest.split_first() {
            let (message, after) = after.split_at(usize::from(length).min(after.len()));
            rest = after;
            let mut text = Vec::new();
            let mut pieces = message.chunks(piece);
            let inflated = pieces.try_for_each(|piece| inflater.push(piece, |bytes| text.extend_from_slice(bytes)));
            if inflated.and_then(|()| inflater.end(|bytes| text.extend_from_slice(bytes))).is_err() {
                break;
            }
            assert!(text.len() <= limit, "larger than the limit");
            texts.push(text);
        }
        texts
    };
    let whole = read(usize::MAX);
    for piece in [1, 2, 7] {
        assert_eq!(read(piece), whole, "cut in pieces of {piece}");
    }
    for server_keeps_context in [true, false] {
        let offers = extensions::deflate_offers([data].into_iter(), server_keeps_context);
        let again = extensions::deflate_offers([&offers[..]].into_iter(), server_keeps_context);
        assert_eq!(again, offers, "offered otherwise the second time");
    }
    let _ = extensions::agreed([data].into_iter());
    let accepted = extensions::without_client_context(data);
    assert!(accepted.starts_with(data));
}

/// However a stream of events is cut, every byte of it is told once, and as the same.
pub(crate) fn event_stream(data: &[u8]) {
    let read = |piece: usize| {
        let (mut reader, mut kinds) = (EventReader::default(), Vec::new());
        for mut bytes in data.chunks(piece) {
            while let Some(part) = reader.next(bytes) {
                bytes = &bytes[part.bytes()..];
                let kind = match part {
                    EventPart::Comment(_) => 'c',
                    EventPart::Lines(_) => 'l',
                    EventPart::Event(_) => 'e',
                    EventPart::LineFeed => 'f',
                    EventPart::Begins => 'B',
                    EventPart::Ends { is_event } => {
                        if is_event {
                            'D'
                        } else {
                            'E'
                        }
                    }
                };
                // Each byte for itself, and what has no bytes once.
                kinds.extend(std::iter::repeat_n(kind, part.bytes().max(1)));
            }
            assert!(bytes.is_empty(), "bytes are left");
        }
        (kinds, reader.is_within_event())
    };
    let whole = read(usize::MAX);
    for piece in [1, 2, 3, 7] {
        assert_eq!(read(piece), whole, "cut in pieces of {piece}");
    }
}
