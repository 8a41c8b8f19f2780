//! Weighted random: each pick is independent of all others. By Vose's alias method a pick costs two random numbers and one
//! table access, however many endpoints there are.

use super::dice::BalancerRandom;
use super::seats;
use crate::snapshot::seats::WeightedEndpoint;

pub(super) struct WeightedRandom {
    seats: Box<[WeightedEndpoint]>,
    columns: Box<[AliasColumn]>,
}

/// All columns are equally likely; in a column its own seat has the probability `own` / 2^32, and seat `other` the rest.
#[derive(Clone, Copy)]
struct AliasColumn {
    own: u64,
    other: u32,
}

/// A column that is its own seat's entirely.
const WHOLE: u64 = 1 << 32;

impl WeightedRandom {
    pub(super) fn new(seats: Vec<WeightedEndpoint>) -> WeightedRandom {
        WeightedRandom { columns: columns(&seats), seats: seats.into() }
    }

    pub(super) fn pick(&self, dice: &BalancerRandom, usable: &impl Fn(usize) -> bool) -> Option<usize> {
        let drawn = || {
            let column = dice.below(self.columns.len() as u64) as usize;
            let AliasColumn { own, other } = self.columns[column];
            let seat = if dice.below(WHOLE) < own { column } else { other as usize };
            self.seats[seat].endpoint
        };
        seats::draw(drawn, |&endpoint| usable(endpoint)).or_else(|| seats::any(&self.seats, dice, usable))
    }
}

fn columns(seats: &[WeightedEndpoint]) -> Box<[AliasColumn]> {
    let total: u128 = seats.iter().map(|seat| u128::from(seat.weight)).sum();
    // As fractions of the mean weight, which fills one column.
    let mut parts: Vec<u64> = seats
        .iter()
        .map(|seat| (u128::from(seat.weight) * seats.len() as u128 * u128::from(WHOLE) / total) as u64)
        .collect();
    let mut columns: Box<[AliasColumn]> =
        (0..seats.len()).map(|seat| AliasColumn { own: WHOLE, other: seat as u32 }).collect();
    let (mut poor, mut rich): (Vec<usize>, Vec<usize>) = (0..seats.len()).partition(|&seat| parts[seat] < WHOLE);
    while let (Some(&giver), Some(taker)) = (rich.last(), poor.pop()) {
        columns[taker] = AliasColumn { own: parts[taker], other: giver as u32 };
        parts[giver] -= WHOLE - parts[taker];
        if parts[giver] < WHOLE {
            rich.pop();
            poor.push(giver);
        }
    }
    columns
}
