//! Figures of the lab in pages that are written by hand: each row must be that of the stored result.

use crate::Problems;
use crate::tree::read;

/// The page of the result that README.md and the guide quote.
const SOURCE: &str = "docs/reference/results/gwlb.md";
/// The numbers of clients that are quoted.
const CLIENTS: [&str; 4] = ["500", "2000", "6000", "12000"];

/// Reports each row that is missing, as it should stand.
pub(super) fn compare() -> Result<(), Problems> {
    let source = read(SOURCE)?;
    let rows = rows(&source);
    let mut problems = Problems::new();
    for (page, row) in [("README.md", in_readme as fn(&Pair) -> String), ("docs/guide/operating.md", in_guide)] {
        let text = read(page)?;
        for clients in CLIENTS {
            let Some(pair) = Pair::of(&rows, clients) else {
                problems
                    .push(format!("{SOURCE} has no row of weir and nginx with {clients} clients, which {page} quotes"));
                continue;
            };
            let row = row(&pair);
            if !text.lines().any(|line| line == row) {
                problems.push(format!("{page}: the stored result says `{row}`"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The cells of each row of the tables of a page.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    lines.map(|line| line.split(" | ").collect()).collect()
}

/// The two gateways at one number of clients.
struct Pair<'a> {
    clients: &'a str,
    weir: &'a [&'a str],
    nginx: &'a [&'a str],
}

/// Columns of the table: row, clients, target, rate, its ratio, CPU, its ratio, p50, p99, memory, errors.
const RATE: usize = 3;
const RATE_RATIO: usize = 4;
const CPU: usize = 5;
const CPU_RATIO: usize = 6;
const P99: usize = 8;
const MEMORY: usize = 9;
const COLUMNS: usize = 11;

impl<'a> Pair<'a> {
    fn of(rows: &'a [Vec<&'a str>], clients: &'a str) -> Option<Pair<'a>> {
        let of = |target: &str| rows.iter().find(|row| row.len() == COLUMNS && row[1] == clients && row[2] == target);
        Some(Pair { clients, weir: of("weir")?, nginx: of("nginx")? })
    }
}

/// `12000` as `12,000`.
fn grouped(clients: &str) -> String {
    match clients.len() {
        ..=3 => clients.to_owned(),
        length => format!("{},{}", &clients[..length - 3], &clients[length - 3..]),
    }
}

/// The median of `59k (56.6k–64.1k)`.
fn median(cell: &str) -> &str {
    cell.split(" (").next().unwrap_or(cell)
}

fn in_readme(pair: &Pair) -> String {
    let (weir, nginx) = (pair.weir, pair.nginx);
    let cells = [median(weir[RATE_RATIO]), median(weir[CPU_RATIO]), weir[MEMORY], nginx[MEMORY]];
    format!("| {} | {} |", grouped(pair.clients), cells.join(" | "))
}

fn in_guide(pair: &Pair) -> String {
    let cells = [RATE, CPU, P99, MEMORY].map(|column| median(pair.weir[column]));
    format!("| {} | {} |", grouped(pair.clients), cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_quoted_from_the_table_of_a_result() {
        let page = "| row | clients |\n|---|--:|\n\
                    | GET | 2000 | weir | 56.3k (45k–57.9k) | 1.55 | 17.3 µs (16 µs–20 µs) | 0.63 | 34 ms | 60.5 ms (1 ms–2 ms) | 32.6 MiB | 0 |\n\
                    | GET | 2000 | nginx | 31.9k | – | 31.1 µs | – | 64 ms | 78.1 ms | 43.3 MiB | 0 |\n";
        let rows = rows(page);
        let pair = Pair::of(&rows, "2000").expect("both are there");
        assert_eq!(in_readme(&pair), "| 2,000 | 1.55 | 0.63 | 32.6 MiB | 43.3 MiB |");
        assert_eq!(in_guide(&pair), "| 2,000 | 56.3k | 17.3 µs | 60.5 ms | 32.6 MiB |");
        assert!(Pair::of(&rows, "500").is_none());
    }
}
