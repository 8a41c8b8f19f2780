//! A case for each rule of RFC 6455 §5 to §7 and RFC 7692 §6 that a reader can check.

use proptest::prelude::*;

use super::super::frame;
use super::*;

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A frame with the given first byte, masked if the sender is a client.
fn raw(sender: FrameSender, first: u8, content: &[u8]) -> Vec<u8> {
    let mask = (sender == FrameSender::Client).then_some(MASK);
    let mut out = Vec::new();
    frame::write(&mut out, Opcode::Binary, mask, content);
    out[0] = first;
    out
}

/// The result of reading some bytes: messages and control frames as text, and the violated rule.
#[derive(Debug, PartialEq)]
struct Outcome {
    seen: Vec<String>,
    fault: Option<FrameFault>,
    is_closed: bool,
}

fn read(sender: FrameSender, may_compress: bool, pieces: &[&[u8]]) -> Outcome {
    let mut reader = FrameReader::new(sender, may_compress);
    let (mut seen, mut message, mut kind) = (Vec::new(), Vec::new(), String::new());
    for piece in pieces {
        let mut input = *piece;
        loop {
            match reader.next(&mut input) {
                Err(fault) => return Outcome { seen, fault: Some(fault), is_closed: reader.is_closed() },
                Ok(None) => break,
                Ok(Some(FrameEvent::Begin(header))) if header.opcode == Opcode::Continuation => {}
                Ok(Some(FrameEvent::Begin(header))) => {
                    kind = format!("{:?}{}", header.opcode, if header.compressed { " compressed" } else { "" });
                }
                Ok(Some(FrameEvent::Content(content))) => content.unmask_into(&mut message),
                Ok(Some(FrameEvent::End { is_last: false })) => {}
                Ok(Some(FrameEvent::End { is_last: true })) => {
                    seen.push(format!("{kind}({})", message.escape_ascii()));
                    message.clear();
                }
                Ok(Some(FrameEvent::Control(control))) => seen.push(format!("{control:?}")),
            }
        }
        assert!(input.is_empty(), "what is there is read");
    }
    Outcome { seen, fault: None, is_closed: reader.is_closed() }
}

/// The outcome of frames that either side may send, which must be the same for both.
fn both(frames: &[(u8, &[u8])]) -> Outcome {
    let outcome = |sender| {
        let bytes: Vec<u8> = frames.iter().flat_map(|(first, content)| raw(sender, *first, content)).collect();
        let whole = read(sender, false, &[&bytes]);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(sender, false, &single), whole, "byte by byte");
        whole
    };
    let client = outcome(FrameSender::Client);
    assert_eq!(client, outcome(FrameSender::Server));
    client
}

#[track_caller]
fn fails(frames: &[(u8, &[u8])], fault: FrameFault) {
    assert_eq!(both(frames).fault, Some(fault), "{frames:x?}");
}

#[track_caller]
fn passes(frames: &[(u8, &[u8])], want: &[&str]) {
    let outcome = both(frames);
    assert_eq!(
        (outcome.fault, &outcome.seen[..]),
        (None, &want.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()[..])
    );
}

#[test]
fn rfc6455_5_1_clients_mask_and_servers_do_not() {
    let masked = raw(FrameSender::Client, 0x81, b"Hello");
    let plain = raw(FrameSender::Server, 0x81, b"Hello");
    assert_eq!(read(FrameSender::Client, false, &[&masked]).seen, ["Text(Hello)"]);
    assert_eq!(read(FrameSender::Server, false, &[&plain]).seen, ["Text(Hello)"]);
    assert_eq!(read(FrameSender::Client, false, &[&plain]).fault, Some(FrameFault::NotMasked));
    assert_eq!(read(FrameSender::Server, false, &[&masked]).fault, Some(FrameFault::Masked));
    // The rule applies to each frame, not only the first of a message, and to control frames.
    let unmasked_rest = [raw(FrameSender::Client, 0x01, b"a"), raw(FrameSender::Server, 0x80, b"b")].concat();
    assert_eq!(read(FrameSender::Client, false, &[&unmasked_rest]).fault, Some(FrameFault::NotMasked));
    let ping = raw(FrameSender::Server, 0x89, b"");
    assert_eq!(read(FrameSender::Client, false, &[&ping]).fault, Some(FrameFault::NotMasked));
}

