//! Data that all instances of a plugin share, by key, each value with a number for compare-and-swap.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::abi::HostStatus;
use crate::limits;

#[derive(Debug, Default)]
pub(crate) struct SharedData(Mutex<SharedDataTable>);

#[derive(Debug, Default)]
struct SharedDataTable {
    values: HashMap<Vec<u8>, (Vec<u8>, u32)>,
    bytes: usize,
    last: u32,
}

impl SharedData {
    /// The value of a key, with its number.
    pub(crate) fn get(&self, key: &[u8]) -> Option<(Vec<u8>, u32)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values.get(key).cloned()
    }

    /// Sets the value of a key. With a number other than 0, only if it is that of the present value. An empty value stays a value.
    ///
    /// # Errors
    /// The number is another one, or there is no room.
    pub(crate) fn set(&self, key: &[u8], value: &[u8], cas: u32) -> Result<(), HostStatus> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = table.values.get(key).map(|(value, number)| (value.len(), *number));
        if cas != 0 && known.is_none_or(|(_, number)| number != cas) {
            return Err(HostStatus::CasMismatch);
        }
        let before = known.map_or(0, |(length, _)| key.len() + length);
        let bytes = table.bytes - before + key.len() + value.len();
        if bytes > limits::SHARED_BYTES || known.is_none() && table.values.len() == limits::SHARED_ENTRIES {
            return Err(HostStatus::InternalFailure);
        }
        // 0 says that any number will do, so no value has it.
        table.last = table.last.wrapping_add(1).max(1);
        let number = table.last;
        table.values.insert(key.to_vec(), (value.to_vec(), number));
        table.bytes = bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_data_is_swapped_only_if_it_is_as_it_was_read() {
        let data = SharedData::default();
        assert_eq!(data.get(b"k"), None);
        assert_eq!(data.set(b"k", b"0", 7), Err(HostStatus::CasMismatch), "there is no value");
        data.set(b"k", b"1", 0).expect("room");
        let (value, number) = data.get(b"k").expect("set");
        assert_eq!(value, b"1");
        data.set(b"k", b"2", number).expect("as it was");
        assert_eq!(data.set(b"k", b"3", number), Err(HostStatus::CasMismatch));
        assert_eq!(data.get(b"k").expect("set").0, b"2");
    }

    #[test]
    fn shared_data_is_bounded_in_entries_and_bytes() {
        let data = SharedData::default();
        let large = vec![0; limits::SHARED_BYTES - 2];
        data.set(b"k", &large, 0).expect("it fits");
        assert_eq!(data.set(b"l", b"", 0).err(), None, "one byte was left");
        assert_eq!(data.set(b"m", b"", 0), Err(HostStatus::InternalFailure));
        data.set(b"k", b"", 0).expect("less than before");
        let full = SharedData::default();
        for key in 0..limits::SHARED_ENTRIES {
            full.set(&key.to_le_bytes(), b"", 0).expect("room");
        }
        assert_eq!(full.set(b"more", b"", 0), Err(HostStatus::InternalFailure));
        full.set(&7_usize.to_le_bytes(), b"x", 0).expect("it is there already");
    }
}
