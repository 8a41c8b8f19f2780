//! An in-memory directory that behaves like a bad disk: a crash loses some of the unsynced changes and tears the last write;
//! operations fail with given probabilities, and space runs out.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::storage::{File, Storage};

/// Writes are torn at multiples of this, as on real disks.
const SECTOR_BYTES: usize = 512;

/// An in-memory directory, shared by its clones.
#[derive(Clone)]
pub struct Simulated {
    inner: Arc<Mutex<SimulatedState>>,
}

struct SimulatedState {
    now: BTreeMap<String, FileContent>,
    /// The directory as of the last sync.
    synced: BTreeMap<String, FileContent>,
    faults: DiskFaults,
    random: fastrand::Rng,
}

type FileContent = Arc<Mutex<DiskBytes>>;

#[derive(Default)]
struct DiskBytes {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// Changes since the last sync, in order.
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
}

/// Probabilities of failures, from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// A write stores a part of its bytes and fails.
    pub write: f64,
    /// A sync fails, and the data it was to store is lost for good.
    pub sync: f64,
    pub create: f64,
    pub remove: f64,
    pub set_len: f64,
    /// Capacity in bytes of all files together; 0 is no limit.
    pub capacity: u64,
}

impl Simulated {
    /// An empty directory; the failures depend only on the seed.
    pub fn new(seed: u64) -> Simulated {
        Simulated::with(BTreeMap::new(), seed)
    }

    fn with(files: BTreeMap<String, FileContent>, seed: u64) -> Simulated {
        let random = fastrand::Rng::with_seed(seed);
        let inner = SimulatedState { synced: files.clone(), now: files, faults: DiskFaults::default(), random };
        Simulated { inner: Arc::new(Mutex::new(inner)) }
    }

    pub fn set_faults(&self, faults: DiskFaults) {
        self.lock().faults = faults;
    }

    /// The directory as it may be after a power loss: each unsynced file and change may be missing, and the last change present
    /// may be torn.
    pub fn after_crash(&self, seed: u64) -> Simulated {
        let mut random = fastrand::Rng::with_seed(seed);
        let inner = self.lock();
        let mut files = BTreeMap::new();
        let names: BTreeSet<_> = inner.now.keys().chain(inner.synced.keys()).collect();
        for name in names {
            let found = match (inner.now.get(name), inner.synced.get(name)) {
                (Some(now), Some(synced)) if Arc::ptr_eq(now, synced) => Some(now),
                (now, synced) => {
                    if random.bool() {
                        now
                    } else {
                        synced
                    }
                }
            };
            if let Some(content) = found {
                let survived = content.lock().unwrap_or_else(PoisonError::into_inner).after_crash(&mut random);
                let bytes = DiskBytes { now: survived.clone(), synced: survived, unsynced: Vec::new() };
                files.insert(name.clone(), Arc::new(Mutex::new(bytes)));
            }
        }
        Simulated::with(files, seed)
    }

    /// Corrupts a file.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let content = self.lock().now.get(name).cloned().expect("the file exists");
        let mut bytes = content.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut bytes.now);
        bytes.synced = bytes.now.clone();
        bytes.unsynced.clear();
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimulatedState {
    fn fails(&mut self, chance: impl Fn(&DiskFaults) -> f64) -> io::Result<()> {
        match self.random.f64() < chance(&self.faults) {
            true => Err(io::Error::from(io::ErrorKind::Other)),
            false => Ok(()),
        }
    }

    fn used(&self) -> u64 {
        let len = |content: &FileContent| content.lock().unwrap_or_else(PoisonError::into_inner).now.len() as u64;
        self.now.values().map(len).sum()
    }
}

impl DiskBytes {
    fn apply(content: &mut Vec<u8>, change: &Change) {
        match change {
            Change::SetLen(len) => content.resize(*len as usize, 0),
            Change::Write { offset, bytes } => {
                let (begin, end) = (*offset as usize, *offset as usize + bytes.len());
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[begin..end].copy_from_slice(bytes);
            }
        }
    }

    fn change(&mut self, change: Change) {
        DiskBytes::apply(&mut self.now, &change);
        self.unsynced.push(change);
    }

    fn after_crash(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut content = self.synced.clone();
        let kept = random.usize(0..=self.unsynced.len());
        for change in &self.unsynced[..kept] {
            DiskBytes::apply(&mut content, change);
        }
        // The next change reached the disk in part.
        if let Some(Change::Write { offset, bytes }) = self.unsynced.get(kept) {
            let sectors = random.usize(0..=bytes.len() / SECTOR_BYTES);
            let bytes = bytes[..sectors * SECTOR_BYTES].to_vec();
            DiskBytes::apply(&mut content, &Change::Write { offset: *offset, bytes });
        }
        content
    }
}

impl Storage for Simulated {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().now.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut inner = self.lock();
        inner.fails(|faults| faults.create)?;
        if inner.now.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let content = FileContent::default();
        inner.now.insert(name.to_owned(), Arc::clone(&content));
        Ok(Arc::new(SimulatedFile { directory: self.clone(), content }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let content = self.lock().now.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimulatedFile { directory: self.clone(), content }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.fails(|faults| faults.remove)?;
        inner.now.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock();
        let content = inner.now.remove(from).ok_or(io::ErrorKind::NotFound)?;
        inner.now.insert(to.to_owned(), content);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.lock();
        inner.fails(|faults| faults.sync)?;
        inner.synced = inner.now.clone();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let inner = self.lock();
        Ok(match inner.faults.capacity {
            0 => u64::MAX,
            capacity => capacity.saturating_sub(inner.used()),
        })
    }
}

struct SimulatedFile {
    directory: Simulated,
    content: FileContent,
}

impl SimulatedFile {
    fn bytes(&self) -> MutexGuard<'_, DiskBytes> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().now.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes();
        let rest = bytes.now.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut inner = self.directory.lock();
        let mut result = inner.fails(|faults| faults.write);
        let mut count = bytes.len();
        if result.is_err() {
            count = inner.random.usize(0..=bytes.len());
        }
        if inner.faults.capacity > 0 {
            let free = inner.faults.capacity.saturating_sub(inner.used()) as usize;
            if free < count {
                (count, result) = (free, Err(io::ErrorKind::StorageFull.into()));
            }
        }
        drop(inner);
        if count > 0 {
            self.bytes().change(Change::Write { offset, bytes: bytes[..count].to_vec() });
        }
        result
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.directory.lock().fails(|faults| faults.set_len)?;
        self.bytes().change(Change::SetLen(len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let failed = self.directory.lock().fails(|faults| faults.sync);
        let mut bytes = self.bytes();
        // After a failure the kernel considers the pages clean: a later sync does not write them either.
        if failed.is_ok() {
            let unsynced = std::mem::take(&mut bytes.unsynced);
            let mut synced = std::mem::take(&mut bytes.synced);
            unsynced.iter().for_each(|change| DiskBytes::apply(&mut synced, change));
            bytes.synced = synced;
        } else {
            bytes.unsynced.clear();
        }
        failed
    }
}