#[test]
fn rfc6455_5_2_reserved_bits_are_zero() {
    for bit in [0x40, 0x20, 0x10] {
        for opcode in [0x1, 0x2, 0x8, 0x9, 0xa] {
            fails(&[(0x80 | bit | opcode, b"")], FrameFault::ReservedBit);
        }
        fails(&[(0x01, b"a"), (0x80 | bit, b"b")], FrameFault::ReservedBit);
    }
}

#[test]
fn rfc6455_5_2_reserved_opcodes_are_refused() {
    for opcode in [0x3, 0x4, 0x5, 0x6, 0x7, 0xb, 0xc, 0xd, 0xe, 0xf] {
        fails(&[(0x80 | opcode, b"")], FrameFault::ReservedOpcode);
        fails(&[(opcode, b"")], FrameFault::ReservedOpcode);
    }
}

#[test]
fn rfc6455_5_2_lengths_are_minimal() {
    let judged = |length: &[u8]| {
        let server = [&[0x82][..], length].concat();
        let mut client = [&[0x82, length[0] | 0x80][..], &length[1..]].concat();
        client.extend_from_slice(&MASK);
        let outcome = read(FrameSender::Server, false, &[&server]);
        assert_eq!(read(FrameSender::Client, false, &[&client]), outcome);
        outcome.fault
    };
    for (length, fault) in [
        (&[126, 0, 0][..], Some(FrameFault::LengthNotMinimal)),
        (&[126, 0, 125], Some(FrameFault::LengthNotMinimal)),
        (&[126, 0, 126], None),
        (&[126, 0xff, 0xff], None),
        (&[127, 0, 0, 0, 0, 0, 0, 0, 0], Some(FrameFault::LengthNotMinimal)),
        (&[127, 0, 0, 0, 0, 0, 0, 0xff, 0xff], Some(FrameFault::LengthNotMinimal)),
        (&[127, 0, 0, 0, 0, 0, 1, 0, 0], None),
        (&[127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], None),
        (&[127, 0x80, 0, 0, 0, 0, 1, 0, 0], Some(FrameFault::LengthTooLarge)),
    ] {
        assert_eq!(judged(length), fault, "{length:x?}");
    }
}

#[test]
fn rfc6455_5_2_every_length_is_read() {
    for length in [0, 1, 125, 126, 127, 128, 65_535, 65_536, 70_000] {
        let content = vec![b'*'; length];
        let want = format!("Text({})", "*".repeat(length));
        passes(&[(0x81, &content)], &[&want]);
    }
}

#[test]
fn rfc6455_5_3_the_mask_of_each_frame_counts() {
    let mut bytes = Vec::new();
    for (first, mask, content) in [(0x01, [1, 2, 3, 4], &b"abc"[..]), (0x00, [0; 4], b"defgh"), (0x80, [0xff; 4], b"i")]
    {
        let start = bytes.len();
        frame::write(&mut bytes, Opcode::Text, Some(mask), content);
        bytes[start] = first;
    }
    assert_eq!(read(FrameSender::Client, false, &[&bytes]).seen, ["Text(abcdefghi)"]);
}

#[test]
fn rfc6455_5_4_messages_come_in_fragments() {
    passes(&[(0x01, b"frag"), (0x00, b"men"), (0x80, b"t")], &["Text(fragment)"]);
    passes(&[(0x02, b""), (0x00, b""), (0x80, b"")], &["Binary()"]);
    // Control frames may occur between the frames of a message, which continues after them.
    passes(
        &[(0x01, b"a"), (0x89, b"p"), (0x00, b"b"), (0x8a, b"q"), (0x80, b"c")],
        &["Ping(p)", "Pong(q)", "Text(abc)"],
    );
    fails(&[(0x80, b"a")], FrameFault::NothingToContinue);
    fails(&[(0x00, b"a")], FrameFault::NothingToContinue);
    fails(&[(0x81, b"a"), (0x80, b"b")], FrameFault::NothingToContinue);
    fails(&[(0x01, b"a"), (0x80, b"b"), (0x80, b"c")], FrameFault::NothingToContinue);
    for second in [0x01, 0x81, 0x02, 0x82] {
        fails(&[(0x01, b"a"), (second, b"b")], FrameFault::MessageWithinMessage);
        fails(&[(0x02, b"a"), (0x00, b""), (second, b"b")], FrameFault::MessageWithinMessage);
    }
}

