//! Measures what one event for many clients takes at least: one send to each connection, one after the other.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The size of an event, in bytes.
const EVENT: usize = 100;
/// How often the event is sent. The figure is the shortest duration, since others contain interruptions.
const ROUNDS: usize = 30;
/// The pause before each event, in which the reader goes to sleep, as clients between two events do.
const PAUSE: Duration = Duration::from_millis(30);

/// The duration of sends that do nothing else, on loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanOutFloor {
    pub connections: usize,
    /// From the first send to the end of the last one.
    pub event: Duration,
}

impl FanOutFloor {
    /// Sends events from processor `sender` to so many connections, whose reader waits for all of them on processor `reader`.
    ///
    /// # Errors
    /// What the system says if the connections cannot be opened.
    pub fn measure(connections: usize, sender: usize, reader: usize) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (mut writing, mut reading) = (Vec::new(), Vec::new());
        for _ in 0..connections {
            reading.push(TcpStream::connect(address)?);
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            writing.push(stream);
        }
        let received = AtomicUsize::new(0);
        thread::scope(|scope| {
            let reader = scope.spawn(|| read_all(&reading, reader, &received));
            let event = scope.spawn(|| send_all(writing, sender, &received)).join().expect("sending does not panic");
            reader.join().expect("reading does not panic")?;
            Ok(Self { connections, event: event? })
        })
    }

    /// The duration of one send.
    pub fn send(&self) -> Duration {
        self.event / u32::try_from(self.connections.max(1)).unwrap_or(u32::MAX)
    }
}

/// Sends the events; the connections are closed at the end.
fn send_all(mut streams: Vec<TcpStream>, cpu: usize, received: &AtomicUsize) -> io::Result<Duration> {
    keep_to(cpu);
    let mut shortest = Duration::MAX;
    for round in 1..=ROUNDS {
        thread::sleep(PAUSE);
        let began = Instant::now();
        for stream in &mut streams {
            stream.write_all(&[b'x'; EVENT])?;
        }
        shortest = shortest.min(began.elapsed());
        while received.load(Ordering::Relaxed) < round * streams.len() * EVENT {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(shortest)
}

/// Reads as an event loop does until a connection ends.
fn read_all(streams: &[TcpStream], cpu: usize, received: &AtomicUsize) -> io::Result<()> {
    keep_to(cpu);
    let queue = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, stream) in streams.iter().enumerate() {
        epoll::add(&queue, stream, EventData::new_u64(index as u64), EventFlags::IN | EventFlags::ET)?;
    }
    let (mut events, mut buffer) = (Vec::with_capacity(512), [0; 4096]);
    loop {
        events.clear();
        epoll::wait(&queue, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            match (&streams[event.data.u64() as usize]).read(&mut buffer)? {
                0 => return Ok(()),
                count => received.fetch_add(count, Ordering::Relaxed),
            };
        }
    }
}

/// Keeps the thread to a processor. If that is not allowed, it may run on any.
fn keep_to(cpu: usize) {
    if cpu < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(cpu);
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_gets_every_event() {
        let floor = FanOutFloor::measure(10, 0, 0).expect("ten connections on loopback");
        assert_eq!(floor.connections, 10);
        assert!(floor.event > Duration::ZERO && floor.send() <= floor.event);
    }
}
