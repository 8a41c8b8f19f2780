//! Tables of figures that fit the terminal.

use std::cmp::Ordering;

use super::figures::{EndpointFigures, LogFigures, NodeFigures, PluginFigures, RouteFigures};
use super::format::{bytes, count, seconds, shortened};

/// The table shown below the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Routes,
    Endpoints,
    Plugins,
    Logs,
}

impl View {
    pub(super) const ALL: [View; 4] = [View::Routes, View::Endpoints, View::Plugins, View::Logs];

    pub(super) fn title(self) -> &'static str {
        match self {
            View::Routes => "Routes",
            View::Endpoints => "Endpoints",
            View::Plugins => "Plugins",
            View::Logs => "Log destinations",
        }
    }

    pub(super) fn next(self) -> View {
        let at = View::ALL.iter().position(|view| *view == self).unwrap_or(0);
        View::ALL[(at + 1) % View::ALL.len()]
    }

    pub(super) fn table(self, figures: &NodeFigures) -> FigureTable {
        match self {
            View::Routes => FigureTable {
                titles: &["route", "responses/s", "4xx/s", "5xx/s", "p50", "p99", "sent/s"],
                rows: figures.routes.iter().map(of_route).collect(),
            },
            View::Endpoints => FigureTable {
                titles: &["upstream", "endpoint", "state"],
                rows: figures.endpoints.iter().map(of_endpoint).collect(),
            },
            View::Plugins => FigureTable {
                titles: &["route", "plugin", "CPU per call", "waited per call", "refusals/s", "errors/s"],
                rows: figures.plugins.iter().map(of_plugin).collect(),
            },
            View::Logs => FigureTable {
                titles: &["log destination", "state", "delivered/s", "pending", "lost"],
                rows: figures.sinks.iter().map(of_sink).collect(),
            },
        }
    }
}

fn of_route(route: &RouteFigures) -> Vec<TableCell> {
    vec![
        TableCell::Text(route.route.clone()),
        TableCell::Count(route.responses),
        TableCell::Count(route.client_errors),
        TableCell::Count(route.server_errors),
        TableCell::Seconds(route.p50),
        TableCell::Seconds(route.p99),
        TableCell::Bytes(route.sent),
    ]
}

fn of_endpoint(endpoint: &EndpointFigures) -> Vec<TableCell> {
    vec![
        TableCell::Text(endpoint.upstream.clone()),
        TableCell::Text(endpoint.endpoint.clone()),
        TableCell::state(endpoint.is_up),
    ]
}

fn of_plugin(plugin: &PluginFigures) -> Vec<TableCell> {
    vec![
        TableCell::Text(plugin.route.clone()),
        TableCell::Text(plugin.plugin.clone()),
        TableCell::Seconds(plugin.cpu),
        TableCell::Seconds(plugin.waited),
        TableCell::Count(plugin.refusals),
        TableCell::Count(plugin.errors),
    ]
}

fn of_sink(sink: &LogFigures) -> Vec<TableCell> {
    vec![
        TableCell::Text(sink.sink.clone()),
        TableCell::state(sink.is_up),
        TableCell::Count(sink.delivered),
        TableCell::Count(sink.pending),
        TableCell::Count(sink.lost),
    ]
}

pub(super) struct FigureTable {
    pub titles: &'static [&'static str],
    pub rows: Vec<Vec<TableCell>>,
}

#[derive(Clone, Debug)]
pub(super) enum TableCell {
    Text(String),
    Count(f64),
    Seconds(Option<f64>),
    Bytes(f64),
}

impl TableCell {
    fn state(is_up: bool) -> TableCell {
        TableCell::Text(if is_up { "up" } else { "down" }.to_owned())
    }