#[test]
fn rfc6455_5_5_control_frames_are_short_and_whole() {
    let most = [b'x'; 125];
    let (ping, pong) = (format!("Ping({})", "x".repeat(125)), format!("Pong({})", "x".repeat(125)));
    passes(&[(0x89, &most), (0x8a, &most), (0x89, b""), (0x8a, b"")], &[&ping, &pong, "Ping()", "Pong()"]);
    let mut close = most;
    close[..2].copy_from_slice(&1000_u16.to_be_bytes());
    assert!(both(&[(0x88, &close)]).is_closed);
    for opcode in [0x8, 0x9, 0xa] {
        fails(&[(0x80 | opcode, &[b'x'; 126])], FrameFault::ControlTooLong);
        fails(&[(0x80 | opcode, &[b'x'; 70_000])], FrameFault::ControlTooLong);
        fails(&[(opcode, b"x")], FrameFault::ControlFragmented);
        fails(&[(0x01, b"a"), (opcode, b"x")], FrameFault::ControlFragmented);
    }
}

#[test]
fn rfc6455_5_5_1_and_7_4_close_codes() {
    for code in (1000..=1003).chain(1007..=1014).chain([3000, 3999, 4000, 4999]) {
        let content = CloseCode(code).content("why");
        let outcome = both(&[(0x88, &content)]);
        assert_eq!((outcome.fault, outcome.is_closed), (None, true), "{code}");
    }
    for code in [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
        fails(&[(0x88, &CloseCode(code).content(""))], FrameFault::CloseCodeInvalid);
    }
    passes(&[(0x88, b"")], &["Close()"]);
    fails(&[(0x88, b"\x03")], FrameFault::CloseTooShort);
    fails(&[(0x88, b"\x03\xe8\xff")], FrameFault::ReasonNotUtf8);
    fails(&[(0x88, b"\x03\xe8\xc3")], FrameFault::ReasonNotUtf8);
}

#[test]
fn rfc6455_1_4_what_follows_a_close_is_nothing() {
    for after in [(0x81, &b"late"[..]), (0x89, b"late"), (0x88, b""), (0xff, b"wrong")] {
        passes(&[(0x88, b""), after], &["Close()"]);
    }
    // A message that is incomplete when a close frame arrives is not completed by what follows.
    passes(&[(0x01, b"a"), (0x88, b""), (0x80, b"b")], &["Close()"]);
}

#[test]
fn rfc6455_5_6_texts_are_utf8() {
    let text = "κόσμε €𝄞".as_bytes();
    let want = format!("Text({})", text.escape_ascii());
    for cut in 0..=text.len() {
        passes(&[(0x01, &text[..cut]), (0x80, &text[cut..])], &[&want]);
    }
    // An invalid byte fails the message at once, before its frame ends.
    fails(&[(0x01, b"a\xff")], FrameFault::TextNotUtf8);
    fails(&[(0x01, b"ok"), (0x00, b"\xed\xa0")], FrameFault::TextNotUtf8);
    let mut begun = raw(FrameSender::Server, 0x81, b"\xf4\x90\x80\x80");
    begun.truncate(4);
    assert_eq!(read(FrameSender::Server, false, &[&begun]).fault, Some(FrameFault::TextNotUtf8));
    // An incomplete character is an error at the end of the message, not of a frame.
    fails(&[(0x81, b"\xe2\x82")], FrameFault::TextNotUtf8);
    fails(&[(0x01, b"\xe2\x82"), (0x80, b"")], FrameFault::TextNotUtf8);
    passes(&[(0x01, b"\xe2\x82"), (0x89, b"\xff"), (0x80, b"\xac")], &["Ping(\\xff)", "Text(\\xe2\\x82\\xac)"]);
    // Binary messages may contain any bytes.
    passes(&[(0x82, b"\xff\xfe")], &["Binary(\\xff\\xfe)"]);
}

