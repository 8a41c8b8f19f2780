//! The numbers by which the engine's tables refer to each other, each with a type of its own.

macro_rules! numbers {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub(super) struct $name(u32);

            impl From<u32> for $name {
                fn from(number: u32) -> $name {
                    $name(number)
                }
            }

            impl From<$name> for u32 {
                fn from(number: $name) -> u32 {
                    number.0
                }
            }
        )+
    };
}

/// Numbers that are the index of an entry in a table.
macro_rules! indices {
    ($($name:ident),+) => {
        $(
            impl $name {
                pub(super) fn at(index: usize) -> $name {
                    $name(u32::try_from(index).expect("tables have fewer than 2^32 entries"))
                }

                pub(super) fn index(self) -> usize {
                    self.0 as usize
                }
            }
        )+
    };
}

numbers! {
    /// A place in the table of subscriptions. It may be that of another subscription later.
    Slot,
    /// A host of callbacks.
    HostNumber,
    /// A topic. It may be that of another topic later.
    TopicNumber,
    /// A consumer that owns subscriptions.
    OwnerNumber,
    /// A client that sends requests.
    ClientNumber,
}

indices!(Slot, HostNumber, TopicNumber);
