//! Records on disk whose sink is gone: another sink takes them, or they are dropped and counted as that.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::account::RecordAccount;
use crate::books::{DropReason, RecordTally};
use crate::cells::Cells;
use crate::spool::{ACCOUNT, JOURNAL, LOCK, MAX_PLACES, NAME};

/// What was done with the records of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolTask {
    pub places: usize,
    pub records: RecordTally,
}

/// A place of a sink that no process uses, until it is dropped.
struct IdlePlace {
    directory: PathBuf,
    _lock: File,
}

impl IdlePlace {
    /// # Errors
    /// A process uses the place.
    fn of(directory: PathBuf) -> io::Result<IdlePlace> {
        let lock = File::options().read(true).write(true).open(directory.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => Err(io::Error::other(format!(
                "{} is in use by {}; if the process is ending, wait until it has ended; otherwise take the logger out of the \
                 configuration and restart the node first",
                directory.display(),
                user_of(&lock),
            ))),
            locked => locked.map(|()| IdlePlace { directory, _lock: lock }).map_err(io::Error::from),
        }
    }

    /// The records that wait here, as the account says. Those in memory when the process ended are lost and not among them.
    fn waiting(&self) -> io::Result<RecordTally> {
        let Some(cells) = Cells::read_only(&File::open(self.directory.join(ACCOUNT))?)? else {
            return Ok(RecordTally::default());
        };
        let pending = RecordAccount::of("", cells).read().pending;
        Ok([pending.spool, pending.inflight].into_iter().sum())
    }
}

/// The process that has locked a place, as its spool has written it there.
fn user_of(mut lock: &File) -> String {
    let mut number = String::new();
    match lock.read_to_string(&mut number) {
        Ok(_) if number.parse::<u32>().is_ok() => format!("process {number}"),
        _ => "a process".to_owned(),
    }
}

/// The directories of the places of a sink.
fn places_of(records: &Path, sink: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in fs::read_dir(records)? {
        let Ok(places) = fs::read_dir(directory?.path()) else { continue };
        let places = places.filter_map(|place| Some(place.ok()?.path()));
        found.extend(places.filter(|place| fs::read_to_string(place.join(NAME)).is_ok_and(|name| name == sink)));
    }
    found.sort();
    match found.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("no sink {sink} has been here; `weir records DIR` lists the names"),
        )),
        false => Ok(found),
    }
}

/// Gives the records of a sink, with their account, to another sink that was started before. It sends them as soon as it finds them: at
/// once if the node runs.
///
/// # Errors
/// One of them is not known, a process uses the first one, or a directory cannot be moved.
pub fn move_spool(records: &Path, from: &str, to: &str) -> io::Result<SpoolTask> {
    let idle: Vec<IdlePlace> = places_of(records, from)?.into_iter().map(IdlePlace::of).collect::<Result<_, _>>()?;
    if from == to {
        return Err(io::Error::other("both names are the same"));
    }
    let mut targets: Vec<PathBuf> =
        places_of(records, to)?.iter().filter_map(|place| place.parent().map(Path::to_owned)).collect();
    targets.dedup();
    let [target] = &targets[..] else {
        return Err(io::Error::other(format!(
            "{to} has several directories, for different tokens: {}; give the one that is meant its own name in the configuration",
            targets.iter().map(|target| target.display().to_string()).collect::<Vec<_>>().join(", ")
        )));
    };
    let mut task = SpoolTask::default();
    for place in idle {
        let records = place.waiting()?;
        let free = (0..MAX_PLACES).map(|number| target.join(number.to_string())).find(|place| !place.exists());
        let free =
            free.ok_or_else(|| io::Error::other(format!("{} has {MAX_PLACES} places, the most", target.display())))?;
        // The sink that takes it over writes its own name there.
        fs::rename(&place.directory, free)?;
        task.places += 1;
        task.records.add(records);
    }
    Ok(task)
}

/// Drops the records of a sink. Its account stays, and has them as `abandoned`.
///
/// # Errors
/// The sink is not known, a process uses it, or a file cannot be written.
pub fn drop_spool(records: &Path, sink: &str) -> io::Result<SpoolTask> {
    let idle: Vec<IdlePlace> = places_of(records, sink)?.into_iter().map(IdlePlace::of).collect::<Result<_, _>>()?;
    let mut task = SpoolTask::default();
    for place in idle {
        let waiting = place.waiting()?;
        let account = File::options().read(true).write(true).open(place.directory.join(ACCOUNT))?;
        let journal = place.directory.join(JOURNAL);
        if journal.exists() {
            fs::remove_dir_all(&journal)?;
        }
        // If this fails, the next process that uses the place counts them as lost.
        drop(RecordAccount::of_cells(sink, Cells::mapped(&account)?, RecordTally::default(), DropReason::Abandoned));
        task.places += 1;
        task.records.add(waiting);
    }
    Ok(task)
}
