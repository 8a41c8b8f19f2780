//! The memory of a plugin, as host functions use it.

use wasmtime::Caller;

use crate::abi::HostStatus;
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
        let found = range(memory.len(), at, size).ok_or(HostStatus::InvalidMemoryAccess)?;
        Ok((&memory[found], state))
    }

    /// Two pieces of it.
    pub(super) fn pieces(&mut self, first: (u32, u32), second: (u32, u32)) -> HostAnswer<([&[u8]; 2], &mut HostState)> {
        let (memory, state) = self.split();
        let find = |(at, size)| range(memory.len(), at, size).ok_or(HostStatus::InvalidMemoryAccess);
        let (first, second) = (find(first)?, find(second)?);
        Ok(([&memory[first], &memory[second]], state))
    }

    pub(super) fn copy(&mut self, at: u32, size: u32) -> HostAnswer<Vec<u8>> {
        Ok(self.bytes(at, size)?.0.to_vec())
    }

    pub(super) fn text(&mut self, at: u32, size: u32) -> HostAnswer<String> {
        let copy = self.copy(at, size)?;
        String::from_utf8(copy).map_err(|_| HostStatus::BadArgument.into())
    }

    pub(super) fn write(&mut self, at: u32, bytes: &[u8]) -> HostAnswer {
        let (memory, _) = self.split();
        let length = u32::try_from(bytes.len()).map_err(|_| HostStatus::InvalidMemoryAccess)?;
        let found = range(memory.len(), at, length).ok_or(HostStatus::InvalidMemoryAccess)?;
        memory[found].copy_from_slice(bytes);
        Ok(())
    }

    pub(super) fn write_u32(&mut self, at: u32, value: u32) -> HostAnswer {
        self.write(at, &value.to_le_bytes())
    }

    pub(super) fn write_u64(&mut self, at: u32, value: u64) -> HostAnswer {
        self.write(at, &value.to_le_bytes())
    }

    /// Gives bytes to the plugin, in memory that it allocates: their place and their number go to these addresses.
    pub(super) fn give(&mut self, bytes: &[u8], at: u32, size_at: u32) -> HostAnswer {
        let mut place = 0;
        let size = u32::try_from(bytes.len()).map_err(|_| HostStatus::InternalFailure)?;
        if size > 0 {
            // Taken, not copied, since a copy is counted by all workers together; and so it cannot be called by itself.
            let allocate = self.caller.data_mut().allocate.take().ok_or(HostStatus::InternalFailure)?;
            let allocated = allocate.call(&mut self.caller, size);
            self.caller.data_mut().allocate = Some(allocate);
            place = allocated.map_err(HostRefusal::Trap)?;
            if place == 0 {
                return Err(HostStatus::InternalFailure.into());
            }
            self.write(place, bytes)?;
        }
        self.write_u32(at, place)?;
        self.write_u32(size_at, size)
    }
}

fn range(length: usize, at: u32, size: u32) -> Option<std::ops::Range<usize>> {
    let (at, size) = (at as usize, size as usize);
    let end = at.checked_add(size)?;
    (end <= length).then_some(at..end)
}
