//! Columns of numbers: filling of missing cells and scaling, learned from the training data.

use std::iter::repeat_n;

use autobwd_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::table::{CsvCell, CsvColumn, CsvTable};

/// What a missing number is replaced with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// NaN, for a step of yours that comes later.
    Nan,
    /// This number.
    Constant(f64),
    /// The mean of the column in the training data.
    Mean,
    /// The median of the column in the training data.
    Median,
}

/// How numbers are scaled. A column with one value alone becomes 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// Standardisation, `(x - mean) / standard deviation`: mean 0 and variance 1 in the training data.
    Standard,
    /// `(x - min) / (max - min)`: 0 to 1 in the training data.
    MinMax,
}

/// A column of numbers, for [`CsvColumns::numbers`](crate::CsvColumns::numbers), which also takes names and numbers of
/// columns.
///
/// ```
/// use autobwd_data::{CsvColumns, Dataset, Fill, NumberColumn, Scaling};
///
/// let age = NumberColumn::new("age").fill(Fill::Median).indicator().scale(Scaling::MinMax);
/// let columns = CsvColumns::new().numbers("x", [age]);
/// let data = columns.parse("age\n20\nNA\n60\n40\n".as_bytes())?;
/// assert_eq!(data.all()?.get("x")?.slice::<f32>()?, [0.0, 0.0, 0.5, 1.0, 1.0, 0.0, 0.5, 0.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NumberColumn {
    column: CsvColumn,
    fill: Option<Fill>,
    has_indicator: bool,
    scaling: Option<Scaling>,
}

impl NumberColumn {
    /// The numbers of a column as they are. A missing cell is an error.
    pub fn new(column: impl Into<CsvColumn>) -> NumberColumn {
        NumberColumn { column: column.into(), fill: None, has_indicator: false, scaling: None }
    }

    /// What missing cells are replaced with, before the numbers are scaled.
    #[must_use]
    pub fn fill(self, fill: Fill) -> NumberColumn {
        NumberColumn { fill: Some(fill), ..self }
    }

    /// Adds a column after this one: 1 where the cell is missing, else 0.
    #[must_use]
    pub fn indicator(self) -> NumberColumn {
        NumberColumn { has_indicator: true, ..self }
    }

    /// How the numbers are scaled.
    #[must_use]
    pub fn scale(self, scaling: Scaling) -> NumberColumn {
        NumberColumn { scaling: Some(scaling), ..self }
    }

    /// Learns what the column needs from the training data.
    pub(super) fn fit(&self, table: &CsvTable) -> Result<NumberEncoding> {
        let column = table.index(&self.column)?;
        let learns = self.scaling.is_some() || matches!(self.fill, Some(Fill::Mean | Fill::Median));
        let (mut numbers, mut missing) = (vec![], 0);
        for cell in (0..table.len()).map(|row| table.cell(row, column)).filter(|_| learns) {
            match number(cell)? {
                Some(number) => numbers.push(number),
                None if self.fill.is_none() => return Err(missing_number(cell)),
                None => missing += 1,
            }
        }
        if learns && numbers.is_empty() {
            let text = format!("column `{}` has no numbers to learn from", self.column);
            return Err(Error::new(ErrorKind::Data, text));
        }
        let fill = self.fill.map(|fill| match fill {
            Fill::Nan => FillNumber::Nan,
            Fill::Constant(number) => FillNumber::Number(number),
            Fill::Mean => FillNumber::Number(mean(&numbers)),
            Fill::Median => FillNumber::Number(median(&mut numbers.clone())),
        });
        // The scale is the scale of filled columns.
        if let Some(FillNumber::Number(number)) = fill {
            numbers.extend(repeat_n(number, missing));
        }
        let scale = self.scaling.map(|scaling| match scaling {
            Scaling::Standard => Scale::standard(&numbers),
            Scaling::MinMax => Scale::min_max(&numbers),
        });
        let encoding =
            NumberEncoding { column: self.column.clone(), fill, has_indicator: self.has_indicator, scale };
        encoding.check()?;
        Ok(encoding)
    }
}

