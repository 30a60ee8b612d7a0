//! The description of fields by the columns of CSV files.

use std::{io::Read, path::Path};

use autobwd_core::{Error, ErrorKind, Result};

use super::{
    category::CategoryColumn,
    encoder::{CsvEncoder, FieldEncoding, FloatEncoding, IntegerEncoding, read_text},
    number::NumberColumn,
    table::{CsvColumn, CsvFormat, CsvTable},
};
use crate::TensorDataset;

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
///
/// Columns that are added to a field of the same name follow its columns. What columns learn, such as the mean of a
/// column or the classes of a text, comes from the rows that [`fit`](CsvColumns::fit) is given:
///
/// ```
/// use autobwd_data::{CsvColumns, Fill, NumberColumn, Scaling};
///
/// let file = "length,colour,species\n5.1,red,a\nNA,blue,a\n7.0,red,b\n6.0,red,b\n5.5,blue,a\n";
/// let columns = CsvColumns::new()
///     .numbers("x", [NumberColumn::new("length").fill(Fill::Mean).scale(Scaling::Standard)])
///     .one_hot("x", "colour")
///     .categories("y", "species");
/// let (train, test) = columns.parse_table(file.as_bytes())?.split(0.6, 1)?;
/// let encoder = columns.fit(&train)?;
/// let (train, test) = (encoder.encode(&train)?, encoder.encode(&test)?);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CsvColumns {
    format: CsvFormat,
    columns: Vec<(String, ColumnKind)>,
}

/// A column of a field.
#[derive(Clone, Debug)]
enum ColumnKind {
    Number(NumberColumn),
    OneHot(CategoryColumn),
    Integer(CsvColumn),
    Category(CategoryColumn),
}

/// Names and numbers of columns stand for these columns as they are.
macro_rules! plain_columns {
    ($($of:ident: $($from:ty),*;)*) => {
        $($(impl From<$from> for $of {
            fn from(column: $from) -> $of {
                $of::new(column)
            }
        })*)*
    };
}
plain_columns! {
    NumberColumn: &str, String, usize, CsvColumn;
    CategoryColumn: &str, String, usize, CsvColumn;
}

impl CsvColumns {
    /// No columns yet, of a file with a header row and commas between cells.
    pub fn new() -> CsvColumns {
        CsvColumns::default()
    }

    fn column(mut self, field: &str, column: ColumnKind) -> CsvColumns {
        self.columns.push((field.into(), column));
        self
    }

    /// A field of finite numbers, float32 `[n, columns]`.
    #[must_use]
    pub fn numbers<C: Into<NumberColumn>>(
        self,
        field: &str,
        columns: impl IntoIterator<Item = C>,
    ) -> CsvColumns {
        let columns = columns.into_iter().map(Into::into);
        columns.fold(self, |all, column| all.column(field, ColumnKind::Number(column)))
    }

    /// A field of integers, such as labels: int64 `[n, columns]`.
    #[must_use]
    pub fn integers<C: Into<CsvColumn>>(
        self,
        field: &str,
        columns: impl IntoIterator<Item = C>,
    ) -> CsvColumns {
        let columns = columns.into_iter().map(Into::into);
        columns.fold(self, |all, column| all.column(field, ColumnKind::Integer(column)))
    }

    /// A field of labels, int64 `[n, 1]`: the position of the cell's text among `classes`.
    #[must_use]
    pub fn classes(self, field: &str, column: impl Into<CsvColumn>, classes: &[&str]) -> CsvColumns {
        self.categories(field, CategoryColumn::new(column).classes(classes))
    }

    /// A field of labels, int64 `[n, 1]`: the number of the cell's text among the sorted texts of the training data.
    #[must_use]
    pub fn categories(self, field: &str, column: impl Into<CategoryColumn>) -> CsvColumns {
        self.column(field, ColumnKind::Category(column.into()))
    }

