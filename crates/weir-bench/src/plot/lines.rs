use super::{
    PUBLISHED,
    axis::{Axis, Scale, Unit},
    svg::{FAINT, GRID, INK, Svg, TextAnchor, width_of},
};

/// A figure of lines over a common axis.
#[derive(Clone, Debug)]
pub struct LineFigure {
    pub title: String,
    pub x: (String, Scale, Unit),
    pub y: (String, Scale, Unit),
    pub series: Vec<Series>,
    pub marks: Vec<PlotMark>,
    pub width: f64,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub colour: &'static str,
    pub dashed: bool,
    /// Draws circles at the points: for measured levels, not for curves.
    pub dots: bool,
    pub points: Vec<(f64, f64)>,
    /// The interval of each point, if there is one.
    pub band: Vec<(f64, f64, f64)>,
}

/// A published figure for comparison: at a position, or across the whole axis if its position is unknown.
#[derive(Clone, Debug)]
pub struct PlotMark {
    pub name: String,
    pub x: Option<f64>,
    pub y: f64,
}

const HEIGHT: f64 = 320.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 22.0;
const BOTTOM: f64 = 48.0;

impl LineFigure {
    pub fn svg(&self) -> String {
        let legend = legend_rows(self);
        let top = 58.0 + legend.len() as f64 * 18.0;
        let height = HEIGHT + top;
        let mut svg = Svg::new(self.width, height, &self.title);
        let marks = self.marks.iter();
        let xs = self.series.iter().flat_map(|one| one.points.iter().map(|point| point.0));
        let x = Axis::around(
            self.x.1,
            xs.chain(marks.clone().filter_map(|mark| mark.x)),
            LEFT + 10.0,
            self.width - RIGHT - 10.0,
        );
        let ys = self.series.iter().flat_map(|one| {
            one.points.iter().map(|point| point.1).chain(one.band.iter().flat_map(|band| [band.1, band.2]))
        });
        let bottom = height - BOTTOM;
        let y = Axis::around(self.y.1, ys.chain(marks.map(|mark| mark.y)), bottom, top);
        svg.text((LEFT - 58.0, 22.0), TextAnchor::Start, "font-size=\"15\" font-weight=\"600\"", INK, &self.title);
        for (row, entries) in legend.iter().enumerate() {
            let mut place = LEFT - 58.0;
            for (name, colour, dashed) in entries {
                let line = 42.0 + row as f64 * 18.0;
                if *colour == PUBLISHED {
                    svg.diamond((place + 9.0, line - 4.0), colour, name);
                } else {
                    svg.line(
                        (place, line - 4.0),
                        (place + 18.0, line - 4.0),
                        colour,
                        3.0,
                        if *dashed { "5 4" } else { "" },
                    );
                }
                svg.text((place + 24.0, line), TextAnchor::Start, "", INK, name);
                place += 24.0 + width_of(name) + 18.0;
            }
        }
        grid(&mut svg, self, &x, &y, (top, bottom));
        self.draw(&mut svg, &x, &y);
        svg.finish()
    }

    fn draw(&self, svg: &mut Svg, x: &Axis, y: &Axis) {
        for mark in &self.marks {
            let hover = format!("{}: {}", mark.name, self.y.2.label(mark.y));
            match mark.x {
                Some(at) => svg.diamond((x.place(at), y.place(mark.y)), PUBLISHED, &hover),
                None => {
                    let at = y.place(mark.y);
                    svg.line((LEFT, at), (self.width - RIGHT, at), PUBLISHED, 1.4, "2 4");
                }
            }
        }
        for one in &self.series {
            let above = one.band.iter().map(|band| (x.place(band.0), y.place(band.2)));
            let below = one.band.iter().rev().map(|band| (x.place(band.0), y.place(band.1)));
            let area: Vec<_> = above.chain(below).collect();
            if !area.is_empty() {
                svg.area(&area, one.colour);
            }
        }
        for one in &self.series {
            let points: Vec<_> = one.points.iter().map(|point| (x.place(point.0), y.place(point.1))).collect();
            svg.path(&points, one.colour, 2.2, if one.dashed { "6 5" } else { "" });
            for (point, place) in one.points.iter().zip(&points).filter(|_| one.dots) {
                let hover = format!("{}: {} at {}", one.name, self.y.2.label(point.1), self.x.2.label(point.0));
                svg.circle(*place, 4.0, one.colour, &hover);
            }
            // A curve has no dots, so hover areas are added to its points, at least as far apart as a pointer can distinguish.
            let mut free_from = f64::NEG_INFINITY;
            for (point, place) in one.points.iter().zip(&points).filter(|_| !one.dots) {
                if place.0 >= free_from {
                    let hover = format!("{}: {} at {}", one.name, self.y.2.label(point.1), self.x.2.label(point.0));
                    svg.target(*place, 7.0, one.colour, &hover);
                    free_from = place.0 + 6.0;
                }
            }
        }
    }
}

