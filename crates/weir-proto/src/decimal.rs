//! Numbers as field values, written where they end, so that they are copied into a head once.

/// A number with at most two decimals, as text. Nothing in it could break a line, so it needs no look.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    /// The number, the end of the line, and as many bytes again: a copy of a fixed length, whatever the number, is two
    /// instructions.
    bytes: [u8; LENGTH],
    start: usize,
}

/// Of the longest number with the end of its line, rounded up.
const LONGEST: usize = 24;
const LENGTH: usize = 2 * LONGEST;
/// Of the number; the end of the line follows.
const END: usize = LONGEST - 2;
const EMPTY: [u8; LENGTH] = {
    let mut bytes = [0; LENGTH];
    bytes[END] = b'\r';
    bytes[END + 1] = b'\n';
    bytes
};

/// All numbers of two digits.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

impl Decimal {
    pub fn whole(number: u64) -> Decimal {
        let mut decimal = Decimal { bytes: EMPTY, start: END };
        decimal.start = digits(&mut decimal.bytes, END, number);
        decimal
    }

    /// `1050` is `10.5`.
    pub fn hundredths(number: u64) -> Decimal {
        let mut decimal = Decimal { bytes: EMPTY, start: END };
        let end = decimals(&mut decimal.bytes, (number % 100) as usize);
        decimal.start = digits(&mut decimal.bytes, end, number / 100);
        decimal
    }

    /// The number and the end of the line, and bytes that belong to neither; and how long the number is.
    pub(crate) fn padded(&self) -> (&[u8; LONGEST], usize) {
        let bytes = self.bytes[self.start..].first_chunk().expect("the longest number begins that long before the end");
        (bytes, END - self.start)
    }
}

/// Writes what follows the whole, if anything does; says where it begins.
fn decimals(line: &mut [u8; LENGTH], rest: usize) -> usize {
    let [tenths, hundredths] = PAIRS[rest];
    let start = match (tenths, hundredths) {
        (b'0', b'0') => return END,
        (_, b'0') => END - 2,
        _ => {
            line[END - 1] = hundredths;
            END - 3
        }
    };
    line[start] = b'.';
    line[start + 1] = tenths;
    start
}

/// Writes a number that ends there; says where it begins.
fn digits(line: &mut [u8; LENGTH], end: usize, mut number: u64) -> usize {
    let mut start = end;
    while number >= 10 {
        start -= 2;
        line[start..start + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    if number > 0 || start == end {
        start -= 1;
        line[start] = b'0' + number as u8;
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_full_and_with_two_decimals_at_most() {
        for (number, want) in [
            (Decimal::whole(0), "0"),
            (Decimal::whole(7), "7"),
            (Decimal::whole(10), "10"),
            (Decimal::whole(200_000_000), "200000000"),
            (Decimal::whole(u64::MAX), "18446744073709551615"),
            (Decimal::hundredths(6_000), "60"),
            (Decimal::hundredths(5_999), "59.99"),
            (Decimal::hundredths(3_640), "36.4"),
            (Decimal::hundredths(105), "1.05"),
            (Decimal::hundredths(1), "0.01"),
            (Decimal::hundredths(0), "0"),
            (Decimal::hundredths(u64::MAX), "184467440737095516.15"),
        ] {
            let (bytes, len) = number.padded();
            assert_eq!(bytes[..len + 2], *format!("{want}\r\n").as_bytes());
        }
    }
}