/// The number in a cell; `None` if it is missing.
fn number(cell: CsvCell<'_>) -> Result<Option<f64>> {
    match cell.text().parse() {
        _ if cell.is_missing() => Ok(None),
        Ok(number) if f64::is_finite(number) => Ok(Some(number)),
        _ => Err(cell.refuse("a finite number")),
    }
}

fn missing_number(cell: CsvCell<'_>) -> Error {
    cell.refuse_missing(", `NumberColumn::fill` replaces it")
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// The middle number, or the mean of the two middle ones; NaN without numbers.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = |at: usize| numbers.get(at).copied().unwrap_or(f64::NAN);
    let (low, high) = (middle(numbers.len().saturating_sub(1) / 2), middle(numbers.len() / 2));
    low / 2.0 + high / 2.0
}

/// A column of numbers with what was learned about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberEncoding {
    column: CsvColumn,
    /// What a missing cell is replaced with; without it, a missing cell is an error.
    fill: Option<FillNumber>,
    has_indicator: bool,
    scale: Option<Scale>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FillNumber {
    /// JSON has no NaN.
    Nan,
    Number(f64),
}

/// `(x - subtract) / divide`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scale {
    subtract: f64,
    divide: f64,
}

impl Scale {
    fn standard(numbers: &[f64]) -> Scale {
        let subtract = mean(numbers);
        let squares: Vec<f64> = numbers.iter().map(|x| (x - subtract) * (x - subtract)).collect();
        Scale { subtract, divide: mean(&squares).sqrt() }.with_spread()
    }

    fn min_max(numbers: &[f64]) -> Scale {
        let min = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let max = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Scale { subtract: min, divide: max - min }.with_spread()
    }

    /// A column with one value alone is not divided by 0.
    fn with_spread(self) -> Scale {
        Scale { divide: if self.divide == 0.0 { 1.0 } else { self.divide }, ..self }
    }
}

impl NumberEncoding {
    /// Checks numbers that were learned, or read from a file.
    pub(super) fn check(&self) -> Result<()> {
        let is_fill = |fill: FillNumber| matches!(fill, FillNumber::Number(number) if !number.is_finite());
        let is_scale = |s: Scale| !s.subtract.is_finite() || !s.divide.is_normal();
        if self.fill.is_some_and(is_fill) || self.scale.is_some_and(is_scale) {
            let text = format!("column `{}`: its fill and its scale must be finite numbers", self.column);
            return Err(Error::new(ErrorKind::Data, text));
        }
        Ok(())
    }

    /// The names of the columns that this one becomes.
    pub(super) fn features(&self) -> Vec<String> {
        let mut features = vec![self.column.to_string()];
        features.extend(self.has_indicator.then(|| format!("{} is missing", self.column)));
        features
    }

    /// A function that appends the numbers of a row.
    pub(super) fn writer<'a>(
        &'a self,
        table: &'a CsvTable,
    ) -> Result<impl Fn(usize, &mut Vec<f32>) -> Result<()> + 'a> {
        let column = table.index(&self.column)?;
        Ok(move |row: usize, numbers: &mut Vec<f32>| {
            let cell = table.cell(row, column);
            let found = number(cell)?;
            let filled = match (found, self.fill) {
                (Some(number), _) => number,
                (None, Some(FillNumber::Number(number))) => number,
                (None, Some(FillNumber::Nan)) => f64::NAN,
                (None, None) => return Err(missing_number(cell)),
            };
            let scaled = match self.scale {
                Some(scale) => ((filled - scale.subtract) / scale.divide) as f32,
                // A text is rounded once.
                None if found.is_some() => cell.text().parse().unwrap_or(filled as f32),
                None => filled as f32,
            };
            if scaled.is_infinite() {
                return Err(cell.refuse("a finite number of float32"));
            }
            numbers.push(scaled);
            if self.has_indicator {
                numbers.push(f32::from(u8::from(found.is_none())));
            }
            Ok(())
        })
    }
}
