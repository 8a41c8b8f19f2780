//! Whether the duration of an operation reveals the class of its input: Welch's t-test over two classes, measured in
//! this process in random order, as in dudect (Reparaz, Balasch, Verbauwhede, 2017).

use std::hint::black_box;
use std::time::Instant;

use crate::scaled;

/// A larger t value is a difference. By chance alone it occurs once in some 100,000 runs. Other processes do not make
/// it more likely: because of the random order, they affect both classes alike.
const THRESHOLD: f64 = 4.5;
/// The number of measurements per thousand that are used: the fastest ones, which were not interrupted.
const UNDISTURBED: usize = 900;

/// Pseudo-random numbers, the same in every run.
pub struct Random(u64);

impl Random {
    /// A sequence that depends on the seed.
    pub fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// SplitMix64.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Letters and digits.
    pub fn text<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        std::array::from_fn(|_| b"0123456789abcdefghijklmnopqrstuv"[self.number() as usize % 32])
    }

    /// The same, with a random number of its first characters as in `text`, but never all.
    pub fn beginning_as<const LENGTH: usize>(&mut self, text: &[u8; LENGTH]) -> [u8; LENGTH] {
        let mut other = self.text::<LENGTH>();
        let shared = self.number() as usize % LENGTH;
        other[..shared].copy_from_slice(&text[..shared]);
        if other == *text {
            other[LENGTH - 1] ^= 1;
        }
        other
    }
}

/// Panics if the time of `what` distinguishes the inputs of two classes: one test, over all samples. `input` makes an
/// input of a class, which contains its bytes, so that those of all inputs are copied to the same address.
#[track_caller]
pub fn assert_same_time<I: Copy>(name: &str, mut input: impl FnMut(bool, &mut Random) -> I, mut what: impl FnMut(&I)) {
    let samples = scaled(10_000, 300_000);
    let t = t_of(samples, &mut Random(7), &mut input, &mut what);
    println!("{name}: t = {t:.2} over {samples} samples");
    assert!(t.abs() < THRESHOLD, "{name}: the time tells them apart, t = {t:.2} over {samples} samples");
}

fn t_of<I: Copy>(
    samples: usize,
    random: &mut Random,
    input: &mut impl FnMut(bool, &mut Random) -> I,
    what: &mut impl FnMut(&I),
) -> f64 {
    // Made in advance, so that making them is not measured.
    let inputs: Vec<(bool, I)> = (0..samples)
        .map(|_| {
            let class = random.number() & 1 == 1;
            (class, input(class, random))
        })
        .collect();
    let mut took = inputs.iter().map(|&(class, input)| {
        let input = black_box(input);
        let began = Instant::now();
        what(&input);
        (class, began.elapsed().as_nanos() as f64)
    });
    // The first tenth is discarded, because of cold caches.
    let took: Vec<(bool, f64)> = took.by_ref().skip(samples / 10).collect();
    let mut sorted: Vec<f64> = took.iter().map(|(_, ns)| *ns).collect();
    sorted.sort_by(f64::total_cmp);
    let most = sorted[sorted.len() * UNDISTURBED / 1000];
    let of = |wanted: bool| took.iter().filter(move |(class, ns)| *class == wanted && *ns <= most).map(|(_, ns)| *ns);
    let summary = |wanted: bool| {
        let count = of(wanted).count() as f64;
        let mean = of(wanted).sum::<f64>() / count;
        (mean, of(wanted).map(|ns| (ns - mean).powi(2)).sum::<f64>() / (count - 1.0) / count)
    };
    let ((left, left_error), (right, right_error)) = (summary(false), summary(true));
    (left - right) / (left_error + right_error).sqrt()
}

#[test]
fn a_difference_is_seen() {
    let mut turns = |turns: &usize| _ = black_box((0..*turns).fold(1, |sum: usize, turn| black_box(sum ^ turn)));
    let t = t_of(10_000, &mut Random(7), &mut |class, _| if class { 60 } else { 50 }, &mut turns);
    assert!(t < -THRESHOLD, "ten more turns of a loop are a difference, t = {t}");
}
