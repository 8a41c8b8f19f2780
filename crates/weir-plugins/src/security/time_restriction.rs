use std::sync::Arc;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;

/// Allows requests only at certain times, such as office hours, or refuses them at certain times, such as maintenance
/// windows.
///
/// Times are local times of the time zone, including daylight saving time.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimeRestriction {
    /// Time windows in which requests are allowed. Without it, requests are allowed at any time.
    #[serde(default)]
    allow: Vec<WindowOptions>,
    /// Time windows in which requests are refused, even if `allow` includes them.
    #[serde(default)]
    deny: Vec<WindowOptions>,
    /// The IANA name of the time zone, such as `Europe/Zurich`. The program contains the time zone database.
    #[serde(default = "default_time_zone")]
    time_zone: String,
    /// The text of the refusal, in `{"message": ...}`.
    #[serde(default = "default_message")]
    message: String,
    /// The status of the refusal, 400 to 599.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 400, max = 599))]
    rejected_code: u16,
}

/// A time that comes again every week.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WindowOptions {
    /// The days on which the window begins: `mon`, `tue`, `wed`, `thu`, `fri`, `sat`, `sun`. Without this option, every
    /// day.
    #[serde(default)]
    days: Vec<Day>,
    /// The time at which the window begins, such as `08:00`.
    #[serde(default = "default_from")]
    from: String,
    /// The time at which the window ends, such as `18:00`; `24:00` is the end of the day. If this time is not after
    /// `from`, the window ends on the next day.
    #[serde(default = "default_to")]
    to: String,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

fn default_time_zone() -> String {
    "UTC".to_owned()
}

fn default_message() -> String {
    "Not allowed at this time".to_owned()
}

fn default_rejected_code() -> u16 {
    403
}

fn default_from() -> String {
    "00:00".to_owned()
}

fn default_to() -> String {
    "24:00".to_owned()
}

/// Minutes of a day.
const DAY: u16 = 24 * 60;

impl Definition for TimeRestriction {
    const NAME: &'static str = "time-restriction";
    const PRIORITY: i32 = 2995;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"time-restriction:
  time_zone: Europe/Zurich
  allow: [{ days: [mon, tue, wed, thu, fri], from: "08:00", to: "18:00" }]
  deny: [{ days: [wed], from: "12:00", to: "12:30" }]"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.allow.is_empty() && self.deny.is_empty() {
            build.fault("", "has neither `allow` nor `deny`");
        }
        let zone = TimeZone::get(&self.time_zone).map_err(|_| {
            ConfigError::new("time_zone", format!("`{}` is not a time zone; write as `Europe/Zurich`", self.time_zone))
        });
        let windows = |options: &[WindowOptions], name: &str| {
            let window = |(index, options)| TimeWindow::new(options, &format!("{name}[{index}]"));
            options.iter().enumerate().map(window).collect_all()
        };
        let (zone, allow, deny) = (zone, windows(&self.allow, "allow"), windows(&self.deny, "deny")).all_of()?;
        Ok(Arc::new(Times {
            allow,
            deny,
            zone,
            refusal: RefusalResponse::new(self.rejected_code, "message", &self.message),
        }))
    }
}

struct Times {
    allow: Box<[TimeWindow]>,
    deny: Box<[TimeWindow]>,
    zone: TimeZone,
    refusal: RefusalResponse,
}

struct TimeWindow {
    /// A bit for each day of the week, Monday's the lowest.
    days: u8,
    /// Minutes since midnight; `until` is above 1440 if the window ends on the next day.
    from: u16,
    until: u16,
}

impl TimeWindow {
    fn new(options: &WindowOptions, path: &str) -> Result<TimeWindow, ConfigError> {
        let time = |text: &str, name: &str| {
            minutes(text).ok_or_else(|| {
                ConfigError::new(format!("{path}.{name}"), format!("`{text}` is not a time of day; write as `08:00`"))
            })
        };
        let (from, to) = (time(&options.from, "from"), time(&options.to, "to")).all_of()?;
        if from == DAY {
            return Err(ConfigError::new(format!("{path}.from"), "is the end of the day; write `00:00`"));
        }
        let days = options.days.iter().fold(0, |days, &day| days | 1 << day as u8);
        let until = if to > from { to } else { to + DAY };
        Ok(TimeWindow { days: if days == 0 { 0x7f } else { days }, from, until })
    }

    fn covers(&self, day: Weekday, minute: u16) -> bool {
        let begins_on = |day: Weekday| self.days & (1 << day.to_monday_zero_offset()) != 0;
        let is_within = |minute| (self.from..self.until).contains(&minute);
        (begins_on(day) && is_within(minute)) || (begins_on(day.previous()) && is_within(minute + DAY))
    }
}

