//! A flame graph: each frame of a stack is as wide as its share of the samples, and lies below its caller.

use std::collections::BTreeMap;

use super::svg::{INK, Svg, TextAnchor};
use crate::stacks::DEEPEST_STACK;

const WIDTH: f64 = 1_080.0;
const ROW: f64 = 17.0;
const TOP: f64 = 30.0;
/// Narrower frames are not drawn, in pixels.
const NARROWEST: f64 = 1.0;
/// The width of a letter, for how much of a name there is room.
const LETTER: f64 = 7.0;
/// The fewest letters that tell something.
const FEWEST_LETTERS: usize = 3;
/// Dark in a dark page as well, where [`INK`] is light: frames are not.
const LABEL: &str = "#1b1f24";
const WARM: [&str; 5] = ["#ffd8a8", "#ffc078", "#ffe066", "#ffa94d", "#fcc2a0"];

/// A frame, and what it called.
#[derive(Default)]
struct Flame<'a> {
    samples: u64,
    callees: BTreeMap<&'a str, Flame<'a>>,
}

impl<'a> Flame<'a> {
    fn of(stacks: &'a BTreeMap<String, u64>) -> Flame<'a> {
        let mut root = Flame::default();
        for (stack, count) in stacks {
            root.samples = root.samples.saturating_add(*count);
            let mut flame = &mut root;
            // A file may claim any depth, and each frame below takes some of the stack of this process.
            for frame in stack.split(';').take(DEEPEST_STACK) {
                flame = flame.callees.entry(frame).or_default();
                flame.samples = flame.samples.saturating_add(*count);
            }
        }
        root
    }

    /// The rows of frames that are wide enough, when this one has so many pixels.
    fn depth(&self, width: f64) -> usize {
        let below = self.callees.values().map(|one| {
            let narrower = width * one.samples as f64 / self.samples.max(1) as f64;
            if narrower < NARROWEST { 0 } else { 1 + one.depth(narrower) }
        });
        below.max().unwrap_or(0)
    }

    fn draw(&self, svg: &mut Svg, (from, width): (f64, f64), row: usize, all: u64) {
        let mut x = from;
        for (name, flame) in &self.callees {
            let wide = width * flame.samples as f64 / self.samples.max(1) as f64;
            if wide >= NARROWEST {
                let y = TOP + row as f64 * ROW;
                let share = 100.0 * flame.samples as f64 / all.max(1) as f64;
                let hover = format!("{name}: {share:.1} % of {all} samples");
                let colour = WARM[name.bytes().map(usize::from).sum::<usize>() % WARM.len()];
                svg.rect((x, y), (wide - 0.5, ROW - 1.0), colour, &hover);
                let letters = ((wide - 6.0) / LETTER).max(0.0) as usize;
                if letters >= FEWEST_LETTERS {
                    svg.text((x + 3.0, y + ROW - 5.0), TextAnchor::Start, "", LABEL, &shortened(name, letters));
                }
                flame.draw(svg, (x, wide), row + 1, all);
            }
            x += wide;
        }
    }
}

/// The end of a name tells more than its beginning, which is the module.
fn shortened(name: &str, most: usize) -> String {
    let count = name.chars().count();
    if count <= most {
        name.to_owned()
    } else {
        ['…'].into_iter().chain(name.chars().skip(count - most + 1)).collect()
    }
}

/// Draws folded stacks: frames from the outermost, separated by `;`, and their samples.
pub fn flame_graph(title: &str, stacks: &BTreeMap<String, u64>) -> String {
    let root = Flame::of(stacks);
    let mut svg = Svg::new(WIDTH, TOP + root.depth(WIDTH) as f64 * ROW + 6.0, title);
    svg.text((4.0, 18.0), TextAnchor::Start, "", INK, title);
    root.draw(&mut svg, (0.0, WIDTH), 0, root.samples);
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_wide_as_their_share_and_tiny_ones_are_left_out() {
        let stacks: BTreeMap<String, u64> =
            [("w;serve;read", 2_000), ("w;serve;write <a>", 999), ("w;rare", 1)].map(|(s, n)| (s.to_owned(), n)).into();
        let svg = flame_graph("weir · GET", &stacks);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
        assert!(svg.contains("read: 66.7 % of 3000 samples") && svg.contains("serve: 100.0 %"), "{svg}");
        assert!(svg.contains("write &lt;a&gt;") && !svg.contains("rare:"), "{svg}");
        assert_eq!(shortened("weir_gateway::serve::relay", 9), "…e::relay");
    }
}
