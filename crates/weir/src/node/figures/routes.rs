//! The figures of the busiest routes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use serde_json::{Map, Value, json};
use weir_telemetry::cell::HistogramTotals;
use weir_telemetry::routes::{OTHER, RouteTotals};

use super::sample::number;

/// The most routes with series of their own.
pub(super) const MOST_ROUTES: usize = 100;
/// The series of a route.
const NAMES: [&str; 4] = ["requests_per_second", "errors_per_second", "p50_ms", "p99_ms"];

/// The series of the routes that had the most requests.
#[derive(Default)]
pub(super) struct BusiestRoutes {
    series: HashMap<String, RouteSeries>,
    /// The responses of all routes at the last reading: all of them, and those with 5xx.
    counted: HashMap<String, (u64, u64)>,
    slots: usize,
}

struct RouteSeries {
    /// In the order of [`NAMES`], one for each slot, the latest last.
    values: VecDeque<[f32; 4]>,
    /// At the last reading; `None` if the route had no series then.
    duration: Option<HistogramTotals>,
}

impl RouteSeries {
    /// The requests of the history, in units that only compare.
    fn traffic(&self) -> f32 {
        self.values.iter().map(|[requests, ..]| requests).filter(|requests| requests.is_finite()).sum()
    }
}

impl BusiestRoutes {
    /// Takes the totals at the end of a slot.
    pub(super) fn take(&mut self, totals: &[(String, RouteTotals)], length: Duration, most_slots: usize) {
        let seconds = length.max(Duration::from_millis(1)).as_secs_f32();
        let is_first = self.slots == 0;
        let counted: HashMap<String, (u64, u64)> = totals.iter().map(|(name, of)| (name.clone(), counts(of))).collect();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f32 / seconds;
        let mut rows: Vec<(&str, [f32; 2], &RouteTotals)> = totals
            .iter()
            .filter(|(name, _)| name != OTHER)
            .map(|(name, of)| {
                let (all, errors) = counts(of);
                // What a route has counted before the first reading is of no interval.
                let unknown = if is_first { (all, errors) } else { (0, 0) };
                let (all_before, errors_before) = self.counted.get(name).copied().unwrap_or(unknown);
                (&**name, [rate(all, all_before), rate(errors, errors_before)], of)
            })
            .collect();
        rows.sort_by(|(_, [a, _], _), (_, [b, _], _)| b.total_cmp(a));
        self.series.retain(|name, _| counted.contains_key(name));
        for (name, rates, of) in rows {
            if !self.series.contains_key(name) && !self.make_room(rates[0]) {
                continue;
            }
            self.push(name, rates, of, most_slots);
        }
        self.counted = counted;
        self.slots = (self.slots + 1).min(most_slots);
    }

    /// Makes room for a route with so many requests per second, if it has more than the quietest one had in the whole history.
    fn make_room(&mut self, rate: f32) -> bool {
        if rate <= 0.0 {
            return false;
        }
        if self.series.len() < MOST_ROUTES {
            return true;
        }
        let traffic = self.series.iter().map(|(name, series)| (series.traffic(), name));
        let quietest = traffic.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(traffic, name)| (traffic, name.clone()));
        let Some((traffic, name)) = quietest.filter(|(traffic, _)| *traffic < rate) else { return false };
        debug_assert!(traffic < rate);
        self.series.remove(&name).is_some()
    }

    fn push(&mut self, name: &str, [requests, errors]: [f32; 2], of: &RouteTotals, most_slots: usize) {
        let missing =
            || RouteSeries { values: vec![[f32::NAN; 4]; self.slots.min(most_slots - 1)].into(), duration: None };
        let series = self.series.entry(name.to_owned()).or_insert_with(missing);
        let duration = series.duration.as_ref().map(|before| of.duration.since(before));
        let ms = |part: f64| {
            let ns = duration.as_ref().and_then(|duration| duration.quantile_ns(part));
            ns.map_or(f32::NAN, |ns| (ns / 1e6) as f32)
        };
        let values = [requests, errors, ms(0.5), ms(0.99)];
        if series.values.len() == most_slots {
            series.values.pop_front();
        }
        series.values.push_back(values);
        series.duration = Some(of.duration.clone());
    }

    /// The series of one route, or the latest value of all.
    pub(super) fn told(&self, route: Option<&str>) -> Value {
        let told = |series: &RouteSeries, all: bool| -> Value {
            let skipped = if all { 0 } else { series.values.len().saturating_sub(1) };
            let one = |index: usize| series.values.iter().skip(skipped).map(|values| number(values[index])).collect();
            let named: Map<String, Value> =
                NAMES.iter().enumerate().map(|(index, name)| ((*name).to_owned(), one(index))).collect();
            named.into()
        };
        match route {
            Some(route) => match self.series.get(route) {
                Some(series) => json!({ route: told(series, true) }),
                None => json!({}),
            },
            None => self
                .series
                .iter()
                .map(|(name, series)| (name.clone(), told(series, false)))
                .collect::<Map<_, _>>()
                .into(),
        }
    }
}

