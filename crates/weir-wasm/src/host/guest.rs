//! The memory of a plugin, as host functions use it.

use wasmtime::Caller;

use crate::abi::Status;
use crate::state::HostState;

/// Why a host function does not answer `Ok`.
pub enum Refusal {
    Status(Status),
    /// The plugin's own code failed while the function used it.
    Trap(wasmtime::Error),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal::Status(status)
    }
}

pub type Answer<T = ()> = Result<T, Refusal>;

/// The number that a plugin gets.
pub fn number(answer: Answer) -> wasmtime::Result<u32> {
    match answer {
        Ok(()) => Ok(Status::Ok as u32),
        Err(Refusal::Status(status)) => Ok(status as u32),
        Err(Refusal::Trap(trap)) => Err(trap),
    }
}

/// The plugin that has called a function.
pub struct Guest<'c> {
    pub caller: Caller<'c, HostState>,
}

impl<'c> Guest<'c> {
    pub fn of(caller: Caller<'c, HostState>) -> Guest<'c> {
        Guest { caller }
    }

    pub fn state(&mut self) -> &mut HostState {
        self.caller.data_mut()
    }

    /// The memory, and beside it the state. Empty before the instance has one.
    pub fn split(&mut self) -> (&mut [u8], &mut HostState) {
        match self.caller.data().memory {
            Some(memory) => memory.data_and_store_mut(&mut self.caller),
            None => (&mut [], self.caller.data_mut()),
        }
    }

    /// Bytes of the plugin, without a copy of them.
    pub fn bytes(&mut self, at: u32, size: u32) -> Answer<(&[u8], &mut HostState)> {
        let (memory, state) = self.split();
        let found = range(memory.len(), at, size).ok_or(Status::InvalidMemoryAccess)?;
        Ok((&memory[found], state))
    }

    pub fn copy(&mut self, at: u32, size: u32) -> Answer<Vec<u8>> {
        Ok(self.bytes(at, size)?.0.to_vec())
    }

    pub fn text(&mut self, at: u32, size: u32) -> Answer<String> {
        let copy = self.copy(at, size)?;
        String::from_utf8(copy).map_err(|_| Status::BadArgument.into())
    }

    pub fn write(&mut self, at: u32, bytes: &[u8]) -> Answer {
        let (memory, _) = self.split();
        let length = u32::try_from(bytes.len()).map_err(|_| Status::InvalidMemoryAccess)?;
        let found = range(memory.len(), at, length).ok_or(Status::InvalidMemoryAccess)?;
        memory[found].copy_from_slice(bytes);
        Ok(())
    }

    pub fn write_u32(&mut self, at: u32, value: u32) -> Answer {
        self.write(at, &value.to_le_bytes())
    }

    pub fn write_u64(&mut self, at: u32, value: u64) -> Answer {
        self.write(at, &value.to_le_bytes())
    }

    /// Gives bytes to the plugin, in memory that it allocates: their place and their number go to these addresses.
    pub fn give(&mut self, bytes: &[u8], at: u32, size_at: u32) -> Answer {
        let mut place = 0;
        let size = u32::try_from(bytes.len()).map_err(|_| Status::InternalFailure)?;
        if size > 0 {
            let allocate = self.caller.data().allocate.clone().ok_or(Status::InternalFailure)?;
            place = allocate.call(&mut self.caller, size).map_err(Refusal::Trap)?;
            if place == 0 {
                return Err(Status::InternalFailure.into());
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
