//! The memory of a table of counters. That of some tables can be passed on to the process that replaces this one: both count in the same
//! cells while the old process drains, so that no request is counted twice or not at all.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use portable_atomic::AtomicU128;
use rustix::fs::{MemfdFlags, memfd_create};
use weir_net::atomic_memory::{AtomicMemory, PAGE};

use super::siphash::SipKey;

/// The first bytes of the memory: its type and version.
const MAGIC: [u8; 8] = *b"weircnt1";
/// The magic, and the secret of the table. The cells begin at the next page.
const HEADER: usize = MAGIC.len() + SipKey::BYTES;
const CELLS_AT: usize = PAGE;
const CELL: usize = size_of::<AtomicU128>();

/// Cells that are all zero at first. Pages are allocated when a cell in them is first used.
pub(super) struct CellMemory {
    cells: AtomicMemory<AtomicU128>,
    /// That of memory that is passed on.
    _file: Option<Arc<File>>,
}

impl CellMemory {
    /// Memory of this process alone.
    pub(super) fn own(cells: usize) -> CellMemory {
        CellMemory { cells: AtomicMemory::zeroed(cells), _file: None }
    }

    /// The memory of a kind of table, and its secret: that of the previous process, if it has passed it on, or else new memory with
    /// `secret`, which can be passed on.
    pub(super) fn passed_on(kind: &'static str, cells: usize, secret: SipKey) -> PassedOnCells {
        let inherited = tables().inherited.extract_if(.., |(name, _)| name == kind).next();
        let opened = inherited.and_then(|(_, file)| open(file, cells).ok());
        let is_inherited = opened.is_some();
        let mapped: io::Result<_> = opened.map_or_else(|| Ok((create(kind, cells, secret)?, secret)), Ok);
        match mapped.and_then(|(file, secret)| Ok((map(kind, cells, file)?, secret))) {
            Ok((memory, secret)) => PassedOnCells { memory, secret, is_inherited },
            Err(error) => {
                tracing::warn!("the counters of {kind} cannot be passed on to the next process of an upgrade: {error}");
                PassedOnCells { memory: CellMemory::own(cells), secret, is_inherited: false }
            }
        }
    }
}

/// Memory that is passed on to the next process.
pub(super) struct PassedOnCells {
    pub memory: CellMemory,
    pub secret: SipKey,
    /// The previous process has counted in it.
    pub is_inherited: bool,
}

fn map(kind: &'static str, cells: usize, file: File) -> io::Result<CellMemory> {
    let file = Arc::new(file);
    let cells = AtomicMemory::mapped(&file, 1, cells)?;
    let mut tables = tables();
    tables.own.retain(|(_, file)| file.strong_count() > 0);
    tables.own.push((kind, Arc::downgrade(&file)));
    Ok(CellMemory { cells, _file: Some(file) })
}

fn create(kind: &str, cells: usize, secret: SipKey) -> io::Result<File> {
    let file = File::from(memfd_create(format!("weir {kind}"), MemfdFlags::CLOEXEC)?);
    file.set_len((CELLS_AT + cells * CELL) as u64)?;
    file.write_all_at(&[&MAGIC[..], &secret.bytes()].concat(), 0)?;
    Ok(file)
}

/// Opens memory of another process. The program there may be another version of this one.
fn open(file: File, cells: usize) -> io::Result<(File, SipKey)> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    let (magic, secret) = header.split_first_chunk().expect("the header begins with it");
    let is_alike = *magic == MAGIC && file.metadata()?.len() == (CELLS_AT + cells * CELL) as u64;
    let secret = secret.first_chunk().map(SipKey::of_bytes);
    secret.filter(|_| is_alike).map(|secret| (file, secret)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Deref for CellMemory {
    type Target = [AtomicU128];

    #[inline]
    fn deref(&self) -> &[AtomicU128] {
        &self.cells
    }
}

/// The memory that is passed on from process to process.
struct PassedOn {
    inherited: Vec<(String, File)>,
    own: Vec<(&'static str, Weak<File>)>,
}

fn tables() -> MutexGuard<'static, PassedOn> {
    static TABLES: Mutex<PassedOn> = Mutex::new(PassedOn { inherited: Vec::new(), own: Vec::new() });
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of this process's tables, to be passed on to the next one: each kind with its file.
pub fn hand_over() -> Vec<(&'static str, Arc<File>)> {
    tables().own.iter().filter_map(|(kind, file)| Some((*kind, file.upgrade()?))).collect()
}

/// Takes over what the previous process has passed on. Call it before plugins are built.
pub fn take_over(memory: impl IntoIterator<Item = (String, OwnedFd)>) {
    tables().inherited.extend(memory.into_iter().map(|(kind, fd)| (kind, File::from(fd))));
}