/// All responses, and those with 5xx.
fn counts(totals: &RouteTotals) -> (u64, u64) {
    (totals.responses.iter().sum(), totals.responses[4])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Duration = Duration::from_secs(10);

    fn totals(of: &[(&str, u64)]) -> Vec<(String, RouteTotals)> {
        let one = |(name, count): &(&str, u64)| {
            let totals = RouteTotals { responses: [0, *count, 0, 0, 0, 0], ..RouteTotals::default() };
            ((*name).to_owned(), totals)
        };
        of.iter().map(one).collect()
    }

    #[test]
    fn a_route_has_the_rates_of_each_slot() {
        let mut figures = BusiestRoutes::default();
        figures.take(&totals(&[("a", 1_000)]), SLOT, 3);
        assert_eq!(figures.told(None), json!({}), "what came before is of no slot");
        figures.take(&totals(&[("a", 1_050), ("b", 20), (OTHER, 9_000)]), SLOT, 3);
        assert_eq!(figures.told(Some("a"))["a"]["requests_per_second"], json!([null, 5]));
        assert_eq!(figures.told(Some("b"))["b"]["requests_per_second"], json!([null, 2]));
        for _ in 0..3 {
            figures.take(&totals(&[("a", 1_050), ("b", 20)]), SLOT, 3);
        }
        assert_eq!(figures.told(Some("a"))["a"]["requests_per_second"], json!([0, 0, 0]), "the oldest are forgotten");
        figures.take(&totals(&[("a", 1_050)]), SLOT, 3);
        assert_eq!(figures.told(Some("b")), json!({}), "the route is there no longer");
    }

    #[test]
    fn the_busiest_routes_have_series_and_no_more_than_there_is_room_for() {
        let mut figures = BusiestRoutes::default();
        figures.take(&[], SLOT, 3);
        let names: Vec<String> = (0..2 * MOST_ROUTES).map(|number| format!("r{number}")).collect();
        let busy = |least: usize| -> Vec<(String, RouteTotals)> {
            let of: Vec<(&str, u64)> = names
                .iter()
                .enumerate()
                .map(|(n, name)| (&**name, if n >= least { 10 + n as u64 } else { 0 }))
                .collect();
            totals(&of)
        };
        figures.take(&busy(0), SLOT, 3);
        let told = figures.told(None);
        let told = told.as_object().expect("a map");
        assert_eq!(told.len(), MOST_ROUTES);
        assert!(told.contains_key("r199") && !told.contains_key("r0"));
        let mut later = busy(0);
        later[0].1.responses[1] = 100_000;
        figures.take(&later, SLOT, 3);
        let told = figures.told(None);
        assert!(
            told.get("r0").is_some() && told.as_object().map(|told| told.len()) == Some(MOST_ROUTES),
            "it takes the place"
        );
    }
}
