use super::{
    PUBLISHED,
    axis::{Axis, Scale, Unit},
    svg::{FAINT, GRID, INK, Svg, TextAnchor, width_of},
};

/// Horizontal bars with intervals, in groups.
#[derive(Clone, Debug)]
pub struct BarFigure {
    pub title: String,
    pub axis: (String, Unit),
    /// Each group with its name; an empty name is not drawn.
    pub groups: Vec<(String, Vec<Bar>)>,
    pub width: f64,
}

#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    pub colour: &'static str,
    pub value: f64,
    pub interval: Option<(f64, f64)>,
    /// A published value, with the name of its source.
    pub published: Option<(String, f64)>,
    /// A text instead of the bar: why there is no value.
    pub absent: Option<String>,
}

const BAR: f64 = 17.0;
const GAP: f64 = 6.0;
const RIGHT: f64 = 86.0;

/// Whether an interval contains 0.
pub fn holds_zero((low, high): (f64, f64)) -> bool {
    low <= 0.0 && high >= 0.0
}

impl BarFigure {
    pub fn svg(&self) -> String {
        let bars = || self.groups.iter().flat_map(|(_, bars)| bars);
        let left = 30.0 + bars().map(|bar| width_of(&bar.name)).fold(40.0, f64::max);
        let rows: f64 = self
            .groups
            .iter()
            .map(|(name, bars)| bars.len() as f64 * (BAR + GAP) + if name.is_empty() { 8.0 } else { 34.0 })
            .sum();
        let has_published = bars().any(|bar| bar.published.is_some());
        let top = if has_published { 58.0 } else { 40.0 };
        let height = top + rows + 44.0;
        let mut svg = Svg::new(self.width, height, &self.title);
        svg.text((16.0, 22.0), TextAnchor::Start, "font-size=\"15\" font-weight=\"600\"", INK, &self.title);
        if has_published {
            svg.diamond((24.0, 41.0), PUBLISHED, "published");
            svg.text((38.0, 45.0), TextAnchor::Start, "", INK, "published, on another machine");
        }
        let values = bars().filter(|bar| bar.absent.is_none()).flat_map(|bar| {
            let published = bar.published.as_ref().map(|(_, value)| *value);
            [
                Some(bar.value),
                bar.interval.map(|interval| interval.0),
                bar.interval.map(|interval| interval.1),
                published,
            ]
        });
        let axis = Axis::around(Scale::Linear, values.flatten(), left, self.width - RIGHT);
        let bottom = top + rows;
        for tick in axis.ticks(self.axis.1) {
            let at = axis.place(tick);
            svg.line((at, top), (at, bottom), GRID, 1.0, "");
            svg.text((at, bottom + 16.0), TextAnchor::Middle, "", FAINT, &self.axis.1.label(tick));
        }
        svg.text(((left + self.width - RIGHT) / 2.0, bottom + 34.0), TextAnchor::Middle, "", FAINT, &self.axis.0);
        let mut line = top;
        for (name, bars) in &self.groups {
            if !name.is_empty() {
                svg.text((16.0, line + 18.0), TextAnchor::Start, "font-weight=\"600\"", INK, name);
            }
            line += if name.is_empty() { 8.0 } else { 26.0 };
            let first = line;
            for bar in bars {
                self.bar(&mut svg, bar, &axis, left, line);
                line += BAR + GAP;
            }
            // Drawn only next to the bars, so that it does not cross the names of groups.
            svg.line((axis.place(0.0), first - 3.0), (axis.place(0.0), line - 3.0), FAINT, 1.0, "");
            if !name.is_empty() {
                line += 8.0;
            }
        }
        svg.finish()
    }

    fn bar(&self, svg: &mut Svg, bar: &Bar, axis: &Axis, left: f64, line: f64) {
        let middle = line + BAR / 2.0;
        svg.text((left - 8.0, middle + 4.0), TextAnchor::End, "", INK, &bar.name);
        if let Some(words) = &bar.absent {
            svg.text((left + 6.0, middle + 4.0), TextAnchor::Start, "font-style=\"italic\"", FAINT, words);
            return;
        }
        let sign = if bar.interval.is_some_and(holds_zero) { "≈ " } else { "" };
        let label = format!("{sign}{}", self.axis.1.label(bar.value));
        let (from, to) = (axis.place(0.0).min(axis.place(bar.value)), axis.place(0.0).max(axis.place(bar.value)));
        svg.rect((from, line), (to - from, BAR), bar.colour, &format!("{}: {label}", bar.name));
        let mut end = to;
        if let Some((low, high)) = bar.interval {
            let (low, high) = (axis.place(low), axis.place(high));
            svg.line((low, middle), (high, middle), INK, 1.4, "");
            for at in [low, high] {
                svg.line((at, middle - 4.0), (at, middle + 4.0), INK, 1.4, "");
            }
            end = end.max(high);
        }
        if let Some((name, value)) = &bar.published {
            let at = axis.place(*value);
            svg.diamond((at, middle), PUBLISHED, &format!("{name}: {}", self.axis.1.label(*value)));
            // The label is moved beyond the mark only if the two would overlap.
            if at + 8.0 > end && at - 10.0 < end + 8.0 + width_of(&label) {
                end = at + 6.0;
            }
        }
        svg.text((end + 8.0, middle + 4.0), TextAnchor::Start, "font-weight=\"600\"", INK, &label);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_reasons_for_their_absence() {
        let bar = |name: &str, value, absent: Option<&str>| Bar {
            name: name.to_owned(),
            colour: "#000000",
            value,
            interval: Some((value - 0.5, value + 0.5)),
            published: Some(("other".to_owned(), 7.35)),
            absent: absent.map(str::to_owned),
        };
        let figure = BarFigure {
            title: "Cost".to_owned(),
            axis: ("CPU per request".to_owned(), Unit::Microseconds),
            groups: vec![(
                "key-auth".to_owned(),
                vec![bar("weir", 0.6, None), bar("none", 0.0, Some("not supported"))],
            )],
            width: 500.0,
        };
        let svg = figure.svg();
        assert!(svg.contains("0.6 µs") && svg.contains("not supported") && !svg.contains("NaN"));
    }
}