fn grid(svg: &mut Svg, figure: &LineFigure, x: &Axis, y: &Axis, (top, bottom): (f64, f64)) {
    let right = figure.width - RIGHT;
    for tick in y.ticks(figure.y.2) {
        let at = y.place(tick);
        svg.line((LEFT, at), (right, at), GRID, 1.0, "");
        svg.text((LEFT - 8.0, at + 4.0), TextAnchor::End, "", FAINT, &figure.y.2.label(tick));
    }
    let mut free_from = f64::NEG_INFINITY;
    for tick in x.ticks(figure.x.2) {
        let (at, label) = (x.place(tick), figure.x.2.label(tick));
        svg.line((at, top), (at, bottom), GRID, 1.0, "");
        let half = width_of(&label) / 2.0;
        if at - half > free_from {
            svg.text((at, bottom + 18.0), TextAnchor::Middle, "", FAINT, &label);
            free_from = at + half + 6.0;
        }
    }
    svg.line((LEFT, bottom), (right, bottom), FAINT, 1.0, "");
    svg.text(((LEFT + right) / 2.0, bottom + 38.0), TextAnchor::Middle, "", FAINT, &figure.x.0);
    svg.text((LEFT - 58.0, top - 9.0), TextAnchor::Start, "", FAINT, &figure.y.0);
}

type LegendEntry = (String, &'static str, bool);

/// The rows of the legend, with as many entries as fit.
fn legend_rows(figure: &LineFigure) -> Vec<Vec<LegendEntry>> {
    let series = figure.series.iter().map(|one| (one.name.clone(), one.colour, one.dashed));
    let mut names: Vec<&str> = figure.marks.iter().map(|mark| mark.name.as_str()).collect();
    names.dedup();
    let marks = names.into_iter().map(|name| (name.to_owned(), PUBLISHED, false));
    let mut rows: Vec<Vec<LegendEntry>> = vec![Vec::new()];
    let mut used = 0.0;
    for entry in series.chain(marks) {
        let width = 42.0 + width_of(&entry.0);
        if used + width > figure.width - 40.0 && used > 0.0 {
            rows.push(Vec::new());
            used = 0.0;
        }
        used += width;
        rows.last_mut().expect("there is always a row").push(entry);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_every_series_and_mark_and_escapes_names() {
        let figure = LineFigure {
            title: "a < b".to_owned(),
            x: ("clients".to_owned(), Scale::Log, Unit::Count),
            y: ("requests/s".to_owned(), Scale::Linear, Unit::Count),
            series: vec![Series {
                name: "weir".to_owned(),
                colour: super::super::colour("weir"),
                dashed: false,
                dots: true,
                points: vec![(10.0, 1_000.0), (100.0, 20_000.0)],
                band: vec![(10.0, 900.0, 1_100.0), (100.0, 19_000.0, 21_000.0)],
            }],
            marks: vec![PlotMark { name: "published".to_owned(), x: Some(100.0), y: 15_000.0 }],
            width: 500.0,
        };
        let svg = figure.svg();
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains("published") && svg.ends_with("</svg>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn a_figure_without_data_is_still_a_figure() {
        let figure = LineFigure {
            title: "nothing".to_owned(),
            x: (String::new(), Scale::Log, Unit::Count),
            y: (String::new(), Scale::Log, Unit::Milliseconds),
            series: Vec::new(),
            marks: Vec::new(),
            width: 500.0,
        };
        assert!(!figure.svg().contains("NaN"));
    }
}
