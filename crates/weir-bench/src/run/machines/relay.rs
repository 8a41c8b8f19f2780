//! A link between two network namespaces by way of this process, for kernels without netem: what leaves by one TUN device arrives at
//! the other one after the delay, or is lost.

use std::{
    fs::{File, OpenOptions},
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::stats::SeededRandom;

/// The most packets that are on their way in one direction.
const ON_THE_WAY: usize = 100_000;
const LONGEST_PACKET: usize = 65_536;

/// The threads of a link. They end with this value.
pub(super) struct PacketRelay {
    /// Its other end is ready to be read once this one is closed.
    end: Option<PipeWriter>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

struct DelayedPacket {
    due: Instant,
    bytes: Box<[u8]>,
}

/// One direction of a link.
struct RelayDirection {
    from: Arc<File>,
    ended: Arc<PipeReader>,
    delay: Duration,
    loss_percent: f64,
    random: SeededRandom,
}

/// A TUN device of this name in the network namespace of this thread. It is there until the file is closed.
#[expect(unsafe_code, reason = "no library in use makes TUN devices")]
pub(super) fn tun(name: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // A name that ends with a zero, and the flags.
    let mut request = [0u8; size_of::<libc::ifreq>()];
    let name = &name.as_bytes()[..name.len().min(libc::IFNAMSIZ - 1)];
    request[..name.len()].copy_from_slice(name);
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    request[libc::IFNAMSIZ..][..2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the kernel reads and writes a `struct ifreq`, which is as long as the array.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    if made < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

impl PacketRelay {
    pub(super) fn new(ends: [File; 2], delay: Duration, loss_percent: f64) -> io::Result<PacketRelay> {
        let (ended, end) = io::pipe()?;
        let (ended, [near, far]) = (Arc::new(ended), ends.map(Arc::new));
        let mut relay = PacketRelay { end: Some(end), over: Arc::default(), threads: Vec::new() };
        for (seed, from, to) in [(1, &near, &far), (2, &far, &near)] {
            let (send, arriving) = sync_channel(ON_THE_WAY);
            let (random, ended) = (SeededRandom::new(seed), ended.clone());
            let direction = RelayDirection { from: from.clone(), ended, delay, loss_percent, random };
            relay.spawn(move || direction.run(&send))?;
            let (to, over) = (to.clone(), relay.over.clone());
            relay.spawn(move || arrive(&to, &arriving, &over))?;
        }
        Ok(relay)
    }

    fn spawn(&mut self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name("packet-relay".to_owned()).spawn(run)?);
        Ok(())
    }
}

impl Drop for PacketRelay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        drop(self.end.take());
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl RelayDirection {
    /// Takes packets until the link ends.
    fn run(mut self, send: &SyncSender<DelayedPacket>) {
        let mut buffer = vec![0; LONGEST_PACKET];
        loop {
            let mut ready = [PollFd::new(&*self.from, PollFlags::IN), PollFd::new(&*self.ended, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) if ready[1].revents().is_empty() => {}
                Err(Errno::INTR) => continue,
                _ => return,
            }
            let Ok(length) = (&*self.from).read(&mut buffer) else { return };
            if self.random.unit() * 100.0 < self.loss_percent {
                continue;
            }
            // Packets that find the queue full are lost, as on any link.
            let _ = send.try_send(DelayedPacket { due: Instant::now() + self.delay, bytes: buffer[..length].into() });
        }
    }
}

/// Gives packets to a device at their time, until the other end of the channel is gone.
fn arrive(to: &File, packets: &Receiver<DelayedPacket>, over: &AtomicBool) {
    for DelayedPacket { due, bytes } in packets {
        loop {
            let wait = due.saturating_duration_since(Instant::now());
            if over.load(Ordering::Relaxed) {
                return;
            }
            if wait.is_zero() {
                break;
            }
            thread::park_timeout(wait);
        }
        // A device whose queue is full, or that is down, loses it.
        let _ = (&*to).write(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// Two ends that keep packets apart as devices do, and the programs' sides of them.
    fn ends() -> ([File; 2], [UnixDatagram; 2]) {
        let (near, near_end) = UnixDatagram::pair().unwrap();
        let (far, far_end) = UnixDatagram::pair().unwrap();
        let file = |socket: UnixDatagram| File::from(std::os::fd::OwnedFd::from(socket));
        ([file(near_end), file(far_end)], [near, far])
    }

    #[test]
    fn packets_arrive_after_the_delay_in_their_order_and_in_both_directions() {
        let (ends, [near, far]) = ends();
        let delay = Duration::from_millis(20);
        let relay = PacketRelay::new(ends, delay, 0.0).unwrap();
        for (from, to) in [(&near, &far), (&far, &near)] {
            let begin = Instant::now();
            for number in 0..50u8 {
                from.send(&[number]).unwrap();
            }
            let mut packet = [0; 2];
            for number in 0..50u8 {
                assert_eq!((to.recv(&mut packet).unwrap(), packet[0]), (1, number));
                assert!(begin.elapsed() >= delay);
            }
        }
        drop(relay);
        assert!(near.send(&[0]).is_err(), "the ends are closed with it");
    }

    #[test]
    fn a_share_of_the_packets_is_lost() {
        let (ends, [near, far]) = ends();
        let relay = PacketRelay::new(ends, Duration::ZERO, 10.0).unwrap();
        let receiver = thread::spawn(move || {
            let mut packet = [0; 1];
            let mut received = 0;
            while far.recv(&mut packet).is_ok_and(|length| length > 0) {
                received += u32::from(packet[0] == 1);
                if packet[0] == 2 {
                    break;
                }
            }
            received
        });
        for _ in 0..5_000 {
            near.send(&[1]).unwrap();
        }
        // The end, often enough that not all are lost.
        for _ in 0..20 {
            let _ = near.send(&[2]);
        }
        let received = receiver.join().unwrap();
        // Three standard deviations of 5,000 packets are 64.
        assert!((4_436..=4_564).contains(&received), "{received} of 5000");
        drop(relay);
    }

    #[test]
    fn a_link_ends_at_once_though_packets_are_on_their_way() {
        let (ends, [near, _far]) = ends();
        let relay = PacketRelay::new(ends, Duration::from_secs(3_600), 0.0).unwrap();
        near.send(&[1]).unwrap();
        // It would wait for an hour.
        drop(relay);
    }
}
