//! Results of the lab in a folder of the node (`admin.lab`), as the console shows them. Reads what `weir bench run` has written, and
//! runs nothing.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use hyper::{Response, StatusCode};
use rustix::fs::OFlags;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use weir_bench::analysis::compare::{circumstances, differences};
use weir_bench::analysis::lint::Severity;
use weir_bench::analysis::summary::{self, Findings};
use weir_bench::report::{
    COMPARED_HEADER, ResultTable, compared, compared_legend, counted, headline, left_out, legend, result_table,
};
use weir_bench::result::ResultFile;

use super::status;

/// The most files that are listed: the newest ones.
const MOST_FILES: usize = 1_000;
/// The most entries of the folder that are looked at.
const MOST_ENTRIES: usize = 20_000;
/// The most bytes of a file that is read. The largest results of this project have 12 MiB.
const MOST_BYTES: u64 = 32 << 20;
/// The most cells of a result that are evaluated: each one is looked for in another result.
const MOST_CELLS: usize = 2_000;
/// The most runs of a result that are evaluated. The largest results of this project have fewer than 300.
const MOST_RUNS: usize = 10_000;
/// The most lines of a table, and items of a list, that are answered.
const MOST_LINES: usize = 2_000;
/// The most characters of a text that are answered.
const MOST_TEXT: usize = 4_000;
/// The most bytes of an answer.
const MOST_ANSWER: usize = 4 << 20;
/// The longest name of a file, in bytes.
const MOST_NAME: usize = 128;
/// How long reading and evaluating may take, and waiting for those of others.
const LONGEST: Duration = Duration::from_secs(30);

/// The folder. Its files are read one at a time, and so are its names, which do not wait for files.
pub(super) struct LabFolder {
    folder: Arc<Path>,
    turn: Arc<Semaphore>,
    list_turn: Arc<Semaphore>,
}

/// What is wrong, with the status that says so.
type LabFault = (StatusCode, String);

/// What is asked of the folder.
enum LabQuestion {
    List,
    /// A result.
    One(String),
    /// The differences of the second result from the first.
    Compared(String, String),
}

impl LabFolder {
    pub(super) fn new(folder: PathBuf) -> LabFolder {
        let turn = || Arc::new(Semaphore::new(1));
        LabFolder { folder: folder.into(), turn: turn(), list_turn: turn() }
    }

    /// All results, the one with this name, or what is different in another one.
    pub(super) async fn answer(&self, name: Option<String>, other: Option<String>) -> Response<Bytes> {
        let question = match (name, other) {
            (None, _) => LabQuestion::List,
            (Some(name), None) => LabQuestion::One(name),
            (Some(name), Some(other)) => LabQuestion::Compared(name, other),
        };
        let answered = timeout(LONGEST, self.ask(question)).await.unwrap_or_else(|_| {
            let problem = format!("the result was not evaluated within {} s; try again later", LONGEST.as_secs());
            Err((StatusCode::SERVICE_UNAVAILABLE, problem))
        });
        match answered {
            Ok(mut told) => {
                shorten(&mut told);
                if told.to_string().len() <= MOST_ANSWER {
                    return status::json(StatusCode::OK, &told);
                }
                let problem = format!("the answer has more than {} MiB; use `weir bench report`", MOST_ANSWER >> 20);
                status::json(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "error_msg": problem }))
            }
            Err((status, problem)) => status::json(status, &json!({ "error_msg": problem })),
        }
    }

    async fn ask(&self, question: LabQuestion) -> Result<Value, LabFault> {
        let closed = || (StatusCode::SERVICE_UNAVAILABLE, "the node ends".to_owned());
        let turn = if matches!(question, LabQuestion::List) { &self.list_turn } else { &self.turn };
        let turn = Arc::clone(turn).acquire_owned().await.map_err(|_| closed())?;
        let folder = Arc::clone(&self.folder);
        let answering = spawn_blocking(move || {
            // The work keeps its turn until it has ended, even after the time limit of the request.
            let _turn = turn;
            match question {
                LabQuestion::List => list(&folder),
                LabQuestion::One(name) => read(&folder, &name).map(|result| told(&name, &result)),
                LabQuestion::Compared(before, after) => {
                    let [first, second] = [read(&folder, &before)?, read(&folder, &after)?];
                    Ok(told_differences((&before, &first), (&after, &second)))
                }
            }
        });
        answering.await.unwrap_or_else(|_| {
            let problem = "the file is a result whose figures contradict each other; measure again";
            Err((StatusCode::UNPROCESSABLE_ENTITY, problem.to_owned()))
        })
    }
}

/// Whether a name can be that of a result: one file in the folder, and not hidden.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    name.len() <= MOST_NAME && name.ends_with(".json") && !name.starts_with('.') && name.bytes().all(is_plain)
}

