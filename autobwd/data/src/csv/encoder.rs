//! The encoder of tables: fields of tensors from rows of text, with what was learned from the training data.

use std::{
    fmt,
    io::{BufReader, Read},
    path::Path,
};

use autobwd_core::{
    __private::did_you_mean,
    Element, Error, ErrorKind, Result, Tensor,
    tensor::{open_file, read_file, write_atomically},
};
use serde::{Deserialize, Serialize};

use super::{
    category::CategoryEncoding,
    number::NumberEncoding,
    table::{CsvColumn, CsvFormat, CsvTable},
};
use crate::TensorDataset;

/// The largest table that is read, in bytes.
const TABLE_LIMIT: u64 = 1 << 34;
/// The largest file of an encoder that is read, in bytes.
const LIMIT: u64 = 1 << 28;
/// The version of the format of such files.
const VERSION: u32 = 1;

/// Fields of tensors from rows of tables, with what [`CsvColumns::fit`](crate::CsvColumns::fit) learned from the training
/// data: classes, fills, scales. So test data and the rows of requests are encoded as the training data are.
///
/// ```
/// use autobwd_data::{CsvColumns, CsvEncoder, Dataset, NumberColumn, Scaling};
///
/// let columns = CsvColumns::new()
///     .numbers("x", [NumberColumn::new("length").scale(Scaling::MinMax)])
///     .one_hot("x", "colour")
///     .categories("y", "species");
/// let train = "length,colour,species\n2,red,b\n4,blue,a\n6,red,b\n";
/// let encoder = columns.fit(&columns.parse_table(train.as_bytes())?)?;
/// assert_eq!(encoder.features("x")?, ["length", "colour=blue", "colour=red"]);
/// assert_eq!(encoder.classes("y")?, ["a", "b"]);
///
/// // A request has no species. The file is saved next to the weights.
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("encoder.json");
/// encoder.select(&["x"])?.save(&path)?;
/// let request = CsvEncoder::load(&path)?.parse("colour,length\nblue,3\n".as_bytes())?;
/// assert_eq!(request.all()?.get("x")?.slice::<f32>()?, [0.25, 1.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CsvEncoder {
    version: u32,
    format: CsvFormat,
    fields: Vec<FieldEncoding>,
}

/// A field with its columns.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FieldEncoding {
    pub(super) name: String,
    pub(super) columns: ColumnEncodings,
}

/// The columns of a field, by the dtype of their elements.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ColumnEncodings {
    Floats(Vec<FloatEncoding>),
    Integers(Vec<IntegerEncoding>),
}

impl From<FloatEncoding> for ColumnEncodings {
    fn from(column: FloatEncoding) -> ColumnEncodings {
        ColumnEncodings::Floats(vec![column])
    }
}
impl From<IntegerEncoding> for ColumnEncodings {
    fn from(column: IntegerEncoding) -> ColumnEncodings {
        ColumnEncodings::Integers(vec![column])
    }
}

impl ColumnEncodings {
    /// Adds columns, unless their elements have another dtype; whether it did.
    pub(super) fn append(&mut self, more: ColumnEncodings) -> bool {
        match (self, more) {
            (ColumnEncodings::Floats(columns), ColumnEncodings::Floats(more)) => columns.extend(more),
            (ColumnEncodings::Integers(columns), ColumnEncodings::Integers(more)) => columns.extend(more),
            _ => return false,
        }
        true
    }
}

/// A column that becomes float32 numbers.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FloatEncoding {
    Number(NumberEncoding),
    OneHot(CategoryEncoding),
}

/// A column that becomes int64 numbers.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum IntegerEncoding {
    Integer(CsvColumn),
    Category(CategoryEncoding),
}

/// A function that appends the elements of a row.
type Writer<'a, T> = Box<dyn Fn(usize, &mut Vec<T>) -> Result<()> + 'a>;

impl FloatEncoding {
    fn check(&self) -> Result<()> {
        match self {
            FloatEncoding::Number(number) => number.check(),
            FloatEncoding::OneHot(category) => category.check().and_then(|()| category.check_one_hot()),
        }
    }

