//! Figures as SVG text. Pure: this module positions every element.

mod axis;
mod bars;
mod flame;
mod lines;
mod svg;

pub use self::{
    axis::{Scale, Unit},
    bars::{Bar, BarFigure, holds_zero},
    flame::flame_graph,
    lines::{LineFigure, PlotMark, Series},
    svg::{escape, standalone},
};

/// The colours of targets, distinguishable in print and for colour-blind readers; `none` is grey.
pub fn colour(target: &str) -> &'static str {
    match target {
        "weir" => "#0b7285",
        "nginx" => "#e8590c",
        "haproxy" => "#3b5bdb",
        "envoy" => "#9c36b5",
        "traefik" => "#2b8a3e",
        "caddy" => "#c2255c",
        "apisix" => "#e67700",
        "kong" => "#1864ab",
        "krakend" => "#5c940d",
        "none" => "#868e96",
        other => {
            let letters =
                other.bytes().fold(0_usize, |sum, letter| sum.wrapping_mul(31).wrapping_add(usize::from(letter)));
            OTHERS[letters % OTHERS.len()]
        }
    }
}

/// The colours of other targets.
const OTHERS: [&str; 7] = ["#0b7285", "#e8590c", "#3b5bdb", "#9c36b5", "#2b8a3e", "#c2255c", "#5f3dc4"];

/// The colour of published figures.
pub const PUBLISHED: &str = "#c92a2a";

/// The width of a figure that fills the page.
pub const WIDTH: f64 = 720.0;
/// The width of a figure that shares a line with another.
pub const HALF: f64 = 540.0;
