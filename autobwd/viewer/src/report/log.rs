//! Logs of runs: JSON lines, as `autobwd::exec::Monitor` writes them.

use std::{
    collections::BTreeMap,
    io::{BufRead, Read},
};

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::curve::{Curve, Quantity};
use autobwd_core::{Error, ErrorKind, Result};

const SCHEMA: &str = "autobwd.log/1";

/// The longest line that is read, in bytes: endless input fails before it fills the memory.
const LONGEST_LINE: u64 = 1 << 24;

/// The most points of a run; steps share points beyond.
const POINTS: usize = 2048;

/// The first line.
#[derive(Deserialize)]
struct ParsedHeader {
    schema: String,
    #[serde(default)]
    values: Vec<String>,
    #[serde(default)]
    learning_rates: Vec<String>,
    #[serde(default)]
    parameters: Vec<ParsedParameter>,
}

#[derive(Deserialize)]
struct ParsedParameter {
    name: String,
    gradient: Option<String>,
}

/// Any other line.
#[derive(Deserialize)]
struct ParsedRecord {
    step: u64,
    time_s: f64,
    #[serde(default)]
    values: BTreeMap<String, ParsedNumber>,
    #[serde(default)]
    learning_rates: BTreeMap<String, ParsedNumber>,
    #[serde(default)]
    gradient_norms: BTreeMap<String, ParsedNumber>,
    peak_bytes: Option<u64>,
}

/// A number, or the name of one that JSON has not.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct ParsedNumber(f64);

impl TryFrom<Value> for ParsedNumber {
    type Error = String;

    fn try_from(value: Value) -> Result<ParsedNumber, String> {
        match &value {
            Value::Number(number) => number.as_f64(),
            Value::String(name) => match name.as_str() {
                "NaN" => Some(f64::NAN),
                "Infinity" => Some(f64::INFINITY),
                "-Infinity" => Some(f64::NEG_INFINITY),
                _ => None,
            },
            _ => None,
        }
        .map(ParsedNumber)
        .ok_or_else(|| format!("{value} is neither a number nor \"NaN\", \"Infinity\" or \"-Infinity\""))
    }
}

/// The records that share a point.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(into = "(u64, u64, f64)")]
struct Span {
    first: u64,
    last: u64,
    /// Seconds since the start, at the end.
    time: f64,
}

impl From<Span> for (u64, u64, f64) {
    fn from(span: Span) -> (u64, u64, f64) {
        (span.first, span.last, span.time)
    }
}

/// A run, by its curves.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    name: String,
    records: u64,
    /// Steps and times of the points.
    spans: Vec<Span>,
    /// The points that are one in the curves of parameters: these are many, and drawn small.
    coarse: usize,
    curves: Vec<Curve>,
    /// Parameters without gradient.
    without_gradient: Vec<String>,
    /// The number of the last line, if it is not whole and left out.
    cut_line: Option<usize>,
    /// Records in a point.
    #[serde(skip)]
    width: u64,
    /// The time of the first record with its step, and of the last.
    ends: Option<[(u64, f64); 2]>,
    #[serde(skip)]
    known: FxHashMap<(Quantity, String), usize>,
}

