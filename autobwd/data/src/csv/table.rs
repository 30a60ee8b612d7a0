//! The rows of a CSV file as text, and the choice of some of them.

use std::{fmt, fmt::Display, io::Read, sync::Arc};

use autobwd_core::{__private::did_you_mean, Error, ErrorKind, Result};
use csv::{ReaderBuilder, StringRecord, Trim};
use serde::{Deserialize, Serialize};

use crate::split::split;

/// A column of a CSV file: a name of its header row, or a number that counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CsvColumn {
    /// The column with this name.
    Name(String),
    /// The column with this number.
    Index(usize),
}
impl From<&str> for CsvColumn {
    fn from(name: &str) -> CsvColumn {
        CsvColumn::Name(name.into())
    }
}
impl From<String> for CsvColumn {
    fn from(name: String) -> CsvColumn {
        CsvColumn::Name(name)
    }
}
impl From<usize> for CsvColumn {
    fn from(index: usize) -> CsvColumn {
        CsvColumn::Index(index)
    }
}
impl Display for CsvColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CsvColumn::Name(name) => f.write_str(name),
            CsvColumn::Index(index) => index.fmt(f),
        }
    }
}

/// How a file writes its cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CsvFormat {
    pub(super) header: bool,
    pub(super) delimiter: u8,
    /// The texts of missing cells.
    pub(super) missing: Vec<String>,
}

impl Default for CsvFormat {
    fn default() -> CsvFormat {
        let missing = ["", "NA", "NaN", "nan", "?"].map(String::from).to_vec();
        CsvFormat { header: true, delimiter: b',', missing }
    }
}

impl CsvFormat {
    /// All rows of a text.
    pub(super) fn parse(&self, text: impl Read) -> Result<CsvTable> {
        let format = |e: &dyn Display| Error::new(ErrorKind::Format, e.to_string());
        let mut reader = ReaderBuilder::new();
        reader.has_headers(self.header).delimiter(self.delimiter).trim(Trim::All);
        let mut reader = reader.from_reader(text);
        let header = reader.headers().map_err(|e| format(&e))?.clone();
        let mut cells = CsvCells {
            header: self.header.then(|| header.iter().map(String::from).collect()),
            width: header.len(),
            missing: self.missing.clone(),
            text: String::new(),
            ends: vec![],
            lines: vec![],
        };
        let mut row = StringRecord::new();
        while reader.read_record(&mut row).map_err(|e| format(&e))? {
            for cell in &row {
                cells.text.push_str(cell);
                cells.ends.push(cells.text.len());
            }
            cells.lines.push(row.position().map_or(0, csv::Position::line));
        }
        if cells.lines.is_empty() {
            return Err(format(&"there are no rows"));
        }
        Ok(CsvTable { rows: (0..cells.lines.len()).collect(), cells: Arc::new(cells) })
    }
}

/// The cells of a file, row by row. Every row has a cell in each column.
#[derive(Debug)]
struct CsvCells {
    /// The names of the columns, if the file has them.
    header: Option<Vec<String>>,
    /// The number of columns.
    width: usize,
    /// The texts of missing cells.
    missing: Vec<String>,
    /// The texts of all cells, one after the other.
    text: String,
    /// Where each cell ends in `text`.
    ends: Vec<usize>,
    /// The line of each row in the file.
    lines: Vec<u64>,
}

/// Rows of a CSV file, as text: [`CsvColumns::table`](crate::CsvColumns::table) reads them, and a
/// [`CsvEncoder`](crate::CsvEncoder) makes tensors of them.
///
/// Parts of a table share its memory.
///
/// ```
/// use autobwd_data::CsvColumns;
///
/// let file = "length,species\n5.1,setosa\nNA,setosa\n4.9,setosa\n7.0,virginica\n6.3,virginica\n";
/// let table = CsvColumns::new().parse_table(file.as_bytes())?.drop_missing(["length"])?;
/// assert_eq!(table.len(), 4);
/// // Half of the rows of each species.
/// let (train, test) = table.split_stratified("species", 0.5, 7)?;
/// assert_eq!((train.len(), test.len()), (2, 2));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CsvTable {
    cells: Arc<CsvCells>,
    /// The rows of the file that belong to the table, in ascending order.
    rows: Vec<usize>,
}

impl CsvTable {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The names of the columns; empty for a file without a header row.
    pub fn header(&self) -> &[String] {
        self.cells.header.as_deref().unwrap_or_default()
    }

