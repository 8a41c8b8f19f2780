//! Numbers as field values, formatted right-aligned so that they are copied into a head in one step.

/// A number with at most two decimals, as text. It contains only digits and a point, so it needs no validation as a field value.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    /// The number and CRLF in the first half, padding in the second: [`Decimal::padded`] can copy [`LONGEST`] bytes from any
    /// start, and a copy of a fixed length takes two instructions.
    bytes: [u8; LENGTH],
    start: usize,
}

/// Length of the longest number with its CRLF, rounded up.
const LONGEST: usize = 24;
const LENGTH: usize = 2 * LONGEST;
/// Where the number ends and CRLF begins.
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

    /// A number given in hundredths: `1050` is `10.5`.
    pub fn hundredths(number: u64) -> Decimal {
        let mut decimal = Decimal { bytes: EMPTY, start: END };
        let end = decimals(&mut decimal.bytes, (number % 100) as usize);
        decimal.start = digits(&mut decimal.bytes, end, number / 100);
        decimal
    }

    /// The number, CRLF and padding, and the length of the number.
    pub(crate) fn padded(&self) -> (&[u8; LONGEST], usize) {
        let bytes = self.bytes[self.start..].first_chunk().expect("the longest number begins that long before the end");
        (bytes, END - self.start)
    }
}

/// Writes the decimals with their point, if there are any; returns where they start.
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

/// Writes a number that ends at `end`; returns where it starts.
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