    fn text(&self) -> String {
        match self {
            TableCell::Text(text) => text.clone(),
            TableCell::Count(value) => count(*value),
            TableCell::Seconds(value) => value.map_or_else(|| "-".to_owned(), seconds),
            TableCell::Bytes(value) => bytes(*value),
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            TableCell::Text(_) => None,
            TableCell::Count(value) | TableCell::Bytes(value) => Some(*value),
            TableCell::Seconds(value) => Some(value.unwrap_or(-1.0)),
        }
    }

    /// The order for sorting: texts ascending, numbers descending.
    fn order(&self, other: &TableCell) -> Ordering {
        match (self.number(), other.number()) {
            (Some(one), Some(another)) => another.total_cmp(&one),
            _ => self.text().cmp(&other.text()),
        }
    }
}

impl FigureTable {
    pub(super) fn sorted(mut self, column: usize, is_reversed: bool) -> FigureTable {
        self.rows.sort_by(|one, another| {
            let order = one[column].order(&another[column]);
            if is_reversed { order.reverse() } else { order }
        });
        self
    }

    /// Keeps the rows with a text cell that contains this text.
    pub(super) fn filtered(mut self, filter: &str) -> FigureTable {
        self.rows.retain(|row| row.iter().any(|cell| matches!(cell, TableCell::Text(text) if text.contains(filter))));
        self
    }

    /// The titles and the rows, cut to `width`: first texts are shortened, then the last columns are left out.
    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(TableCell::text).collect()).collect();
        let is_text = |column: usize| self.rows.first().is_some_and(|row| matches!(row[column], TableCell::Text(_)));
        let mut widths: Vec<usize> = self
            .titles
            .iter()
            .enumerate()
            .map(|(column, title)| {
                let longest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
                longest.max(title.chars().count())
            })
            .collect();
        let all = |widths: &[usize]| widths.iter().sum::<usize>().saturating_add(2 * widths.len().saturating_sub(1));
        for column in 0..widths.len() {
            let excess = all(&widths).saturating_sub(width);
            if is_text(column) {
                widths[column] = widths[column].saturating_sub(excess).max(widths[column].min(LEAST_TEXT));
            }
        }
        while widths.len() > 1 && all(&widths) > width {
            widths.pop();
        }
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells = cells.zip(&widths).enumerate();
            let padded = cells.map(|(column, (cell, width))| {
                let cell = shortened(cell, *width);
                if is_text(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            let line = padded.collect::<Vec<_>>().join("  ");
            shortened(line.trim_end(), width)
        };
        let titles = line(&mut self.titles.iter().copied());
        std::iter::once(titles).chain(rows.iter().map(|row| line(&mut row.iter().map(String::as_str)))).collect()
    }
}

/// Text columns are not cut below this width while other columns can be left out.
const LEAST_TEXT: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> FigureTable {
        let row = |name: &str, rate, p99| {
            vec![TableCell::Text(name.to_owned()), TableCell::Count(rate), TableCell::Seconds(p99)]
        };
        let rows = vec![row("a-route-with-a-long-name", 2.0, Some(0.0012)), row("b", 1_234.0, None)];
        FigureTable { titles: &["route", "responses/s", "p99"], rows }
    }

    #[test]
    fn lines_fit_the_width() {
        let lines = table().lines(100);
        assert_eq!(lines[0], "route                     responses/s     p99");
        assert_eq!(lines[1], "a-route-with-a-long-name            2  1.2 ms");
        for width in 1..60 {
            for line in table().lines(width) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
        assert_eq!(table().lines(34)[1], "a-route-with…            2  1.2 ms");
        assert_eq!(table().lines(26)[1], "a-route-wit…            2");
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let first = |table: FigureTable| table.rows[0][0].text();
        assert_eq!(first(table().sorted(1, false)), "b");
        assert_eq!(first(table().sorted(1, true)), "a-route-with-a-long-name");
        assert_eq!(first(table().sorted(2, false)), "a-route-with-a-long-name");
        assert_eq!(table().filtered("long").rows.len(), 1);
    }
}
