//! The terminal: output and keys.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{cursor, execute, queue};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::figures::NodeFigures;
use super::format::shortened;
use super::scrape::{Scrape, StatusClient};
use super::table::View;
use crate::exit::{self, ExitFailure};
use crate::say::say;

const HELP: &str =
    "r routes  e endpoints  p plugins  l logs  s sort  R reverse  / filter  Enter plugins of the route  q quit";

/// Shows the node until the user quits.
pub(super) fn run(client: &StatusClient, interval: Duration) -> ExitCode {
    let screen = match RawTerminal::enter() {
        Ok(screen) => screen,
        Err(error) => {
            say!("the terminal cannot be used: {error}; `--once` prints text");
            return ExitFailure::System.into();
        }
    };
    let shown = watch(client, interval, &screen);
    drop(screen);
    match shown {
        Ok(()) => exit::DONE,
        Err(error) => {
            say!("the terminal cannot be used: {error}");
            ExitFailure::System.into()
        }
    }
}

fn watch(client: &StatusClient, interval: Duration, terminal: &RawTerminal) -> io::Result<()> {
    let mut state = TopState::default();
    let mut before: Option<Scrape> = None;
    loop {
        let due = Instant::now() + interval;
        match client.scrape() {
            Ok(after) => {
                state.figures = before.as_ref().map(|before| NodeFigures::between(before, &after));
                state.error = None;
                before = Some(after);
            }
            Err(error) => {
                state.error = Some(error);
                before = None;
            }
        }
        loop {
            state.draw()?;
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            terminal.wait(left)?;
            if event::poll(Duration::ZERO)?
                && let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && state.take(key)
            {
                return Ok(());
            }
        }
    }
}

/// A terminal in raw mode, on its alternate screen. Dropping it restores the previous state.
struct RawTerminal {
    /// The file that keys are read from.
    input: OwnedFd,
}

impl RawTerminal {
    fn enter() -> io::Result<RawTerminal> {
        let stdin = io::stdin();
        // The same choice as crossterm's.
        let input = match stdin.is_terminal() {
            true => stdin.as_fd().try_clone_to_owned()?,
            false => File::open("/dev/tty")?.into(),
        };
        terminal::enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(RawTerminal { input })
    }

    /// Waits for a key or a resize, for at most `most`. A closed terminal is an error: crossterm would read from it for ever.
    fn wait(&self, most: Duration) -> io::Result<()> {
        let mut ready = [PollFd::new(&self.input, PollFlags::IN)];
        let most = Timespec::try_from(most).expect("an interval is at most an hour");
        match rustix::event::poll(&mut ready, Some(&most)) {
            // A signal: the terminal may have been resized.
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) if ready[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) => {
                Err(io::Error::new(io::ErrorKind::BrokenPipe, "it was closed"))
            }
            Ok(_) => Ok(()),
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Errors of a closed terminal cannot be reported.
        let _ = execute!(io::stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// The user's selections, and the figures to show.
struct TopState {
    figures: Option<NodeFigures>,
    error: Option<String>,
    view: View,
    column: usize,
    is_reversed: bool,
    filter: String,
    /// Whether the filter is being typed.
    is_typing: bool,
    selected: usize,
}

impl Default for TopState {
    fn default() -> TopState {
        TopState {
            figures: None,
            error: None,
            view: View::Routes,
            column: 1,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            selected: 0,
        }
    }
}

impl TopState {
    /// Handles a key. Returns whether it ends the command.
    fn take(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return true;
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(char) => self.filter.push(char),
                _ => {}
            }
            return false;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('r') => self.show(View::Routes),
            KeyCode::Char('e') => self.show(View::Endpoints),
            KeyCode::Char('p') => self.show(View::Plugins),
            KeyCode::Char('l') => self.show(View::Logs),
            KeyCode::Tab => self.show(self.view.next()),
            KeyCode::Char('s') => self.column += 1,
            KeyCode::Char('R') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => {
                self.filter.clear();
                self.is_typing = true;
            }
            KeyCode::Down => self.selected += 1,
            KeyCode::Up => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown => self.selected += 20,
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(20),
            KeyCode::Enter => self.dig(),
            _ => {}
        }
        false
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.column = if view == View::Routes { 1 } else { 0 };
        self.selected = 0;
    }

    /// Shows the plugins of the selected route.
    fn dig(&mut self) {
        let lines = self.lines(usize::MAX);
        let selected = lines.get(1 + self.selected).and_then(|line| line.split("  ").next()).map(str::to_owned);
        if let Some(route) = selected.filter(|_| self.view == View::Routes) {
            self.show(View::Plugins);
            self.filter = route;
        }
    }

    /// The lines of the table, titles first.
    fn lines(&mut self, width: usize) -> Vec<String> {
        let Some(figures) = &self.figures else { return vec!["waiting for the second reading".to_owned()] };
        let table = self.view.table(figures).filtered(&self.filter);
        self.column %= table.titles.len();
        self.selected = self.selected.min(table.rows.len().saturating_sub(1));
        table.sorted(self.column, self.is_reversed).lines(width)
    }

    fn draw(&mut self) -> io::Result<()> {
        let (width, height) = match terminal::size() {
            Ok((width, height)) if width > 0 && height > 0 => (usize::from(width), usize::from(height)),
            _ => (80, 24),
        };
        let mut head = match (&self.error, &self.figures) {
            (Some(error), _) => vec![error.clone(), "trying again".to_owned()],
            (None, Some(figures)) => figures.summary(),
            (None, None) => Vec::new(),
        };
        let filter = if self.is_typing || !self.filter.is_empty() {
            format!(", filter: {}", self.filter)
        } else {
            String::new()
        };
        head.push(format!("{}{filter}", self.view.title()));
        let rows = self.lines(width);
        let visible = height.saturating_sub(head.len() + 2);
        let first = self.selected.saturating_sub(visible.saturating_sub(1));
        let mut out = io::stdout().lock();
        queue!(out, BeginSynchronizedUpdate, cursor::MoveTo(0, 0), Clear(ClearType::All))?;
        for (line, text) in head.iter().enumerate() {
            put(&mut out, line, &shortened(text, width), false)?;
        }
        put(&mut out, head.len(), &rows[0], false)?;
        for (line, (number, row)) in rows.iter().skip(1).enumerate().skip(first).take(visible).enumerate() {
            put(&mut out, head.len() + 1 + line, row, number == self.selected)?;
        }
        put(&mut out, height.saturating_sub(1), &shortened(HELP, width), false)?;
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }
}

fn put(out: &mut impl Write, line: usize, text: &str, is_selected: bool) -> io::Result<()> {
    let attribute = if is_selected { Attribute::Reverse } else { Attribute::Reset };
    let line = u16::try_from(line).unwrap_or(u16::MAX);
    queue!(out, cursor::MoveTo(0, line), SetAttribute(attribute), Print(text), SetAttribute(Attribute::Reset))
}
