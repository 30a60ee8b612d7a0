//! Columns of categories: the classes of a column, learned from the training data or given.

use std::collections::{BTreeSet, HashMap};

use autobwd_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::table::{CsvColumn, CsvTable};

/// The most classes of a column that becomes a column for each.
const ONE_HOT_LIMIT: usize = 4096;
/// The name of the class of all other texts.
const OTHER: &str = "other";

/// A column of categories, for [`CsvColumns::categories`](crate::CsvColumns::categories) and
/// [`CsvColumns::one_hot`](crate::CsvColumns::one_hot), which also take the name or number of a column.
///
/// ```
/// use autobwd_data::{CategoryColumn, CsvColumns, Dataset};
///
/// let columns = CsvColumns::new().categories("city", CategoryColumn::new("city").other());
/// let train = columns.parse_table("city\nParis\nLima\nParis\n".as_bytes())?;
/// let encoder = columns.fit(&train)?;
/// assert_eq!(encoder.classes("city")?, ["Lima", "Paris", "other"]);
/// let test = encoder.parse("city\nOslo\nParis\n".as_bytes())?;
/// assert_eq!(test.all()?.get("city")?.slice::<i64>()?, [2, 1]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CategoryColumn {
    column: CsvColumn,
    /// The classes, unless they are learned.
    classes: Option<Vec<String>>,
    has_other: bool,
}

impl CategoryColumn {
    /// The classes are the texts of the column in the training data, sorted. A missing cell and an unknown class are
    /// errors.
    pub fn new(column: impl Into<CsvColumn>) -> CategoryColumn {
        CategoryColumn { column: column.into(), classes: None, has_other: false }
    }

    /// The classes, in the order of their numbers, instead of learning them.
    #[must_use]
    pub fn classes(self, classes: &[&str]) -> CategoryColumn {
        CategoryColumn { classes: Some(classes.iter().map(ToString::to_string).collect()), ..self }
    }

    /// Adds a last class, `other`, to which missing cells and unknown classes belong.
    #[must_use]
    pub fn other(self) -> CategoryColumn {
        CategoryColumn { has_other: true, ..self }
    }

    /// Learns the classes from the training data, unless they are given.
    pub(super) fn fit(&self, table: &CsvTable) -> Result<CategoryEncoding> {
        let column = table.index(&self.column)?;
        let learn = || -> Vec<String> {
            let cells = (0..table.len()).map(|row| table.cell(row, column));
            let texts = cells.filter(|cell| !cell.is_missing()).map(|cell| cell.text());
            BTreeSet::from_iter(texts).into_iter().map(String::from).collect()
        };
        let classes = self.classes.clone().unwrap_or_else(learn);
        let encoding = CategoryEncoding { column: self.column.clone(), classes, has_other: self.has_other };
        encoding.check()?;
        Ok(encoding)
    }
}

/// A column of categories with its classes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CategoryEncoding {
    column: CsvColumn,
    classes: Vec<String>,
    has_other: bool,
}

impl CategoryEncoding {
    /// Checks classes that were given, or read from a file.
    pub(super) fn check(&self) -> Result<()> {
        let mut known = BTreeSet::new();
        match self.classes.iter().find(|class| !known.insert(class.as_str())) {
            Some(class) => Err(self.refuse(format!("the class `{class}` occurs twice"))),
            None if self.class_count() == 0 => Err(self.refuse("there are no classes".into())),
            None => Ok(()),
        }
    }

    /// Checks that the classes can be a column each.
    pub(super) fn check_one_hot(&self) -> Result<()> {
        let n = self.class_count();
        if n <= ONE_HOT_LIMIT {
            return Ok(());
        }
        let instead = "`categories` and an embedding take any number";
        Err(self.refuse(format!("{n} classes are more than the {ONE_HOT_LIMIT} of `one_hot`: {instead}")))
    }

    fn refuse(&self, text: String) -> Error {
        Error::new(ErrorKind::Data, format!("column `{}`: {text}", self.column))
    }

    /// The name of the column.
    pub(super) fn name(&self) -> String {
        self.column.to_string()
    }

    /// The names of the classes, by number.
    pub(super) fn class_names(&self) -> Vec<&str> {
        self.classes.iter().map(String::as_str).chain(self.has_other.then_some(OTHER)).collect()
    }

    fn class_count(&self) -> usize {
        self.classes.len() + usize::from(self.has_other)
    }

    /// The names of the columns for the classes.
    pub(super) fn one_hot_features(&self) -> Vec<String> {
        self.class_names().into_iter().map(|class| format!("{}={class}", self.column)).collect()
    }

    /// A function from a row to its class.
    fn reader<'a>(&'a self, table: &'a CsvTable) -> Result<impl Fn(usize) -> Result<usize> + 'a> {
        let column = table.index(&self.column)?;
        let numbers = self.classes.iter().enumerate().map(|(number, class)| (class.as_str(), number));
        let numbers: HashMap<&str, usize> = numbers.collect();
        Ok(move |row: usize| {
            let cell = table.cell(row, column);
            match numbers.get(cell.text()) {
                Some(class) => Ok(*class),
                None if self.has_other => Ok(self.classes.len()),
                None if cell.is_missing() => {
                    Err(cell.refuse_missing(", `CategoryColumn::other` makes it a class"))
                }
                None => Err(cell.refuse(&one_of(&self.classes))),
            }
        })
    }

    /// A function that appends the number of the class of a row.
    pub(super) fn writer<'a>(
        &'a self,
        table: &'a CsvTable,
    ) -> Result<impl Fn(usize, &mut Vec<i64>) -> Result<()> + 'a> {
        let class = self.reader(table)?;
        Ok(move |row: usize, numbers: &mut Vec<i64>| {
            numbers.push(class(row)? as i64);
            Ok(())
        })
    }

    /// A function that appends a number for each class of a row: 1 for its class, else 0.
    pub(super) fn one_hot_writer<'a>(
        &'a self,
        table: &'a CsvTable,
    ) -> Result<impl Fn(usize, &mut Vec<f32>) -> Result<()> + 'a> {
        let class = self.reader(table)?;
        Ok(move |row: usize, numbers: &mut Vec<f32>| {
            let class = class(row)?;
            numbers.extend((0..self.class_count()).map(|k| f32::from(u8::from(k == class))));
            Ok(())
        })
    }
}

/// What is expected, with the first classes by name.
fn one_of(classes: &[String]) -> String {
    const NAMED: usize = 10;
    let named: Vec<&str> = classes.iter().take(NAMED).map(String::as_str).collect();
    let more = match classes.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("one of {}{more}", named.join(", "))
}
