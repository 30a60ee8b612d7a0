//! Everything that stands in the way of reading or writing a file, as one list.

use std::{collections::HashMap, fmt::Write as _};

use crate::{Error, ErrorKind, Result};

/// Obstacles in the order in which they are met, each with the number of its occurrences and the first place.
#[derive(Debug, Default)]
pub struct Obstacles {
    all: Vec<Obstacle>,
    /// Positions by text.
    known: HashMap<String, usize>,
}

#[derive(Debug)]
struct Obstacle {
    what: String,
    place: String,
    count: usize,
}

/// The longest list of obstacles in a message.
const LISTED: usize = 50;

impl Obstacles {
    /// Adds an obstacle, once for each `what`.
    pub fn add(&mut self, place: impl Into<String>, what: impl Into<String>) {
        let what = what.into();
        match self.known.get(&what) {
            Some(at) => self.all[*at].count += 1,
            None => {
                self.known.insert(what.clone(), self.all.len());
                self.all.push(Obstacle { what, place: place.into(), count: 1 });
            }
        }
    }

    /// Adds an error, if there is one.
    pub fn note<T>(&mut self, place: impl Into<String>, result: Result<T>) -> Option<T> {
        result.map_err(|e| self.add(place, e.to_string())).ok()
    }

    /// The error that lists them, if there are any.
    ///
    /// # Errors
    /// There are obstacles.
    pub fn require_none(&self, failed: &str) -> Result<()> {
        let count = match self.all.len() {
            0 => return Ok(()),
            1 => "1 obstacle".to_string(),
            n => format!("{n} obstacles"),
        };
        let mut text = format!("{failed}: {count}");
        for obstacle in self.all.iter().take(LISTED) {
            let place = match (&*obstacle.place, obstacle.count) {
                ("", 1) => String::new(),
                ("", n) => format!(" ({n} times)"),
                (place, 1) => format!(" ({place})"),
                (place, n) => format!(" ({n} times, first at {place})"),
            };
            // Writing to a string does not fail.
            let _ = write!(text, "\n  {}{place}", obstacle.what);
        }
        if self.all.len() > LISTED {
            let _ = write!(text, "\n  and {} more", self.all.len() - LISTED);
        }
        Err(Error::new(ErrorKind::Format, printable(&text)))
    }
}

/// A text without control characters except line breaks: files name things as they like.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && c != '\n' {
            true => printable.extend(c.escape_default()),
            false => printable.push(c),
        }
    }
    printable
}
