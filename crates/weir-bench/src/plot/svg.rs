use std::fmt::Write as _;

/// An SVG text under construction, with sizes in pixels.
pub(super) struct Svg {
    text: String,
}

pub(super) const FONT: &str = "Inter, 'Segoe UI', 'DejaVu Sans', 'Liberation Sans', sans-serif";
const PAPER: &str = "#ffffff";
pub(super) const INK: &str = "#212529";
pub(super) const FAINT: &str = "#6c757d";
pub(super) const GRID: &str = "#e9ecef";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TextAnchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Svg {
        let mut text = String::new();
        let _ = write!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\" font-family=\"{FONT}\" font-size=\"12\"><title>{}</title>\
             <rect width=\"100%\" height=\"100%\" fill=\"{PAPER}\"/>",
            escape(title)
        );
        Svg { text }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64, dash: &str) {
        let _ = write!(
            self.text,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"{}/>",
            from.0,
            from.1,
            to.0,
            to.1,
            dashes(dash)
        );
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], colour: &str, width: f64, dash: &str) {
        let _ = write!(
            self.text,
            "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\" \
             stroke-linecap=\"round\"{}/>",
            trace(points),
            dashes(dash)
        );
    }

    pub(super) fn area(&mut self, points: &[(f64, f64)], colour: &str) {
        let _ = write!(self.text, "<path d=\"{}Z\" fill=\"{colour}\" fill-opacity=\"0.14\"/>", trace(points));
    }

    pub(super) fn circle(&mut self, at: (f64, f64), radius: f64, colour: &str, hover: &str) {
        let _ = write!(
            self.text,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{colour}\" stroke=\"#ffffff\" stroke-width=\"1.2\">\
             <title>{}</title></circle>",
            at.0,
            at.1,
            escape(hover)
        );
    }

    /// An invisible area that shows a value on hover.
    pub(super) fn target(&mut self, at: (f64, f64), radius: f64, colour: &str, hover: &str) {
        let _ = write!(
            self.text,
            "<circle class=\"hover\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{colour}\" fill-opacity=\"0\">\
             <title>{}</title></circle>",
            at.0,
            at.1,
            escape(hover)
        );
    }

    pub(super) fn diamond(&mut self, at: (f64, f64), colour: &str, hover: &str) {
        let (x, y) = at;
        let _ = write!(
            self.text,
            "<path d=\"M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}Z\" fill=\"#ffffff\" stroke=\"{colour}\" \
             stroke-width=\"2\"><title>{}</title></path>",
            x - 6.0,
            y - 6.0,
            x + 6.0,
            y + 6.0,
            escape(hover)
        );
    }

    pub(super) fn rect(&mut self, at: (f64, f64), size: (f64, f64), colour: &str, hover: &str) {
        let _ = write!(
            self.text,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" fill=\"{colour}\"><title>{}</title></rect>",
            at.0,
            at.1,
            size.0.max(0.0),
            size.1,
            escape(hover)
        );
    }

    pub(super) fn text(&mut self, at: (f64, f64), anchor: TextAnchor, style: &str, colour: &str, words: &str) {
        let anchor = match anchor {
            TextAnchor::Start => "start",
            TextAnchor::Middle => "middle",
            TextAnchor::End => "end",
        };
        let _ = write!(
            self.text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\" {style}>{}</text>",
            at.0,
            at.1,
            escape(words)
        );
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>");
        self.text
    }
}

fn trace(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
    }
    path
}

fn dashes(dash: &str) -> String {
    if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") }
}

/// The same figure as a file of its own, which is dark where the reader's system is.
pub fn standalone(svg: &str) -> String {
    let dark =
        |colour: &str, dark: &str| format!("[fill=\"{colour}\"]{{fill:{dark}}}[stroke=\"{colour}\"]{{stroke:{dark}}}");
    let colours = [(PAPER, "#0d1117"), (INK, "#f0f6fc"), (FAINT, "#9198a1"), (GRID, "#30363d")];
    let rules: String = colours.iter().map(|(light, at_night)| dark(light, at_night)).collect();
    let style = format!("<style>@media (prefers-color-scheme: dark){{{rules}}}</style>");
    svg.replacen("</title>", &format!("</title>{style}"), 1)
}

/// Escapes text for SVG and HTML.
pub fn escape(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

/// The approximate width of text with 12 pixels.
pub(super) fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * 6.6
}