    /// A field of categories, float32 `[n, classes]`: 1 in the column of the cell's class, 0 in the others.
    #[must_use]
    pub fn one_hot(self, field: &str, column: impl Into<CategoryColumn>) -> CsvColumns {
        self.column(field, ColumnKind::OneHot(column.into()))
    }

    /// Whether the first row has the names of the columns; it has by default.
    #[must_use]
    pub fn header(mut self, header: bool) -> CsvColumns {
        self.format.header = header;
        self
    }

    /// The character between cells, such as `b';'` or `b'\t'`.
    #[must_use]
    pub fn delimiter(mut self, delimiter: u8) -> CsvColumns {
        self.format.delimiter = delimiter;
        self
    }

    /// The texts of missing cells: empty, `NA`, `NaN`, `nan` and `?` by default.
    #[must_use]
    pub fn missing(mut self, texts: &[&str]) -> CsvColumns {
        self.format.missing = texts.iter().map(ToString::to_string).collect();
        self
    }

    /// The rows of a file, to split them before columns learn from the training data.
    ///
    /// # Errors
    /// Failures of the file system; the errors of [`parse_table`](CsvColumns::parse_table), with the path; a file of more
    /// than 16 GiB.
    pub fn table(&self, path: impl AsRef<Path>) -> Result<CsvTable> {
        read_text(path.as_ref(), |text| self.parse_table(text))
    }

    /// The rows of a text. A line without characters is no row, even where the only cell may be missing.
    ///
    /// # Errors
    /// A text that is not CSV, or has rows of different lengths; no rows.
    pub fn parse_table(&self, text: impl Read) -> Result<CsvTable> {
        self.format.parse(text)
    }

    /// Learns classes, fills and scales from the training data.
    ///
    /// # Errors
    /// An unknown column, or one whose name occurs twice; a cell that is no number, or missing without a fill, in a column
    /// that is scaled or filled; a column without numbers or classes; classes that are given twice, or more than 4,096 for
    /// [`one_hot`](CsvColumns::one_hot); a field of float32 and int64 columns; no rows.
    pub fn fit(&self, table: &CsvTable) -> Result<CsvEncoder> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Data, text));
        if table.is_empty() {
            return refuse("there are no rows to learn from".into());
        }
        let mut fields: Vec<FieldEncoding> = vec![];
        for (name, column) in &self.columns {
            let column = match column {
                ColumnKind::Number(column) => FloatEncoding::Number(column.fit(table)?).into(),
                ColumnKind::OneHot(column) => FloatEncoding::OneHot(column.fit(table)?).into(),
                ColumnKind::Integer(column) => IntegerEncoding::Integer(column.clone()).into(),
                ColumnKind::Category(column) => IntegerEncoding::Category(column.fit(table)?).into(),
            };
            match fields.iter_mut().find(|field| field.name == *name) {
                None => fields.push(FieldEncoding { name: name.clone(), columns: column }),
                Some(field) => {
                    if !field.columns.append(column) {
                        let text = "has columns of float32 and of int64, which need a field each";
                        return refuse(format!("field `{name}` {text}"));
                    }
                }
            }
        }
        CsvEncoder::new(self.format.clone(), fields)
    }

    /// The data set of a file, whose columns learn from it.
    ///
    /// # Errors
    /// Failures of the file system; the errors of [`parse`](CsvColumns::parse), with the path; a file of more than 16 GiB.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<TensorDataset> {
        read_text(path.as_ref(), |text| self.parse(text))
    }

    /// The data set of a text, whose columns learn from it.
    ///
    /// # Errors
    /// The errors of [`parse_table`](CsvColumns::parse_table) and [`fit`](CsvColumns::fit); a cell that is no number, not
    /// finite, missing, or no class: each with its line and its column; the errors of [`TensorDataset::new`].
    pub fn parse(&self, text: impl Read) -> Result<TensorDataset> {
        let table = self.parse_table(text)?;
        self.fit(&table)?.encode(&table)
    }
}
