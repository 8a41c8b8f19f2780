//! A DNS server with answers from the test: over UDP, and over TCP if an answer is too long for UDP.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::wait::DEADLINE;

/// A server on a port of its own. Dropping it stops its answers.
pub struct Dns {
    addr: SocketAddr,
    zone: Arc<Mutex<Zone>>,
}

#[derive(Default)]
struct Zone {
    /// Records by name, in lower case, without the last dot. Names without an entry do not exist.
    names: HashMap<String, (Data, u32)>,
    silent: bool,
    silent_about: HashSet<String>,
    asked: HashMap<String, usize>,
    ended: bool,
}

#[derive(Clone)]
enum Data {
    Addresses(Vec<Ipv4Addr>),
    /// Priority, weight, port and target of each service.
    Services(Vec<(u16, u16, u16, String)>),
}

/// Record types (RFC 1035 §3.2.2, RFC 2782).
const A: u16 = 1;
const SRV: u16 = 33;

/// The longest answer over UDP in bytes; longer ones are sent over TCP (RFC 1035 §4.2.1).
const MAX_UDP: usize = 512;

impl Dns {
    pub fn start() -> Dns {
        let zone: Arc<Mutex<Zone>> = Arc::default();
        // UDP and TCP need the same port.
        let (udp, tcp) = (0..100)
            .find_map(|_| {
                let udp = UdpSocket::bind("127.0.0.1:0").ok()?;
                let tcp = TcpListener::bind(udp.local_addr().ok()?).ok()?;
                Some((udp, tcp))
            })
            .expect("loopback has a port that is free twice");
        let addr = udp.local_addr().expect("it is bound");
        udp.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket can wait");
        tcp.set_nonblocking(true).expect("a socket can be made not to wait");
        let shared = Arc::clone(&zone);
        thread::spawn(move || serve(&udp, &tcp, &shared));
        Dns { addr, zone }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on the name has these addresses, with a TTL of `ttl` seconds.
    pub fn addresses(&self, name: &str, ttl: u32, addresses: impl IntoIterator<Item = Ipv4Addr>) {
        let data = Data::Addresses(addresses.into_iter().collect());
        self.zone().names.insert(name.to_owned(), (data, ttl));
    }

    /// From now on the name has these services: priority, weight, port and target of each.
    pub fn services(&self, name: &str, ttl: u32, services: impl IntoIterator<Item = (u16, u16, u16, &'static str)>) {
        let services =
            services.into_iter().map(|(priority, weight, port, target)| (priority, weight, port, target.to_owned()));
        self.zone().names.insert(name.to_owned(), (Data::Services(services.collect()), ttl));
    }

    /// From now on the name does not exist.
    pub fn remove(&self, name: &str) {
        self.zone().names.remove(name);
    }

    /// Whether queries are left unanswered.
    pub fn be_silent(&self, silent: bool) {
        self.zone().silent = silent;
    }

    /// From now on queries for the name are left unanswered.
    pub fn be_silent_about(&self, name: &str) {
        self.zone().silent_about.insert(name.to_owned());
    }

    /// How many queries for the name there were.
    pub fn asked(&self, name: &str) -> usize {
        self.zone().asked.get(name).copied().unwrap_or_default()
    }

    fn zone(&self) -> MutexGuard<'_, Zone> {
        self.zone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.zone().ended = true;
    }
}

fn serve(udp: &UdpSocket, tcp: &TcpListener, zone: &Mutex<Zone>) {
    let mut buffer = [0; 1_500];
    loop {
        if zone.lock().unwrap_or_else(PoisonError::into_inner).ended {
            return;
        }
        if let Ok((length, peer)) = udp.recv_from(&mut buffer)
            && let Some(mut answer) = answer(&buffer[..length], zone)
        {
            if answer.len() > MAX_UDP {
                answer.truncate(length_of_question(&answer));
                answer[2] |= 0x02; // TC: ask again over TCP
                answer[6..8].fill(0); // and here are no records
            }
            // The client may have closed its socket.
            let _ = udp.send_to(&answer, peer);
        }
        while let Ok((stream, _)) = tcp.accept() {
            let _ = over_tcp(stream, zone);
        }
    }
}

/// The length of a message up to the end of its question.
fn length_of_question(message: &[u8]) -> usize {
    let name = message[12..].iter().position(|&byte| byte == 0).expect("a name ends");
    12 + name + 1 + 4
}

/// Answers one query on a TCP connection, where messages are preceded by their lengths (RFC 1035 §4.2.2).
fn over_tcp(mut stream: TcpStream, zone: &Mutex<Zone>) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut question)?;
    if let Some(answer) = answer(&question, zone) {
        let length = u16::try_from(answer.len()).expect("tests have no longer answers");
        stream.write_all(&[&length.to_be_bytes()[..], &answer].concat())?;
    }
    Ok(())
}

/// The answer to a message with one question; `None` for no answer.
fn answer(message: &[u8], zone: &Mutex<Zone>) -> Option<Vec<u8>> {
    let mut zone = zone.lock().unwrap_or_else(PoisonError::into_inner);
    let mut end = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*message.get(end)?);
        end += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(message.get(end..end + length)?).to_ascii_lowercase());
        end += length;
    }
    let name = labels.join(".");
    let kind = u16::from_be_bytes(message.get(end..end + 2)?.try_into().ok()?);
    let question = message.get(12..end + 4)?;
    *zone.asked.entry(name.clone()).or_default() += 1;
    if zone.silent || zone.silent_about.contains(&name) {
        return None;
    }
    let known = zone.names.get(&name);
    let records: Vec<Vec<u8>> = match known {
        Some((Data::Addresses(addresses), _)) if kind == A => {
            addresses.iter().map(|address| address.octets().to_vec()).collect()
        }
        Some((Data::Services(services), _)) if kind == SRV => services.iter().map(service).collect(),
        _ => Vec::new(),
    };
    let ttl = known.map_or(0, |(_, ttl)| *ttl);
    let code = if known.is_some() { 0 } else { 3 }; // NXDOMAIN
    let mut out = message[..2].to_vec();
    out.extend([0x85, 0x80 | code, 0, 1]);
    out.extend((records.len() as u16).to_be_bytes());
    out.extend([0, 0, 0, 0]);
    out.extend(question);
    for record in records {
        out.extend([0xc0, 12]); // the name of the question
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out.extend(ttl.to_be_bytes());
        out.extend((record.len() as u16).to_be_bytes());
        out.extend(record);
    }
    Some(out)
}

fn service((priority, weight, port, target): &(u16, u16, u16, String)) -> Vec<u8> {
    let mut data = [priority, weight, port].map(|number| number.to_be_bytes()).concat();
    for label in target.split('.') {
        data.push(label.len() as u8);
        data.extend(label.as_bytes());
    }
    data.push(0);
    data
}