    fn features(&self) -> Vec<String> {
        match self {
            FloatEncoding::Number(number) => number.features(),
            FloatEncoding::OneHot(category) => category.one_hot_features(),
        }
    }

    fn writer<'a>(&'a self, table: &'a CsvTable) -> Result<Writer<'a, f32>> {
        Ok(match self {
            FloatEncoding::Number(number) => Box::new(number.writer(table)?),
            FloatEncoding::OneHot(category) => Box::new(category.one_hot_writer(table)?),
        })
    }
}

impl IntegerEncoding {
    fn check(&self) -> Result<()> {
        match self {
            IntegerEncoding::Integer(_) => Ok(()),
            IntegerEncoding::Category(category) => category.check(),
        }
    }

    fn name(&self) -> String {
        match self {
            IntegerEncoding::Integer(column) => column.to_string(),
            IntegerEncoding::Category(category) => category.name(),
        }
    }

    fn writer<'a>(&'a self, table: &'a CsvTable) -> Result<Writer<'a, i64>> {
        Ok(match self {
            IntegerEncoding::Integer(column) => {
                let column = table.index(column)?;
                Box::new(move |row, numbers| {
                    let cell = table.cell(row, column);
                    let number = cell.text().parse().map_err(|_| match cell.is_missing() {
                        true => cell.refuse_missing(""),
                        false => cell.refuse("an integer"),
                    });
                    numbers.push(number?);
                    Ok(())
                })
            }
            IntegerEncoding::Category(category) => Box::new(category.writer(table)?),
        })
    }
}

impl FieldEncoding {
    fn check(&self) -> Result<()> {
        match &self.columns {
            ColumnEncodings::Floats(columns) => columns.iter().try_for_each(FloatEncoding::check),
            ColumnEncodings::Integers(columns) => columns.iter().try_for_each(IntegerEncoding::check),
        }
    }

    fn features(&self) -> Vec<String> {
        match &self.columns {
            ColumnEncodings::Floats(columns) => columns.iter().flat_map(FloatEncoding::features).collect(),
            ColumnEncodings::Integers(columns) => columns.iter().map(IntegerEncoding::name).collect(),
        }
    }

    fn encode(&self, table: &CsvTable) -> Result<Tensor> {
        let dims = [table.len(), self.features().len()];
        match &self.columns {
            ColumnEncodings::Floats(columns) => {
                tensor(dims, columns.iter().map(|column| column.writer(table)).collect::<Result<_>>()?)
            }
            ColumnEncodings::Integers(columns) => {
                tensor(dims, columns.iter().map(|column| column.writer(table)).collect::<Result<_>>()?)
            }
        }
    }
}

/// The rows of a field.
fn tensor<T: Element>(dims: [usize; 2], writers: Vec<Writer<'_, T>>) -> Result<Tensor> {
    let [rows, columns] = dims;
    let mut elements = vec![];
    if elements.try_reserve_exact(rows.saturating_mul(columns)).is_err() {
        let text = format!("{rows} rows of {columns} numbers exceed the memory");
        return Err(Error::new(ErrorKind::OutOfMemory, text));
    }
    for row in 0..rows {
        writers.iter().try_for_each(|writer| writer(row, &mut elements))?;
    }
    Tensor::from_vec(dims, elements)
}

impl CsvEncoder {
    /// An encoder of these fields.
    ///
    /// # Errors
    /// Numbers that are not finite, classes that occur twice, too many classes.
    pub(super) fn new(format: CsvFormat, fields: Vec<FieldEncoding>) -> Result<CsvEncoder> {
        fields.iter().try_for_each(FieldEncoding::check)?;
        Ok(CsvEncoder { version: VERSION, format, fields })
    }

    /// The data set of a table.
    ///
    /// # Errors
    /// The errors of [`CsvColumns::parse`](crate::CsvColumns::parse), except for faults in the format of CSV; a class that the
    /// training data do not have; not enough memory.
    pub fn encode(&self, table: &CsvTable) -> Result<TensorDataset> {
        let fields = self.fields.iter().map(|field| Ok((&*field.name, field.encode(table)?)));
        TensorDataset::new(fields.collect::<Result<Vec<_>>>()?)
    }