/// The files that can be results, the newest first.
fn list(folder: &Path) -> Result<Value, LabFault> {
    let failed = |error: io::Error| {
        (StatusCode::SERVICE_UNAVAILABLE, format!("the folder of `admin.lab` cannot be read: {error}"))
    };
    let mut found: Vec<(String, u64, u64)> = Vec::new();
    let mut entries = std::fs::read_dir(folder).map_err(failed)?;
    for entry in entries.by_ref().take(MOST_ENTRIES) {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_str().filter(|name| is_name(name)).map(str::to_owned);
        // Of a link, those of the link itself.
        let (Some(name), Ok(about)) = (name, entry.metadata()) else { continue };
        if about.is_file() {
            found.push((name, about.len(), modified_ms(&about)));
        }
    }
    found.sort_by(|one, other| (other.2, &other.0).cmp(&(one.2, &one.0)));
    let more = found.len().saturating_sub(MOST_FILES);
    let told = |(name, bytes, modified_ms): &(String, u64, u64)| json!({ "name": name, "bytes": bytes, "modified_ms": modified_ms });
    // Those that were not looked at may be newer than these.
    let cut = entries.next().is_some().then_some(MOST_ENTRIES);
    Ok(
        json!({ "list": found.iter().take(MOST_FILES).map(told).collect::<Vec<_>>(), "more": more, "entries_looked_at": cut }),
    )
}

fn modified_ms(about: &Metadata) -> u64 {
    let since = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| u64::try_from(since.as_millis()).ok()).unwrap_or_default()
}

fn read(folder: &Path, name: &str) -> Result<ResultFile, LabFault> {
    if !is_name(name) {
        let problem = "this is not the name of a result: letters, digits, `.`, `_` and `-`, with `.json` at the end";
        return Err((StatusCode::BAD_REQUEST, problem.to_owned()));
    }
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => (StatusCode::NOT_FOUND, format!("there is no result {name}")),
        _ => (StatusCode::SERVICE_UNAVAILABLE, format!("{name} cannot be read: {error}")),
    };
    let file = open(&folder.join(name)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        let problem = format!("{name} is larger than {} MiB; use `weir bench report`", MOST_BYTES >> 20);
        return Err((StatusCode::PAYLOAD_TOO_LARGE, problem));
    }
    let wrong = |problem: String| (StatusCode::UNPROCESSABLE_ENTITY, problem);
    let text = String::from_utf8(bytes).map_err(|_| wrong(format!("{name} is no text in UTF-8")))?;
    let result = ResultFile::of_text(&text, Path::new(name)).map_err(|error| wrong(error.to_string()))?;
    let runs: usize = result.cells.iter().map(|cell| cell.runs().len()).sum();
    if result.cells.len() > MOST_CELLS || runs > MOST_RUNS {
        let problem = format!("{name} has more than {MOST_CELLS} cells or {MOST_RUNS} runs; use `weir bench report`");
        return Err((StatusCode::PAYLOAD_TOO_LARGE, problem));
    }
    Ok(result)
}

/// Cuts long texts and long lists.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(MOST_TEXT) {
                text.truncate(end);
                text.push('…');
            }
        }
        Value::Array(items) => {
            items.truncate(MOST_LINES);
            items.iter_mut().for_each(shorten);
        }
        Value::Object(members) => members.values_mut().for_each(shorten),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Opens a file of the folder: no link to another one, and nothing that waits for a writer.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a file")),
    }
}

/// A result with its table and its verdict.
fn told(name: &str, result: &ResultFile) -> Value {
    let findings = summary::findings(result);
    let ResultTable { header, mut lines } = result_table(&findings);
    let more = lines.len().saturating_sub(MOST_LINES);
    lines.truncate(MOST_LINES);
    let (scenario, method, cpu) = (&result.scenario, &result.scenario.method, &result.manifest.cpu);
    json!({
        "name": name,
        "scenario": scenario.name,
        "title": scenario.title,
        "about": scenario.about.trim(),
        "started_at": result.started_at,
        "quick": result.quick,
        "incomplete": result.incomplete,
        "machine": format!("{}, {} processors", cpu.model, cpu.logical),
        "kernel": result.manifest.kernel,
        "method": format!("{} repeats of {} s", method.repeats, method.measured_s),
        "verdict": verdict(&findings),
        "headline": headline(&findings),
        "findings": counted(&findings),
        "left_out": left_out(&findings),
        "legend": legend(&findings),
        "header": header,
        "lines": lines,
        "more": more,
    })
}

