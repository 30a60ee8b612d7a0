//! Columns of CSV files as fields of a data set.

use std::{
    fmt::Display,
    io::{BufReader, Read},
    path::Path,
};

use autobwd_core::{__private::did_you_mean, Error, ErrorKind, Result, Tensor, tensor::open_file};
use csv::{ReaderBuilder, StringRecord, Trim};

use crate::TensorDataset;

/// The largest file that is read, in bytes.
const LIMIT: u64 = 1 << 34;

/// A column of a CSV file: a name of its header row, or a number that counts from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The columns of a CSV file that make the fields of a data set. Each row is an example.
///
/// ```
/// use autobwd_data::{CsvColumns, Dataset};
///
/// let file = "length,width,species\n5.1,3.5,setosa\n7.0,3.2,versicolor\n";
/// let columns = CsvColumns::new()
///     .numbers("x", ["length", "width"])
///     .classes("y", "species", &["setosa", "versicolor", "virginica"]);
/// let batch = columns.parse(file.as_bytes())?.batch(&[1])?;
/// assert_eq!(batch.get("x")?.slice::<f32>()?, [7.0, 3.2]);
/// assert_eq!(batch.get("y")?.slice::<i64>()?, [1]);
///
/// // Without a header row, columns have numbers.
/// let columns = CsvColumns::new().header(false).numbers("pixels", 0..2).integers("label", [2]);
/// assert_eq!(columns.parse("0.5,0.25,7\n".as_bytes())?.len(), 1);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CsvColumns {
    fields: Vec<CsvField>,
    header: bool,
    delimiter: u8,
}

#[derive(Clone, Debug)]
enum CellType {
    Number,
    Integer,
    /// One of these texts.
    Class(Vec<String>),
}

impl Default for CsvColumns {
    fn default() -> CsvColumns {
        CsvColumns { fields: vec![], header: true, delimiter: b',' }
    }
}

impl CsvColumns {
    /// No columns yet, of a file with a header row and commas between cells.
    pub fn new() -> CsvColumns {
        CsvColumns::default()
    }

    fn field<C: Into<CsvColumn>>(
        mut self,
        field: &str,
        columns: impl IntoIterator<Item = C>,
        cells: CellType,
    ) -> CsvColumns {
        let columns = columns.into_iter().map(Into::into).collect();
        self.fields.push(CsvField { name: field.into(), columns, cells });
        self
    }

    /// A field of finite numbers, float32 `[n, columns]`.
    #[must_use]
    pub fn numbers<C: Into<CsvColumn>>(
        self,
        field: &str,
        columns: impl IntoIterator<Item = C>,
    ) -> CsvColumns {
        self.field(field, columns, CellType::Number)
    }

    /// A field of integers, such as labels: int64 `[n, columns]`.
    #[must_use]
    pub fn integers<C: Into<CsvColumn>>(
        self,
        field: &str,
        columns: impl IntoIterator<Item = C>,
    ) -> CsvColumns {
        self.field(field, columns, CellType::Integer)
    }

    /// A field of labels, int64 `[n, 1]`: the position of the cell's text among `classes`.
    #[must_use]
    pub fn classes(self, field: &str, column: impl Into<CsvColumn>, classes: &[&str]) -> CsvColumns {
        let classes = classes.iter().map(ToString::to_string).collect();
        self.field(field, [column], CellType::Class(classes))
    }

    /// Whether the first row has the names of the columns; it has by default.
    #[must_use]
    pub fn header(self, header: bool) -> CsvColumns {
        CsvColumns { header, ..self }
    }

    /// The character between cells, such as `b';'` or `b'\t'`.
    #[must_use]
    pub fn delimiter(self, delimiter: u8) -> CsvColumns {
        CsvColumns { delimiter, ..self }
    }