    /// The rows without a missing cell in these columns.
    ///
    /// # Errors
    /// An unknown column, or one whose name occurs twice.
    pub fn drop_missing<C: Into<CsvColumn>>(&self, columns: impl IntoIterator<Item = C>) -> Result<CsvTable> {
        let columns = columns.into_iter().map(|column| self.index(&column.into()));
        let columns = columns.collect::<Result<Vec<usize>>>()?;
        let is_complete = |row: usize| columns.iter().all(|column| !self.cell(row, *column).is_missing());
        Ok(self.part((0..self.len()).filter(|row| is_complete(*row)).collect()))
    }

    /// Two parts: `fraction` of the rows, chosen by the seed, and the others. Each part keeps the order of the table.
    ///
    /// # Errors
    /// A fraction that is not between 0 and 1, or that leaves a part without rows.
    pub fn split(&self, fraction: f64, seed: u64) -> Result<(CsvTable, CsvTable)> {
        let (first, second) = split(&vec![(); self.len()], fraction, seed)?;
        Ok((self.part(first), self.part(second)))
    }

    /// As [`split`](CsvTable::split), of the rows of each class: both parts have nearly the same shares of the texts in a
    /// column.
    ///
    /// # Errors
    /// The errors of [`split`](CsvTable::split); an unknown column, or one whose name occurs twice.
    pub fn split_stratified(
        &self,
        column: impl Into<CsvColumn>,
        fraction: f64,
        seed: u64,
    ) -> Result<(CsvTable, CsvTable)> {
        let column = self.index(&column.into())?;
        let classes: Vec<&str> = (0..self.len()).map(|row| self.cell(row, column).text()).collect();
        let (first, second) = split(&classes, fraction, seed)?;
        Ok((self.part(first), self.part(second)))
    }

    /// These rows of the table, each below its length.
    fn part(&self, rows: Vec<usize>) -> CsvTable {
        let rows = rows.into_iter().filter_map(|row| self.rows.get(row).copied()).collect();
        CsvTable { cells: self.cells.clone(), rows }
    }

    /// The number of a column.
    pub(super) fn index(&self, column: &CsvColumn) -> Result<usize> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Format, text));
        match (column, &self.cells.header) {
            (CsvColumn::Index(index), _) if *index < self.cells.width => Ok(*index),
            (CsvColumn::Index(index), _) => refuse(format!(
                "there is no column {index}: rows have {} cells, counted from 0",
                self.cells.width
            )),
            (CsvColumn::Name(name), None) => {
                refuse(format!("there is no header row with a column `{name}`: columns have numbers"))
            }
            (CsvColumn::Name(name), Some(header)) => {
                let mut all = header.iter().enumerate().filter(|(_, known)| *known == name);
                match (all.next(), all.next()) {
                    (Some((index, _)), None) => Ok(index),
                    (None, _) => {
                        let hint = did_you_mean(name, header.iter().map(String::as_str));
                        refuse(format!("there is no column `{name}`{hint}"))
                    }
                    _ => refuse(format!("two columns have the name `{name}`")),
                }
            }
        }
    }

    /// A cell of a row, by the number of its column.
    pub(super) fn cell(&self, row: usize, column: usize) -> CsvCell<'_> {
        CsvCell { cells: &self.cells, row: self.rows.get(row).copied().unwrap_or(usize::MAX), column }
    }
}

/// A cell of a file.
#[derive(Clone, Copy)]
pub(super) struct CsvCell<'a> {
    cells: &'a CsvCells,
    row: usize,
    column: usize,
}

impl<'a> CsvCell<'a> {
    /// The text, without spaces around it.
    pub(super) fn text(self) -> &'a str {
        let end = self.row.saturating_mul(self.cells.width).saturating_add(self.column);
        let start = match end.checked_sub(1) {
            Some(before) => self.cells.ends.get(before).copied(),
            None => Some(0),
        };
        let range = start.zip(self.cells.ends.get(end).copied()).map(|(start, end)| start..end);
        range.and_then(|range| self.cells.text.get(range)).unwrap_or_default()
    }

    pub(super) fn is_missing(self) -> bool {
        self.cells.missing.iter().any(|missing| missing == self.text())
    }

    /// The error of a cell that is not what is expected there.
    pub(super) fn refuse(self, expected: &str) -> Error {
        self.error(format!("`{}` is not {expected}", self.text()))
    }

    /// The error of a missing cell; `remedy` says how it can be accepted.
    pub(super) fn refuse_missing(self, remedy: &str) -> Error {
        self.error(format!("`{}` is a missing cell: `drop_missing` leaves its row out{remedy}", self.text()))
    }

    fn error(self, text: String) -> Error {
        let line = self.cells.lines.get(self.row).copied().unwrap_or_default();
        let header = self.cells.header.as_ref().and_then(|header| header.get(self.column));
        let column = header.map_or_else(|| self.column.to_string(), |name| format!("`{name}`"));
        Error::new(ErrorKind::Format, format!("line {line}, column {column}: {text}"))
    }
}