#[test]
fn rfc7692_6_the_first_frame_says_that_a_message_is_compressed() {
    let compressed = |frames: &[(u8, &[u8])]| {
        let bytes: Vec<u8> =
            frames.iter().flat_map(|(first, content)| raw(FrameSender::Client, *first, content)).collect();
        let outcome = read(FrameSender::Client, true, &[&bytes]);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(FrameSender::Client, true, &single), outcome);
        outcome
    };
    // Compressed messages are not validated as UTF-8 (§6.2).
    assert_eq!(compressed(&[(0xc1, b"\xff\x00")]).seen, ["Text compressed(\\xff\\x00)"]);
    assert_eq!(
        compressed(&[(0x41, b"\xff"), (0x89, b""), (0x80, b"\xff")]).seen,
        ["Ping()", "Text compressed(\\xff\\xff)"]
    );
    // Compression is per message.
    assert_eq!(compressed(&[(0xc2, b"\xff"), (0x81, b"plain")]).seen, ["Binary compressed(\\xff)", "Text(plain)"]);
    assert_eq!(compressed(&[(0x81, b"\xff")]).fault, Some(FrameFault::TextNotUtf8));
    for frames in [
        &[(0x41, &b"a"[..]), (0xc0, b"b")][..],
        &[(0x01, b"a"), (0x40, b"b")],
        &[(0xc8, b"")],
        &[(0xc9, b"")],
        &[(0xca, b"")],
    ] {
        assert_eq!(compressed(frames).fault, Some(FrameFault::CompressionMisplaced), "{frames:x?}");
    }
    for bit in [0x20, 0x10] {
        assert_eq!(compressed(&[(0xc1 | bit, b"")]).fault, Some(FrameFault::ReservedBit));
    }
}

#[test]
fn rfc6455_7_1_7_each_fault_has_a_code_and_words() {
    for (fault, code) in [
        (FrameFault::TextNotUtf8, 1007),
        (FrameFault::ReasonNotUtf8, 1007),
        (FrameFault::ReservedBit, 1002),
        (FrameFault::NotMasked, 1002),
        (FrameFault::CloseCodeInvalid, 1002),
    ] {
        assert_eq!(fault.close_code(), CloseCode(code));
        assert!(fault.close_code().may_be_sent() && fault.reason().len() <= MAX_CONTROL - 2);
    }
}

#[test]
fn a_frame_goes_on_as_it_came() {
    let frames = [(0x01, &b"Hel"[..]), (0x89, b"ping"), (0x80, b"lo"), (0xc2, &[7; 70_000]), (0x88, b"\x03\xe8bye")];
    for sender in [FrameSender::Client, FrameSender::Server] {
        let bytes: Vec<u8> = frames.iter().flat_map(|(first, content)| raw(sender, *first, content)).collect();
        let (mut reader, mut out) = (FrameReader::new(sender, true), Vec::new());
        for mut piece in bytes.chunks(1000) {
            while let Some(event) = reader.next(&mut piece).expect("valid") {
                match event {
                    FrameEvent::Begin(header) => header.write(&mut out),
                    FrameEvent::Content(content) => out.extend_from_slice(content.bytes),
                    FrameEvent::End { .. } => {}
                    FrameEvent::Control(control) => control.write(&mut out),
                }
            }
        }
        assert!(out == bytes, "{sender:?}");
    }
}

/// Mostly valid first bytes, so that many messages are complete.
fn first_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => prop::sample::select(vec![0x81_u8, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8a, 0xc1]),
        1 => Just(0x88_u8),
        1 => any::<u8>(),
    ]
}

proptest! {
    #[test]
    fn however_the_bytes_are_cut_the_outcome_is_the_same(
        frames in prop::collection::vec((first_byte(), prop::collection::vec(prop_oneof![Just(b'a'), any::<u8>()], 0..200)), 0..8),
        is_client in any::<bool>(),
        may_compress in any::<bool>(),
        cuts in prop::collection::vec(0..2000_usize, 0..6),
    ) {
        let sender = if is_client { FrameSender::Client } else { FrameSender::Server };
        let bytes: Vec<u8> = frames.iter().flat_map(|(first, content)| raw(sender, *first, content)).collect();
        let whole = read(sender, may_compress, &[&bytes]);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let mut start = 0;
        let pieces: Vec<&[u8]> = cuts.iter().map(|&end| &bytes[std::mem::replace(&mut start, end)..end]).collect();
        prop_assert_eq!(read(sender, may_compress, &pieces), whole);
    }
}
