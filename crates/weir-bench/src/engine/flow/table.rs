//! The rows of a CSV file.

use std::fs::File;
use std::io::Read as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::names::check_name;
use crate::engine::plan::{AtEnd, CsvData, CsvOrder, PlanError};
use crate::stats::SeededRandom;

/// The largest file of data, which is kept in memory.
const LARGEST_FILE: u64 = 256 * 1024 * 1024;
/// The most columns of a file.
const MOST_COLUMNS: usize = 256;

/// A file in memory.
#[derive(Debug)]
pub(super) struct CsvTable {
    pub(super) columns: Vec<String>,
    order: CsvOrder,
    at_end: AtEnd,
    /// All values, one after the other.
    text: String,
    /// The end of each value in `text`, row by row.
    ends: Vec<u32>,
    /// The number of rows that clients have got in sequential order.
    taken: AtomicUsize,
}

impl CsvTable {
    /// Reads a file; `at` is its place in the plan.
    pub(super) fn read(data: &CsvData, at: &str) -> Result<Self, PlanError> {
        let wrong = |problem: String| PlanError::new(at, format!("{}: {problem}", data.file.display()));
        let mut content = Vec::new();
        File::open(&data.file)
            .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut content))
            .map_err(|error| wrong(error.to_string()))?;
        if content.len() as u64 > LARGEST_FILE {
            return Err(wrong("is larger than 256 MiB, the most that is kept in memory; use a part of it".to_owned()));
        }
        let delimiter = u8::try_from(data.delimiter).ok().filter(u8::is_ascii);
        let delimiter = delimiter.ok_or_else(|| PlanError::new(at, "`delimiter` must be an ASCII character"))?;
        let has_names = data.names.is_empty();
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(delimiter)
            .has_headers(has_names || data.skip_first_line)
            .from_reader(content.as_slice());
        let columns: Vec<String> = match has_names {
            true => {
                let names = reader.headers().map_err(|error| wrong(error.to_string()))?;
                names.iter().map(|name| name.trim().to_owned()).collect()
            }
            false => data.names.clone(),
        };
        if columns.len() > MOST_COLUMNS {
            return Err(wrong(format!("has {} columns; at most {MOST_COLUMNS} are possible", columns.len())));
        }
        for name in &columns {
            check_name(name).map_err(|problem| match has_names {
                true => wrong(format!("the first line must contain the names of the columns: {problem}")),
                false => wrong(problem),
            })?;
        }
        let mut table = CsvTable {
            columns,
            order: data.order,
            at_end: data.at_end,
            text: String::new(),
            ends: Vec::new(),
            taken: AtomicUsize::new(0),
        };
        for record in reader.records() {
            let record = record.map_err(|error| wrong(error.to_string()))?;
            if record.len() != table.columns.len() {
                let (line, names) = (record.position().map_or(0, csv::Position::line), table.columns.len());
                return Err(wrong(format!("line {line} has {} values, and there are {names} names", record.len())));
            }
            for value in &record {
                table.text.push_str(value);
                table.ends.push(table.text.len() as u32);
            }
        }
        if table.ends.is_empty() {
            return Err(wrong("has no row of values".to_owned()));
        }
        Ok(table)
    }

    pub(super) fn rows(&self) -> usize {
        self.ends.len() / self.columns.len()
    }

    /// Whether clients may get no further row.
    pub(super) fn stops(&self) -> bool {
        self.at_end == AtEnd::Stop
    }

    /// Whether the order has an end.
    pub(super) fn has_end(&self) -> bool {
        matches!(self.order, CsvOrder::Sequential | CsvOrder::EveryClient)
    }

    pub(super) fn value(&self, row: usize, column: usize) -> &str {
        let at = row * self.columns.len() + column;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[at] as usize]
    }

    /// The next row of a client, which is numbered over the whole run; `None` if there is none left. `seen` counts the rows
    /// that this client has got.
    pub(super) fn next(&self, client: usize, seen: &mut usize, random: &mut SeededRandom) -> Option<usize> {
        let position = match self.order {
            CsvOrder::Sequential => self.taken.fetch_add(1, Ordering::Relaxed),
            CsvOrder::Random => return Some(random.below(self.rows())),
            CsvOrder::PerClient => return Some(client % self.rows()),
            CsvOrder::EveryClient => std::mem::replace(seen, *seen + 1),
        };
        match self.at_end {
            AtEnd::Again => Some(position % self.rows()),
            AtEnd::Stop => (position < self.rows()).then_some(position),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-table-{}-{name}.csv", std::process::id()));
        std::fs::write(&path, text).expect("the directory of temporary files is writable");
        path
    }

    fn read(name: &str, text: &str, change: impl Fn(&mut CsvData)) -> Result<CsvTable, String> {
        let mut data = CsvData::of(file(name, text));
        change(&mut data);
        let table = CsvTable::read(&data, "data.csv[0]");
        let _ = std::fs::remove_file(&data.file);
        table.map_err(|error| error.to_string())
    }

    fn rows(table: &CsvTable, clients: &[usize]) -> Vec<Option<usize>> {
        let (mut seen, mut random) = ([0; 8], SeededRandom::new(1));
        clients.iter().map(|client| table.next(*client, &mut seen[*client], &mut random)).collect()
    }

    const TWO: &str = "id,name\r\n1,\"a, b\"\r\n2,c\r\n";

    #[test]
    fn rows_are_given_in_each_order() {
        let order = |order, at_end| {
            read("order", TWO, |data| (data.order, data.at_end) = (order, at_end)).expect("a good file")
        };
        let sequential = order(CsvOrder::Sequential, AtEnd::Again);
        assert_eq!(rows(&sequential, &[0, 1, 0]), [Some(0), Some(1), Some(0)]);
        assert_eq!((sequential.value(0, 1), sequential.value(1, 0)), ("a, b", "2"));
        assert_eq!(rows(&order(CsvOrder::Sequential, AtEnd::Stop), &[0, 1, 0]), [Some(0), Some(1), None]);
        assert_eq!(
            rows(&order(CsvOrder::PerClient, AtEnd::Again), &[0, 1, 2, 1]),
            [Some(0), Some(1), Some(0), Some(1)]
        );
        assert_eq!(rows(&order(CsvOrder::EveryClient, AtEnd::Stop), &[0, 1, 0, 0]), [Some(0), Some(0), Some(1), None]);
        let random = rows(&order(CsvOrder::Random, AtEnd::Again), &[0; 40]);
        assert!(random.contains(&Some(0)) && random.contains(&Some(1)), "{random:?}");
    }

    #[test]
    fn names_come_from_the_plan_or_the_first_line() {
        let named = |skip| {
            read("named", TWO, |data| {
                (data.names, data.skip_first_line) = (vec!["a".to_owned(), "b".to_owned()], skip);
            })
            .expect("a good file")
        };
        assert_eq!((named(false).rows(), named(true).rows()), (3, 2));
        let other = read("other", "a;b\n1;2\n", |data| data.delimiter = ';').expect("a good file");
        assert_eq!(other.value(0, 1), "2");
    }

    #[test]
    fn fault_of_a_file_has_its_place() {
        let fault = |name: &str, text: &str| read(name, text, |_| {}).expect_err("a fault");
        assert!(fault("empty", "a,b\n").contains("has no row of values"));
        let uneven = fault("uneven", "a,b\n1,2\n3\n");
        assert!(uneven.starts_with("data.csv[0]: ") && uneven.contains("line: 3"), "{uneven}");
        let names = fault("names", "10.0.0.1,b\n1,2\n");
        assert!(names.contains("the first line must contain the names of the columns: \"10.0.0.1\""), "{names}");
        let nowhere = CsvTable::read(&CsvData::of("/nowhere.csv"), "data.csv[0]").expect_err("a fault").to_string();
        assert!(nowhere.starts_with("data.csv[0]: /nowhere.csv: "), "{nowhere}");
        let wide = fault("wide", &format!("{}\n", (0..257).map(|n| format!("c{n}")).collect::<Vec<_>>().join(",")));
        assert!(wide.contains("has 257 columns; at most 256"), "{wide}");
    }
}
