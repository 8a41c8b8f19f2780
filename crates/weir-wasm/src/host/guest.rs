//! The memory of a plugin, as host functions use it.

use std::mem;

use wasmtime::Caller;

use crate::abi::HostStatus;
use crate::limits;
use crate::state::HostState;

/// What a host function is given of the plugin that calls it.
pub(super) type HostCaller<'c> = Caller<'c, HostState>;

/// Why a host function does not answer `Ok`.
pub(super) enum HostRefusal {
    HostStatus(HostStatus),
    /// The plugin's own code failed while the function used it.
    Trap(wasmtime::Error),
}

impl From<HostStatus> for HostRefusal {
    fn from(status: HostStatus) -> HostRefusal {
        HostRefusal::HostStatus(status)
    }
}

pub(super) type HostAnswer<T = ()> = Result<T, HostRefusal>;

/// The number that a plugin gets.
pub(super) fn number(answer: HostAnswer) -> wasmtime::Result<u32> {
    match answer {
        Ok(()) => Ok(HostStatus::Ok as u32),
        Err(HostRefusal::HostStatus(status)) => Ok(status as u32),
        Err(HostRefusal::Trap(trap)) => Err(trap),
    }
}

/// The plugin that has called a function.
pub(super) struct Guest<'c> {
    pub caller: Caller<'c, HostState>,
}

impl<'c> Guest<'c> {
    pub(super) fn of(caller: Caller<'c, HostState>) -> Guest<'c> {
        Guest { caller }
    }

    pub(super) fn state(&mut self) -> &mut HostState {
        self.caller.data_mut()
    }

    /// The memory, and beside it the state. Empty before the instance has one.
    pub(super) fn split(&mut self) -> (&mut [u8], &mut HostState) {
        match self.caller.data().memory {
            Some(memory) => memory.data_and_store_mut(&mut self.caller),
            None => (&mut [], self.caller.data_mut()),
        }
    }

    /// Bytes of the plugin, without a copy of them.
    pub(super) fn bytes(&mut self, at: u32, size: u32) -> HostAnswer<(&[u8], &mut HostState)> {
        let (memory, state) = self.split();
        Ok((piece(memory, at, size)?, state))
    }

    /// Two pieces of it.
    pub(super) fn pieces(&mut self, first: (u32, u32), second: (u32, u32)) -> HostAnswer<([&[u8]; 2], &mut HostState)> {
        let (memory, state) = self.split();
        Ok(([piece(memory, first.0, first.1)?, piece(memory, second.0, second.1)?], state))
    }

    pub(super) fn copy(&mut self, at: u32, size: u32) -> HostAnswer<Vec<u8>> {
        Ok(self.bytes(at, size)?.0.to_vec())
    }

    pub(super) fn text(&mut self, at: u32, size: u32) -> HostAnswer<String> {
        let copy = self.copy(at, size)?;
        String::from_utf8(copy).map_err(|_| HostStatus::BadArgument.into())
    }

    pub(super) fn write(&mut self, at: u32, bytes: &[u8]) -> HostAnswer {
        write(self.split().0, at, bytes)
    }

    pub(super) fn write_u32(&mut self, at: u32, value: u32) -> HostAnswer {
        self.write(at, &value.to_le_bytes())
    }

    pub(super) fn write_u64(&mut self, at: u32, value: u64) -> HostAnswer {
        self.write(at, &value.to_le_bytes())
    }

    /// Gives bytes to the plugin, in memory that it allocates: their place and their number go to these addresses.
    pub(super) fn give(&mut self, bytes: &[u8], at: u32, size_at: u32) -> HostAnswer {
        let size = u32::try_from(bytes.len()).map_err(|_| HostStatus::InternalFailure)?;
        let place = if size > 0 { self.allocate(size)? } else { 0 };
        let (memory, _) = self.split();
        write(memory, place, bytes)?;
        write(memory, at, &place.to_le_bytes())?;
        write(memory, size_at, &size.to_le_bytes())
    }

    fn allocate(&mut self, size: u32) -> HostAnswer<u32> {
        // Taken, not copied, since a copy is counted by all workers together; and so it cannot be called by itself.
        let allocate = self.caller.data_mut().allocate.take().ok_or(HostStatus::InternalFailure)?;
        let allocated = allocate.call(&mut self.caller, size);
        self.caller.data_mut().allocate = Some(allocate);
        match allocated.map_err(HostRefusal::Trap)? {
            0 => Err(HostStatus::InternalFailure.into()),
            place => Ok(place),
        }
    }

    /// Gives the bytes that `write` appends to an empty buffer, which the instance keeps.
    pub(super) fn give_written(
        &mut self,
        (at, size_at): (u32, u32),
        write: impl FnOnce(&[u8], &HostState, &mut Vec<u8>) -> HostAnswer,
    ) -> HostAnswer {
        let (memory, state) = self.split();
        let mut bytes = mem::take(&mut state.given);
        bytes.clear();
        let written = write(memory, state, &mut bytes);
        let given = written.and_then(|()| self.give(&bytes, at, size_at));
        if bytes.capacity() <= limits::KEPT_BUFFER {
            self.caller.data_mut().given = bytes;
        }
        given
    }
}

/// Bytes of a plugin's memory.
pub(super) fn piece(memory: &[u8], at: u32, size: u32) -> Result<&[u8], HostStatus> {
    let found = range(memory.len(), at, size).ok_or(HostStatus::InvalidMemoryAccess)?;
    Ok(&memory[found])
}

fn write(memory: &mut [u8], at: u32, bytes: &[u8]) -> HostAnswer {
    let length = u32::try_from(bytes.len()).map_err(|_| HostStatus::InvalidMemoryAccess)?;
    let found = range(memory.len(), at, length).ok_or(HostStatus::InvalidMemoryAccess)?;
    memory[found].copy_from_slice(bytes);
    Ok(())
}

fn range(length: usize, at: u32, size: u32) -> Option<std::ops::Range<usize>> {
    let (at, size) = (at as usize, size as usize);
    let end = at.checked_add(size)?;
    (end <= length).then_some(at..end)
}
