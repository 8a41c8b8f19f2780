//! The client's side of RFC 6455, as far as a browser that is driven needs it: texts of one frame.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

const FINAL_TEXT: u8 = 0x81;
const MASKED: u8 = 0x80;
/// Firefox takes one of zeros for none.
const MASK: [u8; 4] = [1, 2, 3, 4];

/// Both directions of a connection to a port of this machine.
pub(super) struct BrowserSocket {
    pub(super) output: TcpStream,
    pub(super) input: BufReader<TcpStream>,
}

impl BrowserSocket {
    #[track_caller]
    pub(super) fn connect(port: u16, path: &str) -> io::Result<BrowserSocket> {
        let mut output = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        output.set_nodelay(true)?;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: d2Vpci1pcy1hLWdhdGV3YQ==\r\n\r\n"
        );
        output.write_all(head.as_bytes())?;
        let mut input = BufReader::new(output.try_clone()?);
        let mut line = String::new();
        input.read_line(&mut line)?;
        assert!(line.starts_with("HTTP/1.1 101 "), "the server answers {line:?}");
        while line != "\r\n" {
            line.clear();
            input.read_line(&mut line)?;
        }
        Ok(BrowserSocket { output, input })
    }
}

/// Writes a text.
pub(super) fn write_text(output: &mut impl Write, text: &str) -> io::Result<()> {
    let mut frame = vec![FINAL_TEXT];
    match text.len() {
        short @ 0..126 => frame.push(MASKED | short as u8),
        long @ 126..65_536 => {
            frame.push(MASKED | 126);
            frame.extend((long as u16).to_be_bytes());
        }
        longer => {
            frame.push(MASKED | 127);
            frame.extend((longer as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    frame.extend(text.bytes().zip(MASK.into_iter().cycle()).map(|(byte, mask)| byte ^ mask));
    output.write_all(&frame)
}

/// Reads the next text; `None` at the end. Other frames are left out.
pub(super) fn read_text(input: &mut impl Read) -> Option<Vec<u8>> {
    loop {
        let [first, second] = bytes(input)?;
        let length = match second {
            126 => u64::from(u16::from_be_bytes(bytes(input)?)),
            127 => u64::from_be_bytes(bytes(input)?),
            short => u64::from(short),
        };
        let mut text = Vec::new();
        input.take(length).read_to_end(&mut text).ok().filter(|read| *read as u64 == length)?;
        if first == FINAL_TEXT {
            return Some(text);
        }
    }
}

fn bytes<const COUNT: usize>(input: &mut impl Read) -> Option<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    input.read_exact(&mut bytes).ok()?;
    Some(bytes)
}