impl Run {
    pub(super) fn read(name: &str, mut log: impl BufRead) -> Result<Run> {
        let fault = |line: usize, why: &str| Error::new(ErrorKind::Format, format!("line {line}: {why}"));
        let (mut run, mut bytes) = (Run::new(name), vec![]);
        for number in 1.. {
            bytes.clear();
            let read = log.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes);
            let length = read.map_err(|e| {
                Error::new(ErrorKind::Io, format!("cannot read the log of a run: {e}")).caused_by(e)
            })?;
            if length == 0 {
                if number == 1 {
                    return Err(fault(1, "the log is empty; the first line of a log is its header"));
                }
                break;
            }
            let (text, is_whole) = match bytes.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (&bytes[..], false),
            };
            if !is_whole && length as u64 == LONGEST_LINE {
                return Err(fault(number, &format!("longer than {LONGEST_LINE} bytes")));
            }
            let added = match number {
                1 => run.add_header(text),
                _ => run.add_record(text),
            };
            match added {
                Err(_) if !is_whole && number > 1 => run.cut_line = Some(number),
                Err(why) => return Err(fault(number, &why)),
                Ok(()) => {}
            }
        }
        Ok(run)
    }

    fn new(name: &str) -> Run {
        Run {
            name: name.into(),
            records: 0,
            spans: vec![],
            coarse: 1,
            curves: vec![],
            without_gradient: vec![],
            cut_line: None,
            width: 1,
            ends: None,
            known: FxHashMap::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The number of points of each curve.
    pub(super) fn points(&self) -> usize {
        self.spans.len()
    }

    /// The numbers that the page has of it.
    pub(super) fn numbers(&self) -> usize {
        let parameters = self.curves.iter().filter(|curve| curve.is_of_parameter()).count();
        let numbers = |points: usize, curves, width| points * curves * if width > 1 { 3 } else { 1 };
        numbers(self.points(), self.curves.len() - parameters + 1, self.width)
            + numbers(self.coarse_points(), parameters, self.width * self.coarse as u64)
    }

    /// The number of points of each curve of a parameter.
    pub(super) fn coarse_points(&self) -> usize {
        self.spans.len().div_ceil(self.coarse)
    }

    /// Merges pairs of points.
    pub(super) fn halve(&mut self) {
        self.width *= 2;
        self.curves.iter_mut().for_each(Curve::halve);
        let merged = |pair: &[Span]| Span { first: pair[0].first, ..pair[pair.len() - 1] };
        self.spans = self.spans.chunks(2).map(merged).collect();
    }

    /// Merges pairs of points in the curves of parameters.
    pub(super) fn halve_parameters(&mut self) {
        self.coarse *= 2;
        self.curves.iter_mut().filter(|curve| curve.is_of_parameter()).for_each(Curve::halve);
    }

    /// Declares the curves in the order of the header.
    fn add_header(&mut self, line: &[u8]) -> Result<(), String> {
        let header: ParsedHeader = parsed(line)?;
        if header.schema != SCHEMA {
            return Err(format!("the schema is {:?}; {SCHEMA:?} is expected", header.schema));
        }
        header.values.iter().for_each(|name| _ = self.curve(Quantity::Value, name));
        header.learning_rates.iter().for_each(|name| _ = self.curve(Quantity::LearningRate, name));
        for ParsedParameter { name, gradient } in header.parameters {
            match gradient {
                Some(_) => _ = self.curve(Quantity::ParameterGradientNorm, &name),
                None => self.without_gradient.push(name),
            }
        }
        Ok(())
    }

    fn add_record(&mut self, line: &[u8]) -> Result<(), String> {
        let record = parsed::<ParsedRecord>(line).map_err(|why| match parsed::<ParsedHeader>(line) {
            Ok(_) => "a second header; each run has a log of its own".to_string(),
            Err(_) => why,
        })?;
        let ParsedRecord { step, time_s, .. } = record;
        let previous = self.ends.map(|[_, last]| last);
        if let Some((last, _)) = previous.filter(|(last, _)| *last >= step) {
            return Err(format!("step {step} follows step {last}; steps ascend"));
        }
        if let Some((_, last)) = previous.filter(|(_, last)| *last > time_s) {
            return Err(format!("time_s {time_s} follows {last}; times ascend"));
        }
        let at = self.point(step, time_s);
        for (quantity, numbers) in [
            (Quantity::Value, &record.values),
            (Quantity::LearningRate, &record.learning_rates),
            (Quantity::ParameterGradientNorm, &record.gradient_norms),
        ] {
            for (name, ParsedNumber(x)) in numbers {
                self.add(quantity, name, at, step, *x);
            }
        }
        if !record.gradient_norms.is_empty() {
            let squares = record.gradient_norms.values().map(|ParsedNumber(x)| x * x);
            self.add(Quantity::GradientNorm, "", at, step, squares.sum::<f64>().sqrt());
        }
        if let Some((last, time)) = previous {
            self.add(Quantity::SecondsPerStep, "", at, step, (time_s - time) / (step - last) as f64);
        }
        if let Some(bytes) = record.peak_bytes {
            self.add(Quantity::PeakBytes, "", at, step, bytes as f64);
        }
        self.ends = Some([self.ends.map_or((step, time_s), |[first, _]| first), (step, time_s)]);
        self.records += 1;
        Ok(())
    }

    /// The point of the next record.
    fn point(&mut self, step: u64, time: f64) -> usize {
        if self.records == self.width * POINTS as u64 {
            self.halve();
        }
        let at = (self.records / self.width) as usize;
        match self.spans.get_mut(at) {
            Some(span) => (span.last, span.time) = (step, time),
            None => self.spans.push(Span { first: step, last: step, time }),
        }
        at
    }

    fn add(&mut self, quantity: Quantity, name: &str, point: usize, step: u64, x: f64) {
        let curve = self.curve(quantity, name);
        self.curves[curve].add(point, step, x);
    }

    /// The curve of a quantity; a new one if necessary.
    fn curve(&mut self, quantity: Quantity, name: &str) -> usize {
        *self.known.entry((quantity, name.into())).or_insert_with(|| {
            self.curves.push(Curve::new(quantity, name));
            self.curves.len() - 1
        })
    }
}

/// A line as a document; the error has the column.
fn parsed<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| {
        let text = e.to_string();
        let why = text.rsplit_once(" at line ").map_or(text.as_str(), |(why, _)| why);
        format!("column {}: {why}", e.column())
    })
}