fn verdict(findings: &Findings<'_>) -> &'static str {
    match findings.worst() {
        Some(Severity::Invalid) => "invalid",
        Some(Severity::Warning) => "warning",
        Some(Severity::Note) | None => "valid",
    }
}

/// What differs in the second result.
fn told_differences((before, first): (&str, &ResultFile), (after, second): (&str, &ResultFile)) -> Value {
    let found = differences(first, second);
    json!({
        "before": before,
        "after": after,
        "circumstances": circumstances(first, second),
        "header": COMPARED_HEADER,
        "lines": found.iter().take(MOST_LINES).map(compared).collect::<Vec<_>>(),
        "more": found.len().saturating_sub(MOST_LINES),
        "legend": compared_legend(first),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use weir_testkit::TempDir;

    use super::*;

    /// A small result of this project.
    fn result() -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results/drain-20261127T032438Z.json");
        fs::read_to_string(path).expect("it is there")
    }

    #[test]
    fn names_are_those_of_files_in_the_folder() {
        assert!(is_name("compare-20261127T031030Z.json"));
        for wrong in ["../a.json", "a/b.json", ".a.json", "a.html", "a.json\0", "ä.json", "", ".json"] {
            assert!(!is_name(wrong), "{wrong:?}");
        }
        assert!(!is_name(&format!("{}.json", "a".repeat(MOST_NAME))));
    }

    #[test]
    fn files_that_are_no_results_are_told_from_each_other() {
        let folder = TempDir::new();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("good.json"), result()).expect("it is written");
        fs::write(at("text.json"), "a text").expect("it is written");
        fs::write(at("other.json"), r#"{"schema": "weir-bench/result/0"}"#).expect("it is written");
        File::create(at("large.json")).and_then(|file| file.set_len(MOST_BYTES + 1)).expect("it is written");
        fs::write(at("bytes.json"), [b'{', 0xff]).expect("it is written");
        fs::create_dir(at("folder.json")).expect("it is made");
        symlink(at("good.json"), at("link.json")).expect("it is made");
        let fault = |name: &str| read(folder.path(), name).map(|_| "read").map_err(|(status, _)| status.as_u16());
        assert_eq!(fault("good.json"), Ok("read"));
        assert_eq!(fault("text.json"), Err(422));
        assert_eq!(fault("other.json"), Err(422));
        assert_eq!(fault("bytes.json"), Err(422), "it is no UTF-8");
        assert_eq!(fault("large.json"), Err(413));
        assert_eq!(fault("folder.json"), Err(503));
        assert_eq!(fault("link.json"), Err(503), "it may lead anywhere");
        assert_eq!(fault("none.json"), Err(404));
        assert_eq!(fault("../good.json"), Err(400));
        let listed = list(folder.path()).expect("the folder is there");
        let names: Vec<&str> =
            listed["list"].as_array().expect("a list").iter().filter_map(|one| one["name"].as_str()).collect();
        assert!(names.contains(&"good.json") && !names.contains(&"link.json") && !names.contains(&"folder.json"));
        assert_eq!(list(&at("none")).expect_err("it is not there").0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn results_with_too_many_cells_are_not_evaluated() {
        let folder = TempDir::new();
        let mut value: Value = serde_json::from_str(&result()).expect("it is JSON");
        let cell =
            json!({ "row": "r", "target": "t", "level": { "connections": 1, "workers": 1 }, "status": "unsupported" });
        let mut with = |cells: usize| {
            value["cells"] = vec![cell.clone(); cells].into();
            fs::write(folder.path().join("many.json"), value.to_string()).expect("it is written");
            read(folder.path(), "many.json").map(|_| "read").map_err(|(status, _)| status.as_u16())
        };
        assert_eq!(with(MOST_CELLS), Ok("read"));
        assert_eq!(with(MOST_CELLS + 1), Err(413));
    }

    #[test]
    fn entries_that_are_not_looked_at_are_told() {
        let folder = TempDir::new();
        let all = || list(folder.path()).expect("the folder is there")["entries_looked_at"].clone();
        (0..MOST_ENTRIES).for_each(|number| drop(File::create(folder.path().join(format!("{number}.txt")))));
        assert_eq!(all(), Value::Null);
        File::create(folder.path().join("one-more.json")).expect("it is written");
        assert_eq!(all(), MOST_ENTRIES);
    }

    #[test]
    fn long_texts_and_lists_are_cut() {
        let mut value = json!({ "about": "ä".repeat(MOST_TEXT + 1), "short": "ä", "list": vec![1; MOST_LINES + 1] });
        shorten(&mut value);
        assert_eq!(value["about"].as_str().map(|text| text.chars().count()), Some(MOST_TEXT + 1));
        assert!(value["about"].as_str().is_some_and(|text| text.ends_with("ä…")) && value["short"] == "ä");
        assert_eq!(value["list"].as_array().map(Vec::len), Some(MOST_LINES));
    }

    #[test]
    fn a_result_is_told_with_its_table_and_compared_with_itself() {
        let result = ResultFile::of_text(&result(), Path::new("drain.json")).expect("a result");
        let told = told("drain.json", &result);
        let width = told["header"].as_array().expect("a header").len();
        let lines = told["lines"].as_array().expect("lines");
        assert!(!lines.is_empty() && lines.iter().all(|line| line.as_array().is_some_and(|line| line.len() == width)));
        assert!(["valid", "warning", "invalid"].contains(&told["verdict"].as_str().expect("a word")), "{told}");
        let same = told_differences(("a.json", &result), ("b.json", &result));
        assert_eq!((&same["circumstances"], &same["more"]), (&json!([]), &json!(0)));
        let line = same["lines"][0].to_string();
        assert!(line.contains('≈') || line.contains('–'), "{line}");
    }
}