    /// The data set of a file.
    ///
    /// # Errors
    /// Failures of the file system; the errors of [`parse`](CsvEncoder::parse), with the path; a file of more than 16 GiB.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<TensorDataset> {
        read_text(path.as_ref(), |text| self.parse(text))
    }

    /// The data set of a text.
    ///
    /// # Errors
    /// A text that is not CSV; the errors of [`encode`](CsvEncoder::encode).
    pub fn parse(&self, text: impl Read) -> Result<TensorDataset> {
        self.encode(&self.format.parse(text)?)
    }

    /// The encoder of some of the fields, such as the inputs of a model without its labels.
    ///
    /// # Errors
    /// An unknown field.
    pub fn select(&self, fields: &[&str]) -> Result<CsvEncoder> {
        let fields = fields.iter().map(|name| self.field(name).cloned()).collect::<Result<_>>()?;
        CsvEncoder::new(self.format.clone(), fields)
    }

    /// The names of a field's columns: `length`, `length is missing`, `colour=red`. Their number is the width of the field.
    ///
    /// # Errors
    /// An unknown field.
    pub fn features(&self, field: &str) -> Result<Vec<String>> {
        Ok(self.field(field)?.features())
    }

    /// The names of the classes of a field, by number.
    ///
    /// # Errors
    /// An unknown field, or one that is not made by one call of
    /// [`CsvColumns::categories`](crate::CsvColumns::categories) or [`CsvColumns::classes`](crate::CsvColumns::classes).
    pub fn classes(&self, field: &str) -> Result<Vec<&str>> {
        if let ColumnEncodings::Integers(columns) = &self.field(field)?.columns
            && let [IntegerEncoding::Category(category)] = &columns[..]
        {
            return Ok(category.class_names());
        }
        let text = format!("field `{field}` has no classes: it is not one column of categories");
        Err(Error::new(ErrorKind::NoValue, text))
    }

    fn field(&self, name: &str) -> Result<&FieldEncoding> {
        self.fields.iter().find(|field| field.name == name).ok_or_else(|| {
            let hint = did_you_mean(name, self.fields.iter().map(|field| &*field.name));
            Error::new(ErrorKind::NoValue, format!("the encoder has no field `{name}`{hint}"))
        })
    }

    /// Writes the encoder as JSON, next to the weights of the model.
    ///
    /// # Errors
    /// Failures of the file system.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let json = serde_json::to_vec_pretty(self).map_err(|e| format_error(path, e))?;
        write_atomically(path, &json)
    }

    /// Reads an encoder, exactly as it was saved.
    ///
    /// # Errors
    /// Failures of the file system; a file that is no encoder, or one of another version.
    pub fn load(path: impl AsRef<Path>) -> Result<CsvEncoder> {
        let path = path.as_ref();
        let file = read_file(path, LIMIT)?;
        let found: CsvEncoder = serde_json::from_slice(&file).map_err(|e| format_error(path, e))?;
        if found.version != VERSION {
            let text = format!("it has version {}, not {VERSION}", found.version);
            return Err(format_error(path, Error::new(ErrorKind::Format, text)));
        }
        CsvEncoder::new(found.format, found.fields).map_err(|e| format_error(path, e))
    }
}

fn format_error(path: &Path, e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Format, format!("`{}` is no encoder: {e}", path.display())).caused_by(e)
}

/// What a function makes of the text of a file; errors name the path.
pub(super) fn read_text<T>(
    path: &Path,
    parse: impl FnOnce(BufReader<std::fs::File>) -> Result<T>,
) -> Result<T> {
    let file = open_file(path, TABLE_LIMIT)?;
    parse(BufReader::new(file))
        .map_err(|e| Error::new(e.kind(), format!("`{}`: {e}", path.display())).caused_by(e))
}

impl fmt::Debug for CsvEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields.iter().map(|field| (&field.name, field.features()));
        f.debug_map().entries(fields).finish()
    }
}