    /// The data set of a file.
    ///
    /// # Errors
    /// Failures of the file system; the errors of [`parse`](CsvColumns::parse), with the path; a file of more than 16 GiB.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<TensorDataset> {
        let path = path.as_ref();
        let file = open_file(path, LIMIT)?;
        self.parse(BufReader::new(file))
            .map_err(|e| Error::new(e.kind(), format!("`{}`: {e}", path.display())).caused_by(e))
    }

    /// The data set of a text.
    ///
    /// # Errors
    /// A text that is not CSV, or has rows of different lengths; an unknown column, or one whose name occurs twice; a
    /// cell that is no number, not finite, or no class: each with its line, and its column counted from 0; no rows.
    /// The errors of [`TensorDataset::new`].
    pub fn parse(&self, text: impl Read) -> Result<TensorDataset> {
        let format = |e: &dyn Display| Error::new(ErrorKind::Format, e.to_string());
        let mut reader = ReaderBuilder::new();
        reader.has_headers(self.header).delimiter(self.delimiter).trim(Trim::All);
        let mut reader = reader.from_reader(text);
        let header = reader.headers().map_err(|e| format(&e))?.clone();
        // Without a header row, this is the first row of cells.
        let names = self.header.then_some(&header);
        let fields = self.fields.iter().map(|field| field.resolve(names, header.len()));
        let mut fields = fields.collect::<Result<Vec<_>>>()?;
        let (mut row, mut rows) = (StringRecord::new(), 0);
        while reader.read_record(&mut row).map_err(|e| format(&e))? {
            for field in &mut fields {
                field.push(&row)?;
            }
            rows += 1;
        }
        if rows == 0 {
            return Err(format(&"there are no rows"));
        }
        TensorDataset::new(
            fields.into_iter().map(|field| field.into_tensor(rows)).collect::<Result<Vec<_>>>()?,
        )
    }
}

/// A field as the user describes it.
#[derive(Clone, Debug)]
struct CsvField {
    name: String,
    columns: Vec<CsvColumn>,
    cells: CellType,
}

impl CsvField {
    /// Finds the columns in a file with this header, or with that many cells in a row.
    fn resolve(&self, header: Option<&StringRecord>, width: usize) -> Result<CsvCells<'_>> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Format, text));
        let index = |column: &CsvColumn| match (column, header) {
            (CsvColumn::Index(index), _) if *index < width => Ok(*index),
            (CsvColumn::Index(index), _) => {
                refuse(format!("there is no column {index}: rows have {width} cells, counted from 0"))
            }
            (CsvColumn::Name(name), None) => {
                refuse(format!("there is no header row with a column `{name}`: columns have numbers"))
            }
            (CsvColumn::Name(name), Some(header)) => {
                let mut all = header.iter().enumerate().filter(|(_, known)| known == name);
                match (all.next(), all.next()) {
                    (Some((index, _)), None) => Ok(index),
                    (None, _) => {
                        refuse(format!("there is no column `{name}`{}", did_you_mean(name, header.iter())))
                    }
                    _ => refuse(format!("two columns have the name `{name}`")),
                }
            }
        };
        let indices = self.columns.iter().map(index).collect::<Result<_>>()?;
        let values = match &self.cells {
            CellType::Number => CellValues::Numbers(vec![]),
            CellType::Integer => CellValues::Integers(vec![]),
            CellType::Class(classes) => CellValues::Classes(classes, vec![]),
        };
        Ok(CsvCells { field: self, indices, values })
    }
}

/// The cells of a field, row by row.
struct CsvCells<'a> {
    field: &'a CsvField,
    indices: Vec<usize>,
    values: CellValues<'a>,
}

enum CellValues<'a> {
    Numbers(Vec<f32>),
    Integers(Vec<i64>),
    /// Positions among the classes.
    Classes(&'a [String], Vec<i64>),
}

impl CsvCells<'_> {
    fn push(&mut self, row: &StringRecord) -> Result<()> {
        for index in &self.indices {
            let cell = row.get(*index).unwrap_or_default();
            let expected = match &mut self.values {
                CellValues::Numbers(all) => match cell.parse() {
                    Ok(number) if f32::is_finite(number) => {
                        all.push(number);
                        continue;
                    }
                    _ => "a finite number".into(),
                },
                CellValues::Integers(all) => match cell.parse() {
                    Ok(number) => {
                        all.push(number);
                        continue;
                    }
                    Err(_) => "an integer".into(),
                },
                CellValues::Classes(classes, all) => match classes.iter().position(|class| class == cell) {
                    Some(class) => {
                        all.push(class as i64);
                        continue;
                    }
                    None => format!("one of {}", classes.join(", ")),
                },
            };
            let line = row.position().map_or(0, csv::Position::line);
            let text = format!("line {line}, column {index}: `{cell}` is not {expected}");
            return Err(Error::new(ErrorKind::Format, text));
        }
        Ok(())
    }

    fn into_tensor(self, rows: usize) -> Result<(String, Tensor)> {
        let dims = [rows, self.indices.len()];
        let tensor = match self.values {
            CellValues::Numbers(all) => Tensor::from_vec(dims, all)?,
            CellValues::Integers(all) | CellValues::Classes(_, all) => Tensor::from_vec(dims, all)?,
        };
        Ok((self.field.name.clone(), tensor))
    }
}