/// The minutes since midnight of a time such as `08:00`.
fn minutes(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |digits: &str| match digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<u16>().ok(),
        false => None,
    };
    let (hour, minute) = (number(hour)?, number(minute)?);
    Some(hour * 60 + minute).filter(|&minutes| minute < 60 && minutes <= DAY)
}

impl Times {
    fn are_open(&self, now: &Zoned) -> bool {
        let (day, minute) = (now.weekday(), now.hour() as u16 * 60 + now.minute() as u16);
        let covered = |windows: &[TimeWindow]| windows.iter().any(|window| window.covers(day, minute));
        (self.allow.is_empty() || covered(&self.allow)) && !covered(&self.deny)
    }
}

impl Plugin for Times {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let now = Timestamp::now().to_zoned(self.zone.clone());
        if self.are_open(&now) { Ok(Flow::Continue) } else { Err(self.refusal.send(exchange)) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{body, build, get, on_request, refused};

    /// Whether a window is open at times such as `2026-11-21T08:00:00Z`.
    fn open(window: Value, zone: &str, times: &[&str]) -> Vec<bool> {
        let options: WindowOptions = serde_json::from_value(window).expect("a window");
        let times_open = Times {
            allow: Box::new([TimeWindow::new(&options, "").expect("a window")]),
            deny: Box::default(),
            zone: TimeZone::get(zone).expect("a zone"),
            refusal: RefusalResponse::error(403, None),
        };
        let at = |time: &&str| time.parse::<Timestamp>().expect("a time").to_zoned(times_open.zone.clone());
        times.iter().map(|time| times_open.are_open(&at(time))).collect()
    }

    #[test]
    fn windows_have_days_and_hours() {
        // 2026-11-21 is a Saturday.
        let office = json!({"days": ["mon", "fri"], "from": "08:00", "to": "18:00"});
        let times = ["2026-11-20T08:00:00Z", "2026-11-20T18:00:00Z", "2026-11-21T09:00:00Z", "2026-11-23T17:59:59Z"];
        assert_eq!(open(office, "UTC", &times), [true, false, false, true]);
        assert_eq!(open(json!({"days": ["sat"]}), "UTC", &times), [false, false, true, false]);
    }

    #[test]
    fn a_window_goes_on_after_midnight() {
        let night = json!({"days": ["sat"], "from": "22:00", "to": "06:00"});
        let times = ["2026-11-21T05:00:00Z", "2026-11-21T22:00:00Z", "2026-11-22T05:59:00Z", "2026-11-22T06:00:00Z"];
        assert_eq!(open(night, "UTC", &times), [false, true, true, false]);
        let whole_day = json!({"days": ["sun"], "from": "12:00", "to": "12:00"});
        let times = ["2026-11-22T11:59:00Z", "2026-11-22T12:00:00Z", "2026-11-23T11:59:00Z", "2026-11-23T12:00:00Z"];
        assert_eq!(open(whole_day, "UTC", &times), [false, true, true, false]);
    }

    #[test]
    fn clocks_show_the_time_of_their_zone_in_summer_and_in_winter() {
        let office = json!({"from": "08:00", "to": "09:00"});
        let times = ["2026-07-01T06:30:00Z", "2026-07-01T07:30:00Z", "2026-12-01T06:30:00Z", "2026-12-01T07:30:00Z"];
        assert_eq!(open(office, "Europe/Zurich", &times), [true, false, false, true]);
    }

    #[test]
    fn requests_are_refused_at_other_times() {
        let always = build::<TimeRestriction>(json!({"allow": [{}]}));
        assert_eq!(on_request(&always, &mut get("/")), Ok(()));
        let mut exchange = get("/");
        let never = build::<TimeRestriction>(json!({"allow": [{}], "deny": [{}], "message": "closed"}));
        assert_eq!(on_request(&never, &mut exchange), Err(Stop::Answered));
        assert_eq!((exchange.response.status, body(&exchange)), (403, "{\"message\":\"closed\"}\n"));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "has neither `allow` nor `deny`"),
            (json!({"allow": [{"days": ["monday"]}]}), "allow[0].days[0]: `monday` is not an allowed value"),
            (json!({"allow": [{}, {"from": "8:00"}]}), "allow[1].from: `8:00` is not a time of day; write as `08:00`"),
            (json!({"deny": [{"to": "24:01"}]}), "deny[0].to: `24:01` is not a time of day"),
            (json!({"deny": [{"from": "24:00"}]}), "deny[0].from: is the end of the day"),
            (json!({"deny": [{}], "time_zone": "Mars/Base"}), "time_zone: `Mars/Base` is not a time zone"),
        ] {
            let error = refused::<TimeRestriction>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
