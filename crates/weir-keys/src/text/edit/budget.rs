//! What the edits of one request may cost together.

use std::time::{Duration, Instant};

/// The most operations.
pub const MAX_OPERATIONS: usize = 1_000;
/// The most steps that they consist of: each reads the text again.
const MAX_STEPS: usize = 2_000;
/// The most bytes that are read for all of them.
const MAX_BYTES: usize = 512 << 20;
/// The most time. It is looked at before each step.
const MAX_TIME: Duration = Duration::from_secs(10);

/// What is left for edits that belong together. Once it is spent, it stays spent.
#[derive(Debug)]
pub struct EditBudget {
    operations: usize,
    steps: usize,
    bytes: usize,
    until: Instant,
    is_spent: bool,
}

/// Which part of a budget is spent.
pub(super) type Overspent = String;

impl Default for EditBudget {
    fn default() -> Self {
        EditBudget::new((MAX_OPERATIONS, MAX_STEPS), MAX_BYTES, MAX_TIME)
    }
}

impl EditBudget {
    /// With so many operations and steps.
    pub(super) fn new((operations, steps): (usize, usize), bytes: usize, time: Duration) -> EditBudget {
        EditBudget { operations, steps, bytes, until: Instant::now() + time, is_spent: false }
    }

    /// Whether something was refused since it would have cost too much.
    pub fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Takes operations.
    ///
    /// # Errors
    /// There is not enough left.
    pub fn operations(&mut self, count: usize) -> Result<(), Overspent> {
        let left = self.operations.checked_sub(count);
        self.operations = left.ok_or_else(|| self.spent("the operations that it may have"))?;
        Ok(())
    }

    /// Takes the reading of a text.
    ///
    /// # Errors
    /// There is not enough left.
    pub fn reading(&mut self, bytes: usize) -> Result<(), Overspent> {
        if Instant::now() >= self.until {
            return Err(self.spent("the time that there is for them"));
        }
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or_else(|| self.spent("the bytes that may be read for them"))?;
        Ok(())
    }

    /// Takes a step in a text.
    pub(super) fn step(&mut self, bytes: usize) -> Result<(), Overspent> {
        self.reading(bytes)?;
        let left = self.steps.checked_sub(1);
        self.steps = left.ok_or_else(|| self.spent("the steps that they may consist of"))?;
        Ok(())
    }

    fn spent(&mut self, what: &str) -> Overspent {
        self.is_spent = true;
        format!("the operations of this request need more together than {what}")
    }
}
